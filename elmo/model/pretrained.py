"""Published models: find one by name, write its model card, and package it for installation."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from elmo.errors import ElmoError, NotFound
from elmo.io.folders import new_folder
from elmo.io.location import Folder, Location
from elmo.model.config import CONFIG_FILE, MODEL_GROUP
from elmo.model.folder import MODEL_FILE_PATTERN, Model, load_model, save_model

CARD_FILE = "README.md"  # the model card
PROJECT_FILE = "pyproject.toml"  # the project file of a package


def find_pretrained_folder(name: Folder) -> Folder:
    """Return the local folder of a model in MLflow's registry (`models:/…`), downloaded if
    necessary; return any other name unchanged."""
    uri = str(name)
    if not uri.startswith("models:/"):
        return name
    try:
        import mlflow.artifacts
        from mlflow.exceptions import MlflowException
    except ModuleNotFoundError:
        raise ElmoError(f"{uri}: needs MLflow; run: pip install mlflow") from None
    database = re.fullmatch(r"sqlite:///([^?:]+)", mlflow.get_registry_uri())
    if database and not Path(database[1]).exists():  # MLflow would create one
        raise NotFound(
            f"{uri}: no registry {database[1]} here; go to the project's folder, or set "
            "MLFLOW_TRACKING_URI"
        )
    try:
        download_folder = Path(mlflow.artifacts.download_artifacts(artifact_uri=uri))
    except (MlflowException, OSError) as error:
        reason = " ".join(str(error).split())[:300]
        if "No such artifact" in reason:
            reason = "its files are missing; if you moved its project, run there: elmo run register"
        raise NotFound(f"{uri}: the registry has no such model ({reason})") from None
    configs = sorted(download_folder.glob(f"artifacts/*/{CONFIG_FILE}"))
    if len(configs) != 1:
        raise ElmoError(f"{uri}: is not an ELMo model of this package; name another")
    return configs[0].parent


def write_package(
    model: Folder,
    out: Path,
    *,
    name: str,
    version: str = "1.0",
    licence: str = "unknown",
    language: str | None = None,
    about: str = "",
) -> str:
    """Write a Python package that installs `model` as `name`; return the packaged model's digest.

    After `pip install OUT`, `Embedder.load(name)` loads the model. `about` is Markdown for the
    model card: the training data and the intended use. Weights are written as float16, which halves
    the file, and read as float32; the rounded model has its own digest.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ElmoError(
            f"a model name must have only a-z, digits and _, such as english; found {name!r}"
        )
    if not re.fullmatch(r"\d+(\.\d+)*", version):
        raise ElmoError(
            f"a version must have only numbers and dots, such as 1.0; found {version!r}"
        )
    source, package = load_model(model), f"elmo_{name}"
    pattern = (
        rf"README\.md|{package}/(__init__\.py|{MODEL_FILE_PATTERN})|(build|dist|[^/]*\.egg-info)/.*"
    )
    with new_folder(Location(out), required=(PROJECT_FILE, package), pattern=pattern) as root:
        digest = save_model(
            root / package,
            bilm=source.bilm,
            vocabulary=source.vocabulary,
            characters=source.characters,
            softmax=source.softmax,
            training=source.training,
            tokenizer=source.tokenizer,
            precision="float16",
        )
        docstring = f'"""The model {name}: `elmo.Embedder.load("{name}")`."""\n'
        (root / package / "__init__.py").write_text(docstring, encoding="utf-8")
        package_model = load_model(root / package)
        card = model_card(package_model, name=name, licence=licence, language=language, about=about)
        (root / CARD_FILE).write_text(card, encoding="utf-8")
        project = _pyproject_text(name, version, package_model)
        (root / PROJECT_FILE).write_text(project, encoding="utf-8")
    return digest


def _pyproject_text(name: str, version: str, model: Model) -> str:
    """Return the text of pyproject.toml, which requires the libraries of the model's tokenizer."""
    libraries = model.tokenizer.libraries | model.tokenizer.splitter
    requirements = ["elmo-pipeline", *(f"{k}=={v}" for k, v in sorted(libraries.items()))]
    return f"""[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "elmo-{name.replace("_", "-")}"
version = "{version}"
description = "An ELMo model: {name}"
readme = "README.md"
dependencies = {json.dumps(requirements)}

[project.entry-points."{MODEL_GROUP}"]
{name} = "elmo_{name}"

[tool.setuptools]
packages = ["elmo_{name}"]
package-data = {{ "elmo_{name}" = ["*"] }}
"""


def model_card(model: Model, *, name: str, licence: str, language: str | None, about: str) -> str:
    """Return a model card: YAML for Hugging Face, then Markdown on the model, its data and its use.

    `name` is the name under which the installed model is loaded. `licence` and `language` (None:
    not stated) are values for Hugging Face, such as apache-2.0 and en. `about` is extra Markdown,
    placed after the title.
    """
    shape, training = model.bilm.shape, model.training
    fields = {"license": licence} | ({"language": language} if language else {})
    yaml = [f"{key}: {json.dumps(value)}" for key, value in fields.items()]  # "no" is Norwegian
    yaml += ["library_name: elmo-pipeline", "tags: [elmo, word-vectors]"]
    card_rows = [
        ("Digest", f"`{model.digest}`"),
        (
            "Network",
            f"{shape.layers} × {shape.cells:,} cells, projection {shape.projection}, "
            f"{sum(count for _, count in shape.filters):,} filters",
        ),
        ("A token's vectors", f"{shape.layers + 1} layers of {shape.dim}"),
        ("Words of the softmax", f"{len(model.vocabulary):,}"),
        ("Tokenizer", str(model.tokenizer)),
        ("Licence", licence),
    ]
    lines = ["---", *yaml, "---", "", f"# ELMo: {name}", ""]
    lines += [about.strip(), ""] if about.strip() else []
    lines += [*_table(("what", "value"), card_rows), ""]
    lines += ["## Data", "", *_data_lines(training), ""]
    lines += ["## Perplexity", "", *_perplexity_lines(training), ""]
    lines += ["## Use", "", "```python", "import elmo", ""]
    lines += [f'embedder = elmo.Embedder.load("{name}")']
    lines += ['vectors = embedder.encode(["A sentence."])  # (texts, dim)', "```", ""]
    return "\n".join(lines)


def _data_lines(training: Mapping[str, Any]) -> list[str]:
    """Return the digests of the training data, and the numbers of tokens and epochs."""
    rows = [(f"{name}", f"`{value}`") for name, value in (training.get("inputs") or {}).items()]
    heldout = (training.get("perplexity") or {}).get("after") or {}
    rows += [
        (f"held-out tokens, {text}", f"{figures['tokens']:,}")
        for text, figures in heldout.items()
        if figures.get("tokens") is not None
    ]
    epochs = ((training.get("params") or {}).get("training") or {}).get("epochs")
    if epochs is not None:
        rows.append((f"epochs of {training.get('stage', 'training')}", str(epochs)))
    return _table(("input", "digest or count"), rows) if rows else ["Not recorded in the model."]


def _perplexity_lines(training: Mapping[str, Any]) -> list[str]:
    stage = training.get("stage", "training")
    rows = [
        (f"{text}, {moment} {stage}", f"{figures['average']:.1f}")
        for moment, texts in (training.get("perplexity") or {}).items()
        for text, figures in texts.items()
        if figures.get("average") is not None
    ]
    return _table(("held-out text", "perplexity"), rows) if rows else ["Not recorded in the model."]


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [head, ("---",) * len(head), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]
