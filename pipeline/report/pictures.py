"""The plots on the pages: training curves, and the document sizes and distinct words of a text."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
from matplotlib.ticker import FixedLocator, NullLocator

from .plots import BLUE, GREY, PALE_BLUE, Curve, save_figure
from .results import Results


def draw_curves(results: Results, path: Path) -> None:
    """Draw training, held-out and unigram perplexity by tokens read, a panel per trained stage."""
    curves_by_stage, unigram = results.curves, _find_unigram_perplexities(results)
    figure, panels = plt.subplots(1, len(curves_by_stage), figsize=(9, 3.8), squeeze=False)
    axes = list(panels.flat)
    for axis, (stage, curves) in zip(axes, curves_by_stage.items(), strict=True):
        train, heldout = curves["train"], curves["heldout"]
        axis.plot(_in_thousands(train), train["perplexity"], color=PALE_BLUE, label="training")
        heldout_tokens = _in_thousands(heldout)
        axis.plot(heldout_tokens, heldout["average"], "o-", color=BLUE, ms=4, label="held-out")
        if (perplexity := unigram[stage]) is not None:
            axis.axhline(perplexity, color=GREY, ls="--", lw=1.2, label="unigram model, held-out")
        axis.set(title=stage, xlabel="thousand tokens read", yscale="log")
        _set_plain_ticks(axis)
        axis.legend(frameon=False)
    axes[0].set_ylabel("perplexity")
    save_figure(figure, path)


def draw_text(inspection: Mapping[str, Any], path: Path) -> None:
    """Draw the sizes of a text's documents, and the number of distinct words by words read.

    `inspection` is what `inspect_text` returns.
    """
    figure, (size_axis, word_axis) = plt.subplots(1, 2, figsize=(9, 3.6))
    shares = [float(share.rstrip("%")) for share in inspection["document_bytes"]]
    size_axis.plot(inspection["document_bytes"].values(), shares, "o-", color=BLUE, ms=3)
    size_axis.set(xlabel="size (bytes)", ylabel="% of documents up to this size", xscale="symlog")
    word_axis.plot(*zip(*inspection["words"].values(), strict=True), "o-", color=BLUE, ms=3)
    word_axis.set(xlabel="words read", ylabel="distinct words", xscale="symlog", yscale="symlog")
    for axis in (size_axis, word_axis):
        axis.grid(color="#edf2f7")
    save_figure(figure, path)


def _find_unigram_perplexities(results: Results) -> dict[str, float | None]:
    """Return the unigram model's held-out perplexity per trained stage; None if unknown."""
    unigram = {}
    if not results.started_from:
        unigram["pretraining on general text"] = results.figures["pretrain"]["unigram_perplexity"]
    if results.is_tuned:
        final_scores = results.scores["after"]
        unigram["fine-tuning on domain text"] = final_scores["domain"]["unigram"]
    return unigram


def _in_thousands(curve: Curve) -> npt.NDArray[np.float64]:
    return np.asarray(curve["tokens"], np.float64) / 1000


def _set_plain_ticks(axis: Any) -> None:
    """Put round numbers on a log axis: the fewer decades it spans, the more numbers per decade."""
    low, high = axis.get_ylim()
    factors = (1, 2, 5) if high > 15 * low else (1, 1.5, 2, 3, 4, 5, 7)
    ticks = [factor * 10.0**power for power in range(9) for factor in factors]
    axis.yaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.grid(axis="y", color="#edf2f7")
