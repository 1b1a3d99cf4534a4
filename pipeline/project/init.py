"""Creates new projects: copies of this package's files, with the user's text in params.yaml."""

import glob
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from elmo.data.tokenizer import TOKENIZERS, Tokenization
from elmo.errors import ElmoError, reason_of
from elmo.io.location import Location
from elmo.model.config import model_location, read_config
from elmo.settings import check_value

from .. import PACKAGE
from ..cluster.job import CACHE_LINK_TYPES
from ..settings import params, preset
from ..text.input_files import InputFile, find_inputs
from ..text.text_blocks import check_texts
from ..tracking.client import configured_uri

TEMPLATE_FOLDER = PACKAGE / "project"
_FINE_TUNED_REMARK = "to be fine-tuned to your domain; nothing is pretrained"
_PROSE_REMARK = "English prose that comes with Python; pass your own with --text"
_DOCSTRINGS_REMARK = "the docstrings of a package; pass your own text with --domain"


def create_project(
    folder: Path,
    *,
    text: Sequence[str],
    domain: Sequence[str],
    column: str | None,
    preset_name: str | None,
    model: str | None = None,
) -> list[str]:
    """Create a project in `folder`; return lines that describe it.

    `text` are the files of the general text, `domain` those of the domain text (default: `text`);
    `column` is the column of tables that has the text, and `preset_name` a preset to start from.
    With `model`, a folder or an installed model's name, nothing is pretrained: that model is
    fine-tuned, and its tokenizer splits the text. git and DVC are set up if necessary. Everything
    is checked before anything is written.
    """
    if folder.exists() and not folder.is_dir():
        raise ElmoError(f"{folder}: is a file; choose a new folder for the project")
    for name in ("dvc.yaml", "params.yaml"):
        if os.path.lexists(folder / name):
            raise ElmoError(f"{folder / name}: already exists; choose a new folder or delete it")
    configured_uri(folder.absolute())  # refuses a path where MLflow cannot have its database
    if column is not None:
        check_value("--column", column, params.Line)
    if model is not None:
        check_value("--from", model, params.ModelName)
    general_inputs = _find_texts("--text", text, column)
    domain_inputs = _find_texts("--domain", domain, column) or general_inputs
    if model is not None and not domain:
        raise ElmoError("--from needs a text to fine-tune on; pass it with --domain")
    named_model = None if model is None else _resolve_model(folder, model)
    settings = _make_params(
        [_path_in_project(folder, name) for name in text],
        [_path_in_project(folder, name) for name in domain or text],
        column=column,
        preset_name=preset_name,
        model=named_model,
    )
    files = {"params.yaml": settings}
    for name in ("dvc.yaml", "cluster.example.yaml", "README.md"):
        if not os.path.lexists(folder / name):
            files[name] = (TEMPLATE_FOLDER / name).read_text(encoding="utf-8")
    files[".gitignore"] = _extend_gitignore(folder / ".gitignore")
    setup_text = _write_project(folder, files)
    return [
        f"{', '.join(sorted(files))}; {setup_text}",
        f"general text: {_describe_files(general_inputs) or _PROSE_REMARK}",
        *([f"model: {named_model[0]}, {_FINE_TUNED_REMARK}"] if named_model is not None else []),
        f"domain text: {_describe_files(domain_inputs) or _DOCSTRINGS_REMARK}",
    ]


def _write_project(folder: Path, files: Mapping[str, str]) -> str:
    """Write the files of a project and set up git and DVC; return in words what was set up."""
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".init-", dir=folder) as parent:
            for name, content in files.items():
                (Path(parent) / name).write_text(content, encoding="utf-8")
            status = _start_git_and_dvc(folder)
            for name in files:
                os.replace(Path(parent) / name, folder / name)
    except BaseException as error:
        if is_new:
            with suppress(OSError):  # unless it is no longer empty
                folder.rmdir()
        if isinstance(error, OSError):  # an error about a full disk names no file
            raise ElmoError(f"{folder}: cannot be written ({reason_of(error)})") from None
        raise
    if status.startswith("git and DVC started"):
        status += _commit_files(folder, files)
    return status


def _find_texts(option: str, patterns: Sequence[str], column: str | None) -> list[InputFile]:
    """Find and check the files that an option names, by names, folders, globs and URLs."""
    if not patterns:
        return []
    inputs = find_inputs(patterns, list_source := f"as {option}")
    try:
        check_texts(inputs, column or "text", list_source)
    except ElmoError as error:
        raise ElmoError(str(error).replace("set corpus.column", "pass --column")) from None
    return inputs


def _resolve_model(folder: Path, name: str) -> tuple[str, Tokenization]:
    """Return the model's name as the project in `folder` should state it, and its tokenization."""
    config = read_config(name)
    if config.tokenizer.name not in TOKENIZERS:
        raise ElmoError(f"--from {name}: the model has no tokenizer; use another model")
    return (
        _path_in_project(folder, name) if model_location(name) == Location(name) else name
    ), config.tokenizer


def _describe_files(inputs: Sequence[InputFile]) -> str:
    """Describe files for the user; return "" if there are none."""
    if not inputs:
        return ""
    files = f"{len(inputs)} files" if len(inputs) > 1 else inputs[0].name
    return f"{files}, {sum(input_.bytes for input_ in inputs):,} bytes"


