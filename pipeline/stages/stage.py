"""The `Stage` record: a stage's command, options, version and metrics all follow from it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Figures = dict[str, Any]  # by name; those of tasks by arm and name
FIGURES_TYPE: Any = dict[str, float | None | dict[str, float | None]]  # in a file


@dataclass(frozen=True)
class Argument:
    """An argument of a stage's command: positional, or an option if it has a `help`.

    A "folder" is at the `storage` URL if one is set, a "path" is always on this machine, and a
    "word" is no path, such as a task's name.
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
    """The first belongs to this stage alone; the others may be in a shared folder."""
    run: Callable[..., Figures]
    """Does the work, given `params`, the arguments by name and, if `uses_cluster`, `cluster`."""
    summary: Callable[[Figures, Mapping[str, Any]], str]
    """Returns the line that the stage prints, given its figures and its arguments."""
    figure_by_metric: Mapping[str, str] = field(default_factory=dict)
    """The columns of `dvc metrics show`, and the name of the figure in each."""
    product: str = ""
    """The stage's entry in the list of products that ends a run; `{out}` is the output's path."""
    describe_score: Callable[[Figures, str], str] | None = None
    """Returns a few words on how good the result is, to print when a run ends. The arguments are
    the figures, and the model that the project starts from (empty if it pretrains one)."""
    work: Argument | None = WORK_ARGUMENT
    """The folder for the finished pieces of a killed run; None if the stage takes only seconds."""
    resumes_in_output: bool = False
    """Whether, at a URL, the output keeps finished pieces, from which a killed run resumes."""
    uses_cluster: bool = False
    """Whether the work is divided among processes, on this machine or on a cluster."""
    reuses_output: bool = False
    """Whether it reuses pieces of the output that it replaces. At a URL, it gets the location of
    that output, if there is one, as `previous_output`."""
    has_precision: bool = False
    """Whether its settings have `precision`; `auto` becomes the faster one before it runs."""
    figures_type: Any = FIGURES_TYPE
    """The type of its figures in a JSON file; a file of another type is not overwritten."""
