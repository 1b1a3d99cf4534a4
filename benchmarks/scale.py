"""Time, money and bottleneck of the whole pipeline for a corpus and a number of GPUs, on paper.

    python -m benchmarks.scale                      the tables of docs/scale.md
    python -m benchmarks.scale --check              the formulas against what was measured
    python -m benchmarks.scale --set gpu_tflops=1979 --set gpu_dollars=2.5 …

Every cost is a field of `Costs`: measured on this project's machine (2 cores), or a parameter of
yours. The formulas are the functions below; no GPU was measured. The graph is that of one text
alone, whose model is tuned to nothing, from corpus to features.
"""

import argparse
import json
import os
import tempfile
from dataclasses import dataclass, fields, replace
from pathlib import Path

from elmo.io.location import THREADS
from elmo.store.build import MOST_PARTS, PART_TOKENS
from pipeline.text.pieces import MOST_BYTES, MOST_PIECES

RESULTS = Path(__file__).parent / "results"
# Rows of the word matrix that a step uses: 8,192 candidates and the targets of all GPUs, 128 × 20
# tokens each, counted on WikiText-2 (33,229 words, mean of five draws).
WORD_ROWS = {1: 8573, 8: 10841, 64: 19840, 512: 32050}
GPUS = tuple(WORD_ROWS)
NETWORKS = {"100 Gb/s": 12.5, "400 Gb/s": 50.0}  # GB/s of each GPU
FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


@dataclass(frozen=True)
class Shape:
    """A network of 2018.

    `types` is the share of a training window's tokens that are distinct, `batch_types` that of the
    larger batches of embedding.
    """

    name: str
    cells: int
    projection: int
    highways: int
    types: float
    batch_types: float = 0.2
    layers: int = 2
    samples: int = 8192
    characters: int = 50
    char_dim: int = 16


SMALL = Shape("small", 1024, 128, 1, types=0.35)
ORIGINAL = Shape("original", 4096, 512, 2, types=0.35)


@dataclass(frozen=True)
class Costs:
    """What things take. Measured: training, tokenizing, counting, the store. The rest: set your
    own."""

    gpu_tflops: float = 780  # of a large bfloat16 product: benchmarks/results/gpu.json, an H200
    gpu_share: float = 0.144  # of it that a step of the original size reaches: the same
    launch_us: float = 8  # for a kernel of one LSTM step, in a CUDA graph; not measured here
    gpu_gbps: float = 200  # GB/s between GPUs: of one node or of its network
    rows: int = 128  # of the batch for each GPU
    window: int = 20
    cores: int = 8  # beside each GPU
    tokenize_rate: float = 4.3e6  # tokens/s of a core: benchmarks/results/tokenizing.json
    count_rate: float = 8e7  # tokens/s of a core: benchmarks/results/vocabulary.json
    write_mbps: float = 500  # MB/s between a GPU's machine and storage; not measured here
    driver_gbps: float = 1.0  # GB/s that one process reads for digests; not measured here
    request_ms: float = 30  # of a request to storage; not measured here
    merge_rate: float = 3.6e6  # types/s of shards' counts: benchmarks/results/vocabulary_merge.json
    choose_s: float = 81  # for the words of 50 million types: the same
    shard_types: float = 300_000  # distinct in a shard; of yours
    token_bytes: float = 5  # of text
    gpu_dollars: float = 3.0  # an hour of a GPU with its cores
    storage_dollars: float = 23.0  # a month of a TB


@dataclass(frozen=True)
class Corpus:
    """How much text, and how often it is read."""

    name: str
    tokens: float
    epochs: int


CORPORA = (
    Corpus("1 billion tokens", 1e9, 10),
    Corpus("100 billion tokens", 100e9, 1),
    Corpus("1,000 billion tokens", 1000e9, 1),
)
SHARD_BYTES = (
    2**26
)  # of text in a piece, as the presets have it; the pieces of a large corpus are larger
# Requests of the driver for each shard (each part of the store), counted by benchmarks.latency.
CHECKED = (12, 48)  # shards
REQUESTS = {"tokenize": 5.5, "vocab": 1.0, "features": 4.0}