def _path_in_project(folder: Path, name: str) -> str:
    """Return a path as the project in `folder` should state it: relative to `folder` if below it,
    else absolute; a URL is unchanged.

    `../text` would not work, because DVC runs queued experiments in a copy of the project.
    """
    if "://" in name:
        return name
    if not os.path.exists(name) and not glob.has_magic(name):
        return name
    path, project = Path(os.path.abspath(name)), Path(os.path.abspath(folder))
    return str(path.relative_to(project) if path.is_relative_to(project) else path)


def _make_params(
    general: list[str],
    domain: list[str],
    *,
    column: str | None,
    preset_name: str | None,
    model: tuple[str, Tokenization] | None,
) -> str:
    """Return params.yaml: the default one with the preset and the user's options applied."""
    with tempfile.TemporaryDirectory() as parent:
        file = Path(parent) / "params.yaml"
        shutil.copyfile(TEMPLATE_FOLDER / "params.yaml", file)
        if preset_name is not None:
            preset.apply_preset(preset_name, file)

        def edit(sections: dict[str, Any]) -> None:
            for key, value in {"general": general, "domain": domain, "column": column}.items():
                if value:
                    sections["corpus"][key] = preset.quoted_value(value)
            if model is not None:
                name, tokenization = model
                sections["pretrain"]["model"] = preset.quoted_value(name)
                sections["tokenize"]["tokenizer"] = tokenization.name
                sections["tokenize"]["sentences"] = tokenization.sentences
            if domain:
                sections["report"]["neighbors_of"].clear()
            if general or model is not None:  # the built-in task is about English documentation
                sections["labels"]["package"], sections["tasks"] = "", {}

        file.write_text(preset.edit_text(file, edit), encoding="utf-8")
        params.load(file)
        return file.read_text(encoding="utf-8")


def _extend_gitignore(path: Path) -> str:
    """Return the folder's .gitignore, with the outputs of the stages added."""
    if path.is_symlink():
        raise ElmoError(
            f"{path}: is a symbolic link to {os.readlink(path)}; replace it with a file"
        )
    try:
        text = path.read_bytes().decode("utf-8") if path.exists() else ""
    except UnicodeDecodeError:
        raise ElmoError(f"{path}: is not UTF-8; save it as UTF-8, or move it away") from None
    old_lines = {line.rstrip("\r") for line in text.split("\n")}
    lines = (TEMPLATE_FOLDER / "gitignore").read_text(encoding="utf-8").splitlines()
    new_lines = [f"{line}\n" for line in lines if line not in old_lines]
    return text + "\n" * (text != "" and not text.endswith("\n")) + "".join(new_lines)


def _start_git_and_dvc(folder: Path) -> str:
    """Initialize git and DVC in `folder` if necessary; return in words what was initialized."""
    new_tools = []
    has_dvc = os.path.lexists(folder / ".dvc")
    if has_dvc and not (folder / ".dvc" / "config").is_file():
        raise ElmoError(f"{folder / '.dvc'}: not a DVC folder (config is missing); delete it")
    has_git = shutil.which("git") is not None
    if has_git:
        git_process = _run_command(folder, "git", "rev-parse", "--is-inside-work-tree")
        if git_process.stdout.strip() == "false":
            raise ElmoError(f"{folder}: is inside git's own files; choose a folder outside them")
        if git_process.returncode:
            _run_checked(folder, "git", "init", "-q")
            new_tools.append("git")
    if not has_dvc:
        options = ["--no-scm"] if not has_git else []
        if has_git and not (folder / ".git").exists():
            options = ["--subdir"]
        _run_checked(folder, sys.executable, "-m", "dvc", "init", *options)
        # DVC must send no usage data from this project, whoever calls it.
        _run_checked(folder, sys.executable, "-m", "dvc", "config", "-q", "core.analytics", "false")
        _run_checked(folder, sys.executable, "-m", "dvc", "config", "-q", *CACHE_LINK_TYPES)
        new_tools.append("DVC")
    return f"{' and '.join(new_tools)} started" if new_tools else "git and DVC were there already"


def _commit_files(folder: Path, files: Iterable[str]) -> str:
    """Commit the files, because DVC's experiments need a commit; return git's error, if any."""
    new_files = [*files, ".dvc/config", ".dvc/.gitignore", ".dvcignore"]
    options = ["-c", "commit.gpgsign=false"]
    if _run_command(folder, "git", "config", "user.email").returncode:
        options += ["-c", "user.name=elmo init", "-c", "user.email=elmo@localhost"]
    paths = [name for name in new_files if (folder / name).exists()]
    for command in (
        ["add", "--", *paths],
        ["commit", "-q", "--no-verify", "-m", "Start a project"],
    ):
        process = _run_command(folder, "git", *options, *command)
        if process.returncode:
            return f"; not committed ({' '.join(process.stderr.split())[:200]})"
    return ""


def _run_checked(folder: Path, *command: str) -> None:
    process = _run_command(folder, *command)
    if process.returncode:
        lines = process.stderr.splitlines()  # DVC's end with an advertisement
        reasons = [line for line in lines if line.startswith(("ERROR: ", "fatal: "))] or lines
        reason = " ".join(" ".join(reasons).split())[:300] or f"exit code {process.returncode}"
        action = " ".join(command[1:]).removeprefix("-m ")
        raise ElmoError(f"{folder}: {action} failed ({reason}); nothing else was written")


def _run_command(folder: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    variables = {"DVC_NO_ANALYTICS": "1", "LC_ALL": "C"}
    return subprocess.run(
        command, cwd=folder, env=os.environ | variables, capture_output=True, text=True
    )
