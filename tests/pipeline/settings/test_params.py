"""Every refusal of params.yaml: the line, the key, and what it must be."""

import re
from dataclasses import is_dataclass
from datetime import date
from pathlib import Path
from types import UnionType
from typing import Union, get_args, get_origin

import pytest
import yaml
from ruamel.yaml import YAML

from elmo.errors import ElmoError
from elmo.settings import field_types
from pipeline.settings import cluster, preset
from pipeline.settings.cluster import Cluster
from pipeline.settings.params import Params, load

ROOT = Path(__file__).resolve().parents[3]


def changed(tmp_path: Path, key: str, value: object) -> Path:
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    *sections, key = key.split(".")
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


@pytest.mark.parametrize("text", ["5e-05", "6e-3", "5.E-5", "1E+1", ".5", "010"])
def test_numbers_are_those_of_yaml_1_2_as_dvc_writes_them(tmp_path: Path, text: str) -> None:
    """In a file, in a preset and in cluster.yaml."""
    wanted = YAML(typ="safe").load(text)
    assert isinstance(wanted, int | float)
    path = tmp_path / "params.yaml"
    settings = (ROOT / "params.yaml").read_text()
    path.write_text(re.sub(r"(?m)^(      lr:) \S+", rf"\1 {text}", settings, count=1))
    assert path.read_text() != settings
    assert load(path).pretrain.training.optimizer.lr == wanted
    path.write_text(settings)
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "mine.yaml").write_text(
        f"pretrain: {{training: {{optimizer: {{lr: {text}}}}}}}\n"
    )
    preset.apply_preset("mine", path)
    assert load(path).pretrain.training.optimizer.lr == wanted
    (tmp_path / "cluster.yaml").write_text(f"checkpoint_minutes: {text}\n")
    assert cluster.load(tmp_path / "cluster.yaml")[0].checkpoint_minutes == wanted


