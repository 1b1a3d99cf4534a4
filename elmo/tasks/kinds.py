"""The kinds of tasks, one record each. Models need torch, so they are imported only when used.

To add a task, write a module with its model, a `TaskModel`, a module in `formats` if no reader
fits, and a record in `KINDS`; its command, settings, help and served signature follow from the
record.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from elmo.errors import BadSettings
from elmo.tasks.formats import coreference, questions, roles, tagging, texts
from elmo.tasks.formats.fields import ExampleSet, ReadRequest, TextSplitter
from elmo.tasks.settings import TaskSettings, with_changes

FEATURE_HASHES = 1 << 17  # hand-crafted features are hashed to this many values
KINDS_WITH_FEATURES = ("tagging", "classification", "pairs")  # kinds that can have linear models
MakeRecord = Callable[[str, TextSplitter], dict[str, Any]]


def _text_record(text: str, split: TextSplitter) -> dict[str, Any]:
    return {"text": text}


@dataclass(frozen=True)
class TaskKind:
    """A kind of task, such as tagging: its model, readers and defaults.

    `readers` has the reader of each file format; `fields` are the fields that `--columns` can map;
    `defaults` are the default settings. `examples` are unlabelled records: the input example of a
    served task. `make_record` converts a text to a record. With `has_several_predictions`, one
    record can give several examples.
    """

    class_path: str  # the class of the model, as module:name
    readers: Mapping[str, Callable[[ReadRequest], ExampleSet]]
    fields: tuple[str, ...]
    defaults: TaskSettings
    examples: tuple[Mapping[str, Any], ...]
    make_record: MakeRecord = _text_record
    has_several_predictions: bool = False

    def model_class(self) -> Any:
        """Import the class of the task's model; its arguments are inputs, labels and settings."""
        module, _, name = self.class_path.partition(":")
        return getattr(import_module(module), name)


KINDS: Mapping[str, TaskKind] = {
    "tagging": TaskKind(
        class_path="elmo.tasks.tagging:TaggingModel",
        readers={
            "conll": tagging.read_conll,
            "conllu": tagging.read_conllu,
            "jsonl": tagging.read_jsonl,
            "text": tagging.read_text,
        },
        fields=("word", "tag", "text", "tokens", "tags"),
        defaults=TaskSettings(
            l2=0.1, elmo_dropout=0.0, dropout=0.5, patience=10, features=FEATURE_HASHES
        ),
        examples=({"text": "He has a gift"}, {"tokens": ["He", "has", "a", "gift"]}),
    ),
    "classification": TaskKind(
        class_path="elmo.tasks.classification:ClassificationModel",
        readers={
            "tsv": texts.read_classified,
            "csv": texts.read_classified,
            "jsonl": texts.read_classified,
            "text": texts.read_classified,
        },
        fields=("text", "tokens", "label"),
        defaults=TaskSettings(l2=0.0, elmo_dropout=0.25, dropout=0.25, features=FEATURE_HASHES),
        examples=({"text": "He has a gift"}, {"tokens": ["He", "has", "a", "gift"]}),
    ),
    "pairs": TaskKind(
        class_path="elmo.tasks.pairs:PairsModel",
        readers={"tsv": texts.read_pairs, "csv": texts.read_pairs, "jsonl": texts.read_pairs},
        fields=("premise", "hypothesis", "label"),
        defaults=TaskSettings(
            lr=0.0004,
            halve_after=1,
            dropout=0.5,
            elmo_dropout=0.0,
            gradient_norm=10.0,
            elmo_output=True,
            features=FEATURE_HASHES,
        ),
        examples=({"premise": "He has a gift", "hypothesis": "He has nothing"},),
    ),
    "questions": TaskKind(
        class_path="elmo.tasks.questions:QuestionsModel",
        readers={"json": questions.read_squad, "jsonl": questions.read_jsonl},
        fields=("id", "context", "question", "answers"),
        defaults=TaskSettings(
            optimizer="adadelta",
            lr=1.0,
            hidden=90,
            dropout=0.2,
            l2=0.0,
            average=0.999,
            elmo_output=True,
            gradient_norm=0.0,
        ),
        examples=({"context": "He has a gift.", "question": "What has he?"},),
    ),
    "roles": TaskKind(
        class_path="elmo.tasks.roles:RolesModel",
        readers={"conll": roles.read_conll, "jsonl": roles.read_jsonl},
        fields=("word", "predicate", "arguments", "tokens", "tags", "predicates"),
        defaults=TaskSettings(
            optimizer="adadelta",
            lr=1.0,
            depth=4,
            dropout=0.1,
            elmo_dropout=0.1,
            gradient_norm=1.0,
            batch_size=64,
        ),
        examples=({"tokens": ["He", "has", "a", "gift"], "predicates": [1]},),
        has_several_predictions=True,
    ),
    "coreference": TaskKind(
        class_path="elmo.tasks.coreference:CoreferenceModel",
        readers={
            "conll": coreference.read_conll,
            "tsv": coreference.read_gap,
            "jsonl": coreference.read_jsonl,
            "text": coreference.read_text,
        },
        fields=("word", "cluster", "sentences", "clusters", "id"),
        defaults=TaskSettings(l2=0.0, elmo_dropout=0.0, dropout=0.2, batch_size=1),
        examples=({"sentences": [["He", "has", "a", "gift"], ["He", "sings"]]},),
        make_record=coreference.document_record,
    ),
}


def find_kind(kind: str) -> TaskKind:
    """Return the record of a kind of task; raise `BadSettings` if there is none of this name."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise BadSettings(f"no kind of task {kind!r}; choose one of {', '.join(KINDS)}")
    return KINDS[kind]


def task_settings(kind: str, changes: dict[str, Any]) -> TaskSettings:
    """Return the settings of a kind of task: its defaults, replaced by `changes` (values by name,
    which may be text)."""
    settings = with_changes(find_kind(kind).defaults, changes)
    if settings.class_weights != "none" and kind not in ("classification", "pairs"):
        raise BadSettings(f"class_weights: not available for {kind}; leave it out")
    if settings.features and kind not in KINDS_WITH_FEATURES:
        raise BadSettings(f"features: not available for {kind}; leave it out")
    return settings
