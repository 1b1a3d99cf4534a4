"""MLflow's model registry: versions of models, and the aliases `candidate` and `champion`.

A model is registered once for each content, and a new version is `candidate`. The first one is
champion too; another becomes champion when its held-out perplexity, on the same text and words, is
lower by a margin, or by `promote`.
"""

import contextlib
import io
import os
import re
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from elmo.data.tokenizer import NONE, Tokenization
from elmo.errors import ElmoError
from elmo.io.locks import take_lock

from .. import PACKAGE, tracking
from ..terminal.progress import say

CANDIDATE = "candidate"
TEXTS = ("domain", "general")  # the first that a version was measured on is the one compared
LIBRARY = ("torch", "numpy", "pyarrow", "safetensors", "fsspec", "msgspec", "scipy")
_LOCK_WAIT = 600.0  # seconds to wait for another process that registers


@dataclass(frozen=True)
class ModelVersion:
    """A version of a registered model."""

    version: int
    run_id: str
    aliases: list[str]
    tags: dict[str, str]

    def stores(self) -> dict[str, str]:
        """Return the location of each store made from this version, by digest (shortened)."""
        return {
            key.removeprefix("store."): location
            for key, location in self.tags.items()
            if key.startswith("store.")
        }


@dataclass(frozen=True)
class RegisterResult:
    """The result of `register`: the version, whether it is new, and what became of the champion."""

    version: int
    new: bool
    decision: str


def find_version(name: str, model_digest: str) -> int | None:
    """Return the version of a model, found by the digest of its content, or None.

    The lowest is returned if a killed process left two.
    """
    rows = [one for one in versions(name) if one.tags.get("model_digest") == model_digest]
    return min((one.version for one in rows), default=None)


def versions(name: str) -> list[ModelVersion]:
    """Return the versions of a registered model, newest first."""
    tracking.check_mlflow()
    with tracking.catch_mlflow_errors():
        client = tracking.mlflow_client()
        where = tracking.name_filter(name)
        pages = [client.search_model_versions(where)]
        while pages[-1].token:
            pages.append(client.search_model_versions(where, page_token=pages[-1].token))
        aliases = client.get_registered_model(name).aliases if any(pages) else {}
    rows = [
        ModelVersion(
            int(one.version),
            one.run_id,
            sorted(a for a, v in aliases.items() if int(v) == int(one.version)),
            {_renamed(tag): value for tag, value in one.tags.items()},
        )
        for page in pages
        for one in page
    ]
    return sorted(rows, key=lambda row: -row.version)


def _renamed(tag: str) -> str:
    """A tag by its name of today: the domain text was once called the task text."""
    return re.sub(r"(^|\.)task$", r"\1domain", tag)


def register(
    folder: Path,
    *,
    name: str,
    alias: str,
    margin: float,
    tags: Mapping[str, str],
    run_id: str,
    description: str,
) -> RegisterResult:
    """Register a model folder as a version of the run `run_id`, unless it is registered.

    Raises `ElmoError`, and publishes nothing, where the model can't embed an example.
    """
    with _alone(), tracking.catch_mlflow_errors():
        content = tags["model_digest"]
        number = find_version(name, content)
        new = number is None
        if number is None:
            _sweep(name, run_id, content)
            logged = _log_checked(folder, run_id, content)
            number = _publish(name, logged, run_id, tags, description)
        kept, number = number, find_version(name, content) or number
        if kept != number:  # another process was first: one version for each content
            tracking.mlflow_client().delete_model_version(name, str(kept))
        decision = decide_champion(name, number, alias=alias, margin=margin, tags=tags)
    return RegisterResult(number, new and kept == number, decision)


def decide_champion(
    name: str, number: int, *, alias: str, margin: float, tags: Mapping[str, str]
) -> str:
    """Set a version's tags, make it candidate if newest, and champion if it is better.

    Returns the decision and its reason as text.
    """
    rows = {row.version: row for row in versions(name)}
    has = rows[number].tags
    with tracking.catch_mlflow_errors():
        client = tracking.mlflow_client()
        for key, value in tags.items():
            if has.get(key) != value:  # each is a write of its own
                client.set_model_version_tag(name, str(number), key, value)
    has.update(tags)
    newest = max((v for v, row in rows.items() if CANDIDATE in row.aliases), default=0)
    if number > newest:  # an older commit that is reproduced moves nothing back
        _point(name, CANDIDATE, number)
    champion = next((row for row in rows.values() if alias in row.aliases), None)
    if champion is None:
        if number != min(rows):
            return f"no version is {alias}; to choose: elmo promote VERSION"
        _point(name, alias, number)
        return f"{alias} is version {number}, the first"
    if champion.version == number:
        return f"{alias} is version {number}"
    better, why = is_better(champion, rows[number], margin=margin)
    if better:
        _point(name, alias, number)
        return f"{alias} moved from version {champion.version} to {number}: {why}"
    return f"{alias} stays version {champion.version}: {why}; to move it: elmo promote {number}"


