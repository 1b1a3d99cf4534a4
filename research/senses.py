"""Word sense disambiguation by nearest neighbour in each layer (Table 5), without training.

The vector of a sense is the mean of its occurrences in sense-tagged text. In other text, a word
gets the sense of the same lemma and part of speech whose vector has the highest cosine with the
word's vector; a lemma that is not in the tagged text gets its first sense. The vector of a word of
several tokens (`primary election`) is their mean. Every word gets a sense, so F1 is accuracy.

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
from elmo.io.records import check_regular_file
from elmo.io.text_files import numbered_lines

BATCH = 512
Word = tuple[str, str]  # lemma, part of speech: n v a r
Keys = tuple[str, ...]  # WordNet sense keys
# Returns the vectors of all tokens of each sentence, (L, T, D), as `Embedder.embed` does.
Embed = Callable[[list[list[str]]], Sequence[npt.NDArray[np.float32]]]
_POS_BY_DIGIT = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
_POS_BY_TAG = {"NOUN": "n", "VERB": "v", "ADJ": "a", "ADV": "r"}


@dataclass(frozen=True)
class SenseOccurrence:
    """An occurrence of a word: tokens `start` to `stop - 1`, and its correct WordNet sense keys.

    `is_first` says whether the word's first sense is correct; None if the file does not say.
    """

    start: int
    stop: int
    word: Word
    keys: Keys
    is_first: bool | None = None


@dataclass(frozen=True)
class SenseSentence:
    """A sentence with its sense-tagged words; `document` is the name of its text."""

    document: str
    tokens: tuple[str, ...]
    occurrences: tuple[SenseOccurrence, ...]


def read_semcor(path: Path) -> list[SenseSentence]:
    """Read SemCor in columns: number, form, tag, lemma, sense keys and sense numbers.

    Several keys or numbers are separated by `;`. A line `# sent_id = SECTION.DOCUMENT.SENTENCE`
    precedes each sentence. A value `_` is empty; within a form, `_` joins several tokens.
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
                sense_keys = tuple(keys.split(";"))
                word = lemma.lower(), part_of_speech(sense_keys[0], path, number)
                is_first = "1" in senses.split(";")
                occurrences.append(SenseOccurrence(start, len(tokens), word, sense_keys, is_first))
    if tokens:
        sentences.append(SenseSentence(document, tuple(tokens), tuple(occurrences)))
    if not any(sentence.occurrences for sentence in sentences):
        raise ElmoError(f"{path}: has no sense-tagged words")
    return sentences


def read_wsd_evaluation(path: Path, gold: Path) -> list[SenseSentence]:
    """Read the XML format of the unified evaluation framework for word sense disambiguation
    (Raganato et al. 2017).

    Each line of the file `gold` has the id of an instance and its correct sense keys.
    """
    keys_by_id = {}
    for number, line in numbered_lines(gold):
        if line:
            instance_id, *keys = line.split()
            if not keys:
                raise ElmoError(f"{gold}:{number}: has no sense key after {instance_id}; add one")
            keys_by_id[instance_id] = tuple(keys)
    sentences = []
    check_regular_file(path)
    try:
        for text in ElementTree.parse(path).getroot().iter("text"):
            for element in text.iter("sentence"):
                sentences.append(_parse_sentence(element, text.get("id", ""), keys_by_id, path))
    except ElementTree.ParseError as error:
        raise ElmoError(f"{path}:{error.position[0]}: not valid XML ({error})") from None
    if not any(sentence.occurrences for sentence in sentences):
        raise ElmoError(f"{path}: has no instance whose id is in {gold}")
    return sentences


def _parse_sentence(
    element: ElementTree.Element, document: str, keys_by_id: Mapping[str, Keys], path: Path
) -> SenseSentence:
    tokens: list[str] = []
    occurrences = []
    for child in element:
        start = len(tokens)
        tokens += (child.text or "").replace("_", " ").split()
        if child.tag == "instance" and child.get("id") in keys_by_id:
            lemma, tag = child.get("lemma"), child.get("pos", "")
            if lemma is None or tag not in _POS_BY_TAG:
                raise ElmoError(
                    f"{path}: instance {child.get('id')} must have a lemma and pos "
                    f"{', '.join(_POS_BY_TAG)}, found {lemma!r} and {tag!r}"
                )
            keys = keys_by_id[str(child.get("id"))]
            word = lemma.lower(), _POS_BY_TAG[tag]
            occurrences.append(SenseOccurrence(start, len(tokens), word, keys))
    return SenseSentence(document, tuple(tokens), tuple(occurrences))


def part_of_speech(key: str, path: Path, number: int) -> str:
    """Return the part of speech (n, v, a or r) that the digit after `%` in a sense key encodes.

    If `key` is not a WordNet sense key, the `ElmoError` names the line (`path`, `number`).
    """
    _, percent, digits = key.partition("%")
    if not percent or digits[:1] not in _POS_BY_DIGIT:
        raise ElmoError(f"{path}:{number}: {key!r} must be a sense key such as play%1:04:05::")
    return _POS_BY_DIGIT[digits[0]]


