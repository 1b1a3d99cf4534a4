"""The record of a trained task, `task.json`, and the training curve of each of its seeds.

The folder of a task holds `task.json` (kind, settings, labels, model, scores, the SHA-256 of the
other files, its own digest), `words.json`, the model (hard links if possible), and for each seed
`seed-N/` with `weights.safetensors`, `curve.jsonl` and `mix.json`.
"""

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from elmo.data.tokenizer import Tokenization
from elmo.errors import Damaged, ElmoError, Mismatch, NotFound, suggest_name
from elmo.io.atomic import write_json
from elmo.io.records import Count, Header, Sha256, digest, read_json, read_record, sha256
from elmo.model.folder import MODEL_FILE_PATTERN
from elmo.settings import MAX_LAYERS
from elmo.tasks import TASK_FILE
from elmo.tasks.kinds import KINDS
from elmo.tasks.settings import TaskSettings

TASK_FORMAT = 3  # the version of the format of task.json
# The names of files in a task folder other than task.json.
TASK_FILE_PATTERN = (
    rf"words\.json|model/({MODEL_FILE_PATTERN})|"
    r"seed-\d+/(weights\.safetensors|curve\.jsonl|mix\.json)"
)


class BiLMSource(msgspec.Struct, forbid_unknown_fields=True):
    """The biLM whose vectors a task reads: its digest, the number and width of the layers used."""

    digest: Sha256
    layers: Annotated[int, Meta(ge=1, le=MAX_LAYERS + 1)]
    dim: Annotated[int, Meta(ge=1, le=1 << 20)]


class LinearShares(msgspec.Struct, forbid_unknown_fields=True):
    """The weights of the network and the linear models in the predictions of a seed. The model of
    features has `rows` rows of weights; the models of vectors and static vectors have `width` and
    `static_width`. `network_score` is the network's main score on dev without them."""

    network: Annotated[float, Meta(ge=0)]
    features: Annotated[float, Meta(ge=0)]
    vectors: Annotated[float, Meta(ge=0)]
    rows: Count
    width: Count
    network_score: float
    static: Annotated[float, Meta(ge=0)] = 0.0
    static_width: Count = 0


class TaskRecord(msgspec.Struct, forbid_unknown_fields=True):
    """The content of `task.json`; `digest` is the digest of all other fields.

    `labels` and the tags' `scheme` are those of the training file; `bilm` is None without ELMo.
    `scores` has the dev scores of each seed; `counts` and the digests `data` describe the train and
    dev examples; `files` has the SHA-256 of the other files. `columns` maps fields to columns of
    the training file. `linear` has the weights of each seed's linear models.
    """

    format: int
    kind: str
    settings: TaskSettings
    labels: list[str]
    scheme: str
    tokenizer: Tokenization
    bilm: BiLMSource | None
    seeds: Annotated[list[Count], Meta(min_length=1)]
    scores: dict[str, dict[str, float]]
    counts: dict[str, dict[str, Count]]
    data: dict[str, Sha256]
    files: dict[str, Sha256]
    digest: Sha256
    columns: dict[str, str] = {}
    linear: dict[str, LinearShares] = {}


def write_task_record(record: TaskRecord, folder: Path) -> None:
    """Write `task.json` into a task's folder, with the digests of the folder's files."""
    paths = [folder / "words.json", *sorted(folder.glob("seed-*/*"))]
    record.files = {path.relative_to(folder).as_posix(): sha256(path) for path in paths}
    record.digest = record_digest(msgspec.to_builtins(record))
    write_json(folder / TASK_FILE, msgspec.to_builtins(record))


def read_task_record(folder: Path) -> TaskRecord:
    """Read `task.json` of a task folder; raise `ElmoError` if missing, outdated or edited."""
    file = folder / TASK_FILE
    if not folder.exists():
        names = [path.parent.name for path in sorted(folder.parent.glob(f"*/{TASK_FILE}"))]
        hint = suggest_name(folder.name, names) or "; name another"
        raise NotFound(f"{folder}: no such task folder{hint}")
    content = read_json(file)
    remedy = "train the task again with this version"
    msgspec.convert(content, Header).check_version(file, "format", TASK_FORMAT, remedy=remedy)
    record = read_record(file, TaskRecord)
    if record.kind not in KINDS:
        raise Mismatch(f"{file}: no kind of task {record.kind!r}; upgrade elmo-pipeline")
    if record_digest(content) != record.digest:
        raise Damaged(
            f"{file}: was altered (its digest is {record_digest(content)[:12]}…, but says "
            f"{record.digest[:12]}…); restore it or train the task again"
        )
    return record


def best_seed(record: TaskRecord) -> int:
    """Return the seed with the best score on dev; of equally good ones, the first."""

    def dev_score(seed: int) -> float:
        scores = record.scores.get(str(seed), {})
        return scores.get("f1", scores.get("accuracy", 0.0))

    return max(record.seeds, key=dev_score)


def record_digest(record: dict[str, Any]) -> str:
    """Return the digest of the content of a `task.json`, which its field `digest` must equal."""
    return digest({key: value for key, value in record.items() if key != "digest"})


def read_curve(folder: Path, seed: int) -> list[dict[str, float]]:
    """Read the training curve of a seed: `epoch`, `loss`, `lr` and the dev scores of each epoch."""
    path = folder / f"seed-{seed}" / "curve.jsonl"
    try:
        lines = path.read_bytes().splitlines()
        return [msgspec.json.decode(line, type=dict[str, float]) for line in lines]
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise ElmoError(f"{path}: not readable ({error}); train again") from None
