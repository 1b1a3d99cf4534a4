"""The report's sections on runs: what was run, and by which settings."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from .. import tracking
from ..settings.fingerprint import to_plain
from ..settings.params import Params
from .page import Block, Details, Table, code_html
from .results import JsonObject, Results

INPUTS = {"corpus": "Domain text", "general": "General text", "parent": "Pretrained model"}


def what_was_run(
    results: Results,
    runs: Mapping[str, tracking.RunFacts],
    settings: Params | None,
) -> list[Block]:
    """Return the version, the network, the training runs and digests, and `settings` if given.

    `runs` is what `training_runs` returns.
    """
    origin = ("Started from", f"{results.started_from}, trained elsewhere")
    if not results.started_from:
        origin = ("Pretrained on", _trained_on(results.figures["pretrain"], "general"))
    rows = [
        ("Registered as", _version(results.registered)),
        ("Network", _network(results.network)),
        origin,
        ("Fine-tuned on", _tuned_on(results.figures["finetune"])),
        *((f"{stage.capitalize()}", _described(facts)) for stage, facts in runs.items()),
    ]
    digests = [
        ("MLflow run of the model", code_html(results.training.get("run_id", ""))),
        ("Digest of the model", code_html(results.registered["model_digest"])),
        *(
            (f"Digest of its {INPUTS.get(name, name).lower()}", code_html(value))
            for name, value in sorted(results.training["inputs"].items())
        ),
        ("Digest of the store", code_html(results.store.digest)),
    ]
    return [Table(rows), Details("Digests", [Table(digests)]), *_settings(settings, results)]


def _version(registered: JsonObject) -> str:
    if not registered["version"]:
        return "nothing: it is an experiment"
    return Markup("{}, version {}").format(code_html(registered["uri"]), registered["version"])


def _described(facts: tracking.RunFacts) -> str:
    """Tell when, how long, how fast, where and by which commit, in words."""
    parts = [f"{_day(facts)} UTC", f"{facts.minutes:,.1f} minutes"]
    if rate := facts.metrics.get("train.tokens_per_second"):
        parts.append(f"{rate:,.0f} tokens per second")
    if facts.machine:
        parts.append(facts.machine)
    if facts.commit:
        parts.append(f"commit {facts.commit[:12]}" + " and changes" * facts.changed)
    return ", ".join(parts)


def _trained_on(figures: JsonObject, text: str) -> str:
    return (
        f"{text} text in {figures['steps']:,} steps: {figures['tokens_seen']:,} tokens and ends of "
        "sentences, those of each reading counted"
    )


def _network(network: JsonObject) -> str:
    filters = sum(count for _, count in network["filters"])
    return (
        f"{filters} character filters, {network['highways']} highway, {network['layers']} layers "
        f"of {network['cells']} cells each way, projected to {network['projection']}: vectors of "
        f"{2 * network['projection']} numbers"
    )


def _tuned_on(figures: JsonObject) -> str:
    if "steps" not in figures:
        return "nothing: the domain text is what the model has read"
    return _trained_on(figures, "domain")


def _settings(settings: Params | None, results: Results) -> list[Block]:
    """Return the settings that were used, as they are written in params.yaml."""
    if settings is None:
        return []
    unused = _unused(settings, tuned=results.tuned)
    rows = [
        (code_html(name), code_html(value))
        for name, value in _flat(to_plain(settings))
        if value != "" and not name.startswith(unused)
    ]
    return [Details("Settings", [Table(rows)])]


def _unused(settings: Params, *, tuned: bool) -> tuple[str, ...]:
    """Return how the names of settings begin that changed nothing in this run."""
    unused = {
        "vocab.": settings.pretrain.model,
        "pretrain.network.": settings.pretrain.model,
        "pretrain.training.": settings.pretrain.model,
        "finetune.": not tuned,
        "corpus.domain_package": settings.corpus.domain,
        "labels.": not settings.labels.package,
    }
    return tuple(name for name, reason in unused.items() if reason)


def _flat(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Settings by their whole names, as on the command line, with values as YAML has them."""
    if not isinstance(value, dict) or not value:
        return [(name, _yaml(value))]
    rows = ((f"{name}.{key}" if name else str(key), one) for key, one in value.items())
    return [row for key, one in rows for row in _flat(one, key)]


def _yaml(value: Any) -> str:
    """Return a setting as it is written in params.yaml."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _day(facts: tracking.RunFacts) -> str:
    return datetime.fromtimestamp(facts.began, UTC).strftime("%Y-%m-%d %H:%M")
