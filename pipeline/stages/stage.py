"""The `Stage` record: a stage's command, options, version and metrics all follow from it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Figures = dict[str, Any]  # all figures of a stage, by name, or by arm and name
FIGURES_TYPE: Any = dict[str, float | None | dict[str, float | None]]  # in their file


@dataclass(frozen=True)
class Argument:
    """An argument of a stage's command: positional, or an option if it has a `help`.

    A "folder" lies at the `storage` URL where that is set, a "path" is always on this machine, and
    a "word" is no path, such as a task's name.
    """

    name: str
    kind: Literal["folder", "path", "word"] = "folder"
    help: str = ""
    choices: tuple[str, ...] = ()
    required: bool = True


OUT_ARGUMENT = Argument("out")
CURVES_ARGUMENT = Argument("curves", "path", "The folder for the training curves.")
WORK_ARGUMENT = Argument("work", "folder", "The folder for unfinished work.")


@dataclass(frozen=True)
class Stage:
    """The description of a stage; each stage's module has one, `STAGE`."""

    name: str
    """The stage's name in dvc.yaml, in params.yaml and on the command line."""
    version: int
    """Raise it when the code changes results, so that dvc repro runs the stage again."""
    help: str
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    """The first belongs to the stage; the others may share a folder with those of other stages."""
    run: Callable[..., Figures]
    """Does the work: gets all params as `params`, the arguments by name, and perhaps `cluster`."""
    summary: Callable[[Figures, Mapping[str, Any]], str]
    """Returns the line that the stage prints, given its figures and its arguments."""
    figure_by_metric: Mapping[str, str] = field(default_factory=dict)
    """The name of a figure, by its column in `dvc metrics show`: the few that people compare."""
    product: str = ""
    """What the end of a run lists as made; `{out}` stands for the output."""
    describe_score: Callable[[Figures, str], str] | None = None
    """Returns how good the result is, in a few words, for the end of a run; it is given the name of
    the model that the project starts from too, empty where it pretrains one."""
    work: Argument | None = WORK_ARGUMENT
    """The folder where a killed run leaves its finished pieces; None: the stage takes seconds."""
    resumes_in_output: bool = False
    """Whether a killed run's finished pieces at a URL lie in the output, and are taken up there."""
    uses_cluster: bool = False
    """Whether its work is divided among processes, on this machine or on a cluster."""
    reuses_output: bool = False
    """Whether it takes pieces from the output that it replaces: at a URL it is given that one's
    location as `previous_output`, where there is one."""
    has_precision: bool = False
    """Whether its settings have `precision`, of which `auto` is replaced by the faster one before
    it runs."""
    figures_type: Any = FIGURES_TYPE
    """The type of its figures in their file: a JSON file of another type is not replaced."""
