"""Training learns, resumes bit for bit, and takes the same step on any number of workers."""

import itertools
import math
import os
import signal
import threading
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from elmo.data.characters import Characters
from elmo.data.shards import Shards, write_shards
from elmo.data.vocabulary import Vocabulary
from elmo.errors import ElmoError
from elmo.io.location import Location
from elmo.model.folder import Model
from elmo.nn import cell
from elmo.nn.bilm import BiLM, token_vectors
from elmo.nn.softmax import Softmax
from elmo.settings import CheckpointSettings, OptimizerSettings, TrainingSettings
from elmo.train import agreement, loop
from elmo.train import perplexity as evaluation
from elmo.train.checkpoints import CheckpointFolder
from elmo.train.job import MAX_MEASUREMENTS, TrainingJob
from elmo.train.loop import fit, heldout_perplexity
from elmo.train.perplexity import Perplexity, perplexity, sentence_scores
from elmo.train.step import Stepper, WorkerGroup
from tests.elmo.run_job import NETWORK, OPTIMIZER, TRAINING
from tests.files import flip

ADAMW = replace(OPTIMIZER, warmup_steps=2)
SETTINGS = replace(TRAINING, epochs=3, rows=6, window=5, samples=12, optimizer=ADAMW)
PATTERN = ["the", "cat", "sat", "on", "a", "mat", "and", "slept", "well", "today"]
SENTENCES = [[PATTERN[(k + j) % 10] for j in range(3 + k % 5)] for k in range(120)]
WORDS = ["<S>", "</S>", "<UNK>", *PATTERN, *(f"rare{k}" for k in range(10))]


def job(folder: Path, settings: TrainingSettings = SETTINGS, minutes: float = 1e4) -> TrainingJob:
    shards = folder.parent / "shards"
    if not shards.exists():
        write_shards(shards, SENTENCES, heldout_every=7, shard_sentences=25)
    bilm = BiLM(NETWORK, character_count=261)
    bilm.reset_parameters(settings.seed)
    softmax = Softmax(len(WORDS), NETWORK.projection)
    softmax.reset_parameters(settings.seed)
    counts = [100, 100, 0, *[50] * 10, *[1] * 10]  # none is unknown where all words have a number
    return TrainingJob(
        bilm,
        softmax,
        Vocabulary(WORDS, counts),
        Characters(),
        Shards(shards),
        settings,
        Location(folder),
        CheckpointSettings(minutes, 2),
    )


def weights(done: TrainingJob) -> dict[str, torch.Tensor]:
    return {**done.bilm.state_dict(), **done.softmax.state_dict()}


def model_of(made: TrainingJob) -> Model:
    """Return the weights of a training as a model with its softmax."""
    softmax = {name: value.detach() for name, value in made.softmax.state_dict().items()}
    return Model(made.bilm, made.vocabulary, made.characters, softmax, {}, "")


def ignore(kind: str, figures: dict[str, float]) -> None:
    pass


@pytest.mark.parametrize("change", [{}, {"softmax": "full"}, {"reset": "never"}])
@pytest.mark.slow
def test_it_learns_a_pattern(tmp_path: Path, change: dict[str, str]) -> None:
    made = job(tmp_path / "run", replace(SETTINGS, epochs=12, **change))
    before = heldout_perplexity(made, workers=WorkerGroup())
    heard: list[str] = []
    fit(made, workers=WorkerGroup(), report=lambda kind, figures: heard.append(kind))
    after = heldout_perplexity(made, workers=WorkerGroup())
    assert after.average < before.average / 4
    assert after.average < after.unigram / 2
    assert {"train", "heldout"} <= set(heard)


def test_of_a_long_held_out_text_a_part_is_measured_and_shown_while_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = job(tmp_path / "run", replace(SETTINGS, epochs=1))
    whole = heldout_perplexity(made, workers=WorkerGroup())
    monkeypatch.setattr("elmo.train.perplexity.MAX_HELDOUT_TOKENS", 40)
    told: list[tuple[int, int]] = []
    made = replace(made, on_window=lambda *figures: told.append(figures))
    found = heldout_perplexity(made, workers=WorkerGroup())
    assert 40 <= found.tokens + found.sentences < 80  # a window goes beyond
    assert whole.tokens + whole.sentences > 80
    assert told[0] == (0, 40) and told == sorted(told) and told[-1] == (40, 40)
    told.clear()
    progress = fit(made, workers=WorkerGroup(), report=ignore)
    assert progress.figures == heldout_perplexity(made, workers=WorkerGroup()).to_dict()
    assert (0, 40) in told


