"""What people have becomes examples; what is broken is refused with its file and line."""

import bz2
import gzip
import json
import lzma
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

from elmo.errors import ElmoError
from elmo.tasks.example_files import read_examples
from elmo.tasks.examples import Classified, Document, Link, Pair, Predicate, Question, Tagged

DATA = Path(os.environ.get("ELMO_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "tasks.md"


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    compress = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    compress[".zst"] = zstandard.ZstdCompressor(write_checksum=True).compress
    data = text.encode()
    path.write_bytes(compress[path.suffix](data) if path.suffix in compress else data)
    return path


CONLL_2003 = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
calls NNS I-NP O

Paris NNP I-NP I-LOC
London NNP I-NP B-LOC
. . O O
"""


def tagged(path: Path, **options: Any) -> list[tuple[tuple[str, ...], tuple[str, ...] | None]]:
    examples = read_examples("tagging", path, **options).examples
    return [(one.tokens, one.tags) for one in examples if isinstance(one, Tagged)]


def test_a_mark_of_a_document_drops_no_sentence(tmp_path: Path) -> None:
    """It opens a sentence, ends one, or stands between tabs where the tokens' columns do not."""
    text = "-DOCSTART- -X- O\nEva N B-PER\ngeht V O\n\nEs P O\n-DOCSTART- O\nKiel N B-LOC\n"
    sentences = [(("Eva", "geht"), ("S-PER", "O")), (("Es",), ("O",)), (("Kiel",), ("S-LOC",))]
    assert tagged(written(tmp_path, "x.conll", text)) == sentences
    text = text.replace(" ", "\t").replace("-DOCSTART-\t-X-\tO", "-DOCSTART- -X- O")
    assert tagged(written(tmp_path, "y.conll", text)) == sentences
    roles = f"-DOCSTART-\n{PROPBANK}"
    assert len(read_examples("roles", written(tmp_path, "x.props", roles)).examples) == 2


@pytest.mark.parametrize(
    "text",
    [
        "# id 3f\tdomain=dev\neva _ _ B-PER\ngeht _ _ O\n\n# id 4f\tdomain=dev\nkiel _ _ B-LOC\n",
        "#\thttp://example.org\t[2011-01-02]\n1\teva\tO\tB-PER\n2\tgeht\tO\tO\n\n"
        "#\thttp://example.org\t[2011-01-03]\n1\tkiel\tO\tB-LOC\n",
        "# newdoc\neva\tB-PER\ngeht\tO\n\n# id 4\tx\nkiel\tB-LOC\n",
        "# one of two\n# two = three\neva B-PER\ngeht O\n\n# one two three\nkiel B-LOC\n",
    ],
    ids=["a tab between spaces", "fewer columns", "a tab in a comment", "spaces"],
)
def test_comments_are_no_tokens(tmp_path: Path, text: str) -> None:
    columns = {"word": "2"} if "\t1" in text or "\n1" in text else {}
    path = written(tmp_path, "x.conll", text)
    assert tagged(path, columns=columns) == [
        (("eva", "geht"), ("S-PER", "O")),
        (("kiel",), ("S-LOC",)),
    ]


@pytest.mark.parametrize("separator", ["\t", " "])
def test_a_hash_within_the_columns_is_a_token(tmp_path: Path, separator: str) -> None:
    rows = [("#kiel", "B-LOC"), ("#", "O")]
    text = "\n".join(separator.join(row) for row in [*rows, ("", ""), *rows[::-1]]).replace(
        f"\n{separator}\n", "\n\n"
    )
    assert tagged(written(tmp_path, "x.conll", text)) == [
        (("#kiel", "#"), ("S-LOC", "O")),
        (("#", "#kiel"), ("O", "S-LOC")),
    ]


@pytest.mark.parametrize("space", ["\u00a0", "\u3000", "\u2009", "\x85"])
def test_only_spaces_and_tabs_divide_columns(tmp_path: Path, space: str) -> None:
    text = f"5{space}km  O \n{space}Kiel\tB-LOC\n"
    words = (f"5{space}km", f"{space}Kiel")
    assert tagged(written(tmp_path, "x.conll", text.replace("\t", " "))) == [
        (words, ("O", "S-LOC"))
    ]
    text = text.replace("  O ", "\tO ")
    assert tagged(written(tmp_path, "y.conll", text)) == [(words, ("O", "S-LOC"))]


def test_a_tab_that_ends_every_row_begins_a_column(tmp_path: Path) -> None:
    text = "Eva\tB-PER\t\ngeht\tO\t\n\nKiel\tB-LOC\t\n"
    path = written(tmp_path, "x.conll", text)
    with pytest.raises(ElmoError, match="x.conll:1: a token has an empty tag.*--columns tag=2"):
        read_examples("tagging", path)
    sentences = [(("Eva", "geht"), ("S-PER", "O")), (("Kiel",), ("S-LOC",))]
    assert tagged(path, columns={"tag": "2"}) == sentences


def test_tags_of_plain_text_that_hold_an_o_are_remarked_on(tmp_path: Path) -> None:
    text = "Eva PER\ngeht O\n"
    labels = read_examples("tagging", written(tmp_path, "x.conll", text))
    assert labels.scheme == "plain" and "B-LABEL" in labels.remark
    assert read_examples("tagging", tmp_path / "x.conll", scheme="plain").remark == ""
    other = written(tmp_path, "y.conll", "Eva NOUN\ngeht VERB\n")
    assert read_examples("tagging", other).remark == ""
    segments = written(tmp_path, "z.conll", "a B\nb E\nc S\n")
    assert tagged(segments, scheme="plain") == [(("a", "b", "c"), ("B", "E", "S"))]


@pytest.mark.parametrize("labelled", [True, False])
def test_a_skeleton_without_words_is_refused(tmp_path: Path, labelled: bool) -> None:
    skeleton = re.sub("Ann|Lee|her|It|she", "[WORD]", COREFERENCE)
    with pytest.raises(ElmoError, match=r"x.conll: is a skeleton: its words are \[WORD\]"):
        read_examples("coreference", written(tmp_path, "x.conll", skeleton), labelled=labelled)
    with pytest.raises(ElmoError, match="is a skeleton"):
        read_examples("tagging", written(tmp_path, "y.conll", "[WORD] B-PER\n[WORD] O\n"))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-16-le"])
def test_utf_16_is_named(tmp_path: Path, encoding: str) -> None:
    for kind, name in (("tagging", "x.conll"), ("questions", "x.json"), ("pairs", "x.csv")):
        (tmp_path / name).write_bytes("Eva B-PER\n".encode(encoding))
        if encoding == "utf-16" or name != "x.json":
            with pytest.raises(ElmoError, match=f"{name}:?1?: .*UTF-16.*UTF-8"):
                read_examples(kind, tmp_path / name)


def test_conll_2003_is_read_as_iob1(tmp_path: Path) -> None:
    labels = read_examples("tagging", written(tmp_path, "eng.conll", CONLL_2003))
    assert labels.scheme == "iob1"
    assert labels.counts == {"document_marks": 1, "spans": 4, "sentences": 2, "tokens": 7}
    first, second = labels.examples
    assert isinstance(first, Tagged) and isinstance(second, Tagged)
    assert first.tokens == ("EU", "rejects", "German", "calls")
    assert first.tags == ("S-ORG", "O", "S-MISC", "O")
    assert second.tags == ("S-LOC", "S-LOC", "O")
    assert first.source.endswith("eng.conll:3")


@pytest.mark.parametrize(
    ("tags", "scheme", "bioes"),
    [
        ("B-A I-A O B-A", "bio", "B-A E-A O S-A"),
        ("I-A I-A B-A O I-B", "iob1", "B-A E-A S-A O S-B"),
        ("B-A I-A E-A S-B O", "bioes", "B-A I-A E-A S-B O"),
        ("B-A I-A L-A U-B O", "bioes", "B-A I-A E-A S-B O"),
        ("NOUN -LRB- O", "plain", "NOUN -LRB- O"),
        ("O O", "bio", "O O"),
    ],
)
def test_schemes_are_recognised_and_converted(
    tmp_path: Path, tags: str, scheme: str, bioes: str
) -> None:
    text = "".join(f"w\t{tag}\n" for tag in tags.split())
    labels = read_examples("tagging", written(tmp_path, "x.conll.gz", text))
    assert labels.scheme == scheme
    assert [e.tags for e in labels.examples if isinstance(e, Tagged)] == [tuple(bioes.split())]


def test_columns_by_number_and_a_hash_that_is_a_token(tmp_path: Path) -> None:
    text = "# sent_id = 1\n1\t#\tO\t-\n2\tRome\tB-LOC\n\n"
    (example,) = read_examples("tagging", written(tmp_path, "x.iob2", text)).examples
    assert isinstance(example, Tagged)
    assert (example.tokens, example.tags) == (("#", "Rome"), ("O", "S-LOC"))


CONLLU = """# text = dámelo
1-2\tdámelo\t_\t_\t_\t_\t_\t_\t_\t_
1\tda\tdar\tVERB\t_\t_\t0\troot\t_\tNER=O|A=b
2\tme\tyo\tPRON\t_\t_\t1\tobj\t_\tNER=B-PER

1\tx\t_\t_\t_\t_\t_\t_\t_\tNER=O
"""


def test_conllu_by_name_and_by_a_key_of_misc(tmp_path: Path) -> None:
    path = written(tmp_path, "x.conllu", CONLLU)
    labels = read_examples("tagging", path)
    (example,) = labels.examples
    assert isinstance(example, Tagged) and example.tags == ("VERB", "PRON")
    assert labels.counts["ranges_and_empty_nodes"] == 1
    assert labels.counts["dropped_without_tags"] == 1
    named = read_examples("tagging", path, columns={"tag": "MISC.NER", "word": "LEMMA"}).examples
    assert isinstance(named[0], Tagged)
    assert (named[0].tokens, named[0].tags) == (("dar", "yo"), ("O", "S-PER"))


def test_texts_and_pairs_of_tsv_and_json_lines(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    sst = written(tmp_path, "sst.tsv", "label\ttext\n3\tgood film\n0\tbad, bad\n1\t \n")
    labels = read_examples("classification", sst)
    assert [(e.label, e.tokens) for e in labels.examples if isinstance(e, Classified)] == [
        ("3", ("good", "film")),
        ("0", ("bad", ",", "bad")),
    ]
    assert labels.counts == {"dropped_empty": 1, "texts": 2}
    bare = written(tmp_path, "bare.tsv", "3\tgood film\n")
    columns = {"label": "1", "text": "2"}
    assert len(read_examples("classification", bare, columns=columns).examples) == 1
    lines = '{"tokens": ["don\'t"], "gold": 1}\n\n{"text": "so so", "gold": "x"}\n'
    path = written(tmp_path, "x.jsonl", lines)
    examples = read_examples("classification", path, columns={"label": "gold"}).examples
    assert [(e.label, e.tokens) for e in examples if isinstance(e, Classified)] == [
        ("1", ("don't",)),
        ("x", ("so", "so")),
    ]
    pairs = written(
        tmp_path, "p.tsv", "gold_label\tsentence1\tsentence2\n-\ta\tb\nneutral\ta man\tb c\n"
    )
    columns = {"label": "gold_label", "premise": "sentence1", "hypothesis": "sentence2"}
    labels = read_examples("pairs", pairs, columns=columns)
    assert labels.examples == [Pair(f"{pairs}:3", ("a", "man"), ("b", "c"), "neutral")]
    assert labels.counts == {"dropped_without_agreed_label": 1, "pairs": 1}


def squad(answers: list[dict[str, Any]], context: str = "In Rome, (Paris-born) kings.") -> str:
    asked = {"id": "q1", "question": "Where?", "answers": answers}
    paragraph = {"context": context, "qas": [asked]}
    return json.dumps({"version": "1.1", "data": [{"title": "T", "paragraphs": [paragraph]}]})


def test_answers_map_back_to_the_text_exactly(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    answers = [
        {"text": "Rome", "answer_start": 3},
        {"text": "(Paris-born) kings", "answer_start": 9},
        {"text": "(Paris-born) kings", "answer_start": 9},
    ]
    labels = read_examples("questions", written(tmp_path, "x.json", squad(answers)))
    (question,) = labels.examples
    assert isinstance(question, Question)
    assert question.text_of(*(question.answer or ())) == "(Paris-born) kings"
    assert question.answers == ("Rome", "(Paris-born) kings", "(Paris-born) kings")
    inside = squad([{"text": "om", "answer_start": 4}])
    labels = read_examples("questions", written(tmp_path, "y.json", inside))
    (question,) = labels.examples
    assert isinstance(question, Question) and question.text_of(*(question.answer or ())) == "Rome"
    assert labels.counts["answers_wider_in_tokens"] == 1


def test_a_question_without_text_is_kept_and_counted(tmp_path: Path) -> None:
    """The official script divides by every question of the file."""
    pytest.importorskip("tokenizers")
    paragraph = {
        "context": "In Rome.",
        "qas": [{"id": "q1", "question": " ", "answers": [{"text": "Rome", "answer_start": 3}]}],
    }
    path = written(tmp_path, "x.json", json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    for labelled in (True, False):
        labels = read_examples("questions", path, labelled=labelled)
        (question,) = labels.examples
        assert isinstance(question, Question) and question.question == ()
        assert labels.counts["questions_without_text"] == 1


def test_a_predicate_with_nested_arguments_is_kept_for_scoring(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "x.props",
        "0\tHe\tPRP\t*\t-\t-\t(A0*)\n"
        "1\tsaw\tVB\t*\tsee\tsee.01\t(V*)\n"
        "2\ther\tPRP\t*\t-\t-\t(A1(A2*)\n"
        "3\tnow\tRB\t*\t-\t-\t*)\n",
    )
    labels = read_examples("roles", path)
    (example,) = labels.examples
    assert isinstance(example, Predicate) and example.tags is None
    assert example.nested == ((0, 1, "A0"), (1, 2, "V"), (2, 3, "A2"), (2, 4, "A1"))
    assert labels.counts["predicates"] == labels.counts["predicates_with_nested_arguments"] == 1
    assert len(read_examples("roles", path, labelled=False).examples) == 1


@pytest.mark.parametrize("gold", ["", "\t(A0*)"])
def test_roles_are_predicted_where_columns_have_no_gold(gold: str, tmp_path: Path) -> None:
    """Two predicates; no column of arguments, or too few."""
    path = written(
        tmp_path,
        "x.props",
        f"0\tHe\tPRP\t*\t-\t-{gold}\n"
        f"1\tsaw\tVB\t*\tsee\tsee.01{gold}\n"
        f"2\tgo\tVB\t*\tgo\tgo.01{gold}\n",
    )
    examples = read_examples("roles", path, labelled=False).examples
    assert [(e.predicate, e.tags) for e in examples if isinstance(e, Predicate)] == [
        (1, None),
        (2, None),
    ]
    ontonotes = "#begin document (a); part 000\na 0 0 He PRP * - - -\na 0 1 runs VB * run 01 -\n"
    (example,) = read_examples(
        "roles", written(tmp_path, "o.conll", ontonotes), labelled=False
    ).examples
    assert isinstance(example, Predicate) and example.predicate == 1


PROPBANK = """# sent_id = 1
0\tHe\tPRP\t*\t-\t-\t(ARG0*)\t(ARG0*)
1\tlikes\tVB\t*\tlike\tlike.01\t(V*)\t*
2\tto\tTO\t*\t-\t-\t(ARG1*\t*
3\tsing\tVB\t*\tsing\tsing.01\t*)\t(V*)

0\tYes\tUH\t*\t-\t-
"""


def test_roles_have_one_example_per_predicate(tmp_path: Path) -> None:
    path = written(tmp_path, "x.props", PROPBANK)
    labels = read_examples("roles", path)
    tokens = ("He", "likes", "to", "sing")
    assert labels.examples == [
        Predicate(f"{path}:3", tokens, 1, ("B-ARG0", "B-V", "B-ARG1", "I-ARG1")),
        Predicate(f"{path}:5", tokens, 3, ("B-ARG0", "O", "O", "B-V")),
    ]
    assert labels.counts == {"sentences": 2, "predicates": 2, "arguments": 5}
    ontonotes = """#begin document (a); part 000
a 0 0 He PRP * - - - - * (ARG0*) (1)
a 0 1 runs VB * run 01 - - * (V*) -
#end document
"""
    (example,) = read_examples("roles", written(tmp_path, "o.conll", ontonotes)).examples
    assert isinstance(example, Predicate) and example.tags == ("B-ARG0", "B-V")


COREFERENCE = """#begin document (nw/x); part 000
nw/x\t0\t0\tAnn\t(0)|(1
nw/x\t0\t1\tLee\t1)
nw/x\t0\t2\ther\t(0)|(2)

nw/x\t0\t0\tIt\t(3)
nw/x\t0\t1\tshe\t(2)
#end document
"""


def test_clusters_that_share_a_span_are_one_and_lone_spans_are_dropped(tmp_path: Path) -> None:
    path = written(tmp_path, "x.conll", COREFERENCE)
    labels = read_examples("coreference", path)
    assert labels.examples == [
        Document(
            f"{path}:1",
            "(nw/x); part 000",
            (("Ann", "Lee", "her"), ("It", "she")),
            (((0, 1), (2, 3), (4, 5)),),
        )
    ]
    assert labels.counts["clusters_joined"] == 1
    assert labels.counts["dropped_clusters_of_one"] == 2


def test_gap_links_are_spans_of_tokens(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("syntok")
    header = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL"
    row = "v-1\tJo Li met Eve. She left.\tShe\t15\tJo Li\t0\tTRUE\tEve\t10\tFALSE\thttp"
    path = written(tmp_path, "gap.tsv", f"{header}\n{row}\n")
    (document,) = read_examples("coreference", path).examples
    assert isinstance(document, Document)
    assert document.sentences == [("Jo", "Li", "met", "Eve", "."), ("She", "left", ".")]
    assert document.links == (Link((5, 6), (0, 2), True), Link((5, 6), (3, 4), False))
    assert document.clusters == (((0, 2), (5, 6)),)
    (document,) = read_examples("coreference", path, labelled=False).examples
    assert isinstance(document, Document) and document.clusters is None


def test_a_folder_is_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "c" / ".git").mkdir(parents=True)
    written(tmp_path / "c", "d.v4_gold_conll", "z\tNOUN\n")
    written(tmp_path / "c" / ".git", "e.conll", "not data\n")
    written(tmp_path, "b.conll", "x\tNOUN\n")
    written(tmp_path, "a.conll.gz", "y\tVERB\n")
    labels = read_examples("tagging", tmp_path)
    assert [e.sentences[0] for e in labels.examples] == [("y",), ("x",), ("z",)]


def test_text_is_read_for_predicting_alone(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    path = written(tmp_path, "x.txt", "Hello there!\n\nBye.\n")
    examples = read_examples("tagging", path, labelled=False).examples
    assert examples == [
        Tagged(f"{path}:1", ("Hello", "there", "!"), None),
        Tagged(f"{path}:3", ("Bye", "."), None),
    ]
    with pytest.raises(ElmoError, match="is plain text, which has no labels"):
        read_examples("tagging", path)
    documents = read_examples("coreference", path, labelled=False).examples
    assert [d.sentences for d in documents] == [[("Hello", "there", "!")], [("Bye", ".")]]


@pytest.mark.parametrize(
    ("kind", "name", "text", "line", "message"),
    [
        ("tagging", "x.conll", "a\tB-X\nb\tE-X\nc\tI-X\n", 3, "bioes forbids"),
        ("tagging", "x.conll", "a\tB-X\nb\tI-Y\n", 2, "bio forbids"),
        ("tagging", "x.conll", "a\tO\n\nb\tx\tO\nc\tO\n", 4, "2 columns here, 3 in the first"),
        ("tagging", "x.conll", "a\n", 1, "one column"),
        ("tagging", "x.conllu", "1\ta\n", 1, "2 columns, CoNLL-U has 10"),
        ("tagging", "x.conllu", "2\ta\tx" + "\t_" * 7 + "\n", 1, "token ID '2' follows 0"),
        ("tagging", "x.jsonl", '{"tokens": ["a"], "tags": []}\n', 1, "1 tokens but 0 tags"),
        ("tagging", "x.jsonl", '\n{"tokens": "a"}\n', 2, "tokens must be a list, found text"),
        ("tagging", "x.jsonl", "{\n", 1, "is not a JSON object, found {"),
        ("tagging", "x.jsonl", "a;\n", 1, "found a;; write one object a line"),
        ("tagging", "x.jsonl", '{"text": "\\u0000", "label": 1}\n', 1, "has a zero byte"),
        ("tagging", "x.jsonl", '{"tokens": "\\ud83d\\ude00\n', 1, "is not a JSON object"),
        ("coreference", "x.jsonl", '{"sentences": [["a"]], "clusters": [[[0]]]}', 1, "a list of"),
        ("tagging", "x.conll", "a\tO\n\nb\tO\rc\tB-X\r", 3, "a carriage return within the line"),
        ("tagging", "x.conll", "a\tO\nb\t\n", 2, "a token has an empty tag"),
        ("tagging", "x.conll", "a\ta\nb\tb\n", 1, "the tags repeat the words"),
        ("tagging", "x.conll", "a\tO\t\nb\tO\n", 2, "2 columns here, 3 in the first"),
        ("tagging", "x.conll", "a B-X\nb 0\n", 2, "tag '0' fits no scheme"),
        ("tagging", "x.conll", "a O\nb B_X\nc I_X\n", 2, "tag 'B_X' fits no scheme"),
        ("tagging", "x.conll", "a o\nb b-x\nc i-x\n", 1, "tag 'o' fits no scheme"),
        ("tagging", "x.conll", "a O\nb X-B\nc X-E\n", 2, "tag 'X-B' fits no scheme"),
        ("tagging", "x.conll", "a O\nb B–X\nc I–X\n", 2, "tag 'B–X' fits no scheme"),
        ("tagging", "x.conll", "a B\nb I\nc O\n", 1, "tag 'B' fits no scheme"),
        ("tagging", "x.conll", "a O\nb \u0412-X\nc I-X\n", 2, "tag '\u0412-X' fits no scheme"),
        ("tagging", "x.conll", "a I-X\nb 0\n", 2, "tag '0' fits no scheme"),
        ("tagging", "x.conll", "a B-X\nb W-X\n", 2, "tag 'W-X' fits no scheme"),
        ("tagging", "x.jsonl", '{"tokens": ["a"], "tags": ["B-X "]}\n', 1, "tag 'B-X ' fits no"),
        ("tagging", "x.jsonl", '{"tokens": ["a"], "tags": [1]}\n', 1, "tags[0] must be text"),
        ("tagging", "x.jsonl", '[{"tokens": ["a"]}]\n', 1, "found an array; write one object"),
        ("roles", "x.jsonl", '{"tokens": ["a"], "predicate": "a", "tags": []}', 1, "whole number"),
        ("coreference", "x.jsonl", '{"sentences": ["a"]}\n', 1, "must be a list, found text"),
        ("questions", "x.jsonl", '{"context": "a", "question": "b", "answers": "a"}', 1, "a list,"),
        ("tagging", "x.conll", "a\tO\n\nb\tO\n\tO\n", 3, "token 2 of its sentence is empty"),
        ("tagging", "x.jsonl", '{"tokens": ["", "b"], "tags": ["O", "O"]}', 1, "token 1 of its"),
        ("tagging", "x.jsonl", '{"tokens": ["a", "b"], "tags": ["O", ""]}', 1, "an empty tag"),
        ("classification", "x.jsonl", '{"tokens": [""], "label": "b"}', 1, "token 1 of its"),
        ("classification", "x.tsv", "text\tlabel\ttext\n", 1, "names 'text' twice; rename one"),
        ("classification", "x.tsv", "text\tlabel\na\n", 2, "1 fields, 2 in the header"),
        ("classification", "x.tsv", "good\t3\n", 1, "has no 'text', found good, 3; pass --columns"),
        ("classification", "x.csv", "text;label\na;b\n", 1, "separated by ';'"),
        ("classification", "x.tsv", "text,label\na,b\n", 1, "separated by ','"),
        ("pairs", "x.csv", "premise;hypothesis;label\n", 1, "separated by ';'"),
        ("classification", "x.jsonl", '{"text": "a"}\n', 1, "has no 'label'"),
        ("pairs", "x.jsonl", '{"premise": "a", "label": "b"}\n', 1, "has no 'hypothesis'"),
        ("roles", "x.props", PROPBANK.replace("*)\t(V", "*\t(V"), 5, "(ARG1* open"),
        ("roles", "x.props", PROPBANK.replace("sing.01", "-"), 2, "1 predicates but 2 columns"),
        ("roles", "x.props", PROPBANK.replace("(V*)\t*", "V\t*"), 3, "'V' is not a bracket"),
        ("roles", "x.jsonl", '{"tokens": ["a"], "predicate": 1, "tags": []}\n', 1, "predicate 1"),
        ("coreference", "x.conll", COREFERENCE.replace("1)\n", "-\n"), 2, "(1 is not closed"),
        ("coreference", "x.conll", COREFERENCE.replace("(3)", "3)"), 6, "3) closes a mention"),
        ("coreference", "x.conll", "a\t0\t0\tb\t-\n", 1, "before any '#begin document'"),
        ("coreference", "x.jsonl", '{"sentences": [["a"]], "clusters": [[[0, 2]]]}\n', 1, "[0, 2]"),
    ],
)
def test_a_broken_line_is_refused_with_its_file_and_line(
    tmp_path: Path, kind: str, name: str, text: str, line: int, message: str
) -> None:
    pytest.importorskip("tokenizers")
    path = written(tmp_path, name, text)
    with pytest.raises(ElmoError) as refused:
        read_examples(kind, path)
    assert str(refused.value).startswith(f"{path}:{line}: ")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_column_is_of_one_field(tmp_path: Path) -> None:
    path = written(tmp_path, "x.csv", "a,b\n")
    with pytest.raises(ElmoError, match=r"x.csv:1: column '1' is named for two fields"):
        read_examples("classification", path, columns={"text": "1", "label": "1"})


def test_broken_files_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    with pytest.raises(ElmoError, match="no such file"):
        read_examples("tagging", tmp_path / "none.conll")
    with pytest.raises(ElmoError, match="none of conll, .*convert the file, or pass --format"):
        read_examples("tagging", written(tmp_path, "x.data", "a\tb\n"))
    with pytest.raises(ElmoError, match="tagging is read from conll, conllu, jsonl, text"):
        read_examples("tagging", written(tmp_path, "x.json", "{}"))
    (tmp_path / "latin.conll").write_bytes("a\tO\né\tO\n".encode("latin-1"))
    with pytest.raises(ElmoError, match=r"latin.conll:2: byte 1 of the line \(0xe9\) is not UTF"):
        read_examples("tagging", tmp_path / "latin.conll")
    with pytest.raises(ElmoError, match="holds no examples of tagging; name a file"):
        read_examples("tagging", written(tmp_path, "empty.conll", ""))
    with pytest.raises(ElmoError, match="tagging; counted: dropped empty 1; name a file"):
        read_examples("tagging", written(tmp_path, "e.jsonl", '{"tokens": [], "tags": []}\n'))
    with pytest.raises(ElmoError, match="tagging; counted: document marks 1; name a file"):
        read_examples("tagging", written(tmp_path, "mark.conll", "-DOCSTART- O\n"))
    with pytest.raises(ElmoError, match=r"tagging has no 'label'"):
        read_examples("tagging", written(tmp_path, "y.conll", "a\tO\n"), columns={"label": "1"})
    moved = squad([{"text": "Rome", "answer_start": 2}])
    with pytest.raises(ElmoError, match=r"qas\[0\]: the answer 'Rome' is not at character 2"):
        read_examples("questions", written(tmp_path, "s.json", moved))
    with pytest.raises(ElmoError, match=r"t.json: data\[0\]"):
        read_examples("questions", written(tmp_path, "t.json", '{"data": [{"paragraphs": 1}]}'))


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst"])
def test_compressed_files_are_read_whole_or_refused(tmp_path: Path, ending: str) -> None:
    text = "".join(f"a{k % 97}\tO\n" for k in range(999))
    path = written(tmp_path, f"d.CONLL{ending}", text)
    whole = path.read_bytes()
    for streams, tokens in (
        (whole, 999),
        (whole + bytes(511), 999),
        (whole + bytes(9) + whole, 1998),
    ):
        path.write_bytes(streams)
        assert len(read_examples("tagging", path).examples[0].tokens) == tokens
    flipped = whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 255])
    others = (whole + b"more", whole + bytes(9) + whole[:9], bytes(99), text.encode())
    for damaged in (whole[:-5], flipped + whole[len(flipped) :], *others):
        path.write_bytes(damaged)
        with pytest.raises(ElmoError, match=rf"{ending}: truncated or not {ending[1:]}; \w+ it"):
            read_examples("tagging", path)


EXAMPLES = re.findall(r"```text (\w+) (\S+)\n(.*?)```", DOCUMENTATION.read_text("utf-8"), re.DOTALL)


@pytest.mark.parametrize("ends", ["\n", "\r\n"], ids=["lines", "carriage returns"])
@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [*EXAMPLES, ("tagging", "pos.conllu", CONLLU)],
    ids=lambda value: value[:12],
)
def test_what_windows_writes_is_read_alike(
    tmp_path: Path, kind: str, name: str, text: str, ends: str
) -> None:
    """A byte order mark, and lines that end with a carriage return."""
    pytest.importorskip("tokenizers")
    pytest.importorskip("syntok")
    plain, marked = tmp_path / "plain", tmp_path / "marked"
    for folder in (plain, marked):
        folder.mkdir()
    wanted = read_examples(kind, written(plain, name, text))
    if text != CONLLU:  # one of the documentation
        assert not [name for name, k in wanted.counts.items() if k and name.startswith("dropped")]
    file = marked / name
    data = ("\ufeff" + text.replace("\n", ends)).encode()
    file.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    found = read_examples(kind, file)
    assert found.counts == wanted.counts
    assert [replace(one, source="") for one in found.examples] == [
        replace(one, source="") for one in wanted.examples
    ]


@pytest.mark.skipif(not DATA.is_dir(), reason="the shared data is not on this machine")
@pytest.mark.parametrize(
    ("kind", "name", "columns", "counts"),
    [
        ("tagging", "wnut17/wnut17train.conll", {}, {"sentences": 3394}),
        ("tagging", "uner-english-ewt/en_ewt-ud-test.iob2.gz", {}, {"sentences": 2077}),
        ("tagging", "ud-english-ewt/en_ewt-ud-dev.conllu.gz", {}, {"sentences": 2001}),
        ("roles", "srl-propbank-ewt/test.props.gz", {}, {"predicates": 4795}),
        ("coreference", "litbank-coref/coref/conll", {}, {"documents": 100}),
        ("coreference", "gap/gap-validation.tsv.gz", {}, {"documents": 454}),
        ("questions", "squad-v1.1/dev-v1.1.rebuilt.json.gz", {}, {"questions": 10570}),
        (
            "pairs",
            "snli-heldout/test.tsv.gz",
            {"label": "1", "premise": "2", "hypothesis": "3"},
            {"pairs": 9824},
        ),
    ],
)
def test_real_data_is_read_whole(
    kind: str, name: str, columns: dict[str, str], counts: dict[str, int]
) -> None:
    labels = read_examples(kind, DATA / name, columns=columns)
    assert counts.items() <= labels.counts.items()


def test_the_mark_between_columns_without_a_header_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "x.csv", "good; film;1\n")
    with pytest.raises(ElmoError, match="x.csv:1: .*separated by ';'"):
        read_examples("classification", path, columns={"text": "1", "label": "2"})
    one_column = read_examples("classification", path, columns={"text": "1"}, labelled=False)
    assert len(one_column.examples) == 1


def test_csv_with_named_columns_and_lines_inside_fields(tmp_path: Path) -> None:
    text = '\ufeffid,review,stars\r\n1,"Good, he said:\n""yes""",5\r\n2,bad,1\r\n'
    path = written(tmp_path, "reviews.csv", text)
    found = read_examples("classification", path, columns={"text": "review", "label": "stars"})
    assert [(one.tokens, one.label) for one in found.examples] == [  # type: ignore[union-attr]
        (("Good", ",", "he", "said", ":", '"', "yes", '"'), "5"),
        (("bad",), "1"),
    ]
    path.write_text('text,label\n"a,b\n', encoding="utf-8")
    with pytest.raises(ElmoError, match="reviews.csv:2: a quotation mark .* is never closed"):
        read_examples("classification", path)
