"""Word sense disambiguation by nearest neighbour in each layer (Table 5). Nothing is trained.

The vector of a sense is the mean of its occurrences in sense-tagged text. An occurrence in other
text gets the sense of the same lemma and part of speech whose vector has the highest cosine with
its own; a lemma that the tagged text lacks gets its first sense. The vector of a multi-token word
(`primary election`) is the mean of its tokens. Every occurrence is answered, so F1 is accuracy.

Shapes: N occurrences, S senses of a word, T tokens of a sentence, L layers, D width of a vector.
"""

import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from elmo.errors import ElmoError
from elmo.io.records import check_readable
from elmo.io.text_files import numbered_lines

BATCH = 512
Word = tuple[str, str]  # lemma, part of speech: n v a r
# The vectors of every token of some sentences, (L, T, D) for each: `Embedder.embed`, or another.
Embed = Callable[[list[list[str]]], Sequence[npt.NDArray[np.float32]]]
_PARTS = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
_TAGS = {"NOUN": "n", "VERB": "v", "ADJ": "a", "ADV": "r"}


@dataclass(frozen=True)
class SenseOccurrence:
    """An occurrence of a word: tokens `start` to `stop - 1`, and its correct WordNet sense keys.

    `is_first` says whether the word's first sense is correct, or is None if the file does not tell.
    """

    start: int
    stop: int
    word: Word
    keys: tuple[str, ...]
    is_first: bool | None = None


@dataclass(frozen=True)
class SenseSentence:
    """A sentence with its sense-tagged words; `document` names the text it comes from."""

    document: str
    tokens: tuple[str, ...]
    occurrences: tuple[SenseOccurrence, ...]


def read_semcor(path: Path) -> list[SenseSentence]:
    """Read SemCor in columns: number, form, tag, lemma, sense keys and sense numbers.

    Several keys or numbers are separated by `;`. A line `# sent_id = SECTION.DOCUMENT.SENTENCE`
    comes before each sentence. `_` alone is an empty value; within a form it joins several tokens.
    """
    sentences = []
    document, tokens, occurrences = "", list[str](), list[SenseOccurrence]()
    for number, line in numbered_lines(path):
        if line.startswith("#"):
            name, _, value = line.removeprefix("#").partition("=")
            if name.strip() == "sent_id":
                document = value.strip().rpartition(".")[0]
        elif not line:
            if tokens:
                sentences.append(SenseSentence(document, tuple(tokens), tuple(occurrences)))
            tokens, occurrences = [], []
        else:
            fields = line.split("\t")
            if len(fields) != 6:
                raise ElmoError(
                    f"{path}:{number}: has {len(fields)} columns, must have 6: number, form, tag, "
                    "lemma, sense keys, sense numbers"
                )
            _, form, _, lemma, keys, senses = fields
            start = len(tokens)
            tokens += [token for token in form.split("_") if token] or [form]
            if keys != "_":
                right = tuple(keys.split(";"))
                word = lemma.lower(), part_of_speech(right[0], path, number)
                is_first = "1" in senses.split(";")
                occurrences.append(SenseOccurrence(start, len(tokens), word, right, is_first))
    if tokens:
        sentences.append(SenseSentence(document, tuple(tokens), tuple(occurrences)))
    if not any(sentence.occurrences for sentence in sentences):
        raise ElmoError(f"{path}: has no sense-tagged words")
    return sentences


def read_wsd_evaluation(path: Path, gold: Path) -> list[SenseSentence]:
    """Read sense-tagged sentences as in the unified evaluation of word sense disambiguation
    (Raganato et al. 2017): an XML file of the text.

    The file `gold` has on each line an instance's id and its sense keys.
    """
    keys = {}
    for number, line in numbered_lines(gold):
        if line:
            name, *right = line.split()
            if not right:
                raise ElmoError(f"{gold}:{number}: has no sense key after {name}")
            keys[name] = tuple(right)
    sentences = []
    check_readable(path)
    try:
        for text in ElementTree.parse(path).getroot().iter("text"):
            for element in text.iter("sentence"):
                sentences.append(_sentence(element, text.get("id", ""), keys, path))
    except ElementTree.ParseError as error:
        raise ElmoError(f"{path}:{error.position[0]}: not valid XML ({error})") from None
    if not any(sentence.occurrences for sentence in sentences):
        raise ElmoError(f"{path}: has no instance whose id is in {gold}")
    return sentences