@pytest.mark.slow
def test_a_finished_run_is_not_trained_again_and_knows_its_figures(tmp_path: Path) -> None:
    """Where the whole held-out text was read, it need not be read again."""
    made = job(tmp_path / "run")
    progress = fit(made, workers=WorkerGroup(), report=ignore)
    assert progress.figures == heldout_perplexity(made, workers=WorkerGroup()).to_dict()
    heard: list[str] = []
    again = job(tmp_path / "run")
    found = fit(again, workers=WorkerGroup(), report=lambda kind, figures: heard.append(kind))
    assert heard == [] and found.figures == progress.figures
    for name, value in weights(again).items():
        assert torch.equal(value, weights(made)[name])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.slow
def test_a_signal_before_the_first_step_saves_that_step(
    tmp_path: Path, number: signal.Signals, terminal_signals: None
) -> None:
    def interrupt(kind: str, figures: dict[str, float]) -> None:
        if kind == "machine":
            os.kill(os.getpid(), number)

    with pytest.raises(KeyboardInterrupt):
        fit(job(tmp_path / "run"), workers=WorkerGroup(), report=interrupt)
    assert CheckpointFolder(Location(tmp_path / "run" / "checkpoints"), keep=1).steps() == [1]


@pytest.mark.slow
def test_a_stop_file_of_another_start_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for name in ("stop", "stop-1"):
        (tmp_path / "run" / name).touch()
    made = replace(job(tmp_path / "run"), stop_flag=tmp_path / "run" / "stop-2")
    assert fit(made, workers=WorkerGroup(), report=ignore).finished
    with pytest.raises(KeyboardInterrupt):
        stopped = replace(job(tmp_path / "other"), stop_flag=tmp_path / "run" / "stop-1")
        fit(stopped, workers=WorkerGroup(), report=ignore)
    assert CheckpointFolder(Location(tmp_path / "other" / "checkpoints"), keep=1).steps() == [1]


class Watched:
    """A flag that notes which threads look for it; it is there from the second look on."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def exists(self) -> bool:
        self.threads.append(threading.get_ident())
        return len(self.threads) > 1


@pytest.mark.slow
def test_no_step_waits_for_a_look_at_the_stop_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a URL each look is a request: one worker looks, on a thread of its own."""
    monkeypatch.setattr("elmo.train.agreement.FLAG_CHECK_SECONDS", 0.01)
    flag = Watched()
    endless = replace(SETTINGS, epochs=1000, evaluate_every=10**6)
    watched_job = replace(job(tmp_path / "run", endless), stop_flag=flag)
    with pytest.raises(KeyboardInterrupt):
        fit(watched_job, workers=WorkerGroup(), report=ignore)
    assert len(flag.threads) == 2  # once at the beginning, and once beside the steps
    assert flag.threads[1] != threading.get_ident()


