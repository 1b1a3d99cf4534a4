"""The text of the model `english`: plain again, whole, and apart from what is held out."""

import gzip
from pathlib import Path

import pytest

from pipeline.settings.params import load
from pipeline.settings.preset import overlay_text
from research import english_text

UNKNOWN = "He has a <unk> for music ."
PLAYED = "The 24 @-@ team league ( of 1 @,@ 000 men ) did n't play ."
HELD_OUT = "Yes, IT was a long -- cold and dark night."
SHARED = "it was a long, cold and dark night by the sea"


def test_the_text_is_plain_and_shares_nothing_with_the_heldout_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    novels, wiki = data / "lm-eltec-eng", data / "lm-squad-wiki"
    for name in english_text.CORPORA:
        (data / name).mkdir(parents=True)
    _write(novels / "ENG1.txt.gz", ["A novel.", SHARED, "A novel."])
    _write(novels / english_text.HELD_OUT_NOVEL, [HELD_OUT])
    _write(wiki / "train.txt.gz", ["= Wiki =", "A fact.", "", "= Botany =", "Plants."])
    turns = [f"Turn {k}." if k % 2 == 0 else "" for k in range(8)]  # four dialogues
    _write(data / "lm-dialogues-sgd" / "text.txt.gz", turns)
    wikitext = data / "lm-wikitext2" / "train.txt"
    wikitext.write_text(f"{UNKNOWN}\n\nA fact.\n{PLAYED}\n", encoding="utf-8")

    monkeypatch.setattr("sys.argv", ["english_text", str(data), str(out)])
    english_text.main()

    text = {path.stem: path.read_text(encoding="utf-8") for path in out.iterdir()}
    assert {name: lines for name, lines in text.items() if lines} == {
        "heldout": f"= Botany =\nPlants.\n\n{HELD_OUT}\n",
        "lm-eltec-eng": "A novel.\n",
        "lm-squad-wiki": "= Wiki =\nA fact.\n",
        "lm-dialogues-sgd": "Turn 0.\nTurn 6.\n",
        "lm-wikitext2": "The 24-team league (of 1,000 men) didn't play.\n",
    }


def test_the_recipe_sets_what_the_pipeline_has(tmp_path: Path) -> None:
    root = Path(english_text.__file__).parents[1]
    text = overlay_text(root / "params.yaml", root / "research" / "english.yaml")
    (tmp_path / "params.yaml").write_text(text, encoding="utf-8")
    assert load(tmp_path / "params.yaml").pretrain.network.projection == 160


def _write(path: Path, lines: list[str]) -> None:
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
