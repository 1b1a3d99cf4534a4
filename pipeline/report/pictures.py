"""The pictures of the report.

To add one, write its function and its entry in `pictures`; its place on the page is in
`pipeline.stages.report`, and its line below `plots` in dvc.yaml.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
from matplotlib.ticker import FixedLocator, NullLocator

from .page import Picture
from .plots import BLUE, GREY, ORANGE, PALE, Curve, save
from .results import TEXTS, Results

KINDS = {"unigram model": GREY, "pretrained": BLUE, "fine-tuned": ORANGE}


def pictures(results: Results, folder: Path) -> dict[str, Picture]:
    """Draw the pictures of the results as PNGs in `folder`; return them by name."""
    draw: dict[str, Callable[[Path], None]] = {
        "curves": lambda file: draw_curves(file, results.curves, _unigram(results)),
        "perplexity": lambda file: draw_perplexity(file, _bars(results)),
        "layers": lambda file: draw_layers(file, results.layers),
    }
    for name, draw_one in draw.items():
        draw_one(folder / f"{name}.png")
    return {name: Picture(name, (folder / f"{name}.png").read_bytes()) for name in draw}


def _unigram(results: Results) -> dict[str, float]:
    """The unigram model's held-out perplexity for each stage that trained."""
    unigram = {}
    if not results.started_from:
        unigram["pretraining on general text"] = results.figures["pretrain"]["unigram_perplexity"]
    if results.tuned:
        final = results.scores.child("after")
        unigram["fine-tuning on domain text"] = final.child("domain")["unigram"]
    return unigram


def _bars(results: Results) -> dict[str, dict[str, float]]:
    """The perplexities by text; the domain text first where the model was trained elsewhere."""
    scores = results.scores
    final = scores.child("after")
    if "before" not in scores:
        row = final.child("general")
        return {TEXTS["general"]: {"unigram model": row["unigram"], "pretrained": row["average"]}}
    initial = scores.child("before")
    return {
        title: {
            "unigram model": final.child(text)["unigram"],
            "pretrained": initial.child(text)["average"],
            "fine-tuned": final.child(text)["average"],
        }
        for text, title in (reversed(TEXTS.items()) if results.started_from else TEXTS.items())
    }


def draw_curves(
    path: Path,
    by_stage: dict[str, dict[str, Curve]],
    unigram: dict[str, float],
) -> None:
    """Draw training, held-out and unigram perplexity by tokens read, one panel for each stage.

    `by_stage` holds the curves "train" and "heldout" of each stage, `unigram` the unigram model's
    perplexity for each.
    """
    figure, axes = _panels(len(by_stage), 3.8)
    for axis, (stage, curves) in zip(axes, by_stage.items(), strict=True):
        train, heldout = curves["train"], curves["heldout"]
        axis.plot(_thousands(train), train["perplexity"], color=PALE, label="training")
        heldout_tokens = _thousands(heldout)
        axis.plot(heldout_tokens, heldout["average"], "o-", color=BLUE, ms=4, label="held-out")
        axis.axhline(unigram[stage], color=GREY, ls="--", lw=1.2, label="unigram model, held-out")
        axis.set(title=stage, xlabel="thousand tokens read", yscale="log")
        _plain_ticks(axis)
        axis.legend(frameon=False)
    axes[0].set_ylabel("perplexity")
    save(figure, path)


def draw_perplexity(path: Path, by_text: dict[str, dict[str, float]]) -> None:
    """Draw held-out perplexity: a group of bars for each text, a bar for each kind of model.

    `by_text` has the perplexities by the title of a text and by a name in `KINDS`.
    """
    figure, (axis,) = _panels(1, 3.4)
    kinds = [kind for kind in KINDS if all(kind in row for row in by_text.values())]
    height = 0.8 / len(kinds)
    for index, kind in enumerate(kinds):
        rows = np.arange(len(by_text)) + (index - (len(kinds) - 1) / 2) * height
        values = [row[kind] for row in by_text.values()]
        bars = axis.barh(rows, values, height * 0.88, color=KINDS[kind], label=kind)
        axis.bar_label(bars, fmt="%.1f", padding=4)
    axis.set_yticks(range(len(by_text)), list(by_text))
    axis.tick_params(axis="y", length=0)
    axis.invert_yaxis()
    axis.set(xlabel="held-out perplexity, mean of both directions")
    axis.margins(x=0.1)
    axis.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)
    save(figure, path)


def draw_layers(path: Path, by_layer: Mapping[str, Mapping[str, float]]) -> None:
    """Draw, for each layer, the vectors' mean norm and the similarity of a sentence's tokens.

    `by_layer` is what `layer_statistics` returns.
    """
    figure, axes = _panels(2, 3.0)
    titles = {
        "norm": "mean norm of a vector",
        "cosine": "mean cosine of different tokens of a sentence",
    }
    for axis, (key, title) in zip(axes, titles.items(), strict=True):
        names = [name.replace("_", " ") for name in by_layer]
        bars = axis.bar(names, [row[key] for row in by_layer.values()], 0.6, color=BLUE)
        axis.bar_label(bars, fmt="%.2f", padding=2)
        axis.set_title(title)
        axis.margins(y=0.15)
        axis.set_xlim(-0.7, len(by_layer) - 0.3)
        axis.tick_params(axis="x", length=0)
    save(figure, path)


def _panels(count: int, height: float) -> tuple[Any, list[Any]]:
    """A figure of panels side by side."""
    figure, axes = plt.subplots(1, count, figsize=(9, height), squeeze=False)
    return figure, list(axes.flat)


def _thousands(curve: Curve) -> npt.NDArray[np.float64]:
    return np.asarray(curve["tokens"], np.float64) / 1000


def _plain_ticks(axis: Any) -> None:
    """Round numbers, written out, on a log axis: the more, the fewer decades it spans."""
    low, high = axis.get_ylim()
    leading = (1, 2, 5) if high > 15 * low else (1, 1.5, 2, 3, 4, 5, 7)
    ticks = [factor * 10.0**power for power in range(9) for factor in leading]
    axis.yaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.grid(axis="y", color="#edf2f7")
