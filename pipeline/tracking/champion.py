"""The versions of a registered model, and the rule for the aliases `candidate` and `champion`.

A new version is `candidate`. The first version is also champion; a later one becomes champion if
its held-out perplexity, on the same text and words, is lower by a margin. Users may set the alias
in MLflow.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .client import catch_mlflow_errors, check_mlflow, configured_uri, mlflow_client
from .database import database_path

CANDIDATE, CHAMPION = "candidate", "champion"  # aliases
TEXTS = ("domain", "general")  # the first one that a version has a perplexity for is compared
SHORT_DIGEST_CHARACTERS = 12  # in tags that people read


@dataclass(frozen=True)
class ModelVersion:
    """A version of a registered model: its number, its MLflow run, its aliases and its tags.

    The tags are those of `pipeline.stages.register`: digests, stores and perplexities, as text.
    """

    version: int
    run_id: str
    aliases: list[str]
    tags: dict[str, str]


def find_version(name: str, model_digest: str) -> int | None:
    """Return the number of the registered version whose model has this digest, or None.

    If there are several, return the lowest. Versions whose files are gone from this machine,
    because the project was moved, do not count.
    """
    rows = [row for row in list_versions(name) if row.tags.get("model_digest") == model_digest]
    return min((row.version for row in rows if _has_files(name, row.version)), default=None)


def _has_files(name: str, version: int) -> bool:
    """Tell whether a version has its files; always true for a server."""
    if database_path(configured_uri()) is None:
        return True
    with catch_mlflow_errors():
        address = mlflow_client().get_model_version_download_uri(name, str(version))
    return not address.startswith("file:") or Path(unquote(urlsplit(address).path)).exists()


def list_versions(name: str) -> list[ModelVersion]:
    """Return the versions of a registered model, newest first."""
    check_mlflow()
    with catch_mlflow_errors():
        client = mlflow_client()
        query = f"name = '{name}'"
        pages = [client.search_model_versions(query)]
        while pages[-1].token:
            pages.append(client.search_model_versions(query, page_token=pages[-1].token))
        aliases = client.get_registered_model(name).aliases if any(pages) else {}
    versions = [
        ModelVersion(
            int(version.version),
            version.run_id,
            sorted(alias for alias, v in aliases.items() if int(v) == int(version.version)),
            dict(version.tags),
        )
        for page in pages
        for version in page
    ]
    return sorted(versions, key=lambda version: -version.version)


def decide_champion(name: str, number: int, *, margin: float, tags: Mapping[str, str]) -> str:
    """Set a registered version's tags and aliases; return the decision and its reason as text.

    `name` is the name of the registered model, `number` the version. `candidate` goes to the newest
    version, `champion` to the first, and to one whose held-out perplexity is lower than the
    champion's by the share `margin`.
    """
    rows = {row.version: row for row in list_versions(name)}
    new_tags = rows[number].tags
    with catch_mlflow_errors():
        client = mlflow_client()
        for key, value in tags.items():
            if new_tags.get(key) != value:  # each call is a separate write
                client.set_model_version_tag(name, str(number), key, value)
    new_tags.update(tags)
    newest_candidate = max((v for v, row in rows.items() if CANDIDATE in row.aliases), default=0)
    if number > newest_candidate:  # reproducing an older commit does not move it back
        _set_alias(name, CANDIDATE, number)
    champion = next((row for row in rows.values() if CHAMPION in row.aliases), None)
    if champion is None:
        if number != min(rows):
            return f"no version has the alias {CHAMPION}; set it in MLflow"
        _set_alias(name, CHAMPION, number)
        return f"{CHAMPION} is version {number}, the first"
    if champion.version == number:
        return f"{CHAMPION} is version {number}"
    if champion.tags.get("model_digest") == new_tags["model_digest"]:
        _set_alias(name, CHAMPION, number)
        return f"{CHAMPION} moved from version {champion.version} to {number}: it is the same model"
    is_new_better, reason = judge_rival(champion, rows[number], margin=margin)
    if is_new_better:
        _set_alias(name, CHAMPION, number)
        return f"{CHAMPION} moved from version {champion.version} to {number}: {reason}"
    return f"{CHAMPION} stays version {champion.version}: {reason}; use MLflow to choose another"


def judge_rival(champion: ModelVersion, rival: ModelVersion, *, margin: float) -> tuple[bool, str]:
    """Tell whether `rival` should replace the champion, and why, as text.

    It must be newer, and its perplexity on the same held-out text, with the same vocabulary, must
    be lower by the share `margin`.
    """
    if rival.version < champion.version:
        return False, f"version {rival.version} is older"
    text = next((text for text in TEXTS if f"perplexity.after.{text}" in rival.tags), None)
    if text is None:
        return False, f"version {rival.version} has no held-out perplexity"
    for key, description in (
        (f"heldout.{text}", f"on different held-out {text} text"),
        ("words", "with a different vocabulary"),
    ):
        digests = [row.tags.get(key, "")[:SHORT_DIGEST_CHARACTERS] for row in (champion, rival)]
        if not digests[1] or digests[0] != digests[1]:
            return False, f"version {rival.version} was measured {description}"
    key = f"perplexity.after.{text}"
    champion_score, score = (float(row.tags.get(key, "nan")) for row in (champion, rival))
    comparison = f"{text} perplexity {score:.6g}, the champion's {champion_score:.6g}"
    if score <= champion_score * (1 - margin) and score < champion_score:
        return True, comparison
    return False, f"{comparison}: not lower by {margin:.2%}"


def _set_alias(name: str, alias: str, version: int) -> None:
    with catch_mlflow_errors():
        mlflow_client().set_registered_model_alias(name, alias, str(version))
