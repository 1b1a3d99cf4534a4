"""The rows of docs/benchmarks.md: the command of each benchmark and the format of its figures.

The figures of a benchmark are in `results/NAME.json`. The page shows only rows that have both a
command here and such a file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Figures = Mapping[str, Any]
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Row:
    """A row of the page; `cell` formats the figures and returns "" if they are missing."""

    label: str
    baseline: str
    cell: Callable[[Figures], str]


@dataclass(frozen=True)
class Benchmark:
    """A command, and the rows that show its figures.

    `command` has the words after `python -m benchmarks.`; a word in braces stands for the value of
    that option of `python -m benchmarks`. `minutes` is the approximate time on two cores.
    """

    name: str
    command: tuple[str, ...]
    minutes: int
    rows: tuple[Row, ...]
    on_gpu: bool = False

    @property
    def required_options(self) -> tuple[str, ...]:
        """The options of `python -m benchmarks` whose values the command needs."""
        return tuple(word[1:-1] for word in self.command if word.startswith("{"))


def _cell_by_precision(pattern: str, describe: Callable[[Any], str]) -> Callable[[Figures], str]:
    """Return a function that formats the figures named `pattern`, where {} is a precision."""

    def cell(figures: Figures) -> str:
        pairs = [(precision, figures.get(pattern.format(precision))) for precision in PRECISIONS]
        return ", ".join(f"{precision} {describe(values)}" for precision, values in pairs if values)

    return cell


def _ratio_cell(pattern: str) -> Callable[[Figures], str]:
    return _cell_by_precision(pattern, lambda ratio: f"{ratio:.1f}×")


PEAK_SHARE = Row(
    "… share of the matrix peak of the same run",
    "",
    _cell_by_precision("ours {} / matrix peak", lambda share: f"{share:.0%}"),
)


def _memory_cell(*sides: str) -> Callable[[Figures], str]:
    def cell(figures: Figures) -> str:
        sizes = [f"{side}: {figures[side]['peak_memory_mb'] / 1000:.1f} GB" for side in sides]
        return "; ".join(sizes).removeprefix(f"{sides[0]}: ")

    return cell


def _embedding_benchmark(size: str) -> Benchmark:
    size_options = ("--sentences", "600") if size == "original" else ()
    return Benchmark(
        f"embedding_{size}",
        ("embedding", "{text}", "--size", size, *size_options, "--peer", "{allennlp}"),
        10,
        (
            Row(f"embedding, {size}", "AllenNLP 2.10.1, float32", _ratio_cell("ours {} / peer")),
            Row(
                f"… tokens per second, {size}",
                "",
                _cell_by_precision("ours {}", lambda values: f"{values['tokens_per_second']:,}"),
            ),
            PEAK_SHARE,
        ),
    )


def _bilm_tf_benchmark(workload: str, label: str, minutes: int) -> Benchmark:
    """Compare with the package of 2018, on its own TensorFlow 1 and on TensorFlow 2."""
    peers = [f"bilm-tf on TensorFlow {version}" for version in ("1.15", "2.15")]
    ratios = (
        Row(label_or_ditto, f"{peer}, float32", _ratio_cell(f"ours {{}} / {peer}"))
        for label_or_ditto, peer in zip((label, "…"), peers, strict=True)
    )
    memory = Row("… peak memory", ", ".join(peers), _memory_cell("ours float32", *peers))
    command = ("bilm_tf", "{text}", workload, "--peer", "{bilm-tf}", "{bilm-tf-2}")
    return Benchmark(f"{workload}_bilm_tf", command, minutes, (*ratios, memory))


def _store_cell(figures: Figures) -> str:
    ratios = figures["against hdf5 float32"]["store float16"]
    return (
        f"scan {ratios['scan']:.1f}×, random sentence {ratios['random sentence']:.1f}×, "
        f"{ratios['bytes']:.0%} of the bytes"
    )


def _precision_cell(figures: Figures) -> str:
    return "; ".join(
        f"{way} {values['layers']['layer_2']['relative L2 error']:.2%}, tagger "
        f"{values['probe accuracy']:.4f}"
        for way, values in figures["ways"].items()
    )


def _search_cell(figures: Figures) -> str:
    names = {"counts": "counts", "fasttext": "fastText", "static": "layer 0", "elmo": "ELMo"}
    names["minilm"] = "all-MiniLM-L6-v2"
    return ", ".join(f"{name} {figures['search'][way]:.3f}" for way, name in names.items())


def _gpu_cell(workload: str, *rows: int) -> Callable[[Figures], str]:
    """Return a function that formats tokens per second and the share of the matrix peak: for each
    precision and, in training, each of `rows`."""

    def cell(figures: Figures) -> str:
        cells = []
        for precision in PRECISIONS:
            for row_count in rows or (0,):
                name = f"{workload}, {precision}" + (f", {row_count} rows" if row_count else "")
                if values := figures.get(name):
                    text = f"{values['tokens_per_second']:,} ({values['share']:.0%})"
                    rows_text = f" with {row_count:,} rows" if row_count else ""
                    cells.append(f"{precision}{rows_text} {text}")
        return ", ".join(cells)

    return cell


BENCHMARKS: tuple[Benchmark, ...] = (
    _embedding_benchmark("small"),
    _embedding_benchmark("original"),
    _bilm_tf_benchmark("embedding", "embedding, small, batched", 10),
    _bilm_tf_benchmark("training", "training step, small, recipe of 2018", 15),
    Benchmark(
        "training_steps",
        ("training", "{text}", "steps"),
        10,
        (
            Row(
                "training step, small, recipe of 2018",
                "the same network, plain autograd, distinct tokens",
                _ratio_cell("ours {0} / autograd-distinct {0}"),
            ),
            Row("…", "nn.LSTM(proj_size), without clipping", _ratio_cell("ours {0} / nn.LSTM {0}")),
            Row("… peak memory", "", _memory_cell("ours float32")),
            PEAK_SHARE,
        ),
    ),
    Benchmark(
        "gpu",
        ("gpu", "{text}"),
        5,
        (
            Row(
                "training on a GPU, original, tokens per second",
                "in brackets: share of the matrix peak",
                _gpu_cell("training, original", 128, 1024),
            ),
            Row("… embedding, original", "the same", _gpu_cell("embedding, original")),
            Row("… training, small", "the same", _gpu_cell("training, small", 128, 1024)),
            Row("… embedding, small", "the same", _gpu_cell("embedding, small")),
        ),
        on_gpu=True,
    ),
    Benchmark(
        "training_workers",
        ("training", "{text}", "workers"),
        8,
        (
            Row(
                "training, two workers with one core each",
                "one worker, one core",
                _cell_by_precision("ours {}", lambda values: f"{values['ratio']:.2f}×"),
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
                lambda figures: f"{figures['ratio_to_map_alone']:.1f}×",
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
                _store_cell,
            ),
        ),
    ),
    Benchmark(
        "precision",
        ("precision", "{model}", "{tags-train}", "{tags-dev}"),
        4,
        (Row("relative error of the top layer, accuracy of a tagger", "float32", _precision_cell),),
    ),
    Benchmark(
        "search",
        ("search", "{questions}", "--fasttext", "{fasttext}", "--peer", "{minilm}"),
        1,
        (
            Row(
                "finding the paragraph of a question among 500, accuracy",
                "counts (TF-IDF), fastText trained on the text of the model, layer 0, "
                "a sentence-transformer",
                _search_cell,
            ),
        ),
    ),
)
