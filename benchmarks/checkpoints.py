"""What training waits for a checkpoint: the original network with 800,000 words and AdamW.

    python -m benchmarks.checkpoints FOLDER [FOLDER …] [--words 800000]

Each FOLDER names a disk to write to, such as one in memory and one on a slow device. Prints JSON:
the bytes, the seconds that the caller of `save` waits, those until the files lie there, and the
share of the time at one checkpoint in ten minutes.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import show
from elmo.io.location import Location
from elmo.train.checkpoints import Checkpoint, CheckpointFolder, TrainingProgress
from pipeline.settings.params import load

ROOT = Path(__file__).resolve().parents[1]
PROJECTION, NETWORK = 512, 93_600_000  # of the original: width, and parameters of the biLM
CADENCE = 600.0  # seconds between two checkpoints


def main() -> None:
    """Save two checkpoints to each folder, print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--words", type=int, default=800_000)
    options = parser.parse_args()
    shapes = {"softmax.weight": (options.words, PROJECTION), "bilm": (NETWORK,)}
    tensors = {
        f"{kind}{name}": torch.full(shape, 0.5)
        for name, shape in shapes.items()
        for kind in ("", "first moment of ", "second moment of ")
    }
    size = sum(tensor.nbytes for tensor in tensors.values())
    figures: dict[str, Any] = {"bytes": size}
    for folder in options.folders:
        with tempfile.TemporaryDirectory(dir=folder) as home:
            figures[str(folder)] = _saved(Path(home), tensors, size)
    show(figures)


def _saved(home: Path, tensors: dict[str, torch.Tensor], size: int) -> dict[str, float]:
    """The second of two checkpoints: the first makes room for the copy."""
    checkpoints = CheckpointFolder(Location(home), keep=1)
    settings = load(ROOT / "params.yaml").pretrain.training
    for step in (1, 2):
        progress = TrainingProgress(step, step, {"block": 0, "rows": []})
        checkpoint = Checkpoint(tensors, progress, settings, 2, "0" * 64)
        began = time.perf_counter()
        checkpoints.save(checkpoint, keep_steps=[])
        waited = time.perf_counter() - began
        checkpoints.wait()
        written = time.perf_counter() - began
    return {
        "waited_s": round(waited, 2),
        "share_of_ten_minutes": round(waited / CADENCE, 4),
        "written_s": round(written, 1),
        "mb_per_second": round(size / written / 1e6),
    }


if __name__ == "__main__":
    main()