def is_better(champion: ModelVersion, other: ModelVersion, *, margin: float) -> tuple[bool, str]:
    """Return whether another version is better than the champion, and the reason as text."""
    if other.version < champion.version:
        return False, f"version {other.version} is older"
    text = next((text for text in TEXTS if f"perplexity.after.{text}" in other.tags), None)
    if text is None:
        return False, f"version {other.version} has no held-out perplexity"
    for key, what in (
        (f"heldout.{text}", f"held-out {text} text"),
        ("words", "words, and perplexity depends on them"),
    ):
        if not other.tags.get(key) or other.tags[key] != champion.tags.get(key):
            return False, f"it was measured on other {what}"
    key = f"perplexity.after.{text}"
    old, new = (float(one.tags.get(key, "nan")) for one in (champion, other))
    figures = f"{text} perplexity {new:.6g}, the champion's {old:.6g}"
    if new <= old * (1 - margin) and new < old:
        return True, figures
    return False, f"{figures}, is not lower by {margin:.2%}"


def promote(name: str, number: int, *, alias: str) -> int | None:
    """Make a version the champion; return the former champion's number, or None."""
    rows = {row.version: row for row in versions(name)}
    if number not in rows:
        known = ", ".join(map(str, sorted(rows))) or "none yet"
        raise ElmoError(f"{name} has no version {number} to promote; it has {known}")
    before = next((row.version for row in rows.values() if alias in row.aliases), None)
    _point(name, alias, number)
    return before


def _point(name: str, alias: str, number: int) -> None:
    with tracking.catch_mlflow_errors():
        tracking.mlflow_client().set_registered_model_alias(name, alias, str(number))


def _publish(
    name: str, model_uri: str, run_id: str, tags: Mapping[str, str], description: str
) -> int:
    from mlflow.exceptions import MlflowException

    client = tracking.mlflow_client()
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    model_id = model_uri.removeprefix("models:/")
    created = client.create_model_version(
        name, model_uri, run_id, tags=dict(tags), description=description, model_id=model_id
    )
    return int(created.version)


def _sweep(name: str, run_id: str, content: str) -> None:
    """Remove what killed registrations of this content have logged: no version names it.

    Only where the registry is a file, whose lock is held: elsewhere another process may be at it.
    """
    if tracking.database_file() is None:
        return
    client = tracking.mlflow_client()
    versions = client.search_model_versions(tracking.name_filter(name))
    used = {one.model_id for one in versions}
    homes = [client.get_run(run_id).info.experiment_id, "0"]  # MLflow's default, without one active
    logged = client.search_logged_models(homes, f"tags.model_digest = '{content}'")
    for model in logged:
        if model.model_id not in used:
            folder = Path(unquote(urlsplit(model.artifact_location).path)).parent
            client.delete_logged_model(model.model_id)
            if model.artifact_location.startswith(("file:", "/")) and folder.name == model.model_id:
                shutil.rmtree(folder, ignore_errors=True)


def _log_checked(folder: Path, run_id: str, content: str) -> str:
    """Log a model to a run, load it from there and let it embed its example; return its URI."""
    import numpy as np

    from elmo.model.folder import load_model

    from . import pyfunc

    tokenizer = load_model(folder).tokenizer
    given = pyfunc.example_input(text=tokenizer != NONE)

    def check(answer: Any) -> None:
        if len(answer) != len(given) or not all(np.isfinite(one).all() for one in answer):
            raise ElmoError("its vectors are not all finite numbers")

    served = ServedModel(
        name="elmo",
        code=Path(pyfunc.__file__),
        artifacts={"model": folder},
        signature=pyfunc.signature(),
        example=given,
        params=pyfunc.PARAMS,
        check=check,
        tokenizer=tokenizer,
        tags={"model_digest": content},
    )
    try:
        return log_and_check_model(served, run_id)
    except ElmoError as error:
        raise ElmoError(
            f"{folder}: can't embed its own example as MLflow serves it ({error}); it is not "
            "registered"
        ) from error


