"""labels: docstrings in which each word is tagged as code or not.

Authors mark names and values in docstrings with backticks. Here the marks become tags and are
removed from the text, which gives a tagging task to try a model on. Sentences without marks are
left out, because authors often forget them.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from elmo.data.tokenizer import load_sentence_splitter
from elmo.errors import ElmoError
from elmo.io.atomic import write_json
from elmo.io.folders import check_output_folder, new_folder
from elmo.io.location import Location
from elmo.io.records import sha256
from elmo.tasks.formats.fields import TextSplitter

from ..settings.params import LabelsSettings
from ..text.docstrings import marked_up_paragraphs, package_docstrings
from .stage import Argument, Stage

MIN_LABELLED_TOKENS, MAX_LABELLED_TOKENS = 5, 40  # tokens of a sentence
MAX_CODE_TOKENS = 6  # tokens of a code span
SHARE_BY_SPLIT = {"test": 0.25, "dev": 0.1}  # of the docstrings; the rest are for training
_MARKUP = re.compile(
    r":[\w:.+-]+:`~?(?P<role>[^`]*)`|``(?P<literal>[^`]*)``|`(?P<link>[^`<]*?)\s*<[^`>]*>`_*"
    r"|`(?P<name>[^`]*)`_?|(?<!\w)\*\*?(?P<emphasis>\w[^*]*)\*\*?(?!\w)|\s*\[[\w\s]+\]_"
)
_MARKER_FILES = ("manifest.json", "train.jsonl", "dev.jsonl", "test.jsonl")
_CODE_GROUPS = ("role", "literal", "name")

LabelledSentence = tuple[tuple[str, ...], tuple[str, ...]]  # tokens and their BIO tags

STAGE = Stage(
    name="labels",
    version=1,
    help="Make an example task: find the words that a package's docstrings mark as code.",
    inputs=(),
    outputs=(Argument("out", "path"),),
    run=lambda params, **arguments: run(params=params.labels, **arguments),
    summary=lambda figures, _: summary(figures),
    work=None,
)


def run(out: Path, params: LabelsSettings) -> dict[str, int]:
    """Write labelled sentences of a package's docstrings to `out`; return the counts by name.

    `manifest.json` has the digests of `train.jsonl`, `dev.jsonl` and `test.jsonl`; it is the only
    file if `params` names no package. All sentences of a docstring are in one file, and no sentence
    is repeated. If there are more sentences than requested, those with the lowest hashes are taken,
    so a larger number keeps them.
    """
    options: dict[str, Any] = {"required": _MARKER_FILES, "pattern": "", "kind": "labels"}
    check_output_folder(Location(out), **options)
    docstrings: Iterable[str] = ()
    size_by_split: dict[str, int] = {}
    if params.package:
        docstrings = package_docstrings(params.package, setting="labels.package")
        size_by_split = {"train": params.train, "dev": params.dev, "test": params.test}
    counts: Counter[str] = Counter()
    splits: dict[str, dict[LabelledSentence, str]] = {split: {} for split in size_by_split}
    seen_sentences: set[tuple[str, ...]] = set()
    splitter, split_text = TextSplitter("unicode"), load_sentence_splitter()[0]
    for docstring in docstrings:
        sentences = splits[_choose_split(docstring)]
        for tokens, tags in label_sentences(docstring, splitter=splitter, split_text=split_text):
            if tokens not in seen_sentences:
                seen_sentences.add(tokens)
                sentences[tokens, tags] = hashlib.sha256(" ".join(tokens).encode()).hexdigest()
    with new_folder(Location(out), **options) as folder:
        for split, sentences in splits.items():
            rows = sorted(sentences, key=sentences.__getitem__)[: size_by_split[split]]
            if not rows:
                raise ElmoError(
                    f"labels.package: the docstrings of {params.package} mark no code, or too "
                    "little for three files; choose another package"
                )
            lines = [
                json.dumps({"tokens": tokens, "tags": tags}, ensure_ascii=False)
                for tokens, tags in rows
            ]
            (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
            counts[f"{split}_sentences"] = len(rows)
            counts["tokens"] += sum(len(tokens) for tokens, _ in rows)
            counts["code"] += sum(tag == "B-CODE" for _, tags in rows for tag in tags)
        digests = {path.name: sha256(path) for path in sorted(folder.glob("*.jsonl"))}
        write_json(folder / "manifest.json", {"kind": "labels", "sha256": digests})
    return dict(counts)


def summary(figures: dict[str, int]) -> str:
    """Return the line that the stage prints, from the counts of `run`: sentences in each file."""
    if not figures:
        return "none: labels.package is empty"
    return (
        f"{figures['train_sentences']:,} training, {figures['dev_sentences']:,} dev and "
        f"{figures['test_sentences']:,} test sentences; {figures['code']:,} code spans"
    )


def label_sentences(
    docstring: str, *, splitter: TextSplitter, split_text: Callable[[str], list[str]]
) -> Iterator[LabelledSentence]:
    """Yield the sentences of a docstring that have words marked as code, as tokens with BIO tags.

    `split_text` cuts a paragraph into sentences, `splitter` a sentence into tokens. Sentences with
    too few or too many tokens are left out.
    """
    for paragraph in marked_up_paragraphs(docstring):
        plain_text, code_ranges = strip_marks(" ".join(paragraph.split()))
        start = 0
        for text in split_text(plain_text):
            stop = start + len(text)
            ranges = [(a - start, b - start) for a, b in code_ranges if start <= a < stop]
            start = stop
            if not ranges:
                continue
            tokens, offsets = splitter.tokens_and_offsets(text)
            tags = _make_tags(offsets, ranges)
            if tags is not None and MIN_LABELLED_TOKENS <= len(tokens) <= MAX_LABELLED_TOKENS:
                yield tokens, tags


def strip_marks(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Return a paragraph without its markup, and the ranges of its characters that are code."""
    parts: list[str] = []
    code_ranges = []
    end = length = 0
    for match in _MARKUP.finditer(text):
        content = next((value for value in match.groups() if value is not None), "")
        plain_text = text[end : match.start()]
        parts += [plain_text, content]
        length += len(plain_text)
        if match.lastgroup in _CODE_GROUPS and content:
            code_ranges.append((length, length + len(content)))
        length += len(content)
        end = match.end()
    return "".join([*parts, text[end:]]), code_ranges


def _make_tags(
    offsets: tuple[tuple[int, int], ...], code_ranges: list[tuple[int, int]]
) -> tuple[str, ...] | None:
    """Return a BIO tag for each token; None if a code span is too long, or cuts a token."""
    tags = ["O"] * len(offsets)
    for start, stop in code_ranges:
        tokens = [
            k
            for k, (token_start, token_stop) in enumerate(offsets)
            if token_start < stop and token_stop > start
        ]
        if not tokens or len(tokens) > MAX_CODE_TOKENS:
            return None
        if offsets[tokens[0]][0] < start or offsets[tokens[-1]][1] > stop:
            return None
        for k in tokens:
            tags[k] = "B-CODE" if k == tokens[0] else "I-CODE"
    return tuple(tags)


def _choose_split(docstring: str) -> str:
    """Return the split for the sentences of a docstring, chosen by its hash."""
    digest = hashlib.sha256(docstring.encode("utf-8", "replace")).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    for split, share in SHARE_BY_SPLIT.items():
        if position < share:
            return split
        position -= share
    return "train"
