"""corpus: prose that is everywhere, the same each time; or the user's own files, where they are."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from elmo.errors import ElmoError
from elmo.io.location import Location
from elmo.io.records import read_json, sha256
from pipeline.settings.params import CorpusSettings
from pipeline.stages import corpus
from pipeline.text.input_files import InputFile
from tests.files import contents


def params(**changes: object) -> CorpusSettings:
    plain = {"general": (), "domain": (), "domain_package": "click", "column": "text", "keep": ()}
    return CorpusSettings(**{**plain, **changes})  # type: ignore[arg-type]


def collect(folder: Path, settings: CorpusSettings) -> dict[str, float]:
    """Run the stage, to `folder`/out."""
    return corpus.run(Location(folder / "out"), settings, work=Location(folder / "runs"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    out = tmp_path_factory.mktemp("corpus") / "out"
    return out, corpus.run(Location(out), params(), work=Location(out.parent / "runs"))


def test_the_default_corpus_is_real_text_of_some_size(made: tuple[Path, dict[str, float]]) -> None:
    out, metrics = made
    assert metrics["general_words"] > 200_000
    text = (out / "general/reference.txt").read_text(encoding="utf-8")
    assert "Assert statements are a convenient way to insert debugging assertions" in text
    words = (out / "general/library.txt").read_text(encoding="utf-8").split()
    assert len(words) > 150_000 and words.count("the") > 0.03 * len(words)
    assert ">>>" not in words and "::=" not in words


def test_the_books_of_the_corpus_are_those_of_its_files(
    made: tuple[Path, dict[str, float]],
) -> None:
    out, metrics = made
    for text, entry in read_json(out / "manifest.json")["texts"].items():
        files = sorted(p.relative_to(out).as_posix() for p in (out / text).iterdir())
        assert sorted(found["name"] for found in entry["inputs"]) == files
        for found in entry["inputs"]:
            path = out / found["name"]
            assert (path.stat().st_size, sha256(path)) == (found["bytes"], found["sha256"])
        whole = "\n\n".join((out / name).read_text(encoding="utf-8").strip() for name in files)
        assert len(whole.split()) == metrics[f"{text}_words"]
        assert len(whole.split("\n\n")) == metrics[f"{text}_documents"]


def test_no_paragraph_comes_twice(made: tuple[Path, dict[str, float]]) -> None:
    out, _ = made
    lines = [
        line for p in (out / "general").iterdir() for line in p.read_text().split("\n") if line
    ]
    assert len(lines) == len(set(lines))


@pytest.mark.slow
def test_the_same_machine_gives_the_same_bytes(
    made: tuple[Path, dict[str, float]], tmp_path: Path
) -> None:
    corpus.run(Location(tmp_path / "again"), params(), work=Location(tmp_path / "runs"))
    assert contents(tmp_path / "again") == contents(made[0])


def test_text_of_the_same_versions_is_not_rendered_again(
    made: tuple[Path, dict[str, float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An altered file, another version and code under development are rendered again."""
    out, rendered = tmp_path / "out", []
    shutil.copytree(made[0], out)

    def render(text: str) -> str:
        rendered.append(text)
        return "Return the mean of the values, which must not be empty."

    def rendered_by_a_run() -> list[str]:
        rendered.clear()
        corpus.run(Location(out), params(), work=Location(tmp_path / "runs"))
        return rendered

    files = {"library.txt": ["general"]}
    monkeypatch.setattr(
        corpus, "_list_python_documents", lambda: {n: map(render, t) for n, t in files.items()}
    )
    monkeypatch.setattr(corpus, "package_docstrings", lambda name, **_: map(render, [name]))
    assert rendered_by_a_run() == []
    assert contents(out) == contents(made[0])
    (out / "general" / "reference.txt").write_text("altered\n")
    assert rendered_by_a_run() == ["general"]
    assert rendered_by_a_run() == []
    monkeypatch.setattr(corpus.platform, "python_version", lambda: "3.99.0")
    assert rendered_by_a_run() == ["general"]
    monkeypatch.setattr(corpus, "_find_released_versions", lambda name: {})
    assert rendered_by_a_run() == ["click"] and rendered_by_a_run() == ["click"]