def test_a_whole_number_may_have_an_exponent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = changed(tmp_path, "pretrain.training.rows", 1e3)
    assert load(path).pretrain.training.rows == 1000
    monkeypatch.setenv("ELMO_WORKERS", "1e1")
    assert cluster.load(tmp_path / "absent")[0].workers == 10


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("pretrain.training.optimizer.lr", "1e", "a number above 0 and at most 1e+06, found '1e'"),
        ("pretrain.training.optimizer.lr", date(2024, 1, 2), "found 2024-01-02"),
        ("pretrain.training.epochs", 1.5, "a whole number of at least 0 and at most"),
        ("pretrain.training.epochs", True, "a whole number of at least 0 and at most"),
        ("pretrain.training.rows", -1, "a whole number of at least 1 and at most 65,536, found -1"),
        ("pretrain.training.seed", -1, "a whole number of at least 0"),
        ("pretrain.training.loss_scale", float("inf"), "a number above 0"),
        ("pretrain.training.reset", "always", "one of sentence, never, found 'always'"),
        ("pretrain.training.optimizer.beta1", 2, "a number of at least 0 and below 1, found 2"),
        ("pretrain.training.optimizer.clip", float("nan"), "found nan"),
        ("pretrain.network.cells", 2**40, "at most 131,072"),
        (
            "pretrain.network.cell_clip",
            "3",
            "a number above 0 and at most 1e+06 or null, found '3'",
        ),
        ("pretrain.network.filters", [], "a list of 1 to 256 pairs"),
        ("tokenize.tokenizer", "moses", "one of whitespace, unicode, korean, japanese"),
        ("tokenize.heldout", 1, "a number of at least 0 and below 1"),
        ("corpus.general", [1], "a file, folder, glob or URL, found 1"),
        ("corpus.general", [""], "a file, folder, glob or URL, found ''"),
        ("corpus.domain", ["a\0b"], "a file, folder, glob or URL"),
        ("features.layers", "0,x", "all, top or "),
        ("register.name", "a/b:c", "a name of at most 128 letters"),
        ("vocab.max_words", 3, "must be 0 (no limit) or 4 or more, found 3"),
    ],
)
def test_every_setting_has_a_range(tmp_path: Path, key: str, value: object, message: str) -> None:
    path = changed(tmp_path, key, value)
    with pytest.raises(ElmoError) as caught:
        load(path)
    item = "[0]" if isinstance(value, list) and value else ""
    line = 1 + [text.strip().split(":")[0] for text in path.read_text().splitlines()].index(
        key.split(".")[0]
    )
    file, found, rest = str(caught.value).split(":", 2)
    assert file == str(path) and int(found) >= line
    assert rest.startswith(f" {key}{item} must be ") and message in rest and "\n" not in rest


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("pretrain.network.filters", [[60, 4]], ": must be at most 50 characters wide (vocab."),
        ("pretrain.training.optimizer.epsilon", 0, " 0 divides by 0"),
    ],
)
def test_a_check_of_several_settings_names_the_line_of_one(
    tmp_path: Path, key: str, value: object, message: str
) -> None:
    path = changed(tmp_path, key, value)
    text = path.read_text()
    start = text.index(f"{key.split('.')[-1]}:", text.index("\npretrain:"))
    line = text[:start].count("\n") + 1
    with pytest.raises(ElmoError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:{line}: {key}{message}")


def test_no_setting_is_without_a_range() -> None:
    """A number or text that could be anything is a traceback later."""

    def bare(kind: object) -> bool:
        if is_dataclass(kind):
            return any(bare(one) for one in field_types(kind).values())
        if get_origin(kind) in (tuple, UnionType, Union):
            return any(bare(one) for one in get_args(kind))
        return kind in (int, float, str)

    assert not bare(Params) and not bare(Cluster)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tokenize.heldout", ..., "tokenize.heldout is missing"),
        (
            "tokenize.holdout",
            0.1,
            "tokenize.holdout is not a setting; choose from tokenizer, sentences, documents",
        ),
        ("corpus.general", "text.txt", "corpus.general must be a list, found 'text.txt'"),
        (
            "pretrain.network.filters",
            [[1, 2, 3]],
            "pretrain.network.filters[0] must have 2 items, found 3",
        ),
        (
            "pretrain.training.epochs",
            [1],
            "pretrain.training.epochs must be one value, found a list",
        ),
        ("vocab", 3, "vocab must be a section of settings, found 3"),
        (
            "cluster",
            {"workers": 1},
            "cluster is not a setting; choose from corpus, tokenize, vocab, pretrain",
        ),
    ],
)
def test_a_wrong_shape_is_refused(tmp_path: Path, key: str, value: object, message: str) -> None:
    path = changed(tmp_path, key, value)
    with pytest.raises(ElmoError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:")
    assert str(caught.value).split(": ", 1)[1].startswith(message)


def test_a_whole_number_is_a_float_and_null_may_be_one(tmp_path: Path) -> None:
    clip = load(changed(tmp_path, "pretrain.network.cell_clip", 3)).pretrain.network.cell_clip
    assert type(clip) is float and clip == 3
    changed_params = changed(tmp_path, "pretrain.network.cell_clip", None)
    assert load(changed_params).pretrain.network.cell_clip is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"corpus:\n  general: [\n", ":3: not valid YAML"),
        (b"corpus: {}\nvocab: 1\ncorpus: {}\n", ":3: not valid YAML (found duplicate"),
        (
            b"corpus:\n  column: a\n  column: b\n",
            ':3: not valid YAML (found duplicate key "column"',
        ),
        (b"corpus:\n  column: a\0b\n", "special characters are not allowed"),
        ("corpus:\n  column: é\n".encode("latin-1"), ": not UTF-8; save the file as UTF-8"),
        (b"", ":1: corpus is missing"),
    ],
)
def test_a_broken_file_is_one_line(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_bytes(text)
    with pytest.raises(ElmoError) as caught:
        load(path)
    assert str(caught.value).startswith(str(path)) and message in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_what_is_no_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ElmoError, match=r"absent\.yaml: no such file"):
        load(tmp_path / "absent.yaml")
    with pytest.raises(ElmoError, match="is a folder"):
        load(tmp_path)
