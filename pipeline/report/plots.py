"""The plot of a task, and what all plots share; the report's are in `pictures.py`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import MaxNLocator  # noqa: E402

from elmo.io.atomic import check_output  # noqa: E402

BLUE, ORANGE, GREY, PALE = "#2b6cb0", "#dd6b20", "#a0aec0", "#90cdf4"
Curve = dict[str, list[float]]
MARK = "elmo-pipeline"  # what a PNG of ours names as its software


def check_replaceable_plot(path: Path) -> None:
    """Raise `ElmoError` if `path` is a file that this project did not draw.

    It is called before the work whose plot would overwrite it.
    """
    check_output(path, pattern=rb"\x89PNG.*tEXtSoftware\0" + MARK.encode())


def draw_task(path: Path, curves: Curve, names: Mapping[str, str], *, score: str) -> None:
    """Draw a task's score by epoch, one line for each way it was trained.

    `curves` holds the score of each epoch by way, `names` its label in the legend, `score` the
    label of the axis.
    """
    figure, axis = plt.subplots(figsize=(6, 3.6))
    for (arm, values), color in zip(curves.items(), (BLUE, ORANGE), strict=False):
        axis.plot(range(1, len(values) + 1), values, "o-", color=color, ms=3, label=names[arm])
    axis.set(xlabel="epoch", ylabel=score)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(color="#edf2f7")
    axis.legend(frameon=False)
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    """Write a figure as a PNG without its upper and right edges, and close it."""
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_axisbelow(True)
    figure.tight_layout()
    figure.savefig(path, format="png", dpi=120, metadata={"Software": MARK})
    plt.close(figure)
