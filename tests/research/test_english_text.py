"""The text of the model `english`: plain again, whole, and apart from what is held out."""

import gzip
from pathlib import Path

import pytest

from elmo.data.shards import write_shards
from elmo.data.tokenizer import installed_tokenization
from research import english_text

UNKNOWN = "He has a <unk> for music ."
SHARED = "It was a long , cold and dark night by the sea ."
KEPT = "The 24 @-@ team league ( of 1 @,@ 000 men ) did n't play ."


def test_the_text_is_plain_and_shares_nothing_with_the_heldout_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out, shards = (tmp_path / name for name in ("data", "out", "shards"))
    for name in ("lm-eltec-eng", "lm-squad-wiki", "lm-wikitext2"):
        (data / name).mkdir(parents=True)
    (data / "lm-eltec-eng" / "ENG1.txt.gz").write_bytes(gzip.compress(b"A novel.\n"))
    (data / "lm-squad-wiki" / "train.txt.gz").write_bytes(gzip.compress(b"= Wiki =\n"))
    wikitext = data / "lm-wikitext2" / "train.txt"
    wikitext.write_text("\n".join([UNKNOWN, "", SHARED, KEPT]) + "\n", encoding="utf-8")

    def lines(*options: str) -> list[str]:
        monkeypatch.setattr("sys.argv", ["english_text", str(data), str(out), *options])
        english_text.main()
        return (out / "wikitext.txt").read_text(encoding="utf-8").splitlines()

    plain = "The 24-team league (of 1,000 men) didn't play."
    assert lines() == ["It was a long, cold and dark night by the sea.", plain]
    assert sorted(path.name for path in out.iterdir()) == [
        "ENG1.txt.gz",
        "squad-wiki.txt.gz",
        "wikitext.txt",
    ]
    heldout = [["yes", "IT", "was", "a", "long", ",", "cold", "and", "dark"]]
    write_shards(
        shards, heldout, heldout_every=1, tokenizer=installed_tokenization("unicode", "split")
    )
    assert lines("--heldout", str(shards)) == [plain]
