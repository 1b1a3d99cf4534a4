"""Compare training and embedding of the small network with bilm-tf, the implementation of 2018.

    python -m benchmarks.bilm_tf TEXT training|embedding --peer PYTHON … [--repeat 3] [--threads 2]

TEXT has one sentence per line, with tokens separated by spaces. PYTHON is the interpreter of an
environment with bilm 0.1.post5 and TensorFlow 1.15 or 2.15, which also has the API of version 1.
Pass several to measure each. All sides use the same text, vocabulary and number of threads. They
run in turn, and each pass is a separate process.

`training`  compares the unchanged `bilm.training.train` with our training step, both with the
            recipe of 2018 (128 × 20 tokens, 8192 candidates, Adagrad, dropout 0.1)
`embedding` compares bilm's Batcher and BidirectionalLanguageModel, 64 sentences per batch, with our
            embedder, both with the same random weights (`elmo.interop.files_of_2018` exports them)

bilm-tf computes in float32. Our side also runs in bfloat16 if the CPU supports it. Prints JSON:
median tokens per second (in training, a token counts once for both directions), the median ratio of
the speeds of each pair of passes, and peak memory.
"""

from __future__ import annotations  # bilm's Python is 3.7, without torch and elmo

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

BATCH = 64
WARM_UP = 3  # steps


def main() -> None:
    """Run both sides in turn and print the figures."""
    options = _parse_options()
    if options.folder:
        is_training = options.workload == "training"
        print(json.dumps((_measure_training if is_training else _measure_embedding)(options)))
        return
    from benchmarks import embedding, lm_text, training
    from benchmarks.machine import precisions, print_figures

    sides = [f"ours {precision}" for precision in precisions()]
    runs: dict[str, list[Any]] = {side: [] for side in (*options.peer, *sides)}
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        embedding.make_weights(folder, options.size)
        training.prepare_text(options.text, folder)
        text = folder / "text"
        _, vocabulary = lm_text.prepare_shards(folder / "shards", train=text, heldout=text)
        (folder / "words").write_text("\n".join(vocabulary.words) + "\n", encoding="utf-8")
        step_options = argparse.Namespace(**vars(options) | {"comparison": "steps"})
        for _ in range(options.repeat):
            for side, side_runs in runs.items():
                if side in options.peer:
                    side_runs.append(_run_peer(side, options, folder_name))
                elif options.workload == "training":
                    side_runs.append(training.run_side(step_options, folder_name, side)[0])
                else:
                    side_runs.append(embedding.run_side(options, folder_name, *side.split()))
    figures: dict[str, Any] = {}
    for python in options.peer:
        peer = f"bilm-tf on TensorFlow {runs[python][0]['tensorflow']}"
        figures[peer] = training.summarize_runs(runs[python])
        for side in sides:
            figures[side] = training.summarize_runs(runs[side])
            figures[f"{side} / {peer}"] = training.median_ratio(runs[side], runs[python])
    print_figures(figures)


def _run_peer(python: str, options: argparse.Namespace, folder: str) -> dict[str, Any]:
    command = [python, __file__, str(options.text), options.workload, "--folder", folder]
    for name in ("rows", "steps", "sentences"):
        command += [f"--{name}", str(getattr(options, name))]
    threads = {
        name: str(options.threads)
        for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    }
    environment = os.environ | threads | {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONWARNINGS": "ignore"}
    process = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if process.returncode:
        sys.exit(f"error: bilm-tf failed: {process.stderr.strip().splitlines()[-1]}")
    return json.loads(process.stdout.strip().splitlines()[-1])


def _measure_training(options: argparse.Namespace) -> dict[str, Any]:
    """Run bilm's own training; a step lasts from one batch to the next."""
    _import_tensorflow()
    from bilm.data import BidirectionalLMDataset
    from bilm.training import load_vocab, train

    vocabulary = load_vocab(str(options.folder / "words"), 50)
    dataset = BidirectionalLMDataset(str(options.folder / "text"), vocabulary, shuffle_on_load=True)
    bilm_options = json.loads((options.folder / "options.json").read_text(encoding="utf-8"))
    bilm_options["char_cnn"]["n_characters"] = 261  # without the padding symbol of embedding
    bilm_options.update(
        bidirectional=True,
        dropout=0.1,
        all_clip_norm_val=10.0,
        batch_size=options.rows,
        unroll_steps=20,
        n_negative_samples_batch=8192,
        n_tokens_vocab=vocabulary.size,
        n_epochs=1,
        n_train_tokens=10**9,
    )
    seconds = []

    class TimedDataset:
        def iter_batches(self, rows: int, window: int) -> object:
            for batch in islice(dataset.iter_batches(rows, window), WARM_UP + options.steps):
                start_time = time.perf_counter()
                yield batch
                seconds.append(time.perf_counter() - start_time)

    with tempfile.TemporaryDirectory() as folder:
        train(bilm_options, TimedDataset(), n_gpus=1, tf_save_dir=folder, tf_log_dir=folder)
    return _describe_run(options.rows * 20 / median(seconds[WARM_UP:]))


def _measure_embedding(options: argparse.Namespace) -> dict[str, Any]:
    tf = _import_tensorflow()
    from bilm import Batcher, BidirectionalLanguageModel

    lines = options.text.read_text(encoding="utf-8").splitlines()
    sentences = [line.split()[:60] for line in lines if line.strip()][: options.sentences]
    batcher = Batcher(str(options.folder / "words"), 50)
    ids = tf.placeholder("int32", (None, None, 50))
    files = [str(options.folder / name) for name in ("options.json", "weights.hdf5")]
    layers = BidirectionalLanguageModel(*files)(ids)["lm_embeddings"]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())

        def embed(sentences: list[list[str]]) -> None:
            for start in range(0, len(sentences), BATCH):
                batch = batcher.batch_sentences(sentences[start : start + BATCH])
                session.run(layers, {ids: batch})

        embed(sentences[: 2 * BATCH])
        start_time = time.perf_counter()
        embed(sentences)
        return _describe_run(sum(map(len, sentences)) / (time.perf_counter() - start_time))


def _import_tensorflow() -> Any:
    """Import TensorFlow 1, or its API in TensorFlow 2, as `tensorflow`, which bilm imports."""
    import tensorflow as tf

    if tf.__version__.startswith("2."):
        tf.compat.v1.disable_v2_behavior()
        sys.modules["tensorflow"] = tf.compat.v1
    return sys.modules["tensorflow"]


def _describe_run(rate: float) -> dict[str, Any]:
    import tensorflow

    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    version = ".".join(tensorflow.version.VERSION.split(".")[:2])
    return {"rate": rate, "memory": memory, "tensorflow": version}


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("workload", choices=["training", "embedding"])
    parser.add_argument("--peer", nargs="+", help="interpreters of environments with bilm")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.set_defaults(size="small", network="small")
    return parser.parse_args()


if __name__ == "__main__":
    main()