@dataclass(frozen=True)
class ServedModel:
    """A model for MLflow to serve: the file of its code, its artifacts, and an example to check."""

    name: str
    code: Path
    artifacts: Mapping[str, Path]
    signature: Any
    example: list[Any]
    check: Callable[[Any], None]  # raises where the answer to the example is wrong
    tokenizer: Tokenization
    params: dict[str, Any] | None = None
    config: dict[str, Any] | None = None
    tags: dict[str, Any] | None = None


def log_and_check_model(served: ServedModel, run_id: str) -> str:
    """Log a model to a run, load it as a server does, try its example; return the model's URI.

    Raises `ElmoError`, and deletes the logged model, where the example fails.
    """
    import mlflow.pyfunc
    from mlflow.models import Model

    package = PACKAGE.parent / "elmo"
    run = tracking.mlflow_client().get_run(run_id)
    example = served.example if served.params is None else (served.example, served.params)
    quiet = contextlib.redirect_stderr(io.StringIO())  # it shows bars and where to look
    with (
        warnings.catch_warnings(),
        tracking.silenced("mlflow"),
        quiet,
        _experiment_of(run.info.experiment_id),
    ):
        warnings.simplefilter("ignore")  # what they may mean is tried below
        info = Model.log(
            artifact_path=None,
            name=served.name,
            flavor=mlflow.pyfunc,
            run_id=run_id,
            tags=served.tags,
            python_model=str(served.code),
            artifacts={name: str(path.absolute()) for name, path in served.artifacts.items()},
            signature=served.signature,
            input_example=example,
            pip_requirements=requirements(served.tokenizer),
            code_paths=[str(package)],
            model_config=served.config,
        )
        try:
            _try(info.model_uri, served)
        except Exception as error:
            with contextlib.suppress(Exception):
                tracking.mlflow_client().delete_logged_model(info.model_id)
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise ElmoError(reason) from error
    return str(info.model_uri)


@contextmanager
def _experiment_of(experiment_id: str) -> Iterator[None]:
    """Models that MLflow logs go to this experiment: it asks the environment, not the run."""
    names = ("MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME")
    before = {name: os.environ.pop(name, None) for name in names}
    os.environ["MLFLOW_EXPERIMENT_ID"] = experiment_id
    try:
        yield
    finally:
        del os.environ["MLFLOW_EXPERIMENT_ID"]
        os.environ.update({name: value for name, value in before.items() if value is not None})


def _try(model_uri: str, served: ServedModel) -> None:
    """Load a logged model as a server does, and look at what it answers."""
    import mlflow
    from mlflow.pyfunc.scoring_server import predictions_to_json

    paths = list(sys.path)
    try:
        model = mlflow.pyfunc.load_model(model_uri)
        answer = model.predict(served.example, params=served.params)
    finally:
        sys.path[:] = paths  # the model's own copy of the library stays out
    served.check(answer)
    predictions_to_json(answer, io.StringIO())


def requirements(tokenizer: Tokenization) -> list[str]:
    """Return the pip requirements for serving a model, at the installed versions.

    The tokenizer's packages have the versions that the model records.
    """
    installed = {name: version(name).split("+")[0] for name in (*LIBRARY, "mlflow")}
    cutting = tokenizer.libraries | tokenizer.splitter
    return [f"{name}=={number}" for name, number in (installed | cutting).items()]


@contextmanager
def _alone() -> Iterator[None]:
    """One registration at a time where the registry is a file."""
    database = tracking.database_file()
    if database is None:
        yield
        return
    path = database.with_name(f"{database.name}.register")
    with path.open("a") as lock:
        began, announced = time.monotonic(), False
        while take_lock(lock.fileno(), wait=False) is False:
            if time.monotonic() - began > _LOCK_WAIT:
                raise ElmoError(
                    f"{path}: another process has been registering for {_LOCK_WAIT:.0f} s; end it"
                )
            if not announced:
                say("waiting for another process that registers")
            announced = True
            time.sleep(0.2)
        yield
