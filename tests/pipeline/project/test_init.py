"""`elmo init` and `elmo run`; from the wheel in an empty folder: test_pages.py."""

import gzip
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml

from elmo.errors import ElmoError
from pipeline.project import init
from pipeline.settings import params
from tests.elmo.conftest import save_tiny_model
from tests.pipeline.command_line import elmo
from tests.pipeline.installed import ROOT, built_wheel
from tests.programs import call

TEXT = "the cat sat on the carpet\nanother dog slept here\n\nmore text of the world\n"


def new(folder: Path, **given: object) -> list[str]:
    options = {"text": [], "domain": [], "column": None, "preset_name": None} | given
    return init.create_project(folder, **options)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def without_starting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Git and DVC are for the test of the wheel: they take seconds."""
    monkeypatch.setattr(init, "_start_git_and_dvc", lambda folder: "git and DVC started")
    monkeypatch.setattr(init, "_commit_files", lambda folder, files: "")
    monkeypatch.chdir(tmp_path)


def test_a_project_has_the_repositorys_stages_and_complete_settings(tmp_path: Path) -> None:
    new(tmp_path / "p")
    assert (tmp_path / "p" / "dvc.yaml").read_bytes() == (ROOT / "dvc.yaml").read_bytes()
    assert params.load(tmp_path / "p" / "params.yaml") == params.load(ROOT / "params.yaml")
    ignored = (tmp_path / "p" / ".gitignore").read_text().splitlines()
    assert set(ignored) <= set((ROOT / ".gitignore").read_text().splitlines())
    written = [
        out
        for s in yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"].values()
        for out in s.get("do", s)["outs"]
        if isinstance(out, str)
    ]
    assert {f"/{out.split('/')[0]}/" for out in written} <= set(ignored)


def test_one_text_is_also_the_task_text(tmp_path: Path) -> None:
    Path("t.txt").write_text(TEXT)
    lines = new(tmp_path / "p", text=["t.txt"])
    made = params.load(tmp_path / "p" / "params.yaml")
    assert made.corpus.general == made.corpus.domain == (str(tmp_path / "t.txt"),)
    assert lines[1:] == ["general text: t.txt, 73 bytes", "domain text: t.txt, 73 bytes"]
    assert made.report.neighbors_of == ()
    assert made.labels.package == ""
    assert made.tasks == {} and "tasks: {}\n\nreport:" in (tmp_path / "p/params.yaml").read_text()


def test_names_inside_the_project_stay_relative_and_comments_stay(tmp_path: Path) -> None:
    Path("texts").mkdir()
    for name in ("a", "b"):
        Path(f"texts/{name}.txt").write_text(TEXT + name)
    new(Path("."), text=["texts/*.txt"], domain=["texts/a.txt"], preset_name="small")
    made = params.load(Path("params.yaml"))
    assert made.corpus.general == ("texts/*.txt",) and made.corpus.domain == ("texts/a.txt",)
    assert made.pretrain.network.cells == 1024
    assert '["texts/*.txt"] # your files' in Path("params.yaml").read_text()


def test_records_by_their_column(tmp_path: Path) -> None:
    Path("r.jsonl").write_text('{"review": "the cat sat on the carpet"}\n' * 3)
    new(tmp_path / "p", text=["r.jsonl"], column="review")
    made = params.load(tmp_path / "p" / "params.yaml")
    assert made.corpus.column == "review"
    with pytest.raises(ElmoError, match="no field 'text' .*, found review; pass --column"):
        new(tmp_path / "q", text=["r.jsonl"])
    assert not (tmp_path / "q").exists()


def test_a_project_that_fine_tunes_a_trained_model(tmp_path: Path) -> None:
    """The text is cut as the model's was, nothing is pretrained, and no task of English is made."""
    Path("t.txt").write_text(TEXT)
    save_tiny_model(tmp_path / "given")
    lines = new(tmp_path / "p", domain=["t.txt"], model="given")
    made = params.load(tmp_path / "p" / "params.yaml")
    assert made.pretrain.model == str(tmp_path / "given")
    assert made.tokenize.tokenizer == "whitespace" and made.tokenize.sentences == "line"
    assert made.corpus.domain == (str(tmp_path / "t.txt"),) and not made.corpus.general
    assert not made.tasks
    assert "nothing is pretrained" in lines[2]


