"""The kinds of tasks, one record each. A model, which needs torch, is imported only when used.

To add a task, write a module with its model, a module in `readers` if no reader fits, and a record
in `KINDS`; its command, settings, help and served signature follow from that.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from elmo.errors import BadSettings
from elmo.tasks.readers import coreference, questions, roles, tagging, texts
from elmo.tasks.readers.fields import Labelled, Request, TextTokens
from elmo.tasks.settings import TaskSettings, changed

RecordOfText = Callable[[str, TextTokens], dict[str, Any]]


def _as_text(text: str, split: TextTokens) -> dict[str, Any]:
    return {"text": text}


@dataclass(frozen=True)
class Kind:
    """A kind of task.

    `readers` are by file format; `fields` are the fields that `--columns` can map. `examples` are
    unlabelled records, shown as the input example of a served task. `of_text` turns a text into a
    record. `labels` says whether the model predicts labels, and `several` whether a record can give
    several examples.
    """

    model: str  # the class, as module:name
    readers: Mapping[str, Callable[[Request], Labelled]]
    fields: tuple[str, ...]
    defaults: TaskSettings
    examples: tuple[Mapping[str, Any], ...]
    of_text: RecordOfText = _as_text
    labels: bool = True
    several: bool = False

    def load_model(self) -> Any:
        """Import and return the model class, a `TaskModel` made from inputs, labels and
        settings."""
        module, _, name = self.model.partition(":")
        return getattr(import_module(module), name)


KINDS: Mapping[str, Kind] = {
    "tagging": Kind(
        model="elmo.tasks.tagging:TaggingModel",
        readers={
            "conll": tagging.from_conll,
            "conllu": tagging.from_conllu,
            "jsonl": tagging.from_jsonl,
            "text": tagging.from_text,
        },
        fields=("word", "tag", "text", "tokens", "tags"),
        defaults=TaskSettings(l2=0.1, elmo_dropout=0.0, dropout=0.5, epochs=40, patience=10),
        examples=({"text": "He has a gift"}, {"tokens": ["He", "has", "a", "gift"]}),
    ),
    "classification": Kind(
        model="elmo.tasks.classification:ClassificationModel",
        readers={
            "tsv": texts.classified,
            "csv": texts.classified,
            "jsonl": texts.classified,
            "text": texts.classified,
        },
        fields=("text", "tokens", "label"),
        defaults=TaskSettings(l2=0.0, elmo_dropout=0.25, dropout=0.25),
        examples=({"text": "He has a gift"}, {"tokens": ["He", "has", "a", "gift"]}),
    ),
    "pairs": Kind(
        model="elmo.tasks.pairs:PairsModel",
        readers={"tsv": texts.paired, "csv": texts.paired, "jsonl": texts.paired},
        fields=("premise", "hypothesis", "label"),
        defaults=TaskSettings(
            lr=0.0004,
            halve_after=1,
            dropout=0.5,
            elmo_dropout=0.0,
            gradient_norm=10.0,
            elmo_output=True,
        ),
        examples=({"premise": "He has a gift", "hypothesis": "He has nothing"},),
    ),
    "questions": Kind(
        model="elmo.tasks.questions:QuestionsModel",
        readers={"json": questions.from_squad, "jsonl": questions.from_jsonl},
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
        labels=False,
    ),
    "roles": Kind(
        model="elmo.tasks.roles:RolesModel",
        readers={"conll": roles.from_conll, "jsonl": roles.from_jsonl},
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
        several=True,
    ),
    "coreference": Kind(
        model="elmo.tasks.coreference:CoreferenceModel",
        readers={
            "conll": coreference.from_conll,
            "tsv": coreference.from_gap,
            "jsonl": coreference.from_jsonl,
            "text": coreference.from_text,
        },
        fields=("word", "cluster", "sentences", "clusters", "id"),
        defaults=TaskSettings(l2=0.0, elmo_dropout=0.0, dropout=0.2, batch_size=1),
        examples=({"sentences": [["He", "has", "a", "gift"], ["He", "sings"]]},),
        of_text=coreference.of_text,
        labels=False,
    ),
}


def choose(kind: str, changes: dict[str, Any]) -> TaskSettings:
    """Return the default settings of a kind of task with some changed; text values are
    converted."""
    if kind not in KINDS:
        raise BadSettings(f"no task {kind!r}; there are {', '.join(KINDS)}")
    return changed(KINDS[kind].defaults, changes)
