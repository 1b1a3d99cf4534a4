"""The rows of docs/benchmarks.md: what each benchmark is called with, and what its figures say.

A benchmark's figures are `results/NAME.json`. A claim without a command here, or without that file,
is not on the page.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One line of the page; `cell` says the figures in words, "" where they lack them."""

    what: str
    against: str
    cell: Callable[[Figures], str]


@dataclass(frozen=True)
class Benchmark:
    """A command, and the rows that its figures give.

    `command` are the words after `python -m benchmarks.`; one in braces stands for an option of
    `python -m benchmarks`. `minutes` are about those of two cores.
    """

    name: str
    command: tuple[str, ...]
    minutes: int
    rows: tuple[Row, ...]
    on_gpu: bool = False

    @property
    def needs(self) -> tuple[str, ...]:
        """The options that the command is called with."""
        return tuple(word[1:-1] for word in self.command if word.startswith("{"))


def _times(*keys: str) -> Callable[[Figures], str]:
    """Return a cell of the ratios under `keys`, each by the first word in which it differs."""

    def cell(figures: Figures) -> str:
        return ", ".join(
            f"{key.split(' / ')[0].removeprefix('ours ')} {figures[key]:.1f} ×"
            for key in keys
            if key in figures
        )

    return cell


def _embedding(size: str) -> Benchmark:
    kinds = ("float32", "bfloat16", "int8")

    def rates(figures: Figures) -> str:
        found = [kind for kind in kinds if f"ours {kind}" in figures]
        return ", ".join(f"{k} {figures[f'ours {k}']['tokens_per_second']:,}" for k in found)

    fewer = ("--sentences", "600") if size == "original" else ()
    return Benchmark(
        f"embedding_{size}",
        ("embedding", "{text}", "--size", size, *fewer, "--peer", "{allennlp}"),
        10,
        (
            Row(
                f"embedding, {size}",
                "AllenNLP 2.10.1, float32",
                _times(*(f"ours {kind} / peer" for kind in kinds)),
            ),
            Row(f"… tokens a second, {size}", "", rates),
        ),
    )


def _against_bilm_tf(name: str, *words: str, what: str, minutes: int) -> Benchmark:
    """Ours against the package of 2018, on the TensorFlow it was made for and on a later one."""
    peers = [f"bilm-tf on TensorFlow {version}" for version in ("1.15", "2.15")]
    firsts = (what, "…")

    def memory(figures: Figures) -> str:
        ours, *theirs = (
            f"{figures[side]['peak_memory_mb'] / 1000:.1f}" for side in ("ours float32", *peers)
        )
        return f"{ours} GB against {', '.join(theirs)} GB"

    return Benchmark(
        name,
        ("bilm_tf", "{text}", *words, "--peer", "{bilm-tf}", "{bilm-tf-2}"),
        minutes,
        (
            *(
                Row(
                    first,
                    f"{peer}, float32",
                    _times(*(f"ours {kind} / {peer}" for kind in ("float32", "bfloat16"))),
                )
                for first, peer in zip(firsts, peers, strict=True)
            ),
            Row("… peak memory", ", ".join(peers), memory),
        ),
    )


def _steps(figures: Figures) -> str:
    """Our step against plain autograd on distinct tokens, at the same precision."""
    pairs = {kind: f"ours {kind} / autograd-distinct {kind}" for kind in ("float32", "bfloat16")}
    return ", ".join(f"{k} {figures[key]:.1f} ×" for k, key in pairs.items() if key in figures)


def _words(figures: Figures) -> str:
    many = figures["ours float32, 800 thousand words"]
    return f"{many['time against 33 thousand']:.2f} × the time"


def _host(figures: Figures) -> str:
    return ", ".join(
        f"{name} {found['ahead']['ms_a_step']:.1f} ms of {found['in the step']['ms_a_step']:.1f} ms"
        for name, found in figures.items()
        if name in ("adagrad", "adamw")
    )


def _two_workers(figures: Figures) -> str:
    kinds = ("float32", "bfloat16")
    ratios = {kind: figures.get(f"ours {kind}", {}).get("ratio") for kind in kinds}
    return ", ".join(f"{kind} {ratio:.2f} ×" for kind, ratio in ratios.items() if ratio)


