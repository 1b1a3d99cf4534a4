"""The pictures of the report: curves, perplexities, layers, vocabulary."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

BLUE, ORANGE, GREY = "#2b6cb0", "#dd6b20", "#718096"
Curve = dict[str, list[float]]


def curves(path: Path, found: dict[str, dict[str, Curve]]) -> None:
    """Training and held-out perplexity by tokens seen, a panel a stage."""
    figure, axes = plt.subplots(1, len(found), figsize=(9, 3.6), squeeze=False)
    for axis, (stage, both) in zip(axes[0], found.items(), strict=True):
        train, heldout = both["train"], both["heldout"]
        tokens = np.array(train["tokens"]) / 1000
        axis.plot(tokens, train["perplexity"], color=GREY, lw=1, label="training")
        held = np.array(heldout["tokens"]) / 1000
        axis.plot(held, heldout["average"], "o-", color=BLUE, ms=4, label="held-out")
        axis.set(title=stage, xlabel="thousand tokens", ylabel="perplexity", yscale="log")
        ticks = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000]
        low, high = axis.get_ylim()
        axis.set_yticks([t for t in ticks if low <= t <= high])
        axis.yaxis.set_major_formatter("{x:.0f}")
        axis.yaxis.set_minor_formatter("")
        axis.legend(frameon=False)
    _save(figure, path)


def perplexity(path: Path, bars: list[tuple[str, float, str]]) -> None:
    """Held-out perplexity of each text and model: (label, value, kind)."""
    figure, axis = plt.subplots(figsize=(9, 0.5 * len(bars) + 1))
    colours = {"unigram": GREY, "before": BLUE, "after": ORANGE}
    labels = [label for label, _, _ in bars]
    drawn = axis.barh(labels, [v for _, v, _ in bars], color=[colours[k] for _, _, k in bars])
    axis.bar_label(drawn, fmt="%.1f", padding=4)
    axis.invert_yaxis()
    axis.set(xlabel="held-out perplexity, mean of both directions")
    axis.margins(x=0.12)
    _save(figure, path)


def layers(path: Path, found: dict[str, dict[str, float]]) -> None:
    """For each layer: the mean norm of a vector, and how alike the tokens of a sentence are."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3))
    titles = {"norm": "mean norm of a vector", "cosine": "mean cosine within a sentence"}
    for axis, (key, title) in zip(axes, titles.items(), strict=True):
        drawn = axis.bar(list(found), [row[key] for row in found.values()], color=BLUE)
        axis.bar_label(drawn, fmt="%.2f", padding=2)
        axis.set(title=title)
        axis.margins(y=0.15)
    _save(figure, path)


def vocabulary(path: Path, counts: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    """How often each word occurs, by rank, and the share of tokens the first ones cover."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3))
    ranks = np.arange(1, len(counts) + 1)
    axes[0].loglog(ranks, counts, color=BLUE)
    axes[0].set(title="how often a word occurs", xlabel="rank", ylabel="count")
    axes[1].semilogx(ranks, np.cumsum(counts) / counts.sum(), color=BLUE)
    axes[1].set(title="tokens covered by the first words", xlabel="words", ylim=(0, 1))
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