def _sentence(
    element: ElementTree.Element, document: str, keys: Mapping[str, tuple[str, ...]], path: Path
) -> SenseSentence:
    tokens: list[str] = []
    occurrences = []
    for word in element:
        start = len(tokens)
        tokens += (word.text or "").replace("_", " ").split()
        if word.tag == "instance" and word.get("id") in keys:
            lemma, tag = word.get("lemma"), word.get("pos", "")
            if lemma is None or tag not in _TAGS:
                raise ElmoError(
                    f"{path}: instance {word.get('id')} must have a lemma and pos "
                    f"{', '.join(_TAGS)}, found {lemma!r} and {tag!r}"
                )
            right = keys[str(word.get("id"))]
            key = lemma.lower(), _TAGS[tag]
            occurrences.append(SenseOccurrence(start, len(tokens), key, right))
    return SenseSentence(document, tuple(tokens), tuple(occurrences))


def part_of_speech(key: str, path: Path, number: int) -> str:
    """Return n, v, a or r, the part of speech that the digit after `%` in a WordNet key encodes.

    `ElmoError` names the line (`path`, `number`) if `key` is no sense key.
    """
    _, percent, digits = key.partition("%")
    if not percent or digits[:1] not in _PARTS:
        raise ElmoError(f"{path}:{number}: {key!r} is no WordNet sense key, such as play%1:04:05::")
    return _PARTS[digits[0]]


def read_first_senses(path: Path) -> dict[Word, str]:
    """Read the first sense of each word from WordNet's `index.sense` (key, offset, number,
    count)."""
    senses: dict[Word, str] = {}
    for number, line in numbered_lines(path):
        fields = line.split()
        if len(fields) != 4:
            raise ElmoError(f"{path}:{number}: must have a key, an offset, a number and a count")
        if fields[2] == "1":
            word = fields[0].partition("%")[0], part_of_speech(fields[0], path, number)
            senses[word] = fields[0]
    return senses


@dataclass
class _Vectors:
    """The summed vectors of each sense, by word."""

    sums: dict[Word, dict[str, npt.NDArray[np.float64]]] = field(default_factory=dict)

    def add(self, occurrence: SenseOccurrence, vector_LD: npt.NDArray[np.float32]) -> None:
        """Add an occurrence's vectors, scaled to unit length in each layer, to each of its
        senses."""
        unit_LD = _unit(vector_LD)
        senses = self.sums.setdefault(occurrence.word, {})
        for key in occurrence.keys:
            senses[key] = senses.get(key, 0) + unit_LD

    def nearest(self, word: Word, vector_LD: npt.NDArray[np.float32]) -> list[str] | None:
        """Return the nearest sense in each layer, or None if the word was never seen.

        Senses may be equally near, as in layer 0, where all occurrences of a word have one vector.
        The alphabetically first is then chosen, so that the last bits of a cosine, which differ
        between machines, do not matter.
        """
        senses = self.sums.get(word)
        if senses is None:
            return None
        names = sorted(senses)
        sums_SLD = np.stack([senses[name] for name in names])
        cosine_SL = np.einsum("sld,ld->sl", _unit(sums_SLD), _unit(vector_LD))
        return [names[best] for best in cosine_SL.round(9).argmax(0)]