@pytest.mark.parametrize(
    ("domain", "model", "said"),
    [([], "given", "--domain"), (["t.txt"], "english2", "did you mean .english.?")],
)
def test_what_can_not_be_fine_tuned_is_said(
    tmp_path: Path, domain: list[str], model: str, said: str
) -> None:
    Path("t.txt").write_text(TEXT)
    save_tiny_model(tmp_path / "given")
    with pytest.raises(ElmoError, match=said):
        new(tmp_path / "p", domain=domain, model=model)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"text": ["no.txt"]}, "^no.txt: no such file or folder of text; name one as --text$"),
        ({"text": ["goood.txt"]}, "^goood.txt: .* did you mean 'good.txt'.; name one as --text$"),
        ({"text": ["empty"]}, "^empty: is a folder without text files; name another as --text$"),
        ({"domain": ["no*"]}, r"^no\*: no such file or folder of text; name one as --domain$"),
        ({"text": [""]}, "^corpus: an empty name as --text"),
        ({"text": ["a.csv", "a.csv"]}, "^a.csv: named twice as --text"),
        ({"text": ["a.csv"]}, "^a.csv: no text in column 'text'; name files with text as --text$"),
        ({"text": ["a.tsv"], "column": "y"}, "^a.tsv: no text in column 'y'"),
        ({"domain": ["empty.txt"]}, "^empty.txt: is empty; name files .* as --domain$"),
        ({"text": ["blank.txt"]}, "^blank.txt: has no text; name files with text as --text$"),
        ({"text": ["null.jsonl"]}, "^null.jsonl: no text in column 'text'"),
        ({"text": ["empty.txt.gz"]}, "^empty.txt.gz: has no text"),
        ({"preset_name": "huge"}, "^no preset huge; there are japanese-small, korean"),
    ],
)
def test_nothing_is_written_where_something_is_wrong(
    tmp_path: Path, given: dict[str, object], message: str
) -> None:
    Path("a.csv").write_text("text,label\n")
    Path("a.tsv").write_text("x\ty\n1\t\n")
    Path("empty.txt").touch()
    Path("good.txt").write_text(TEXT)
    Path("empty").mkdir()
    Path("blank.txt").write_text("\ufeff\n \n")
    Path("null.jsonl").write_text('{"text": null}\n{"text": ""}\n')
    Path("empty.txt.gz").write_bytes(gzip.compress(b""))
    with pytest.raises(ElmoError, match=message):
        new(tmp_path / "p", **given)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("name", ["50% off", "why?"])
def test_a_folder_that_can_not_hold_mlflows_database(tmp_path: Path, name: str) -> None:
    with pytest.raises(ElmoError, match="in its path; rename the folder"):
        new(Path(name))
    assert list(tmp_path.iterdir()) == []


def test_an_empty_table_beside_others_is_read(tmp_path: Path) -> None:
    Path("a.csv").write_text("text\n")
    Path("b.csv").write_text("text\nthe cat sat on the carpet\n")
    assert new(tmp_path / "p", text=["a.csv", "b.csv"])[1] == "general text: 2 files, 36 bytes"


def test_a_file_is_no_folder_for_a_project(tmp_path: Path) -> None:
    Path("p").write_text("mine")
    with pytest.raises(ElmoError, match="^p: is a file; choose a new folder"):
        new(Path("p"))


def test_the_next_command_can_be_pasted(tmp_path: Path) -> None:
    code, out, _ = elmo("init", "my project's", cwd=tmp_path)
    assert code == 0
    next_ = out.splitlines()[-1].removeprefix("  next: ").removesuffix("elmo run")
    assert subprocess.check_output(f"{next_} pwd", shell=True, text=True).strip() == str(
        tmp_path / "my project's"
    )


def test_other_files_stay(tmp_path: Path) -> None:
    Path("README.md").write_text("mine")
    Path(".gitignore").write_text("/mine\n/data/\n")
    new(Path("."))
    assert Path("README.md").read_text() == "mine"
    assert Path(".gitignore").read_text().startswith("/mine\n/data/\n.venv/\n/models/\n")


def test_links_that_lead_nowhere_stay(tmp_path: Path) -> None:
    Path("README.md").symlink_to("not-mounted")
    new(Path("."))
    assert os.readlink("README.md") == "not-mounted"
    for name in ("params.yaml", ".gitignore"):
        folder = tmp_path / f"with {name}"
        folder.mkdir()
        (folder / name).symlink_to("not-mounted")
        with pytest.raises(ElmoError, match=name):
            new(folder)
        assert os.listdir(folder) == [name] and (folder / name).is_symlink()


def test_the_lines_of_a_gitignore_stay_as_they_are(tmp_path: Path) -> None:
    mine = b"/mine\r\na\x0cb\n/data/"
    Path(".gitignore").write_bytes(mine)
    new(Path("."))
    assert Path(".gitignore").read_bytes().startswith(mine + b"\n")


