"""Files that are no plain text: what each is said to be, and text that is none of them."""

from pathlib import Path

import pytest

from elmo.errors import ElmoError
from pipeline.text.input_files import find_inputs
from pipeline.text.other_formats import recognize_format
from pipeline.text.text_blocks import check_texts

RECORD = '{"id": "0", "title": "Mill", "text": "The mill is old. It was built in 1700."}\n'
CONLLU = "# sent_id = 1\n# text = The mill\n1\tThe\tthe\tDET\tDT\t_\t2\tdet\t_\t_\n"
CONLLU += "2\tmill\tmill\tNOUN\tNN\t_\t0\troot\t_\t_\n3\t.\t.\tPUNCT\t.\t_\t2\tpunct\t_\t_\n\n"
PROSE = "The mill is old.\nIt was built in 1700, and it fell in 1801.\n\nNobody saw it.\n"
OTHERS = {
    "JSON lines": RECORD * 3,
    "JSON": [RECORD, '{"a": 1}', '{\n  "texts": [\n    "a"\n  ]\n}\n', f"\ufeff {RECORD}"],
    "a JSON array": [
        f"[{RECORD}, {RECORD}]",
        '["a text", "another"]\n',
        '[\n  {"text": "a"}\n]',
        '[[1, "a"]]',
    ],
    "HTML or XML": [
        "<!DOCTYPE html>\n<html><body><p>The mill.</p></body></html>",
        "<html lang='en'>\n<head>",
        f"<!-- saved from -->\n<HTML>\n{PROSE}",
        "<p>The mill is old.</p>\n<p>It fell.</p>\n<div>Nobody saw it.</div>\n",
        '<?xml version="1.0" encoding="UTF-8"?>\n<TEI><text>The mill</text></TEI>',
        '<mediawiki xmlns="http://www.mediawiki.org/">\n<page>\n<title>Mill</title>',
        '<doc id="1" url="http://x" title="Mill">\n</doc>\n<doc id="2">\n',
        "<seg>The mill is old.</seg>\n<seg>It fell.</seg>\n<seg>Nobody.</seg>\n",
    ],
    "TeX": [
        "% a comment\n\\documentclass{article}\n\\begin{document}\nThe mill.",
        "\\section{Mills}\nThe mill is old.\n\\subsection{Old ones}\n\\label{old}\nIt fell.\n",
        "\\begin{abstract}\nThe mill is old.\n\\end{abstract}\n",
    ],
    "a table, such as CoNLL-U": [CONLLU, "a\tb\tc\nd\te\tf\ng\th\ti\n"],
    "a table": ["".join(f"{k}\tThe mill {k}.\n" for k in range(9)), '"a","b"\n"c","d"\n"e","f"\n'],
    "a labelled file": "The DT B-NP O\nmill NN I-NP O\nis VBZ B-VP O\n. . O O\n",
    "a log": [
        "2024-01-02T03:04:05Z INFO started\n2024-01-02T03:04:06Z WARN mill\n" * 3,
        "2024-01-02 03:04:05,123 [main] INFO x.Y - started\n" * 3,
        "[2024-01-02 03:04:05] production.ERROR: mill\n" * 3,
        "Jan  2 03:04:05 host sshd[12]: accepted\n" * 3,
        '127.0.0.1 - - [02/Jan/2024:03:04:05 +0000] "GET / HTTP/1.1" 200 5\n' * 3,
    ],
    "an email": ["Return-Path: <a@b.c>\nReceived: from x\n\nHello\n", "MIME-Version: 1.0\n\nx\n"],
    "a mailbox": "From ann@example.org Mon Jan  2 03:04:05 2024\nSubject: mill\n\nHello\n",
    "subtitles": ["1\n00:00:01,000 --> 00:00:02,000\nThe mill.\n", "WEBVTT\n\n00:01.000 --> 0:2\n"],
    "BibTeX": "@article{mill,\n  title = {The mill}\n}\n",
    "a PO file of translations": '#: a.c:1\nmsgid "mill"\nmsgstr "Mühle"\n\nmsgid "old"\n',
    "a program": "#!/usr/bin/env python\nprint()\n",
    "text with the line ends of old Macs": ["The mill.\rIt fell.\r", "The mill.\r\rIt fell."],
    "a PDF file": "%PDF-1.4\n%\xe2\xe3\n",
    "a word processor file": "{\\rtf1\\ansi The mill.}",
}
TEXTS = [
    PROSE,
    "<S> the old mill stands . </S>\n" * 9,
    "<s> the old <unk> stands . </s>\n" * 9,
    "the old <unk> of <num> stands .\n" * 9,
    "# Mills\n\n<p align=center>A picture</p>\n\nThe mill is [old](http://x).\n\n- It fell.\n",
    "Use `<b>` for bold.\nThe tag <i> is for italics.\nNothing else is said here.\nNor here.\n",
    "[Enter Hamlet]\n\nHAMLET. To be, or not to be.\n[Exit]\n",
    '["Come in," he said.]\n\nShe came.\n',
    '["Come in", he said.]\n\n[ [She laughs] ]\n',
    "ORCs attacked the mill.\nRIFFs were played.\n",
    "[[Mills]] are old.\n[[1]] It fell.\n",
    "{The mill} is a name.\n{It} is a pronoun.\nNo more is said.\n",
    "In 1700\tthe mill\nwas built.\nIt fell.\n",
    "From Monday on the mill was closed.\nNobody came.\n",
    "1700\nThe mill was built.\n\n1801\nIt fell.\n",
    "나는 밥을 먹었다.\n\n吾輩は猫である。名前はまだ無い。\n",
    "\\o/ they cheered.\nThe price is \\$5.\nNothing more.\nAnd so on.\n",
    "10:30 The train leaves.\nIt was late.\nWe waited.\n",
    "a b\n",
    "",
]


