"""The examples of README and of the guides: what can be run on a small model is run."""

import contextlib
import io
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from unicodedata import normalize

import click
import numpy as np
import pytest
import torch

from elmo.data.characters import Characters
from elmo.data.shards import write_shards
from elmo.data.tokenizer import installed_tokenization
from elmo.data.vocabulary import Vocabulary
from elmo.model.embedder import Embedder
from elmo.model.folder import load_model, save_model
from elmo.nn.bilm import BiLM
from elmo.settings import ModelShape, StoreSettings
from elmo.store.build import build
from pipeline.cluster import workers
from pipeline.commands.cli import cli
from tests.pipeline import here
from tests.pipeline.command_line import ROOT, elmo
from tests.pipeline.doc_page import FENCE, Step, pattern, steps
from tests.pipeline.stages.test_tokenize import make as make_shards
from tests.programs import call

README = ROOT / "README.md"
STORES = ROOT / "docs" / "guides" / "stores.md"
RECORDS = ROOT / "docs" / "guides" / "records.md"
PAGES = [
    README,
    *(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "generated"),
]
BARE = re.compile(r"^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Run by tests of their own, with what they need.
ELSEWHERE = ("import mlflow", "sys.argv")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders that the examples name, with vectors as wide as those of the defaults."""
    folder = tmp_path_factory.mktemp("project")
    words = ["<S>", "</S>", "<UNK>", "a", "new", "array"]
    tokenizer = installed_tokenization("unicode", "split")
    config = ModelShape(4, ((1, 4), (2, 8)), "relu", 1, 8, 128, 2, 3.0, 3.0, True, None)
    torch.manual_seed(0)
    bilm = BiLM(config, character_count=Characters().size)
    for parameter in bilm.parameters():
        torch.nn.init.normal_(parameter, 0, 0.1)
    save_model(
        folder / "models" / "finetune",
        bilm=bilm,
        vocabulary=Vocabulary(words, [20, 20, 9, 8, 7, 6]),
        characters=Characters(),
        softmax={"weight": torch.randn(len(words), 128), "bias": torch.zeros(len(words))},
        training={},
        tokenizer=tokenizer,
    )
    line = "it makes a new array of the given shape and type {} ."
    sentences = [line.format(k).split() for k in range(20)]
    write_shards(folder / "shards", sentences, heldout_every=5, tokenizer=tokenizer)
    features = {"shards": folder / "shards", "model": folder / "models" / "finetune"}
    build(folder / "data" / "features", settings=StoreSettings(), **features)
    (folder / "text.txt").write_text("He has a gift.\nIt returns a new array. It is a copy.\n")
    return folder


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Path:
    """A project of a table, in which a record is blank."""
    folder = tmp_path_factory.mktemp("records")
    good, bad = "It is a good film. I liked it.", "Not for me."
    (folder / "reviews.csv").write_text(f"id,text\na7,{good}\nb2,\nc9,{bad}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "map_tasks", here.map_tasks)
        how = {"tokenizer": "unicode", "sentences": "split", "documents": "auto", "heldout": 0.05}
        make_shards(folder / "shards", folder / "reviews.csv", keep=("id",), **how)
    features = {"shards": folder / "shards", "model": project / "models" / "finetune"}
    build(folder / "data" / "features", settings=StoreSettings(), **features)
    (folder / "models").symlink_to(project / "models")
    return folder


@pytest.mark.parametrize(
    ("page", "several", "made"),
    [(README, 4, "project"), (STORES, 5, "project"), (RECORDS, 6, "records")],
    ids=["readme", "stores", "records"],
)
def test_the_examples_of_a_page(
    page: Path,
    several: int,
    made: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    project = request.getfixturevalue(made)
    monkeypatch.chdir(project)
    names: dict[str, object] = {}
    run = 0
    for step in steps(page):
        if any(word in step.source for word in ELSEWHERE):
            continue
        printed = _python(step, names) if step.kind == "python" else _command(step, project)
        wanted = pattern(step.expected or "", exact=step.kind == "python")
        assert wanted.fullmatch(printed), f"{page.name}:{step.line}: {step.source}\n{printed}"
        run += 1
    assert run == several


def test_a_model_by_its_name_tells_two_senses_apart(tmp_path: Path) -> None:
    """The package that the repository ships, installed by `make setup`."""
    picture = tmp_path / "new" / "two.png"
    printed = call(sys.executable, ROOT / "examples" / "two_senses.py", picture).splitlines()
    asked = printed[:-1:2]
    nearest = [line.split("  ")[1] for line in map(str.strip, printed[1:-1:2])]
    of_rivers = set(asked[: len(asked) // 2])
    alike = [(a in of_rivers) == (b in of_rivers) for a, b in zip(asked, nearest, strict=True)]
    assert sum(alike) >= 10 and len(alike) == 12
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("name", "licence"), [("english", "CC BY-SA"), ("korean", "CC0 1.0"), ("japanese", "CC0-1.0")]
)
def test_a_shipped_model_is_small_and_its_card_names_it(name: str, licence: str) -> None:
    package = ROOT / "pretrained" / name
    model = package / f"elmo_{name}"
    assert sum(path.stat().st_size for path in model.iterdir() if path.is_file()) < 40_000_000
    card = (package / "README.md").read_text(encoding="utf-8")
    assert load_model(model).digest in card and licence in card
    installed = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))
    assert installed["project"]["entry-points"]["elmo.models"] == {name: f"elmo_{name}"}


def test_the_korean_model_reads_raw_reviews() -> None:
    pytest.importorskip("kiwipiepy")
    embedder = Embedder.load(ROOT / "pretrained" / "korean" / "elmo_korean")
    texts = ["정말 재미있게 봤다!", "아주 재미있게 보았습니다.", "음악이 너무 시끄러웠다."]
    praise, more_praise, complaint = embedder.encode(texts, normalize=True)
    assert embedder.tokenize(normalize("NFD", texts[0])) == embedder.tokenize(texts[0])
    assert praise @ more_praise > max(praise @ complaint, more_praise @ complaint)


def test_the_japanese_model_reads_raw_text() -> None:
    pytest.importorskip("fugashi")
    embedder = Embedder.load(ROOT / "pretrained" / "japanese" / "elmo_japanese")
    (in_tokyo, to_kyoto, of_books) = embedder.embed(
        [embedder.tokenize(text)[0] for text in ("東京に住む。", "京都に行く。", "本を読む。")]
    )
    first, second, third = (vectors[1, 0] for vectors in (in_tokyo, to_kyoto, of_books))
    assert embedder.tokenize(normalize("NFD", "ガラスだ。")) == [["ガラス", "だ", "。"]]
    assert _cosine(first, second) > _cosine(first, third)


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def _python(step: Step, names: dict[str, object]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(step.source, f"line {step.line}", "exec"), names)
    return out.getvalue()


def _command(step: Step, folder: Path) -> str:
    program, *words = shlex.split(step.source, comments=True)
    assert program == "elmo", step.source
    code, printed, errors = elmo(*words, cwd=folder)
    assert code == 0, errors
    return printed


def commands() -> Iterator[tuple[str, str]]:
    """Each `elmo` command of a block of the documentation, and its page."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        blocks = BARE.findall(text)
        blocks += [content for kind, content in FENCE.findall(text) if kind in ("console", "sh")]
        for line in "\n".join(blocks).splitlines():
            if re.match(r"(\$ )?elmo ", line):
                yield page.name, line.removeprefix("$ ")


@pytest.mark.parametrize(("page", "line"), list(commands()))
def test_a_command_has_the_options_that_are_shown(page: str, line: str) -> None:
    command: click.Command = cli
    words = shlex.split(line, comments=True)[1:]
    context = click.Context(command)
    while isinstance(command, click.Group):
        chosen = command.get_command(context, words[0])
        assert chosen is not None, f"{page}: there is no command {words[0]}"
        command, words = chosen, words[1:]
    try:
        command.parse_args(click.Context(command), words)
    except click.MissingParameter:
        raise
    except click.BadParameter:
        pass  # a file or folder that is not there