def read_first_senses(path: Path) -> dict[Word, str]:
    """Read the first sense of each word from WordNet's `index.sense`."""
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
class _SenseVectors:
    """The sums of the vectors of each sense, by word."""

    sums: dict[Word, dict[str, npt.NDArray[np.float64]]] = field(default_factory=dict)

    def add(self, occurrence: SenseOccurrence, vector_LD: npt.NDArray[np.float32]) -> None:
        """Add the vectors of an occurrence, scaled to length 1 in each layer, to its senses."""
        unit_LD = _normalize(vector_LD)
        senses = self.sums.setdefault(occurrence.word, {})
        for key in occurrence.keys:
            senses[key] = senses.get(key, 0) + unit_LD

    def find_nearest(self, word: Word, vector_LD: npt.NDArray[np.float32]) -> list[str] | None:
        """Return the nearest sense in each layer, or None if the word was never added.

        If several senses are equally near, as in layer 0, where all occurrences of a word have the
        same vector, the alphabetically first is chosen. Cosines are rounded because their last
        bits differ between machines.
        """
        senses = self.sums.get(word)
        if senses is None:
            return None
        names = sorted(senses)
        sums_SLD = np.stack([senses[name] for name in names])
        cosine_SL = np.einsum("sld,ld->sl", _normalize(sums_SLD), _normalize(vector_LD))
        return [names[best] for best in cosine_SL.round(9).argmax(0)]


def _normalize(x: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    x64 = x.astype(np.float64)
    return x64 / np.maximum(np.linalg.norm(x64, axis=-1, keepdims=True), 1e-12)


@dataclass(frozen=True)
class SenseScores:
    """The accuracy of each layer in choosing word senses, and of two baselines: the first sense of
    a word, and its most frequent sense in the training text.

    `fallback` is the share of occurrences whose word is not in the training text, so that its first
    sense is chosen; `ambiguous` is the share whose word has several senses there. `is_right`
    (layers, occurrences) says where each layer is right, for confidence intervals.
    """

    layers: list[float]
    first_sense: float
    most_frequent: float
    ambiguous_layers: list[float]
    fallback: float
    ambiguous: float
    occurrences: int
    is_right: npt.NDArray[np.bool_]


def score_word_senses(
    embed: Embed,
    train: Iterable[SenseSentence],
    test: Iterable[SenseSentence],
    *,
    first_senses: Mapping[Word, str] | None = None,
) -> SenseScores:
    """In each layer, give each sense-tagged word of `test` the sense whose mean vector in `train`
    is nearest; return the accuracies.

    A word that is not in `train` gets its first sense, from `first_senses` or else the test file;
    if neither has it, the answer counts as wrong.
    """
    vectors = _SenseVectors()
    counts = defaultdict[Word, defaultdict[str, int]](lambda: defaultdict(int))
    for occurrence, vector_LD in _embed_occurrences(embed, train):
        vectors.add(occurrence, vector_LD)
        for key in occurrence.keys:
            counts[occurrence.word][key] += 1
    is_right: list[list[bool]] = []
    is_first_right, is_frequent_right, is_unseen, is_ambiguous = [], [], [], []
    for occurrence, vector_LD in _embed_occurrences(embed, test):
        is_first_right.append(_is_first_right(occurrence, first_senses))
        nearest = vectors.find_nearest(occurrence.word, vector_LD)
        is_unseen.append(nearest is None)
        senses: Mapping[str, int] = counts.get(occurrence.word, {})
        is_ambiguous.append(len(senses) > 1)
        if nearest is None:
            is_right.append([is_first_right[-1]] * len(vector_LD))
            is_frequent_right.append(is_first_right[-1])
        else:
            is_right.append([key in occurrence.keys for key in nearest])
            frequent_sense = max(sorted(senses), key=lambda key: senses[key])
            is_frequent_right.append(frequent_sense in occurrence.keys)
    if not is_right:
        raise ElmoError("the test text has no sense-tagged words")
    is_right_NL, is_ambiguous_N = np.array(is_right), np.array(is_ambiguous)
    nan_L = np.full(is_right_NL.shape[1], np.nan)
    accuracy_L = is_right_NL[is_ambiguous_N].mean(0) if is_ambiguous_N.any() else nan_L
    return SenseScores(
        layers=is_right_NL.mean(0).tolist(),
        first_sense=float(np.mean(is_first_right)),
        most_frequent=float(np.mean(is_frequent_right)),
        ambiguous_layers=accuracy_L.tolist(),
        fallback=float(np.mean(is_unseen)),
        ambiguous=float(np.mean(is_ambiguous)),
        occurrences=len(is_right),
        is_right=is_right_NL.T,
    )


def _is_first_right(occurrence: SenseOccurrence, first_senses: Mapping[Word, str] | None) -> bool:
    if first_senses is not None and occurrence.word in first_senses:
        return first_senses[occurrence.word] in occurrence.keys
    return bool(occurrence.is_first)


def _embed_occurrences(
    embed: Embed, sentences: Iterable[SenseSentence]
) -> Iterator[tuple[SenseOccurrence, npt.NDArray[np.float32]]]:
    """Yield each sense-tagged word with its vectors in all layers (L, D)."""
    batch: list[SenseSentence] = []
    for sentence in sentences:
        if sentence.occurrences:
            batch.append(sentence)
        if len(batch) == BATCH:
            yield from _embed_batch(embed, batch)
            batch = []
    yield from _embed_batch(embed, batch)


def _embed_batch(
    embed: Embed, batch: Sequence[SenseSentence]
) -> Iterator[tuple[SenseOccurrence, npt.NDArray[np.float32]]]:
    vectors = embed([list(sentence.tokens) for sentence in batch])
    for sentence, layers_LTD in zip(batch, vectors, strict=True):
        for occurrence in sentence.occurrences:
            yield occurrence, layers_LTD[:, occurrence.start : occurrence.stop].mean(1)
