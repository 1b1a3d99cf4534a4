"""The text that the model `english` learns from, made from the corpora of its model card.

    python -m research.english_text DATA OUT [--heldout SHARDS]

DATA holds `lm-eltec-eng`, `lm-squad-wiki` and `lm-wikitext2`. OUT gets the novels, the Wikipedia
paragraphs and, as plain text, the lines of WikiText-2's training part that have no unknown word.
Shards of an earlier OUT name what is held out: lines of WikiText-2 that share eight words in a row
with it are left out.
"""

import argparse
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from elmo.data.shards import Shards
from elmo.data.tokenizer import TextTokenizer

SHARED = 8  # words in a row
_JOINED = re.compile(r" @([-,.])@ ")
_BEFORE = re.compile(r" ([,.;:!?%)\]]|'s|'t|n't|'re|'ve|'ll|'d|'m)")
_AFTER = re.compile(r"([(\[$£]) ")


def main() -> None:
    """Write the text."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--heldout", type=Path, metavar="SHARDS")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for novel in sorted((options.data / "lm-eltec-eng").glob("ENG*.txt.gz")):
        shutil.copy(novel, options.out)
    paragraphs = options.data / "lm-squad-wiki" / "train.txt.gz"
    shutil.copy(paragraphs, options.out / "squad-wiki.txt.gz")
    wikitext = options.data / "lm-wikitext2" / "train.txt"
    lines = plain(wikitext.read_text(encoding="utf-8").splitlines())
    if options.heldout is not None:
        lines = without(lines, Shards(options.heldout))
    (options.out / "wikitext.txt").write_text("".join(f"{x}\n" for x in lines), encoding="utf-8")


def plain(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines without WikiText's tokenization; lines with unknown words are left out."""
    for line in map(str.strip, lines):
        if line and "<unk>" not in line:
            yield _AFTER.sub(r"\1", _BEFORE.sub(r"\1", _JOINED.sub(r"\1", line)))


def without(lines: Iterable[str], shards: Shards) -> Iterator[str]:
    """Yield the lines that do not overlap with the held-out text of `shards`.

    A line overlaps where `SHARED` tokens in a row, ignoring case, are in both.
    """
    opened = [shards.open(entry) for entry in shards.entries("heldout")]
    sentences = (shard.tokens(k) for shard in opened for k in range(len(shard)))
    heldout = {ngram for tokens in sentences for ngram in _ngrams(tokens)}
    tokenizer = TextTokenizer(shards.tokenization)
    for line in lines:
        tokens = [token for sentence in tokenizer(line) for token in sentence]
        if heldout.isdisjoint(_ngrams(tokens)):
            yield line


def _ngrams(tokens: list[str]) -> Iterator[tuple[str, ...]]:
    folded = [token.lower() for token in tokens]
    return (tuple(folded[k : k + SHARED]) for k in range(len(folded) - SHARED + 1))


if __name__ == "__main__":
    main()