def test_workers_wait_for_each_other_s_word_every_ten_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock by which a step takes a millisecond, and one of two workers."""
    clock = itertools.count()
    for module in (loop, agreement):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock) / 1000))
    asked: list[int] = []
    total, gather = WorkerGroup.sum_over_workers, dist.all_gather
    gathering: Counter[str] = Counter()

    def counted(self: WorkerGroup, values: Any) -> list[float]:
        asked.append(len(values))
        return total(self, values)

    def gather_words(*arguments: Any, **named: Any) -> Any:
        gathering[threading.current_thread().name] += 1
        return gather(*arguments, **named)

    monkeypatch.setattr(WorkerGroup, "sum_over_workers", counted)
    monkeypatch.setattr(dist, "all_gather", gather_words)
    settings = replace(SETTINGS, epochs=8, evaluate_every=10**6)
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        progress = fit(job(tmp_path / "run", settings), workers=WorkerGroup(0, 2), report=ignore)
    finally:
        dist.destroy_process_group()
    assert progress.step > 60
    assert 0 < asked.count(3) <= progress.step // 10 + 2
    # The words in use are gathered while steps are prepared, and the state only for checkpoints.
    assert gathering.pop("stream_0") == progress.step and sum(gathering.values()) <= 2


@pytest.mark.slow
def test_held_out_text_is_read_up_to_a_limit_and_spelled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spelled: list[int] = []
    encode = Characters.encode
    monkeypatch.setattr(
        Characters,
        "encode",
        lambda self, tokens: spelled.append(len(tokens)) or encode(self, tokens),
    )
    read: list[int] = []
    nats = evaluation.PerplexityEvaluator.nats_of_window

    def counting(self: Any, window: Any, *given: Any, **named: Any) -> Any:
        read.append(window.count // 2)
        return nats(self, window, *given, **named)

    monkeypatch.setattr(evaluation.PerplexityEvaluator, "nats_of_window", counting)
    made = job(tmp_path / "run", replace(SETTINGS, evaluate_tokens=40))
    progress = fit(made, workers=WorkerGroup(), report=ignore)
    evaluations = len((tmp_path / "run" / "heldout.tsv").read_text().splitlines()) - 1
    assert evaluations > 2
    assert 40 * evaluations <= sum(read) < 80 * evaluations  # a window goes beyond
    assert spelled.count(len(WORDS)) == 2  # for the training text, and for all evaluations
    assert progress.figures is None
    read.clear()
    whole = heldout_perplexity(made, workers=WorkerGroup())
    assert sum(read) == whole.tokens + whole.sentences > 80


def test_measurements_take_a_share_of_the_training(tmp_path: Path) -> None:
    """By arithmetic alone, so that each worker, and a resumed training, measures after the same
    steps."""
    auto = replace(SETTINGS, evaluate_every=0, samples=8)
    made = job(tmp_path / "run", auto)
    held = made.shards.tokens("heldout")
    words, width = len(WORDS), NETWORK.projection
    lstm = 9 * NETWORK.layers * NETWORK.cells * width
    trained = 3 * auto.rows * auto.window * (lstm + 8 * width)
    measured = held * (lstm + words * width)
    for steps in (100, 400):
        times = len(made.measurement_steps(steps)) + 1
        assert times * measured <= 0.1 * steps * trained < (times + 2) * measured
    assert list(made.measurement_steps(9)) == [3, 6] and list(made.measurement_steps(7)) == [3]
    assert len(made.measurement_steps(10**6)) + 1 == MAX_MEASUREMENTS
    few = replace(made, settings=replace(auto, evaluate_tokens=held // 4))
    assert len(few.measurement_steps(400)) > len(made.measurement_steps(400))
    all_words, more = (
        replace(made, settings=replace(auto, samples=samples)) for samples in (words, 50 * words)
    )
    assert all_words.measurement_steps(400) == more.measurement_steps(400)
    assert list(replace(made, settings=SETTINGS).measurement_steps(1)[:2]) == [10, 20]
    fit(made, workers=WorkerGroup(), report=ignore)
    rows = (tmp_path / "run" / "heldout.tsv").read_text().splitlines()[1:]
    *before, last = [int(row.split()[0]) for row in rows]
    planned = made.measurement_steps(math.ceil(predictions(made) / (auto.rows * auto.window)))
    assert before == list(planned) and last > before[-1]


def predictions(made: TrainingJob) -> int:
    stream = made.stream("train", WorkerGroup(), epochs=1, seed=1)
    return stream.predictions_per_epoch * made.settings.epochs


@pytest.mark.slow
def test_weights_that_are_not_finite_become_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A last update may break the weights after a loss that was fine."""
    made = job(tmp_path / "run", minutes=0)
    step = Stepper.step

    def broken(self: Stepper, *given: Any, **named: Any) -> Any:
        measured = step(self, *given, **named)
        if named["step"] == 24:
            made.bilm.lstm.weight[0].data[0, 0, 0] = math.nan
        return measured

    with monkeypatch.context() as patch, pytest.raises(ElmoError) as caught:
        patch.setattr(Stepper, "step", broken)
        fit(made, workers=WorkerGroup(), report=ignore)
    steps = CheckpointFolder(Location(tmp_path / "run" / "checkpoints"), keep=2).steps()
    assert steps == [20, 23, 24]  # 20 is the best
    assert "training diverged after step" in str(caught.value)


