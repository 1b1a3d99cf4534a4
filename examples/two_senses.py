"""Plot the vectors of a word in two senses, from a model that is loaded by its name.

python examples/two_senses.py [PICTURE.png]

For each sentence, print the one in which *bank* is used most similarly. Plot all of them.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

import elmo

SENTENCES = """
He sat down on the bank of the river and watched the water.
The boat was tied to the bank under the willows.
They walked along the bank of the stream until evening.
On the opposite bank of the river stood an old mill.
She climbed up the steep bank and looked down at the lake.
The cattle came down to the muddy bank to drink.
The bank lent him the money at five per cent.
He went to the bank in the city to draw his salary.
The bank was founded in 1865 and has its offices in London.
She keeps her money in a bank and not at home.
The directors of the bank met to raise the rate of interest.
His father is a clerk in a bank in London.
""".strip().splitlines()
WORD = "bank"


def main() -> None:
    embedder = elmo.Embedder.load("english")
    tokens = [embedder.tokenize(sentence)[0] for sentence in SENTENCES]
    places = [sentence.index(WORD) for sentence in tokens]
    layers = embedder.embed(tokens)  # of each sentence (layers, tokens, dim)
    vectors = np.stack([of[1:, place].mean(0) for of, place in zip(layers, places, strict=True)])
    vectors -= vectors.mean(0)  # what all occurrences of the word share
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -1)
    for number, nearest in enumerate(cosines.argmax(1)):
        print(f"{SENTENCES[number]}\n   {cosines[number, nearest]:.2f}  {SENTENCES[nearest]}")
    if len(sys.argv) > 1:
        draw(vectors, sys.argv[1])


def draw(vectors: "np.ndarray[tuple[int, int], np.dtype[np.float32]]", path: str) -> None:
    """Draw the two directions in which the vectors differ most."""
    from matplotlib.figure import Figure

    directions = np.linalg.svd(vectors, full_matrices=False)[2][:2]
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    plane = vectors @ directions.T
    half = len(SENTENCES) // 2
    plane *= -np.sign(plane[:half].mean(0))  # the first sense on the left
    for side, color, first in ((0.01, "tab:blue", 0), (0.99, "tab:orange", half)):
        align: dict[str, Any] = {"ha": "left" if side < 0.5 else "right", "va": "center"}
        for rank, number in enumerate(first + plane[first : first + half, 1].argsort()):
            axes.plot(*plane[number], "o", color=color)
            axes.annotate(
                around_the_word(SENTENCES[number]),
                plane[number],
                (side, (rank + 0.5) / half),  # a column on each side, in the order of the points
                textcoords="axes fraction",
                arrowprops={"arrowstyle": "-", "color": "lightgrey"},
                fontsize=11,
                **align,
            )
    axes.set(title=f"{WORD}: of a river (blue), of money (orange)", xticks=[], yticks=[])
    axes.margins(0.9, 0.12)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    print(f"drawn: {path}")


def around_the_word(sentence: str) -> str:
    """Return a few words of a sentence, those next to the one in question."""
    words = sentence.rstrip(".").split()
    place = words.index(WORD)
    first, last = max(0, place - 3), min(len(words), place + 4)
    return "…" * (first > 0) + " ".join(words[first:last]) + "…" * (last < len(words))


if __name__ == "__main__":
    main()
