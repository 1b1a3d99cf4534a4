"""The rows of docs/benchmarks.md: the command of each benchmark, and how its figures are written.

The figures of a benchmark are in `results/NAME.json`. The page shows only claims that have a
command here and such a file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Figures = Mapping[str, Any]
KINDS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Row:
    """One line of the page; `cell` formats its figures and returns "" if they are missing."""

    claim: str
    against: str
    cell: Callable[[Figures], str]


@dataclass(frozen=True)
class Benchmark:
    """A command, and the rows that its figures fill.

    `command` has the words after `python -m benchmarks.`; a word in braces stands for the value of
    that option of `python -m benchmarks`. `minutes` is about the time on two cores.
    """

    name: str
    command: tuple[str, ...]
    minutes: int
    rows: tuple[Row, ...]
    on_gpu: bool = False

    @property
    def needs(self) -> tuple[str, ...]:
        """The options whose values the command needs."""
        return tuple(word[1:-1] for word in self.command if word.startswith("{"))


def _by_kind(pattern: str, describe: Callable[[Any], str]) -> Callable[[Figures], str]:
    """Return a function that formats the figures under `pattern`, where {} is a precision."""

    def cell(figures: Figures) -> str:
        pairs = [(kind, figures.get(pattern.format(kind))) for kind in KINDS]
        return ", ".join(f"{kind} {describe(values)}" for kind, values in pairs if values)

    return cell


def _ratio(pattern: str) -> Callable[[Figures], str]:
    return _by_kind(pattern, lambda ratio: f"{ratio:.1f} ×")


SHARE = Row(
    "… share of the matrix peak of the same run",
    "",
    _by_kind("ours {} / matrix peak", lambda share: f"{share:.0%}"),
)


def _memory(*sides: str) -> Callable[[Figures], str]:
    def cell(figures: Figures) -> str:
        sizes = [f"{figures[side]['peak_memory_mb'] / 1000:.1f}" for side in sides]
        return f"{sizes[0]} GB" + (f" against {', '.join(sizes[1:])} GB" if sizes[1:] else "")

    return cell


def _embedding(size: str) -> Benchmark:
    size_options = ("--sentences", "600") if size == "original" else ()
    return Benchmark(
        f"embedding_{size}",
        ("embedding", "{text}", "--size", size, *size_options, "--peer", "{allennlp}"),
        10,
        (
            Row(f"embedding, {size}", "AllenNLP 2.10.1, float32", _ratio("ours {} / peer")),
            Row(
                f"… tokens a second, {size}",
                "",
                _by_kind("ours {}", lambda values: f"{values['tokens_per_second']:,}"),
            ),
            SHARE,
        ),
    )


def _against_bilm_tf(work: str, claim: str, minutes: int) -> Benchmark:
    """Compare with the package of 2018, on the TensorFlow it was written for and on a later one."""
    peers = [f"bilm-tf on TensorFlow {version}" for version in ("1.15", "2.15")]
    ratios = (
        Row(claim_or_ditto, f"{peer}, float32", _ratio(f"ours {{}} / {peer}"))
        for claim_or_ditto, peer in zip((claim, "…"), peers, strict=True)
    )
    memory = Row("… peak memory", ", ".join(peers), _memory("ours float32", *peers))
    command = ("bilm_tf", "{text}", work, "--peer", "{bilm-tf}", "{bilm-tf-2}")
    return Benchmark(f"{work}_bilm_tf", command, minutes, (*ratios, memory))


def _store(figures: Figures) -> str:
    ratios = figures["against hdf5 float32"]["store float16"]
    return (
        f"scan {ratios['scan']:.1f} ×, a sentence at random {ratios['random sentence']:.1f} ×, "
        f"{ratios['bytes']:.0%} of the bytes"
    )


def _precision(figures: Figures) -> str:
    return "; ".join(
        f"{way} {values['layers']['layer_2']['relative L2 error']:.2%}, probe "
        f"{values['probe accuracy']:.4f}"
        for way, values in figures["ways"].items()
    )


def _search(figures: Figures) -> str:
    names = {"counts": "counts", "fasttext": "fastText", "static": "layer 0", "elmo": "ELMo"}
    names["minilm"] = "all-MiniLM-L6-v2"
    return ", ".join(f"{name} {figures['search'][way]:.3f}" for way, name in names.items())


def _on_gpu(work: str, *rows: int) -> Callable[[Figures], str]:
    """Return a cell of tokens a second, and the share of the matrix peak, in each precision, by
    rows where a step has a choice of them."""

    def cell(figures: Figures) -> str:
        cells = []
        for kind in KINDS:
            for row_count in rows or (0,):
                name = f"{work}, {kind}" + (f", {row_count} rows" if row_count else "")
                if values := figures.get(name):
                    text = f"{values['tokens_per_second']:,} ({values['share']:.0%})"
                    rows_text = f" with {row_count:,} rows" if row_count else ""
                    cells.append(f"{kind}{rows_text} {text}")
        return ", ".join(cells)

    return cell


BENCHMARKS: tuple[Benchmark, ...] = (
    _embedding("small"),
    _embedding("original"),
    _against_bilm_tf("embedding", "embedding, small, batched", 10),
    _against_bilm_tf("training", "training step, small, recipe of 2018", 15),
    Benchmark(
        "training_steps",
        ("training", "{text}", "steps"),
        10,
        (
            Row(
                "training step, small, recipe of 2018",
                "the same network, plain autograd, distinct tokens",
                _ratio("ours {0} / autograd-distinct {0}"),
            ),
            Row("…", "nn.LSTM(proj_size), which cannot clip", _ratio("ours {0} / nn.LSTM {0}")),
            Row("… peak memory", "", _memory("ours float32")),
            SHARE,
        ),
    ),
    Benchmark(
        "gpu",
        ("gpu", "{text}"),
        5,
        (
            Row(
                "a GPU: training, original, tokens a second",
                "in brackets the share of the matrix peak",
                _on_gpu("training, original", 128, 1024),
            ),
            Row("… embedding, original", "the same", _on_gpu("embedding, original")),
            Row("… training, small", "the same", _on_gpu("training, small", 128, 1024)),
            Row("… embedding, small", "the same", _on_gpu("embedding, small")),
        ),
        on_gpu=True,
    ),
    Benchmark(
        "training_workers",
        ("training", "{text}", "workers"),
        8,
        (
            Row(
                "training, two workers, a core each",
                "one worker, one core",
                _by_kind("ours {}", lambda values: f"{values['ratio']:.2f} ×"),
            ),
        ),
    ),
    Benchmark(
        "tokenizing",
        ("tokenizing", "{raw}"),
        2,
        (
            Row(
                "tokenizing to shards",
                "Hugging Face datasets' `map`, the same tokenizer and processes",
                lambda figures: f"{figures['ratio_to_map_alone']:.1f} ×",
            ),
        ),
    ),
    Benchmark(
        "features",
        ("features", "{text}"),
        5,
        (
            Row(
                "store, original size, all layers, float16",
                "HDF5 float32, a dataset per sentence",
                _store,
            ),
        ),
    ),
    Benchmark(
        "precision",
        ("precision", "{model}", "{tags-train}", "{tags-dev}"),
        4,
        (Row("relative error of the top layer, and a probe of tags", "float32", _precision),),
    ),
    Benchmark(
        "search",
        ("search", "{questions}", "--fasttext", "{fasttext}", "--peer", "{minilm}"),
        1,
        (
            Row(
                "which of 500 paragraphs a question was asked of",
                "counts (TF-IDF), fastText of the text that the model read, layer 0, "
                "a sentence-transformer",
                _search,
            ),
        ),
    ),
)