def encoder_macs(shape: Shape) -> float:
    """Multiplications of the character network for one distinct type."""
    convolutions = sum(
        count * width * shape.char_dim * (shape.characters - width + 1) for width, count in FILTERS
    )
    width = sum(count for _, count in FILTERS)
    return convolutions + shape.highways * 2 * width**2 + width * shape.projection


def lstm_macs(shape: Shape) -> float:
    """Multiplications of both directions and all layers for one token."""
    cell = 4 * shape.cells * 2 * shape.projection + shape.cells * shape.projection
    return 2.0 * shape.layers * cell


def training_flop(shape: Shape) -> float:
    """Of a token in training: forward once, backward twice; two for each multiplication."""
    softmax = 2 * shape.projection * shape.samples
    return 6 * (lstm_macs(shape) + softmax + shape.types * encoder_macs(shape))


def embedding_flop(shape: Shape) -> float:
    """Of a token's vectors: forward once, no softmax."""
    return 2 * (lstm_macs(shape) + shape.batch_types * encoder_macs(shape))


def parameters(shape: Shape) -> float:
    """Of the network without the words; their gradient is sent by rows."""
    width = sum(count for _, count in FILTERS)
    convolutions = sum(count * size * shape.char_dim for size, count in FILTERS)
    encoder = convolutions + shape.highways * 2 * width**2 + width * shape.projection
    return encoder + lstm_macs(shape)


def sent_bytes(shape: Shape, word_rows: float, gpus: int) -> float:
    """What a GPU sends in a step: an all-reduce of every gradient, float32, word rows with their
    bias, round a ring."""
    gradients = parameters(shape) + word_rows * (shape.projection + 1)
    return 4 * gradients * 2 * (gpus - 1) / gpus


def step_seconds(shape: Shape, costs: Costs, gpus: int) -> dict[str, float]:
    """The parts of a step: matrix products, launches one after another, gradients sent."""
    tokens = costs.rows * costs.window
    compute = tokens * training_flop(shape) / (costs.gpu_tflops * 1e12 * costs.gpu_share)
    launches = 3 * 2 * shape.layers * costs.window * costs.launch_us * 1e-6
    sent = sent_bytes(shape, WORD_ROWS[gpus], gpus)
    return {"products": compute, "launches": launches, "gradients": sent / (costs.gpu_gbps * 1e9)}


def shards(corpus: Corpus, costs: Costs) -> float:
    """The shards of a corpus at a URL: two of each piece, train and held-out."""
    text = corpus.tokens * costs.token_bytes
    return 2 * text / min(max(SHARD_BYTES, text / MOST_PIECES), MOST_BYTES)


def parts(corpus: Corpus, costs: Costs) -> float:
    """The parts of its store: one of a shard at least."""
    return shards(corpus, costs) + min(corpus.tokens / PART_TOKENS, MOST_PARTS)