@pytest.mark.slow
def test_the_curve_tells_the_rate_of_each_row_s_last_step(tmp_path: Path) -> None:
    settings = replace(SETTINGS, optimizer=replace(ADAMW, lr=0.1, warmup_steps=100))
    fit(job(tmp_path / "run", settings), workers=WorkerGroup(), report=ignore)
    lines = (tmp_path / "run" / "train.tsv").read_text().splitlines()[1:]
    rows = [[*map(float, line.split())] for line in lines]
    assert len(rows) > 2
    for row in rows:  # of warm-up, 0.001 more in each step
        assert row[3] == pytest.approx(0.001 * row[0])


def test_damaged_shards_are_not_trained_on_nor_evaluated(tmp_path: Path) -> None:
    for split in ("train", "heldout"):
        folder = tmp_path / split
        folder.mkdir()
        made = job(folder / "run")
        (entry, *_) = made.shards.entries(split)
        path = made.shards.location.local / entry.file
        flip(path)
        with pytest.raises(ElmoError, match=f"{path.name}: truncated or altered"):
            fit(made, workers=WorkerGroup(), report=ignore)


def test_a_perplexity_that_is_no_number_is_an_error(tmp_path: Path) -> None:
    made = job(tmp_path / "run")
    made.bilm.lstm.weight[1].data.fill_(math.nan)
    model = model_of(made)
    for take in (perplexity, sentence_scores):
        with pytest.raises(ElmoError, match="is not a finite number: the model's weights"):
            take(model, [["the", "cat"]])


@pytest.mark.parametrize(("nats", "diverges"), [(16, False), (17, True)])
def test_a_loss_far_above_chance_ends_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nats: int, diverges: bool
) -> None:
    """By 10 nats over twice those of a guess among 23 words: from 16.3 a prediction on."""
    step = Stepper.step

    def measured(self: Stepper, *given: Any, **named: Any) -> Any:
        figures, state = step(self, *given, **named)
        shown = {"predictions": figures.predictions, "gradient_norm": 1.0, "was_clipped": False}
        both = (2 * nats * figures.predictions, 0)
        return SimpleNamespace(**shown, nats_by_direction=both), state

    monkeypatch.setattr(Stepper, "step", measured)
    made = job(tmp_path / "run", replace(SETTINGS, epochs=1, evaluate_every=10**6))
    end = pytest.raises(ElmoError, match="diverged after step 10:") if diverges else nullcontext()
    with end:
        fit(made, workers=WorkerGroup(), report=ignore)