def _store(figures: Figures) -> str:
    found = figures["against hdf5 float32"]["store float16"]
    scan, one = found["scan"], found["random sentence"]
    return f"scan {scan:.1f} ×, a sentence at random {one:.1f} ×, {found['bytes']:.0%} of the bytes"


def _precision(figures: Figures) -> str:
    ways = figures["ways"]
    return "; ".join(
        f"{way} {found['layers']['layer_2']['relative L2 error']:.2%}, probe "
        f"{found['probe accuracy']:.4f}"
        for way, found in ways.items()
    )


def _answers(task: str) -> Callable[[Figures], str]:
    ways = {
        "counts": "counts",
        "fasttext": "fastText",
        "static": "layer 0",
        "elmo": "ELMo",
        "minilm": "all-MiniLM-L6-v2",
    }
    return lambda figures: ", ".join(
        f"{name} {figures[task][way]:.3f}" for way, name in ways.items()
    )


def _seeds(figures: Figures) -> str:
    same = "the same bytes" if figures["equal"] else "other bytes"
    return f"{figures['ratio']:.2f} ×, {same}"


def _spinning(figures: Figures) -> str:
    return ", ".join(
        f"{where} {sides['10000 spins']['tokens_per_second'] / other['tokens_per_second']:.2f} ×"
        for where, sides in figures.items()
        if isinstance(sides, dict) and (other := sides.get("as OpenMP does"))
    )


def _freed(figures: Figures) -> str:
    return ", ".join(
        f"{kind} {found['ratio']:.2f} × (page faults a step: "
        f"{found['kept']['page_faults_a_step']:,} for {found['returned']['page_faults_a_step']:,})"
        for kind in ("float32", "bfloat16")
        if (found := figures.get(kind))
    )


def _shares(work: str) -> Callable[[Figures], str]:
    return lambda figures: ", ".join(
        f"{kind} {found['share']:.0%}" for kind, found in figures.get(work, {}).items()
    )


def _on_gpu(work: str, *rows: int) -> Callable[[Figures], str]:
    """Return a cell of tokens a second, and the share of the matrix peak, in each precision, by
    rows where a step has a choice of them."""

    def cell(figures: Figures) -> str:
        found = []
        for precision in ("float32", "bfloat16"):
            for each in rows or (0,):
                name = f"{work}, {precision}" + (f", {each} rows" if each else "")
                if name in figures:
                    one = figures[name]
                    by = f" with {each:,} rows" if each else ""
                    rate = f"{one['tokens_per_second']:,} ({one['share']:.0%})"
                    found.append(f"{precision}{by} {rate}")
        return ", ".join(found)

    return cell


def _differences(figures: Figures) -> str:
    return f"differ by at most {max(figures['largest_difference_by_layer']):.1e}"