@pytest.mark.parametrize("what", OTHERS)
def test_a_file_of_another_format_is_refused_by_what_is_in_it(tmp_path: Path, what: str) -> None:
    samples = [OTHERS[what]] if isinstance(OTHERS[what], str) else OTHERS[what]
    for number, sample in enumerate(samples):
        path = tmp_path / f"{number}.txt"
        path.write_bytes(sample.encode())
        with pytest.raises(ElmoError) as error:
            check_texts(find_inputs([str(path)]), "text")
        assert str(error.value).startswith(f"{path}: is {what}, not plain text; "), sample
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", TEXTS)
def test_plain_text_is_none_of_them(text: str) -> None:
    assert recognize_format(text.encode()) is None


@pytest.mark.parametrize(
    "head",
    [
        b"a.txt".ljust(257, b"\0") + b"ustar",
        b"\x1f\x8b\x08",
        b"BZh91AY&SY",
        b"\xfd7zXZ\x00",
        b"\x28\xb5\x2f\xfd",
        b"PK\x03\x04",
        b"PAR1",
    ],
)
def test_a_compressed_file_without_its_ending_is_told(tmp_path: Path, head: bytes) -> None:
    (tmp_path / "t.txt").write_bytes(head + bytes(range(200)))
    with pytest.raises(ElmoError, match=r"t\.txt: is (compressed|an? (tar )?archive|a Parquet)"):
        check_texts(find_inputs([str(tmp_path / "t.txt")]), "text")


def test_all_files_that_cannot_be_read_are_named_at_once(tmp_path: Path) -> None:
    for k in range(30):
        (tmp_path / f"{k:02d}.txt").write_text(RECORD if k % 3 else PROSE)
    with pytest.raises(ElmoError, match="20 files cannot be read: ") as error:
        check_texts(find_inputs([str(tmp_path)]), "text")
    assert all(f"{k:02d}.txt" in str(error.value) for k in range(30) if k % 3)
    assert str(error.value).count(": is JSON") == 1  # a reason is not said again for each file
