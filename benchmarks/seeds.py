"""The seeds of a task trained side by side, a thread each, against one after another.

    python -m benchmarks.seeds TRAIN DEV [--sentences 2000] [--seeds 4] [--repeat 3]

TRAIN and DEV are CoNLL-U. A tagger without ELMo learns from the first sentences of TRAIN for three
epochs; the sides, two threads and one, take turns, each in a process of its own. Prints JSON:
seconds (medians), the ratio pair by pair, and whether both wrote the same bytes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import show

SIDES = {"side by side": "2", "one after another": "1"}  # threads


def main() -> None:
    """Run the sides in turn and print the figures."""
    options = _options()
    if options.side:
        print(json.dumps(_train(options)))
        return
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for _ in range(options.repeat):
        for side, each in runs.items():
            each.append(_run(side))
    seconds = {side: [run["seconds"] for run in each] for side, each in runs.items()}
    several, alone = (seconds[side] for side in SIDES)
    show(
        {
            "seeds": options.seeds,
            **{f"{side}, s": round(median(each), 1) for side, each in seconds.items()},
            "ratio": round(median(b / a for a, b in zip(several, alone, strict=True)), 2),
            "equal": len({run["digest"] for each in runs.values() for run in each}) == 1,
        }
    )


def _run(side: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.seeds", *sys.argv[1:], "--side"]
    environment = os.environ | {"OMP_NUM_THREADS": SIDES[side]}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def _train(options: argparse.Namespace) -> dict[str, Any]:
    from elmo.tasks.example_files import read_examples
    from elmo.tasks.kinds import task_settings
    from elmo.tasks.task import train_task

    train, dev = (read_examples("tagging", path) for path in (options.train, options.dev))
    few = options.sentences
    with tempfile.TemporaryDirectory() as name:
        began = time.perf_counter()
        record = train_task(
            "tagging",
            replace(train, examples=train.examples[:few]),
            replace(dev, examples=dev.examples[: few // 4]),
            out=Path(name) / "task",
            settings=task_settings("tagging", {"elmo": "none", "epochs": 3}),
            model=None,
            seeds=range(options.seeds),
            work=Path(name) / "work",
        )
        return {"seconds": time.perf_counter() - began, "digest": record.digest}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("train", type=Path)
    parser.add_argument("dev", type=Path)
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--side", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
