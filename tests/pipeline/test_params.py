"""Every refusal of params.yaml, with its exact message."""

from pathlib import Path

import pytest
import yaml

from elmo.errors import ElmoError
from pipeline.params import load

ROOT = Path(__file__).resolve().parents[2]


def changed(tmp_path: Path, place: str, value: object) -> Path:
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    *sections, key = place.split(".")
    section = params
    for name in sections:
        section = section[name]
    if value is ...:
        del section[key]
    else:
        section[key] = value
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(params))
    return path


def test_the_projects_own_files_are_good() -> None:
    assert load(ROOT / "params.yaml").pretrain.network.filters[0] == (1, 32)
    for preset in (ROOT / "presets").glob("*.yaml"):
        load(preset)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("pretrain.training.optimizer.lr", "1e-3",
         "pretrain.training.optimizer.lr must be a float, found '1e-3'"),
        ("pretrain.training.epochs", 1.5, "pretrain.training.epochs must be an int, found 1.5"),
        ("pretrain.training.epochs", True, "pretrain.training.epochs must be an int, found True"),
        ("tokenize.heldout", ..., "tokenize.heldout is missing"),
        ("tokenize.holdout", 0.1, "tokenize.holdout is no setting; there are tokenizer, sentences, "
         "documents, heldout, shard_bytes"),
        ("corpus.general", "text.txt", "corpus.general must be a list, found 'text.txt'"),
        ("corpus.general", [1], "corpus.general[0] must be a str, found 1"),
        ("pretrain.network.filters", [[1, 2, 3]],
         "pretrain.network.filters[0] must have 2 items, found [1, 2, 3]"),
        ("vocab", 3, "vocab must be a section of settings, found 3"),
        ("pretrain.training.reset", "always",
         "pretrain.training.reset must be one of sentence, never, found 'always'"),
        ("pretrain.training.rows", 0, "pretrain.training.rows must be 1 or more, found 0"),
    ],
)  # fmt: skip
def test_a_bad_key_is_refused(tmp_path: Path, place: str, value: object, message: str) -> None:
    path = changed(tmp_path, place, value)
    with pytest.raises(ElmoError) as caught:
        load(path)
    assert str(caught.value) == f"{path}: {message}"


def test_a_whole_number_is_a_float_and_null_may_be_one(tmp_path: Path) -> None:
    assert load(changed(tmp_path, "pretrain.network.cell_clip", 3)).pretrain.network.cell_clip == 3
    assert load(changed(tmp_path, "pretrain.network.cell_clip", None)).pretrain.network
    path = changed(tmp_path, "pretrain.network.cells", None)
    with pytest.raises(ElmoError, match="pretrain.network.cells must be an int, found None"):
        load(path)


def test_what_is_no_yaml_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("corpus:\n  general: [\n")
    with pytest.raises(ElmoError, match=r"params\.yaml:3: not valid YAML"):
        load(path)
    with pytest.raises(ElmoError, match=r"absent\.yaml: no such file"):
        load(tmp_path / "absent.yaml")