def test_checkpoints_lie_minutes_apart_by_a_clock_of_ten_seconds_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, steps = itertools.count(0, 10), list[int]()
    monkeypatch.setattr(agreement, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    save = CheckpointFolder.save

    def note(self: CheckpointFolder, checkpoint: Any, **named: Any) -> None:
        steps.append(checkpoint.progress.step)
        save(self, checkpoint, **named)

    monkeypatch.setattr(CheckpointFolder, "save", note)
    made = job(tmp_path / "run", replace(SETTINGS, evaluate_every=10**6), minutes=2)
    progress = fit(made, workers=WorkerGroup(), report=ignore)
    *within, last = steps
    assert last == progress.step and len(within) > 2
    assert {after - before for before, after in itertools.pairwise(within)} == {12}


def test_the_rate_falls_over_the_steps_that_the_text_fills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[int] = set()
    rate = OptimizerSettings.learning_rate_at
    monkeypatch.setattr(
        OptimizerSettings,
        "learning_rate_at",
        lambda self, step, steps: asked.add(steps) or rate(self, step, steps),
    )
    made = job(tmp_path / "run")
    progress = fit(made, workers=WorkerGroup(), report=ignore)
    (steps,) = asked
    assert steps == math.ceil(predictions(made) / (SETTINGS.rows * SETTINGS.window))
    assert progress.step - 1 <= steps <= progress.step


def test_patience_stops_early(tmp_path: Path) -> None:
    still = replace(ADAMW, lr=1e-30)
    settings = replace(SETTINGS, epochs=50, evaluate_every=2, patience=2, optimizer=still)
    progress = fit(job(tmp_path / "run", settings), workers=WorkerGroup(), report=ignore)
    assert progress.step == 6


def test_the_best_weights_have_the_lowest_mean_of_both_directions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, seen = job(tmp_path / "run"), list[dict[str, torch.Tensor]]()
    figures = ((5, 9), (6, 7), (4, 11), *[(9, 9)] * 9)

    def measured(self: Any, **_: Any) -> tuple[Perplexity, bool]:
        one, two = figures[len(seen)]
        seen.append({name: value.clone() for name, value in weights(made).items()})
        return Perplexity(one, two, (one + two) / 2, 9, 1, 0.0, 1.0, 9.0), True

    monkeypatch.setattr(evaluation.HeldOutText, "perplexity", measured)
    assert fit(made, workers=WorkerGroup(), report=ignore).best_step == 20
    for name, value in weights(made).items():  # with the moves that rows had missed by then
        assert torch.equal(value, seen[1][name]), name


def test_the_clock_of_the_first_worker_alone_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[float]] = []
    total = lambda self, values: asked.append(values) or [0.0, 0.0, 0.0]  # noqa: E731
    monkeypatch.setattr(WorkerGroup, "sum_over_workers", total)
    for rank in (0, 1):
        agreement.StopAndSave(WorkerGroup(rank, 2), minutes=0).agree(5, bool, is_urgent=True)
    assert asked == [[0, 1, agreement.MAX_STEPS_BETWEEN_VOTES], [0, 0, 0]]


def test_gradients_of_a_token_s_occurrences_add_up_in_float32() -> None:
    """A token that fills a third of a window: in bfloat16 its sum would be far off."""
    torch.manual_seed(0)
    bilm = BiLM(NETWORK, character_count=Characters().size)
    bilm.reset_parameters(0)
    x_NP = torch.randn(40, NETWORK.projection).bfloat16().requires_grad_()
    index_STB = torch.randint(40, (2, 20, 64))
    index_STB[:, :, ::3] = 5
    upstream: list[torch.Tensor] = []

    def listen(x_STBP: torch.Tensor, layer: int) -> torch.Tensor:
        if layer == 0:
            x_STBP.register_hook(upstream.append)
        return x_STBP

    state = bilm.lstm.zero_state(64)
    ys, _ = bilm.lstm(token_vectors(index_STB, x_NP), state, drop=listen)
    (ys[-1].float() * torch.rand(ys[-1].shape)).sum().backward()
    exact = torch.zeros(x_NP.shape).double()
    exact.index_add_(0, index_STB.flatten(), upstream[0].double().flatten(0, 2))
    assert x_NP.grad is not None
    assert float((x_NP.grad - exact).norm() / exact.norm()) < 0.004


@pytest.mark.slow
def test_perplexity_of_shards_and_of_lists_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "TOKENS_AT_ONCE", 30)  # several batches, of several sizes
    monkeypatch.setattr(evaluation, "BLOCK_TOKENS", 50)  # and several blocks of them
    made = job(tmp_path / "run")
    shards = made.shards
    lines = [
        shard.tokens(k)
        for shard in map(shards.open, shards.entries("heldout"))
        for k in range(len(shard))
    ]
    model = model_of(made)
    ours, theirs = perplexity(model, lines), heldout_perplexity(made, workers=WorkerGroup())
    for name, value in ours.to_dict().items():
        assert value == pytest.approx(theirs.to_dict()[name], rel=1e-4), name
    total = [sum(score[way] for score in sentence_scores(model, lines)) for way in (0, 1)]
    count = ours.tokens + ours.sentences
    assert math.exp(total[0] / count) == pytest.approx(ours.forward, rel=1e-4)
    assert math.exp(total[1] / count) == pytest.approx(ours.backward, rel=1e-4)