def test_the_users_own_files_are_named_and_not_copied(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("b.txt", "a.jsonl"):
        (tmp_path / "in" / name).write_text(
            '{"body": "1234"}\n' if "json" in name else "14 bytes long\n"
        )
    own = params(
        general=(str(tmp_path / "in"),), domain=(str(tmp_path / "in/b.txt"),), column="body"
    )
    metrics = collect(tmp_path, own)
    assert metrics == {
        "general_files": 2,
        "general_bytes": 31,
        "domain_files": 1,
        "domain_bytes": 14,
    }
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["manifest.json"]
    found = read_json(tmp_path / "out/manifest.json")["texts"]
    assert [i["name"] for i in found["general"]["inputs"]] == ["a.jsonl", "b.txt"]
    assert found["domain"]["inputs"][0]["sha256"] == sha256(tmp_path / "in/b.txt")
    assert found["general"]["column"] == "body"


def test_own_general_text_without_domain_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("some text\n")
    own = str(tmp_path / "own.txt")
    with pytest.raises(ElmoError, match=r"corpus\.domain is empty .* name the files"):
        collect(tmp_path, params(general=(own,)))
    assert [p.name for p in tmp_path.iterdir()] == ["own.txt"]
    collect(tmp_path, params(general=(own,), domain=(own,)))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "own.txt"]


@pytest.mark.parametrize("package", ["no_such_package", "no_such.package", "this"])
def test_a_package_that_is_not_there_is_named_and_nothing_is_left(
    tmp_path: Path, package: str
) -> None:
    with pytest.raises(ElmoError, match=re.escape(f"no installed package '{package}'")):
        collect(tmp_path, params(domain_package=package))
    assert list(tmp_path.iterdir()) == []


def own_files(tmp_path: Path, column: str = "text") -> CorpusSettings:
    return params(general=(str(tmp_path / "in"),), domain=(str(tmp_path / "in"),), column=column)


def test_a_missing_column_is_named_with_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "a.jsonl"
    path.write_text('\n{"id": 1, "review": "good"}\n')
    with pytest.raises(ElmoError, match=r"a\.jsonl:2: no field 'text' .* found id, review; set"):
        collect(tmp_path, own_files(tmp_path))
    collect(tmp_path, own_files(tmp_path, "review"))
    assert corpus.describe_files(Location(tmp_path / "out"), "general") == "a.jsonl"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop("texts"), "missing required field `texts`"),
        (lambda m: m["texts"]["domain"].update(inputs=[]), r"texts.*inputs: "),
        (lambda m: m["texts"]["domain"]["inputs"][0].update(bytes=-1), "bytes: "),
        (lambda m: m["texts"]["domain"]["inputs"][0].update(name="d/../../x"), "no file "),
        (lambda m: m["texts"]["domain"]["inputs"][0].update(name="/etc/passwd"), "no file "),
    ],
)
def test_a_wrong_manifest_is_one_line(
    made: tuple[Path, dict[str, float]], tmp_path: Path, change: Any, message: str
) -> None:
    manifest = json.loads((made[0] / "manifest.json").read_text())
    change(manifest)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ElmoError, match=rf"manifest\.json: .*{message}") as error:
        corpus.read_corpus_manifest(Location(tmp_path))
    assert "\n" not in str(error.value)


def test_logins_stay_out_of_the_manifest_and_reach_the_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = InputFile("a.txt", "ftp://user:hunter2@host/a.txt", 9, "0" * 64)
    monkeypatch.setattr(corpus, "find_inputs", lambda patterns: [named])
    monkeypatch.setattr(corpus, "check_texts", lambda *_, **__: None)
    patterns = ("ftp://user:hunter2@host/*.txt",)
    corpus.run(
        Location(tmp_path / "corpus"),
        params(general=patterns, domain=patterns),
        work=Location(tmp_path / "runs"),
    )
    assert "hunter2" not in (tmp_path / "corpus" / "manifest.json").read_text()
    source = corpus.read_corpus_manifest(Location(tmp_path / "corpus")).texts["domain"].inputs[0]
    assert source.url == "ftp://host/a.txt"
    assert source.to_input(Location(tmp_path / "corpus"), patterns) == named
