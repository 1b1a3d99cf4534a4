"""Senses by nearest neighbour: what must be right is right, what was never seen falls back."""

from pathlib import Path

from elmo.model.embedder import Embedder
from elmo.model.folder import Model
from research.senses import (
    SenseOccurrence,
    SenseSentence,
    read_first_senses,
    read_semcor,
    read_wsd_evaluation,
    score_word_senses,
)

SEMCOR = """# sent_id = brown1.br-a01.s1
1\tA\tDT\t_\t_\t_
2\tprimary_election\tNN\tprimary_election\tprimary_election%1:04:00::\t1
3\tplays\tVB\tplay\tplay%2:33:00::;play%2:33:01::\t2;1

# sent_id = brown1.br-a02.s1
1\tone\tCD\tone\tone%5:00:00:cardinal:00\t2

"""
XML = """<?xml version="1.0"?>
<corpus lang="en"><text id="d000"><sentence id="d000.s000">
<wf lemma="the" pos="DET">The</wf>
<instance id="d000.s000.t000" lemma="art" pos="NOUN">art</instance>
<instance id="d000.s000.t001" lemma="change_ringing" pos="NOUN">change-ringing of_bells</instance>
</sentence></text></corpus>
"""


def test_semcor_gives_tokens_words_and_documents(tmp_path: Path) -> None:
    path = tmp_path / "semcor.tsv"
    path.write_text(SEMCOR)
    first, second = read_semcor(path)
    assert first.document == "brown1.br-a01" and second.document == "brown1.br-a02"
    assert first.tokens == ("A", "primary", "election", "plays")
    election, plays = first.occurrences
    assert (election.start, election.stop, election.word) == (1, 3, ("primary_election", "n"))
    assert plays.keys == ("play%2:33:00::", "play%2:33:01::") and plays.is_first
    assert second.occurrences[0].word == ("one", "a") and second.occurrences[0].is_first is False


def test_the_xml_of_the_evaluation_framework(tmp_path: Path) -> None:
    (tmp_path / "data.xml").write_text(XML)
    (tmp_path / "gold.txt").write_text("d000.s000.t000 art%1:04:00:: art%1:09:00::\n")
    (sentence,) = read_wsd_evaluation(tmp_path / "data.xml", tmp_path / "gold.txt")
    assert sentence.tokens == ("The", "art", "change-ringing", "of", "bells")
    assert sentence.occurrences == (
        SenseOccurrence(1, 2, ("art", "n"), ("art%1:04:00::", "art%1:09:00::")),
    )


def sentence(tokens: str, key: str, *, first: bool, lemma: str = "bank") -> SenseSentence:
    words = tuple(tokens.split())
    at = words.index(lemma)
    return SenseSentence("d", words, (SenseOccurrence(at, at + 1, (lemma, "n"), (key,), first),))


TRAIN = [
    sentence("the gift for a bank", "bank%1:1::", first=True),
    sentence("he has a bank", "bank%1:2::", first=False),
    sentence("he has a bank", "bank%1:2::", first=False),
]


def test_context_decides_in_the_layers_above_the_first(tiny_model: Model) -> None:
    test = [
        sentence("the gift for a bank", "bank%1:1::", first=True),
        sentence("he has a bank", "bank%1:2::", first=False),
    ]
    scores = score_word_senses(Embedder(tiny_model).embed, TRAIN, test)
    assert scores.layers[1:] == [1.0, 1.0]
    assert scores.layers[0] == 0.5  # the same vector in both
    assert scores.first_sense == scores.most_frequent == 0.5
    assert scores.ambiguous == 1.0 and scores.fallback == 0.0
    assert scores.ambiguous_layers == scores.layers


def test_a_word_never_seen_has_its_first_sense(tiny_model: Model, tmp_path: Path) -> None:
    test = [
        sentence("a gift", "gift%1:1::", first=True, lemma="gift"),
        sentence("the gift", "gift%1:2::", first=False, lemma="gift"),
    ]
    scores = score_word_senses(Embedder(tiny_model).embed, TRAIN, test)
    assert scores.layers == [0.5] * 3 and scores.fallback == 1.0
    index = tmp_path / "index.sense"
    index.write_text("gift%1:2:: 00001 1 5\ngift%1:1:: 00002 2 1\n")
    scores = score_word_senses(
        Embedder(tiny_model).embed, TRAIN, test[1:], first_senses=read_first_senses(index)
    )
    assert scores.layers == [1.0] * 3
