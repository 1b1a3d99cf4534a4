"""Make the training text of the model `english` from the corpora of its model card.

    python -m research.english_text DATA OUT

DATA has the folders of `CORPORA`. OUT gets a text file for each of them, and `heldout.txt`: a novel
and five Wikipedia articles. With `tokenize.heldout` 0.01 exactly these are held out in every
version of `english`. The other files have no blank line, so each is one document, and none of their
hashes is in the lowest hundredth, which is held out. Paragraphs that repeat an earlier one are left
out, and so are those that share eight consecutive words with `heldout.txt`.
"""

import argparse
import gzip
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

# Each folder with the share of its documents that is taken, as one of so many: dialogues and
# speeches repeat themselves.
CORPORA = {
    "lm-standard-ebooks": 1,
    "lm-litbank-novels": 1,
    "lm-wikipedia-2018": 1,
    "lm-openstax": 1,
    "lm-openstax-earlier": 1,
    "lm-un-debates": 2,
    "lm-us-presidents": 1,
    "lm-dialogues-sgd": 3,
    "lm-us-gov-posts": 1,
    "lm-wikinews": 1,
    "lm-eltec-eng": 1,
    "lm-squad-wiki": 1,
    "lm-wikitext2": 1,
}
HELD_OUT_NOVEL = "ENG19001_Glyn.txt.gz"  # of lm-eltec-eng
HELD_OUT_ARTICLES = (  # of lm-squad-wiki
    "= Botany =",
    "= Dutch Republic =",
    "= Political party =",
    "= Sexual orientation =",
    "= Valencia =",
)
SHARED = 8  # words in a row
_WORD = re.compile(r"\w+")
_JOINED = re.compile(r" @([-,.])@ ")
_BEFORE = re.compile(r" ([,.;:!?%)\]]|'s|'t|n't|'re|'ve|'ll|'d|'m)")
_AFTER = re.compile(r"([(\[$£]) ")

Document = list[str]  # its paragraphs


def main() -> None:
    """Write the text, and print how much of each corpus is in it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    heldout = held_out_documents(options.data)
    text = "\n\n".join("\n".join(document) for document in heldout)
    (options.out / "heldout.txt").write_text(f"{text}\n", encoding="utf-8")
    excluded = {run for document in heldout for line in document for run in word_runs(line)}
    hashes: set[int] = set()  # hashes of paragraphs
    for corpus, step in CORPORA.items():
        paragraphs: list[str] = []
        repeated = overlapping = 0
        for document in list(training_documents(options.data / corpus))[::step]:
            for paragraph in document:
                key = hash(paragraph)
                if key in hashes:
                    repeated += 1
                elif not excluded.isdisjoint(word_runs(paragraph)):
                    overlapping += 1
                else:
                    hashes.add(key)
                    paragraphs.append(paragraph)
        lines = "".join(f"{line}\n" for line in paragraphs)
        (options.out / f"{corpus}.txt").write_text(lines, encoding="utf-8")
        words = sum(len(line.split()) for line in paragraphs)
        print(
            f"{corpus}: {words:,} words in {len(paragraphs):,} paragraphs; left out: {repeated:,} "
            f"repeated, {overlapping:,} that overlap with the held-out text",
            flush=True,
        )


def held_out_documents(data: Path) -> list[Document]:
    """Return the held-out documents: the articles, then the novel."""
    articles = read_documents(data / "lm-squad-wiki" / "train.txt.gz")
    novel = read_documents(data / "lm-eltec-eng" / HELD_OUT_NOVEL)
    return [article for article in articles if article[0] in HELD_OUT_ARTICLES] + list(novel)


def training_documents(folder: Path) -> Iterator[Document]:
    """Yield the documents of a corpus that are learned from."""
    if folder.name == "lm-wikitext2":
        lines = (folder / "train.txt").read_text(encoding="utf-8").splitlines()
        yield list(detokenize(lines))
        return
    for path in sorted(folder.glob("*.txt.gz")):
        if path.name != HELD_OUT_NOVEL:
            for document in read_documents(path):
                if document[0] not in HELD_OUT_ARTICLES:
                    yield document


def read_documents(path: Path) -> Iterator[Document]:
    """Yield the documents of a file of one paragraph a line, divided by blank lines."""
    document: Document = []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            if line.strip():
                document.append(line.strip())
            elif document:
                yield document
                document = []
    if document:
        yield document


def detokenize(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines without WikiText's tokenization; lines with unknown words are left out."""
    for line in map(str.strip, lines):
        if line and "<unk>" not in line:
            yield _AFTER.sub(r"\1", _BEFORE.sub(r"\1", _JOINED.sub(r"\1", line)))


def word_runs(paragraph: str) -> Iterator[tuple[str, ...]]:
    """Yield each `SHARED` words in a row of a paragraph, in lower case and without punctuation."""
    words = _WORD.findall(paragraph.lower())
    return zip(*(words[k:] for k in range(SHARED)), strict=False)


if __name__ == "__main__":
    main()