def stages(corpus: Corpus, shape: Shape, costs: Costs, gpus: int) -> dict[str, dict[str, float]]:
    """Hours of each stage by what takes them."""
    cores, machines = costs.cores * gpus, costs.write_mbps * 1e6 * gpus
    text = corpus.tokens * costs.token_bytes
    steps = corpus.tokens * corpus.epochs / (costs.rows * costs.window * gpus)
    step = step_seconds(shape, costs, gpus)
    rate = costs.gpu_tflops * 1e12 * costs.gpu_share * gpus
    many = {"tokenize": shards(corpus, costs), "vocab": shards(corpus, costs)}
    many["features"] = parts(corpus, costs)
    asked = {
        stage: REQUESTS[stage] * many[stage] * costs.request_ms / 1000 / THREADS for stage in many
    }
    seconds = {
        "corpus": {"driver": text / (costs.driver_gbps * 1e9)},
        "tokenize": {
            "cores": corpus.tokens / (costs.tokenize_rate * cores),
            "storage": 2 * text / machines,  # read, and written as shards
            "requests": asked["tokenize"],
        },
        "vocab": {
            "cores": corpus.tokens / (costs.count_rate * cores),
            "storage": text / machines,
            "requests": asked["vocab"],
            "driver": many["vocab"] * costs.shard_types / costs.merge_rate + costs.choose_s,
        },
        "pretrain": {name: steps * each for name, each in step.items()}
        | {"storage": corpus.epochs * text / machines},
        "features": {
            "products": corpus.tokens * embedding_flop(shape) / rate,
            "storage": store_bytes(corpus, shape) / machines,
            "requests": asked["features"],
        },
    }
    return {
        name: {cause: each / 3600 for cause, each in causes.items()}
        for name, causes in seconds.items()
    }


def hours(causes: dict[str, float]) -> float:
    """Of a stage: what machines do overlaps, gradients and what the driver does come after."""
    after = {"gradients", "requests", "driver"}
    together = [each for cause, each in causes.items() if cause not in after]
    return max(together, default=0.0) + sum(causes.get(cause, 0.0) for cause in after)


def store_bytes(
    corpus: Corpus, shape: Shape, layers: float = 2, bytes_per_number: int = 2
) -> float:
    """Of a store of all layers in float16: layer 0 is stored once a type, so it hardly counts."""
    return corpus.tokens * layers * 2 * shape.projection * bytes_per_number * 1.03


def table(corpus: Corpus, shape: Shape, costs: Costs) -> list[str]:
    """Rows of Markdown: a column for each number of GPUs."""
    plans = {gpus: stages(corpus, shape, costs, gpus) for gpus in GPUS}
    lines = [
        f"| {corpus.name}, {shape.name}, "
        f"{corpus.epochs} epoch{'s' * (corpus.epochs > 1)} | "
        + " | ".join(f"{gpus} GPU{'s' * (gpus > 1)}" for gpus in GPUS)
        + " |",
        "|---|" + "---|" * len(GPUS),
    ]
    totals = dict.fromkeys(GPUS, 0.0)
    for stage in plans[1]:
        cells = []
        for gpus in GPUS:
            causes = plans[gpus][stage]
            took = hours(causes)
            totals[gpus] += took
            cells.append(f"{_time(took)} ({max(causes, key=lambda cause: causes[cause])})")
        lines.append(f"| {stage} | " + " | ".join(cells) + " |")
    lines.append("| all | " + " | ".join(_time(totals[n]) for n in GPUS) + " |")
    paid = (f"{totals[n] * n * costs.gpu_dollars:,.0f} $" for n in GPUS)
    lines.append("| price of the GPUs | " + " | ".join(paid) + " |")
    return lines


def network_table(costs: Costs) -> list[str]:
    """A step's parts by network, and what is left of the GPUs' own speed."""
    lines = [
        "| network of each GPU | size, GPUs | sent in a step | computing | sending | tokens/s | "
        "share of the GPUs' own speed |",
        "|---|---|---|---|---|---|---|",
    ]
    for network, rate in NETWORKS.items():
        for shape in (SMALL, ORIGINAL):
            for gpus in (8, 64):
                step = step_seconds(shape, replace(costs, gpu_gbps=rate), gpus)
                computing = max(step["products"], step["launches"])
                whole = computing + step["gradients"]
                tokens = gpus * costs.rows * costs.window / whole
                lines.append(
                    f"| {network} | {shape.name}, {gpus} | "
                    f"{sent_bytes(shape, WORD_ROWS[gpus], gpus) / 1e6:,.0f} MB | "
                    f"{computing * 1e3:.1f} ms | {step['gradients'] * 1e3:.1f} ms | "
                    f"{tokens / 1e6:.1f} million | {computing / whole:.0%} |"
                )
    return lines