_OTHERS = (
    "counts (TF-IDF), fastText of the text that the model read, static vectors (layer 0), "
    "a sentence-transformer"
)
BENCHMARKS: tuple[Benchmark, ...] = (
    _embedding("small"),
    _embedding("original"),
    _against_bilm_tf(
        "embedding_bilm_tf", "embedding", what="embedding, small, batched", minutes=10
    ),
    _against_bilm_tf(
        "training_bilm_tf", "training", what="training step, small, recipe of 2018", minutes=15
    ),
    Benchmark(
        "training_steps",
        ("training", "{text}", "steps"),
        10,
        (
            Row(
                "training step, small, recipe of 2018",
                "the same network, plain autograd, distinct tokens",
                _steps,
            ),
            Row(
                "…",
                "nn.LSTM(proj_size), which cannot clip",
                lambda f: ", ".join(
                    f"{k} {f[key]:.1f} ×"
                    for k in ("float32", "bfloat16")
                    if (key := f"ours {k} / nn.LSTM {k}") in f
                ),
            ),
            Row(
                "… peak memory",
                "",
                lambda f: f"{f['ours float32']['peak_memory_mb'] / 1000:.1f} GB",
            ),
        ),
    ),
    Benchmark(
        "shares",
        ("shares", "{text}"),
        20,
        tuple(
            Row(f"{work}: share", "the matrix peak of the same run and precision", _shares(work))
            for work in (
                "embedding, small",
                "embedding, original",
                "training, small",
                "training, original",
                "training, default",
            )
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
            Row(
                "… training, small",
                "the same",
                _on_gpu("training, small", 128, 1024),
            ),
            Row("… embedding, small", "the same", _on_gpu("embedding, small")),
        ),
        on_gpu=True,
    ),
    Benchmark(
        "freed_memory",
        ("freed_memory",),
        4,
        (Row("training, default network, freed memory kept", "returned to the system", _freed),),
    ),
    Benchmark(
        "training_workers",
        ("training", "{text}", "workers"),
        8,
        (Row("training, two workers, a core each", "one worker, one core", _two_workers),),
    ),
    Benchmark(
        "training_words",
        ("training", "{text}", "words", "--repeat", "2"),
        8,
        (
            Row(
                "training step with 800,000 words",
                "with 33,000, float32",
                _words,
            ),
        ),
    ),
    Benchmark(
        "host",
        ("host",),
        1,
        (
            Row(
                "host's main thread in a step beside the arithmetic, 793,471 words",
                "nothing found ahead by the thread that reads the windows",
                _host,
            ),
        ),
    ),
    Benchmark(
        "spinning",
        ("spinning",),
        4,
        (
            Row(
                "training, default network, two threads, a bound on how long one spins",
                "OpenMP's own",
                _spinning,
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
                lambda f: f"{f['ratio_to_map_alone']:.1f} ×",
            ),
        ),
    ),
    Benchmark(
        "vocabulary",
        ("vocabulary", "{raw}"),
        2,
        (
            Row(
                "vocabulary",
                "counting in Python, from shards / from text",
                lambda f: (
                    f"{f['ratio_to_python_from_shards']:.0f} × / "
                    f"{f['ratio_to_python_from_text']:.0f} ×"
                ),
            ),
        ),
    ),
    Benchmark(
        "features",
        ("features", "{text}"),
        3,
        (
            Row(
                "store, original size, all layers, float16",
                "HDF5 float32, a dataset per sentence",
                _store,
            ),
        ),
    ),
    Benchmark(
        "memory",
        ("memory", "{model}", "{text}"),
        3,
        (
            Row(
                "peak memory of a store of 1,000,000 tokens",
                "of 100,000 (less than a part, of which one is in memory)",
                lambda f: (
                    f"{f['ten times the text']['peak MB']} MB against {f['text']['peak MB']} MB"
                ),
            ),
        ),
    ),
    Benchmark(
        "seeds",
        ("seeds", "{tags-train}", "{tags-dev}"),
        4,
        (Row("four seeds of a tagger, on two cores side by side", "one after another", _seeds),),
    ),
    Benchmark(
        "precision",
        ("precision", "{model}", "{tags-train}", "{tags-dev}"),
        4,
        (Row("relative error of the top layer, and a probe of tags", "float32", _precision),),
    ),
    Benchmark(
        "comparison",
        (
            "comparison",
            "--train",
            "{tags-train}",
            "--test",
            "{tags-test}",
            "--squad",
            "{questions}",
            "--fasttext",
            "{fasttext}",
            "--peer",
            "{minilm}",
        ),
        1,
        (
            Row("the tag of a word, learned from 1,000 sentences", _OTHERS, _answers("tags")),
            Row("which of 500 paragraphs a question was asked of", _OTHERS, _answers("search")),
        ),
    ),
    Benchmark(
        "serving",
        ("serving", "{text}"),
        1,
        (
            Row(
                "one sentence",
                "in process / `mlflow models serve`",
                lambda f: (
                    f"{f['embedder']['median_ms']:.0f} ms / "
                    f"{f['mlflow models serve']['median_ms']:.0f} ms"
                ),
            ),
        ),
    ),
    *(
        Benchmark(
            f"interop_{size}",
            ("interop_allennlp", "{text}", "--size", size, "--peer", "{allennlp}"),
            2,
            (Row(f"exported weights in AllenNLP, {size}", "our vectors", _differences),),
        )
        for size in ("small", "original")
    ),
    Benchmark(
        "manifests",
        ("manifests",),
        2,
        (
            Row(
                "opening a store of 10,000 parts",
                "",
                lambda f: f"{f['store opened, s']:.2f} s, {f['peak_mb']} MB in all",
            ),
        ),
    ),
    Benchmark(
        "vocabulary_merge",
        ("vocabulary_merge",),
        3,
        (
            Row(
                "merging the counts of 50 million types",
                "",
                lambda f: f"{f['merging_s']:.0f} s, {f['peak_mb'] / 1000:.1f} GB",
            ),
        ),
    ),
)