@pytest.mark.parametrize("name", ["dvc.yaml", "params.yaml"])
def test_a_file_of_ones_own_is_not_replaced(tmp_path: Path, name: str) -> None:
    Path(name).write_text("mine")
    with pytest.raises(ElmoError, match=f"^{name}: already exists"):
        new(Path("."))
    assert Path(name).read_text() == "mine" and os.listdir() == [name]


def test_a_gitignore_that_is_not_utf8_is_one_line(tmp_path: Path) -> None:
    Path(".gitignore").write_bytes(b"/caf\xe9\n")
    with pytest.raises(ElmoError, match=r"^.gitignore: is not UTF-8; save it as UTF-8"):
        new(Path("."))
    assert os.listdir() == [".gitignore"]


@pytest.mark.slow
def test_an_experiment_of_dvc_can_begin_at_once(tmp_path: Path) -> None:
    """Without a name known to git too."""
    (tmp_path / "mine.txt").write_text(TEXT)
    nobody = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    nobody |= {"HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT), "GIT_CONFIG_NOSYSTEM": "1"}

    run = partial(call, cwd=tmp_path, env=nobody)
    run(sys.executable, "-m", "pipeline", "init", ".", "--text", "mine.txt")
    assert run("git", "log", "--format=%s").strip() == "Start a project"
    assert run("git", "status", "--porcelain").strip() == "?? mine.txt"  # what is yours is left
    run("dvc", "exp", "run", "--queue", "-S", "vocab.min_count=1")


@pytest.mark.slow
def test_outputs_and_dvcs_cache_share_their_files(tmp_path: Path) -> None:
    """Nothing lies on the disk twice, and an earlier output comes back as it was."""
    (tmp_path / "mine.txt").write_text("".join(f"the cat sat on mat {k}\n\n" for k in range(60)))
    own = os.environ | {"PYTHONPATH": str(ROOT), "ELMO_ACTORS": "1", "DVC_NO_ANALYTICS": "1"}
    run = partial(call, sys.executable, "-m", cwd=tmp_path, env=own)

    def shards(heldout: float) -> dict[str, tuple[bytes, int]]:
        text = (tmp_path / "params.yaml").read_text()
        (tmp_path / "params.yaml").write_text(
            re.sub(r"heldout: [\d.]+", f"heldout: {heldout}", text)
        )
        run("dvc", "repro", "-q", "tokenize@general")
        paths = sorted((tmp_path / "data" / "shards" / "general").iterdir())
        return {path.name: (path.read_bytes(), path.stat().st_nlink) for path in paths}

    run("pipeline", "init", ".", "--text", "mine.txt")
    first = shards(0.3)
    assert len(first) == 4 and {links for _, links in first.values()} == {2}
    assert shards(0.5) != first
    again = {name: content for name, (content, _) in shards(0.3).items()}
    assert again == {name: content for name, (content, _) in first.items()}


@pytest.mark.slow
def test_the_wheel_holds_two_packages_and_the_project(tmp_path: Path) -> None:
    wheel = built_wheel(tmp_path)
    assert {path.name for path in wheel.iterdir() if path.suffix != ".dist-info"} == {
        "elmo",
        "elmo_pipeline",
    }
    for path in (ROOT / "pipeline" / "project").rglob("*"):
        if "__pycache__" in path.parts:  # of this checkout
            continue
        packed = wheel / "elmo_pipeline" / "project" / path.relative_to(ROOT / "pipeline/project")
        assert packed.is_dir() if path.is_dir() else packed.read_bytes() == path.read_bytes()
    assert len(list((wheel / "elmo_pipeline/project/presets").iterdir())) >= 4


START = init._start_git_and_dvc  # the fixture above replaces it in other tests


def test_a_dvc_without_its_config_is_refused(tmp_path: Path) -> None:
    """DVC would delete the cache in it."""
    (tmp_path / ".dvc" / "cache").mkdir(parents=True)
    with pytest.raises(ElmoError, match="config is missing"):
        START(tmp_path)
    assert (tmp_path / ".dvc" / "cache").exists()


def test_nothing_is_started_within_gits_own_files(monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["git", "init", "-q", "--bare", "bare"], check=True)
    monkeypatch.setattr(init, "_start_git_and_dvc", START)
    before = sorted(os.walk("bare"))
    for folder in (Path("bare"), Path("bare/new")):
        with pytest.raises(ElmoError, match="^bare.*: is inside git's own files; choose"):
            init._write_project(folder, {})
    assert sorted(os.walk("bare")) == before


def test_the_reason_of_a_failed_command_is_its_error_line(tmp_path: Path) -> None:
    program = "import sys; sys.exit('hint\\nERROR: no room\\nHaving any troubles?')"
    with pytest.raises(ElmoError, match=r"failed \(ERROR: no room\); nothing else was written$"):
        init._run_checked(tmp_path, sys.executable, "-c", program)
