"""The schema for editors and `-S`: both follow the dataclasses."""

import json
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from elmo import settings as library
from elmo.errors import ElmoError
from pipeline.commands.cli import cli
from pipeline.settings import (
    cluster,
    json_schema,
    params,
)

ROOT = Path(__file__).resolve().parents[3]
PARAMS = yaml.safe_load((ROOT / "params.yaml").read_text())
CLASSES = [
    kind
    for module in (library, params, cluster)
    for kind in vars(module).values()
    if isinstance(kind, type)
    and is_dataclass(kind)
    and kind.__module__ == module.__name__
    and kind is not library.ModelShape  # a model's own, which nobody sets
]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_setting_says_its_effect_in_one_line(kind: Any) -> None:
    said = json_schema.field_descriptions(kind)
    for field in fields(kind):
        if not is_dataclass(field.type):
            assert re.fullmatch(r"[A-Z`].*\.", said[field.name]), f"{kind.__name__}.{field.name}"


def changed(key: str, value: Any) -> dict[str, Any]:
    values = json.loads(json.dumps(PARAMS))
    *sections, last = key.split(".")
    inner = values
    for name in sections:
        inner = inner[name]
    inner[last] = value
    return values


@pytest.mark.parametrize(
    ("key", "value", "right"),
    [
        ("report.neighbors", 8, True),
        ("pretrain.training.epochs", 0, False),
        ("pretrain.training.optimizer.name", "sgd", False),
        ("pretrain.network.cell_clip", None, True),
        ("pretrain.network.filters", [[1, 32], [2]], False),
        ("vocab.min_cuont", 3, False),
        ("register.alias", "latest", False),
        ("report.title", "a\nb", False),
        ("features.layers", "0,2", True),
    ],
)
def test_an_editor_and_the_reader_agree(key: str, value: Any, right: bool, tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    validator = jsonschema.Draft202012Validator(json_schema.json_schema(params.Params))
    assert validator.is_valid(PARAMS)
    assert validator.is_valid(changed(key, value)) == right
    file = tmp_path / "params.yaml"
    file.write_text(yaml.safe_dump(changed(key, value)))
    if right:
        params.load(file)
    else:
        with pytest.raises(ElmoError, match=key.rpartition(".")[2]):
            params.load(file)


def test_the_command_prints_what_init_writes() -> None:
    printed = json.loads(CliRunner().invoke(cli, ["schema"]).output)
    assert printed == json.loads(json.dumps(json_schema.json_schema(params.Params)))
    described = printed["$defs"]["RegisterSettings"]["properties"]["alias"]["description"]
    assert described.startswith("The alias of the best version")
    assert "max_workers" in CliRunner().invoke(cli, ["schema", "cluster"]).output


def test_values_on_the_command_line_go_before_the_file() -> None:
    before = (ROOT / "params.yaml").read_bytes()
    changes = [
        "pretrain.training.epochs=3",
        "finetune.freeze=[encoder]",
        "corpus.domain=[a.txt, b]",
    ]
    made = params.load(ROOT / "params.yaml", changes)
    assert made.pretrain.training.epochs == 3 and made.finetune.freeze == ("encoder",)
    assert made.corpus.domain == ("a.txt", "b")
    assert made.finetune.training == params.load(ROOT / "params.yaml").finetune.training
    assert (ROOT / "params.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("vocab.min_count=0", "-S vocab.min_count=0: vocab.min_count must be a whole number of"),
        ("vocab.min_cuont=3", "-S vocab.min_cuont=3: vocab.min_cuont is no setting; there are"),
        ("vocabulary.min_count=3", "there is no section vocabulary"),
        ("vocab.min_count.x=3", "vocab.min_count is no section of settings"),
        ("vocab.min_count", "write it as section.key=value"),
        ("vocab.min_count=[", "the value is not valid YAML"),
        ("vocab=3", "-S vocab=3: vocab must be a section of settings, found '3'"),
        ("vocab.min_count=", "-S vocab.min_count=: vocab.min_count must be a whole number"),
    ],
)
def test_a_wrong_value_on_the_command_line_is_named(change: str, message: str) -> None:
    with pytest.raises(ElmoError, match=re.escape(message)):
        params.load(ROOT / "params.yaml", [change])


def test_a_stage_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.txt").write_text("the cat\n")
    named = ["-S", "corpus.general=[t.txt]", "--set", "corpus.domain=[t.txt]"]
    command = ["corpus", "out", "--work", "work", "--params", str(ROOT / "params.yaml"), *named]
    done = CliRunner().invoke(cli, command)
    assert done.output.startswith("corpus: 8 B general (t.txt)"), done.output