def _unit(x: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    x64 = x.astype(np.float64)
    return x64 / np.maximum(np.linalg.norm(x64, axis=-1, keepdims=True), 1e-12)


@dataclass(frozen=True)
class SenseScores:
    """The accuracy of each layer in choosing word senses, with two baselines: always the first
    sense, and the most frequent one in the training text.

    `fallback` is the share of occurrences whose word the training text lacks, so that the first
    sense is taken, `ambiguous` the share whose word has several senses there. `right` says which
    occurrences each layer got right (layers, occurrences), for confidence intervals.
    """

    layers: list[float]
    first_sense: float
    most_frequent: float
    ambiguous_layers: list[float]
    fallback: float
    ambiguous: float
    occurrences: int
    right: npt.NDArray[np.bool_]


def score_word_senses(
    embed: Embed,
    train: Iterable[SenseSentence],
    test: Iterable[SenseSentence],
    *,
    first_senses: Mapping[Word, str] | None = None,
) -> SenseScores:
    """Give each sense-tagged word of `test` the sense whose mean vector in `train` is nearest, in
    each layer separately; return the accuracies.

    A word that `train` lacks gets its first sense, from `first_senses` or else the test file; if
    neither tells it, the answer counts as wrong.
    """
    vectors, counts = _Vectors(), defaultdict[Word, defaultdict[str, int]](lambda: defaultdict(int))
    for occurrence, vector_LD in _occurrences(embed, train):
        vectors.add(occurrence, vector_LD)
        for key in occurrence.keys:
            counts[occurrence.word][key] += 1
    right: list[list[bool]] = []
    first_right, frequent, unseen, ambiguous = [], [], [], []
    for occurrence, vector_LD in _occurrences(embed, test):
        first_right.append(_first_is_right(occurrence, first_senses))
        guess = vectors.nearest(occurrence.word, vector_LD)
        unseen.append(guess is None)
        senses: Mapping[str, int] = counts.get(occurrence.word, {})
        ambiguous.append(len(senses) > 1)
        if guess is None:
            right.append([first_right[-1]] * len(vector_LD))
            frequent.append(first_right[-1])
        else:
            right.append([key in occurrence.keys for key in guess])
            frequent_sense = max(sorted(senses), key=lambda key: senses[key])
            frequent.append(frequent_sense in occurrence.keys)
    if not right:
        raise ElmoError("the test text has no sense-tagged words")
    right_NL, several_N = np.array(right), np.array(ambiguous)
    among = right_NL[several_N].mean(0) if several_N.any() else np.full(right_NL.shape[1], np.nan)
    return SenseScores(
        layers=right_NL.mean(0).tolist(),
        first_sense=float(np.mean(first_right)),
        most_frequent=float(np.mean(frequent)),
        ambiguous_layers=among.tolist(),
        fallback=float(np.mean(unseen)),
        ambiguous=float(np.mean(ambiguous)),
        occurrences=len(right),
        right=right_NL.T,
    )


def _first_is_right(occurrence: SenseOccurrence, first_senses: Mapping[Word, str] | None) -> bool:
    if first_senses is not None and occurrence.word in first_senses:
        return first_senses[occurrence.word] in occurrence.keys
    return bool(occurrence.is_first)


def _occurrences(
    embed: Embed, sentences: Iterable[SenseSentence]
) -> Iterator[tuple[SenseOccurrence, npt.NDArray[np.float32]]]:
    """Yield each sense-tagged word with its vectors in all layers (L, D)."""
    batch: list[SenseSentence] = []
    for sentence in sentences:
        if sentence.occurrences:
            batch.append(sentence)
        if len(batch) == BATCH:
            yield from _embedded(embed, batch)
            batch = []
    yield from _embedded(embed, batch)


def _embedded(
    embed: Embed, batch: Sequence[SenseSentence]
) -> Iterator[tuple[SenseOccurrence, npt.NDArray[np.float32]]]:
    vectors = embed([list(sentence.tokens) for sentence in batch])
    for sentence, layers_LTD in zip(batch, vectors, strict=True):
        for occurrence in sentence.occurrences:
            yield occurrence, layers_LTD[:, occurrence.start : occurrence.stop].mean(1)
