"""Compare embedding with AllenNLP 2.10.1 and with the machine's peak speed of matrix products.

    python -m benchmarks.embedding TEXT --size small|original --peer PYTHON [--sentences 2000]

TEXT has one sentence per line, with tokens separated by spaces. The networks are those of 2018 with
random weights, which `elmo.interop.files_of_2018` exports. PYTHON is the interpreter of an
environment with allennlp 2.10.1. Both sides embed the same sentences with the same number of
threads, in turn, `--repeat` times: ours in batches of the default size, AllenNLP in batches of 64,
as in its published figures. Each pass is a separate process. Our side also runs in bfloat16 if the
CPU supports it. Prints JSON: median tokens per second, the median ratio of the speeds of each pair
of passes, peak memory, the matrix peak in GFLOP/s, and the share of it that our side reaches.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import precisions, print_figures

UNUSED_PACKAGES = frozenset(
    "transformers spacy cached_path lmdb fairscale wandb nltk dill base58 jsonnet _jsonnet "
    "more_itertools tensorboardX termcolor sentencepiece sacremoses sklearn torchvision traitlets "
    "rich tqdm requests boto3 botocore huggingface_hub google filelock checklist psutil "
    "typer".split()
)
SIZES = ("small", "original")


def main() -> None:
    """Run both sides in turn and print the figures."""
    options = _parse_options()
    if options.side:
        print(json.dumps(MEASURE_BY_SIDE[options.side](options)))
        return
    with tempfile.TemporaryDirectory() as folder:
        make_weights(Path(folder), options.size)
        our_precisions = precisions()
        sides = [f"ours {p}" for p in our_precisions] + ["peer float32"] * bool(options.peer)
        runs: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
        peaks = {p: run_side(options, folder, "peak", p)["gflops"] for p in our_precisions}
        for _ in range(options.repeat):
            for side, side_runs in runs.items():
                side_runs.append(run_side(options, folder, *side.split()))
    print_figures(_summarize_runs(options, runs, peaks))


def _summarize_runs(
    options: argparse.Namespace, runs: dict[str, list[dict[str, float]]], peaks: dict[str, float]
) -> dict[str, object]:
    from benchmarks.training_sides import NETWORKS, embedding_flop  # not for a peer's environment

    flop = embedding_flop(NETWORKS[options.size])
    figures: dict[str, object] = {"size": options.size, "matrix_peak_gflops": peaks}
    for side, side_runs in runs.items():
        figures[side] = {
            "tokens_per_second": round(median(run["rate"] for run in side_runs)),
            "peak_memory_mb": round(max(run["memory"] for run in side_runs)),
            "runs": [round(run["rate"]) for run in side_runs],
        }
        if peak := side.startswith("ours") and peaks.get(side.split()[1]):
            rate = median(run["rate"] for run in side_runs)
            figures[f"{side} / matrix peak"] = round(rate * flop / 1e9 / peak, 2)
        if side.startswith("ours") and options.peer:
            pairs = zip(side_runs, runs["peer float32"], strict=True)
            figures[f"{side} / peer"] = round(median(a["rate"] / b["rate"] for a, b in pairs), 2)
    return figures


def run_side(
    options: argparse.Namespace, folder: str, side: str, precision: str
) -> dict[str, float]:
    python = options.peer if side == "peer" else sys.executable
    command = [python, __file__, str(options.text), "--side", side, "--weights", folder]
    command += ["--precision", precision]
    for name in ("size", "sentences", "threads"):
        command += [f"--{name}", str(getattr(options, name))]
    root = str(Path(__file__).resolve().parents[1])
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads), "PYTHONPATH": root}
    process = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if process.returncode:
        sys.exit(f"error: {side} failed: {process.stderr.strip().splitlines()[-1]}")
    figures: dict[str, float] = json.loads(process.stdout.strip().splitlines()[-1])
    return figures


def _measure_ours(options: argparse.Namespace) -> dict[str, float]:
    import torch

    from elmo.model.embedder import Embedder

    torch.set_num_threads(options.threads)
    sentences = read_sentences(options)
    embedder = Embedder.load(options.weights / "model", precision=options.precision)
    embedder.bilm.lstm.compiled = True
    return _time_embedding(lambda batch: embedder.embed(batch), sentences)


def _measure_peer(options: argparse.Namespace) -> dict[str, float]:
    """Time AllenNLP's own modules; the LSTM state is reset before each batch."""
    import torch

    model, batch_to_ids = load_allennlp(options.weights)
    torch.set_num_threads(options.threads)

    def embed(sentences: list[list[str]]) -> None:
        with torch.no_grad():
            for start in range(0, len(sentences), 64):
                model._elmo_lstm._states = None
                model(batch_to_ids(sentences[start : start + 64]))

    return _time_embedding(embed, read_sentences(options))


