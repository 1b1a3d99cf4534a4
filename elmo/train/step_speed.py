"""The speed of this machine's training steps in each precision, for a given network.

Matrix products alone do not decide it: a step also converts, adds and moves values, so with
bfloat16 products four times as fast, steps of a small network may be only a fifth faster. Steps are
therefore timed on random text, in a separate process (`python -m elmo.train.step_speed`, which
reads its work as JSON), once per network and machine.

Shapes: S directions, T time steps, B rows, N distinct tokens, K characters.
"""

import json
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, fields, replace
from typing import Any

import msgspec
import numpy as np
import torch

from elmo.data.stream import Window
from elmo.errors import ElmoError
from elmo.io.atomic import write_json
from elmo.io.location import Folder
from elmo.io.records import read_record
from elmo.model.config import read_config
from elmo.nn.bilm import BiLM
from elmo.nn.memory import keep_freed_memory
from elmo.nn.softmax import Softmax
from elmo.nn.threads import module_command
from elmo.settings import PRECISIONS, ModelShape, NetworkSettings, Precision, TrainingSettings
from elmo.train.machine_speed import measurement_path
from elmo.train.optimizer import Optimizer
from elmo.train.step import WORD_MATRIX, Stepper, WorkerGroup

WORTH = 1.05  # times as fast that steps in bfloat16 must be to be chosen
SMALL = 2e9  # operations of the products of a step below which nothing is to be gained
LONGEST = 2.0  # seconds of a step beyond which fewer time steps are timed
PATIENCE = 900.0  # seconds after which the timing is given up
_REPEATS = 3
_CHARACTERS, _TOKEN, _WORDS = 262, 50, 50_000  # of the text that is drawn


class StepSeconds(msgspec.Struct, forbid_unknown_fields=True):
    """The seconds of one training step in each precision, and the tokens of that step (0: not
    timed)."""

    float32_s: float
    bfloat16_s: float
    tokens: int = 0

    @property
    def bfloat16_speedup(self) -> float:
        """Return how many times as fast steps are in bfloat16 as in float32."""
        return self.float32_s / max(self.bfloat16_s, 1e-9)


def cached_step_seconds(
    network: NetworkSettings, training: TrainingSettings, *, device: torch.device, threads: int
) -> StepSeconds:
    """Return the seconds of a training step of a network, timed once per machine and then read from
    a cache.

    For a network so small that nothing is to be gained, 1 is given for both precisions without
    timing. `threads` is the number of CPU threads. `ElmoError` names the cached file if it is
    damaged.
    """
    if count_operations(network, training) < SMALL:
        return StepSeconds(1.0, 1.0)
    work = {"network": asdict(network), "training": asdict(training), "device": device.type}
    size = ("rows", "window", "reset", "softmax", "samples", "draws", "dropout")
    key = {name: work["training"][name] for name in size}  # type: ignore[index]
    described = json.dumps([work["network"], key, threads, "eager"], sort_keys=True)
    path = measurement_path(device, "step", described)
    if path.exists():
        return read_record(path, StepSeconds)
    measured = msgspec.json.decode(_timed_apart(json.dumps(work), threads), type=StepSeconds)
    with suppress(OSError, ElmoError):  # no home to write to: it is measured again
        write_json(path, msgspec.to_builtins(measured))
    return measured