def test_perplexity_is_that_of_the_equation(tmp_path: Path) -> None:
    """One sentence, the softmax written out."""
    made = job(tmp_path / "run")
    model = model_of(made)
    sentence = ["the", "cat", "안녕"]
    found = perplexity(model, [sentence, []])
    tokens = ["<S>", *sentence, "</S>"]
    for direction, name in ((0, "forward"), (1, "backward")):
        read = tokens if direction == 0 else tokens[::-1]
        with torch.no_grad():
            x_TP = made.bilm.encode(torch.from_numpy(Characters().encode(read[:-1])))
            x_STBP = torch.stack([x_TP, x_TP])[:, :, None]
            ys, _ = made.bilm.lstm(x_STBP, made.bilm.lstm.zero_state(1))
            logits = ys[-1][direction, :, 0] @ made.softmax.weight.T + made.softmax.bias
        targets = torch.from_numpy(made.vocabulary.ids(read[1:])).long()
        mean = torch.nn.functional.cross_entropy(logits, targets)
        assert getattr(found, name) == pytest.approx(math.exp(mean), rel=1e-4)
    assert found.average == pytest.approx((found.forward + found.backward) / 2, rel=1e-12)
    assert abs(found.forward / found.backward - 1) > 1e-3  # or another mean would be near
    assert (found.tokens, found.sentences) == (3, 1)
    assert found.unk_rate == pytest.approx(1 / 3)
    bits = 4 * (math.log2(found.forward) + math.log2(found.backward)) / 2
    assert found.bits_per_byte == pytest.approx(bits / len("the cat 안녕\n".encode()))
    seen, total = (
        50 * 50 * 1 * 100,
        10 * 50 + 10 + 1 + 100,
    )  # without the mark that is not predicted
    assert found.unigram == pytest.approx(total / seen**0.25)


def test_epochs_follow_from_the_text_where_they_are_0() -> None:
    """As many as give 400 steps of 640 tokens, at most 4."""
    auto = replace(SETTINGS, epochs=0, rows=32, window=20)
    tokens = (100, 64_000, 85_400, 127_000, 128_000, 255_000, 256_000, 10**9)
    assert [auto.with_chosen_epochs(n).epochs for n in tokens] == [4, 4, 3, 3, 2, 2, 1, 1]
    assert SETTINGS.with_chosen_epochs(100) == SETTINGS


def test_a_job_without_epochs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ElmoError, match="training.epochs 0: choose a number"):
        job(tmp_path / "run", replace(SETTINGS, epochs=0))


def test_a_model_without_softmax_has_no_perplexity(tmp_path: Path) -> None:
    made = job(tmp_path / "run")
    model = Model(made.bilm, made.vocabulary, made.characters, None, {}, "")
    with pytest.raises(ElmoError, match="the model has no softmax"):
        perplexity(model, [["the"]])


def test_rows_that_ran_dry_are_not_counted(tmp_path: Path) -> None:
    made = job(tmp_path / "run", replace(SETTINGS, rows=50))
    found = heldout_perplexity(made, workers=WorkerGroup())
    assert found.tokens == sum(entry.tokens for entry in made.shards.entries("heldout"))


def test_the_cell_is_compiled_where_the_training_repays_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For steps and evaluations alike, decided by the job alone."""
    asked: list[int] = []

    def cell_for(device: torch.device, cells: int) -> cell.CellFunctions:
        asked.append(cells)
        return cell.EAGER_CELL

    monkeypatch.setattr("elmo.nn.lstm.choose_cell_functions", cell_for)
    short, long = job(tmp_path / "short", SETTINGS), job(tmp_path / "long", SETTINGS)
    work = short.shards.tokens("train") * SETTINGS.epochs * NETWORK.cells
    monkeypatch.setattr(cell, "MIN_COMPILE_WORK", work + 1)
    fit(short, workers=WorkerGroup(), report=ignore)
    heldout_perplexity(short, workers=WorkerGroup())
    assert not asked
    monkeypatch.setattr(cell, "MIN_COMPILE_WORK", work)
    progress = fit(long, workers=WorkerGroup(), report=ignore)
    assert len(asked) > progress.step  # steps, and evaluations