def load_allennlp(weights: Path) -> Any:
    """Return AllenNLP's biLM with the weights in the folder `weights`, and its `batch_to_ids`.

    Packages that AllenNLP imports but ELMo does not use are replaced by empty modules.
    """
    import importlib.abc
    import importlib.machinery
    import types
    import warnings

    warnings.filterwarnings("ignore")

    class EmptyModule(types.ModuleType):
        __path__: list[str] = []
        __version__ = "0"

        def __getattr__(self, name: str) -> object:
            if name.startswith("__"):
                raise AttributeError(name)
            if name == "cached_path":
                return lambda path, *_, **__: str(path)
            return _Placeholder(name, (), {})

    class EmptyModuleFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            if name.split(".")[0] not in UNUSED_PACKAGES:
                return None
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

        def create_module(self, spec: importlib.machinery.ModuleSpec) -> EmptyModule:
            return EmptyModule(spec.name)

        def exec_module(self, module: object) -> None:
            pass

    sys.meta_path.insert(0, EmptyModuleFinder())
    from allennlp.modules.elmo import _ElmoBiLm, batch_to_ids

    model = _ElmoBiLm(str(weights / "options.json"), str(weights / "weights.hdf5"))
    return model, batch_to_ids


class _Placeholder(type):
    def __getattr__(cls, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Placeholder(name, (), {})

    def __call__(cls, *arguments: object, **_: object) -> object:
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else cls

    def __or__(cls, operand: object) -> Any:
        return cls

    __ror__ = __or__


def _time_embedding(embed: object, sentences: list[list[str]]) -> dict[str, float]:
    embed(sentences[:128])  # type: ignore[operator]
    start_time = time.perf_counter()
    embed(sentences)  # type: ignore[operator]
    seconds = time.perf_counter() - start_time
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rate": sum(map(len, sentences)) / seconds, "memory": memory}


def _measure_peak(options: argparse.Namespace) -> dict[str, float]:
    import torch

    from benchmarks.machine import matrix_peak

    torch.set_num_threads(options.threads)
    return {"gflops": matrix_peak(options.precision)}


MEASURE_BY_SIDE = {"ours": _measure_ours, "peer": _measure_peer, "peak": _measure_peak}


def make_weights(folder: Path, size: str, *, gain: float = 1.0) -> None:
    """Write a random model as a folder and as files of 2018; a large `gain` causes clipping."""
    from benchmarks.training_sides import NETWORKS
    from elmo.data.characters import Characters
    from elmo.data.tokenizer import Tokenization
    from elmo.data.vocabulary import Vocabulary
    from elmo.interop.files_of_2018 import export_2018
    from elmo.model.folder import save_model
    from elmo.nn.bilm import BiLM

    config = NETWORKS[size]
    bilm = BiLM(config, character_count=Characters().size)
    bilm.reset_parameters(1)
    for parameter in bilm.lstm.parameters():
        parameter.data.mul_(gain)
    words = Vocabulary(["<S>", "</S>", "<UNK>"])
    save_model(
        folder / "model",
        bilm=bilm,
        vocabulary=words,
        characters=Characters(),
        softmax=None,
        training={},
        tokenizer=Tokenization("whitespace"),
    )
    export_2018(folder / "model", folder / "options.json", folder / "weights.hdf5")


def read_sentences(options: argparse.Namespace) -> list[list[str]]:
    lines = options.text.read_text(encoding="utf-8").splitlines()
    return [line.split()[:60] for line in lines if line.strip()][: options.sentences]


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("text", type=Path)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--peer", help="interpreter of an environment with allennlp 2.10.1")
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--side", choices=MEASURE_BY_SIDE, help=argparse.SUPPRESS)
    parser.add_argument("--weights", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--precision", default="float32", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
