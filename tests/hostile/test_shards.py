"""Shards whose bytes are not those of their manifest, and ones that were signed again."""

import random
from pathlib import Path

import pytest
import yaml

from tests.hostile.commands import COMMANDS
from tests.hostile.harness import DAMAGE, paired, refused

pytestmark = pytest.mark.usefixtures("tracked", "without_ray")
READERS = ("vocab", "features", "pretrain", "finetune")
FILE = "task/train-00000.arrow"


@pytest.mark.parametrize(("command", "what"), paired(READERS, DAMAGE))
def test_damaged_shards(case: Path, command: str, what: str) -> None:
    DAMAGE[what](case / FILE)
    refused(*COMMANDS[command], cwd=case, names=FILE)


@pytest.mark.parametrize(("command", "seed"), paired(["vocab", "features"], range(8)))
def test_a_flipped_bit(case: Path, command: str, seed: int) -> None:
    draw = random.Random(seed)
    data = bytearray((case / FILE).read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    (case / FILE).write_bytes(data)
    refused(*COMMANDS[command], cwd=case, names=FILE)


WORDS: dict[str, tuple[str, bytes]] = {
    "no beginning": ("words.txt", b"</S>\n<UNK>\nthe\n"),
    "no unknown": ("words.txt", b"<S>\n</S>\nthe\n"),
    "a word twice": ("words.txt", b"<S>\n</S>\n<UNK>\nthe\nthe\n"),
    "a word too many": ("words.txt", b"<S>\n</S>\n<UNK>\na\nb\nc\nd\ne\nf\ng\n"),
    "a count that is none": ("counts.txt", b"many\n" * 9),
    "a count below 0": ("counts.txt", b"-1\n" * 9),
    "a fraction": ("counts.txt", b"1.5\n" * 9),
    "a count too few": ("counts.txt", b"1\n" * 8),
}


@pytest.mark.parametrize("what", WORDS)
def test_words_that_are_none(case: Path, what: str) -> None:
    name, data = WORDS[what]
    (case / "vocab" / name).write_bytes(data)
    refused(*COMMANDS["pretrain"], cwd=case, names="vocab/")
    assert not (case / "work").exists()


@pytest.mark.parametrize("name", ["words.txt", "counts.txt", "characters.json"])
@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_vocabulary(case: Path, name: str, what: str) -> None:
    if name == "counts.txt" and what in ("absent", "dangling"):
        pytest.skip("counts may be absent")
    DAMAGE[what](case / "vocab" / name)
    refused(*COMMANDS["pretrain"], cwd=case, names=f"vocab/{name}")
    assert not (case / "work").exists()


def test_a_filter_wider_than_a_token(case: Path) -> None:
    settings = yaml.safe_load((case / "params.yaml").read_text())
    settings["pretrain"]["network"]["filters"] = [[999, 4]]
    (case / "params.yaml").write_text(yaml.safe_dump(settings))
    refused(*COMMANDS["pretrain"], cwd=case, names="pretrain.network.filters: a filter is")
    assert not (case / "work").exists()
