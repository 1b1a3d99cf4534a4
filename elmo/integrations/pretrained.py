"""Where the name of a pretrained model leads, and the card that a published folder has."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from elmo.errors import ElmoError
from elmo.model_config import CONFIG
from elmo.model_folder import Model

CARD = "README.md"


def folder_of(name: str | Path) -> Path:
    """The model folder of a folder, a Hugging Face snapshot or cache folder, or a `models:/` URI.

    A model of MLflow's registry is downloaded where it is not on this machine.
    """
    text = str(name)
    if text.startswith("models:/"):
        return _registered(text)
    if "://" in text:
        raise ElmoError(f"{text}: is no folder and no models:/ URI; download it first")
    folder = Path(text)
    if (folder / CONFIG).is_file():
        return folder
    if (folder / "snapshots").is_dir():  # models--OWNER--NAME in the cache of Hugging Face
        main = folder / "refs" / "main"
        revision = main.read_text(encoding="utf-8").strip() if main.is_file() else "*"
        configs = sorted(folder.glob(f"snapshots/{revision}/{CONFIG}"))
        if len(configs) == 1:
            return configs[0].parent
        raise ElmoError(f"{folder}: holds {len(configs)} snapshots of a model; name one of them")
    raise ElmoError(
        f"{folder}: no model folder; name one, a models:/ URI, or the folder that "
        "`hf download OWNER/NAME` prints"
    )


def _registered(uri: str) -> Path:
    try:
        import mlflow.artifacts
        from mlflow.exceptions import MlflowException
    except ModuleNotFoundError:
        raise ElmoError(f"{uri}: needs MLflow; run: pip install mlflow") from None
    try:
        downloaded = Path(mlflow.artifacts.download_artifacts(artifact_uri=uri))
    except (MlflowException, OSError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ElmoError(f"{uri}: the registry has no such model ({reason})") from None
    configs = sorted(downloaded.glob(f"artifacts/*/{CONFIG}"))
    if len(configs) != 1:
        raise ElmoError(f"{uri}: was not registered by this package")
    return configs[0].parent


def card(model: Model, *, licence: str, title: str, language: str | None) -> str:
    """The model card: YAML that Hugging Face reads, then what the model is and came from."""
    config, training = model.bilm.config, model.training
    head = [f"license: {licence}", "library_name: elmo-pipeline", "tags: [elmo, word-vectors]"]
    if language:
        head.insert(1, f"language: {language}")
    facts = [
        ("Digest", f"`{model.digest}`"),
        (
            "Network",
            f"{config.layers} × {config.cells:,} cells, projection {config.projection}, "
            f"{sum(count for _, count in config.filters):,} filters",
        ),
        ("A token's vectors", f"{config.layers + 1} layers of {config.dim}"),
        ("Words of the softmax", f"{len(model.vocabulary):,}"),
        ("Tokenizer", str(model.tokenizer)),
        ("Licence", licence),
    ]
    lines = ["---", *head, "---", "", f"# {title}", "", *_table(("what", "value"), facts), ""]
    lines += ["## Data", "", *_data(training), ""]
    lines += ["## Perplexity", "", *_perplexities(training), ""]
    lines += ["## Use", "", "```python", "import elmo", ""]
    lines += ['embedder = elmo.Embedder.from_pretrained("THIS FOLDER")']
    lines += ['vectors = embedder.encode(["A sentence."])  # (texts, dim)', "```", ""]
    return "\n".join(lines)


def _data(training: Mapping[str, Any]) -> list[str]:
    """The digests of what the model was trained on, and how many tokens were read."""
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


def _perplexities(training: Mapping[str, Any]) -> list[str]:
    stage = training.get("stage", "training")
    rows = [
        (f"{text}, {when} {stage}", *(_figure(figures, k) for k in _SIDES))
        for when, texts in (training.get("perplexity") or {}).items()
        for text, figures in texts.items()
    ]
    return _table(("held-out text", *_SIDES), rows) if rows else ["Not recorded in the model."]


_SIDES = ("forward", "backward", "average")


def _figure(figures: Mapping[str, Any], side: str) -> str:
    return f"{figures[side]:.1f}" if figures.get(side) is not None else "-"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [head, ("---",) * len(head), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]