def _timed_apart(work: str, threads: int) -> str:
    """Run this module in a new process and return its last line of output.

    `ElmoError` is raised if it fails or takes too long.
    """
    command, variables = module_command("elmo.train.step_speed", threads=threads)
    try:
        done = subprocess.run(
            command,
            input=work,
            env=variables,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        why = f"it took more than {PATIENCE:.0f} s"
    else:
        if done.returncode == 0:
            return done.stdout.splitlines()[-1]
        why = done.stderr.strip().rpartition("\n")[2] or f"it ended with {done.returncode}"
    raise ElmoError(
        f"training.precision auto: a step could not be timed: {why}; choose float32 or bfloat16"
    )


def read_network(model: Folder) -> NetworkSettings:
    """Return the network settings (layers, widths …) of the model in a folder."""
    shape, names = read_config(model).model, [field.name for field in fields(NetworkSettings)]
    return msgspec.convert({name: shape[name] for name in names if name in shape}, NetworkSettings)


def training_precision(measured: StepSeconds) -> Precision:
    """Return the precision that `auto` means for training: bfloat16 if its steps are at least
    `WORTH` (1.05) times as fast, else float32."""
    return "bfloat16" if measured.bfloat16_speedup >= WORTH else "float32"


def measure_step_seconds(
    network: NetworkSettings, training: TrainingSettings, device: torch.device
) -> StepSeconds:
    """Time a training step in each precision, in turn, several times; return the best seconds of
    each.

    If a step would take long, a shorter one (fewer tokens per row) is timed.
    """
    short = _Timed(network, replace(training, precision="float32", window=2), device)
    short.step()
    window = min(training.window, max(2, int(LONGEST / max(short.step() / 2, 1e-9))))
    del short
    sides = {
        name: _Timed(network, replace(training, precision=name, window=window), device)
        for name in PRECISIONS
    }
    for side in sides.values():
        side.step()  # the first takes longer
    seconds: dict[str, float] = dict.fromkeys(PRECISIONS, float("inf"))
    for _ in range(_REPEATS):
        for name, side in sides.items():
            seconds[name] = min(seconds[name], side.step())
    tokens = training.rows * window
    return StepSeconds(seconds["float32"], seconds["bfloat16"], tokens)


class _Timed:
    """A network with random text for one training step."""

    def __init__(
        self,
        network: NetworkSettings,
        training: TrainingSettings,
        device: torch.device,
        *,
        compiled: bool = False,  # which would take longer than all that is timed
    ) -> None:
        self.device = device
        bilm = BiLM(ModelShape(**asdict(network), input_words=None), characters=_CHARACTERS)
        bilm.reset_parameters(1)
        softmax = Softmax(max(_WORDS, training.samples), network.projection)
        softmax.reset_parameters(1)
        named: dict[str, torch.Tensor] = {}
        for prefix, module in (("bilm", bilm), ("softmax", softmax)):
            module.to(device)
            named |= {f"{prefix}.{name}": p.data for name, p in module.named_parameters()}
        sampled = WORD_MATRIX if training.softmax == "sampled" else ()
        optimizer = Optimizer(training.optimizer, named, steps=1000, lr_of={}, word_matrix=sampled)
        self.stepper = Stepper(
            bilm, softmax, optimizer, training, WorkerGroup(device=device), compiled=compiled
        )
        self.state = bilm.lstm.zero_state(training.rows)
        self.prepared = self.stepper.prepare(_text(training, len(softmax.weight)), step=0)

    def step(self) -> float:
        """Take the step; return its seconds, on a CPU those of this process alone."""
        clock = time.perf_counter if self.device.type == "cuda" else time.process_time
        began = clock()
        measured, _ = self.stepper.step(self.prepared, self.state, step=0)
        with suppress(FloatingPointError):  # steps of random text may well diverge
            _ = measured.gradient_norm  # which waits for the step
        return (clock() - began) / (1 if self.device.type == "cuda" else torch.get_num_threads())


def count_operations(network: NetworkSettings, training: TrainingSettings) -> int:
    """Return the number of arithmetic operations in the LSTMs' matrix products of one training
    step, for the forward and the backward pass of both directions."""
    return 6 * 2 * network.lstm_multiplications * training.rows * training.window


def _text(training: TrainingSettings, words: int) -> Window:
    """Return a window of random tokens, half of them distinct, in sentences of 25 on average."""
    random = np.random.default_rng(0)
    shape = (2, training.window, training.rows)
    distinct = max(1, training.window * training.rows // 2)
    characters_NK = np.full((distinct, _TOKEN), _CHARACTERS - 1, np.int32)
    lengths = random.integers(3, 14, distinct)
    for length, token_K in zip(lengths, characters_NK, strict=True):
        token_K[:length] = random.integers(0, _CHARACTERS - 1, length)
    targets = np.exp(random.random(shape) * np.log(words)).astype(np.int64)
    targets = np.minimum(targets, words - 1)
    return Window(
        index_STB=random.integers(0, distinct, shape),
        targets_STB=targets,
        mask_TB=np.ones(shape[1:], bool),
        reset_TB=random.random(shape[1:]) < 1 / 25,
        characters_NK=characters_NK,
        bytes_N=lengths,
        words=np.unique(targets),
        count=2 * training.window * training.rows,
    )


def _main() -> None:
    keep_freed_memory()  # as training does
    work: dict[str, Any] = json.load(sys.stdin)
    network = msgspec.convert(work["network"], NetworkSettings)
    training = msgspec.convert(work["training"], TrainingSettings)
    measured = measure_step_seconds(network, training, torch.device(work["device"]))
    print(msgspec.json.encode(measured).decode())


if __name__ == "__main__":
    _main()
