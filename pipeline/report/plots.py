"""The plot of a task, and code that all plots share; the report's plots are in `pictures.py`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import MaxNLocator  # noqa: E402

from elmo.io.atomic import check_output  # noqa: E402

BLUE, ORANGE, GREY, PALE_BLUE = "#2b6cb0", "#dd6b20", "#a0aec0", "#90cdf4"
Curve = dict[str, list[float]]
SOFTWARE = "elmo-pipeline"  # the software that our PNG files name


def check_replaceable_plot(path: Path) -> None:
    """Raise `ElmoError` if `path` is a file that this project did not draw.

    Call it before the work whose plot would overwrite the file.
    """
    check_output(path, pattern=rb"\x89PNG.*tEXtSoftware\0" + SOFTWARE.encode())


def draw_task(
    path: Path,
    scores_by_arm: Mapping[str, Sequence[float]],
    name_by_arm: Mapping[str, str],
    *,
    score_label: str,
) -> None:
    """Draw a task's score by epoch, with one line for each arm, a way to train the task.

    The legend shows the arms' names, and `score_label` is the label of the score axis.
    """
    figure, axis = plt.subplots(figsize=(6, 3.6))
    for (arm, scores), color in zip(scores_by_arm.items(), (BLUE, ORANGE), strict=False):
        axis.plot(
            range(1, len(scores) + 1), scores, "o-", color=color, ms=3, label=name_by_arm[arm]
        )
    axis.set(xlabel="epoch", ylabel=score_label)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(color="#edf2f7")
    axis.legend(frameon=False)
    save_figure(figure, path)


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as a PNG without its upper and right edges, and close it."""
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_axisbelow(True)
    figure.tight_layout()
    figure.savefig(path, format="png", dpi=120, metadata={"Software": SOFTWARE})
    plt.close(figure)
