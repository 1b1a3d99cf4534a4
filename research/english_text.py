"""Make the training text of the model `english` from the corpora that its model card lists.

    python -m research.english_text DATA OUT

DATA has the folders of `CORPORA`. Writes to OUT a text file for each folder, and `heldout.txt`: a
novel and five Wikipedia articles. With `tokenize.heldout` 0.01, exactly these documents are held
out, in every version of `english`. Each other file has no blank line, so it is one document, and
its hash is not in the lowest hundredth, which is held out. Paragraphs that repeat an earlier one
or share eight consecutive words with `heldout.txt` are left out.
"""

import argparse
import gzip
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

# Each folder, and n if every n-th of its documents is used. Dialogues and speeches are repetitive,
# so fewer of them are used.
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
NGRAM_WORDS = 8  # a paragraph that shares a run of so many words with the held-out text is left out
_WORD = re.compile(r"\w+")
_JOINER = re.compile(r" @([-,.])@ ")
_SPACE_BEFORE = re.compile(r" ([,.;:!?%)\]]|'s|'t|n't|'re|'ve|'ll|'d|'m)")
_SPACE_AFTER = re.compile(r"([(\[$£]) ")

Document = list[str]  # its paragraphs


def main() -> None:
    """Write the text, and print the words and paragraphs of each corpus."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    heldout = held_out_documents(options.data)
    text = "\n\n".join("\n".join(document) for document in heldout)
    (options.out / "heldout.txt").write_text(f"{text}\n", encoding="utf-8")
    heldout_ngrams = {run for document in heldout for line in document for run in word_ngrams(line)}
    paragraph_hashes: set[int] = set()
    for corpus, interval in CORPORA.items():
        paragraphs: list[str] = []
        repeated_count = overlap_count = 0
        for document in list(training_documents(options.data / corpus))[::interval]:
            for paragraph in document:
                paragraph_hash = hash(paragraph)
                if paragraph_hash in paragraph_hashes:
                    repeated_count += 1
                elif not heldout_ngrams.isdisjoint(word_ngrams(paragraph)):
                    overlap_count += 1
                else:
                    paragraph_hashes.add(paragraph_hash)
                    paragraphs.append(paragraph)
        lines = "".join(f"{line}\n" for line in paragraphs)
        (options.out / f"{corpus}.txt").write_text(lines, encoding="utf-8")
        words = sum(len(line.split()) for line in paragraphs)
        print(
            f"{corpus}: {words:,} words in {len(paragraphs):,} paragraphs; left out: "
            f"{repeated_count:,} repeated, {overlap_count:,} that overlap with the held-out text",
            flush=True,
        )


def held_out_documents(data: Path) -> list[Document]:
    """Return the held-out documents: the articles, then the novel."""
    articles = read_documents(data / "lm-squad-wiki" / "train.txt.gz")
    novel = read_documents(data / "lm-eltec-eng" / HELD_OUT_NOVEL)
    return [article for article in articles if article[0] in HELD_OUT_ARTICLES] + list(novel)


def training_documents(folder: Path) -> Iterator[Document]:
    """Yield the documents of a corpus that are not held out."""
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
    """Yield the documents of a file with one paragraph per line and blank lines in between."""
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
    """Undo WikiText's tokenization of each line; leave out lines with unknown words."""
    for line in map(str.strip, lines):
        if line and "<unk>" not in line:
            yield _SPACE_AFTER.sub(r"\1", _SPACE_BEFORE.sub(r"\1", _JOINER.sub(r"\1", line)))


def word_ngrams(paragraph: str) -> Iterator[tuple[str, ...]]:
    """Yield each run of `NGRAM_WORDS` words of a paragraph, in lower case, without punctuation."""
    words = _WORD.findall(paragraph.lower())
    return zip(*(words[k:] for k in range(NGRAM_WORDS)), strict=False)


if __name__ == "__main__":
    main()