def keep_table(corpus: Corpus, shape: Shape, costs: Costs) -> list[str]:
    """What a store takes by what it keeps."""
    ways = {
        "all layers, float16": (2, 2),
        "all layers, int8": (2, 1),
        "top layer, float16": (1, 2),
        "a learned mix, float16": (1, 2),
        "top layer, int8": (1, 1),
    }
    lines = [f"| {corpus.name}, {shape.name} | size | a month |", "|---|---|---|"]
    for name, (layers, size) in ways.items():
        terabytes = store_bytes(corpus, shape, layers, size) / 1e12
        price = terabytes * costs.storage_dollars
        lines.append(f"| {name} | {terabytes:,.1f} TB | {price:,.0f} $ |")
    return lines


def checks() -> list[str]:
    """The formulas against counted products and measured speeds of both sizes."""
    counted = _result("training_steps")["mflop_a_token"]
    small, original = _result("embedding_small"), _result("embedding_original")
    lines = [f"training, small: {training_flop(SMALL) / 1e6:.1f} MFLOP a token, {counted} counted"]
    for shape, measured in ((SMALL, small), (ORIGINAL, original)):
        speed = measured["ours float32"]["tokens_per_second"]
        share = speed * embedding_flop(shape) / 1e9 / measured["matrix_peak_gflops"]["float32"]
        lines.append(
            f"embedding, {shape.name}: {embedding_flop(shape) / 1e6:.1f} MFLOP a token × "
            f"{speed:,} tokens/s = {share:.0%} of the machine's peak"
        )
    stored = _result("features")["sides"]["store float16"]["bytes_per_token"]
    one = Corpus("", 1, 1)
    lines.append(
        f"store, original: {store_bytes(one, ORIGINAL):,.0f} bytes per token, {stored} seen"
    )
    few, many = (counted_requests(size) for size in CHECKED)
    for stage, each in REQUESTS.items():
        grown = (many[stage] - few[stage]) / (CHECKED[1] - CHECKED[0])
        lines.append(
            f"requests, {stage}: {each} for each shard, {few[stage]} and {many[stage]} counted at "
            f"{CHECKED[0]} and {CHECKED[1]} shards, so {grown:.1f} for each"
        )
    return lines


def counted_requests(size: int) -> dict[str, int]:
    """Return the requests of each stage for so many shards, with what publishes its output."""
    import fsspec

    from benchmarks import latency

    fsspec.register_implementation("slow", latency.Slow, clobber=True)
    latency.Slow.seconds, here = 0.0, os.getcwd()
    with tempfile.TemporaryDirectory() as home:
        figures = latency.measure(size, Path(home))
        os.chdir(here)
    return {
        stage: int(sum(each["requests"] for name, each in figures.items() if stage in name))
        for stage in REQUESTS
    }


def _result(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text())


def _time(took: float) -> str:
    if took < 1 / 60:
        return f"{took * 3600:.0f} s"
    if took < 1:
        return f"{took * 60:.0f} min"
    return f"{took:.1f} h" if took < 48 else f"{took / 24:.1f} days"


def main() -> None:
    """Print the tables, or the check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=NUMBER")
    options = parser.parse_args()
    if options.check:
        print("\n".join(checks()))
        return
    kinds = {field.name: field.type for field in fields(Costs)}
    given = {name: float(value) for name, value in (entry.split("=") for entry in options.set)}
    if unknown := given.keys() - kinds.keys():
        parser.error(
            f"no cost is called {', '.join(sorted(unknown))}; there are {', '.join(kinds)}"
        )
    costs = replace(Costs(), **given)
    for corpus in CORPORA:
        for shape in (SMALL, ORIGINAL):
            print("\n".join(table(corpus, shape, costs)) + "\n")
    print("\n".join(network_table(costs)) + "\n")
    for corpus in CORPORA[:2]:
        print("\n".join(keep_table(corpus, ORIGINAL, costs)) + "\n")


if __name__ == "__main__":
    main()
