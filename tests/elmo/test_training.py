"""Training learns, resumes bit for bit, and takes the same step on any number of workers."""

import math
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from elmo import score
from elmo.bilm import BiLM, Config
from elmo.characters import Characters
from elmo.checkpoint import Model
from elmo.errors import ElmoError
from elmo.resume import Checkpoints
from elmo.score import perplexity, scores
from elmo.settings import Optimizer, Training
from elmo.shards import Shards, write_shards
from elmo.softmax import Softmax
from elmo.step import Workers
from elmo.training import Job, fit, heldout_perplexity
from elmo.vocabulary import Vocabulary

NETWORK = Config(
    char_dim=4, filters=((1, 4), (2, 8)), activation="relu", highways=1, cells=16, projection=8,
    layers=2, cell_clip=3.0, projection_clip=3.0, skip=True, input_words=None,
)  # fmt: skip
ADAMW = Optimizer(
    name="adamw", lr=0.02, warmup_steps=2, decay="cosine", final_lr=0.1, clip=1.0, accumulator=0.0,
    beta1=0.9, beta2=0.99, epsilon=1e-8, weight_decay=0.01,
)  # fmt: skip
SETTINGS = Training(
    seed=1, epochs=3, rows=6, window=5, block_sentences=4, reset="sentence", precision="float32",
    softmax="sampled", samples=12, draws="shared", loss_scale=1.0, dropout=0.1, optimizer=ADAMW,
    evaluate_every=10, patience=0, checkpoint_every=7, keep=2,
)  # fmt: skip
PATTERN = ["the", "cat", "sat", "on", "a", "mat", "and", "slept", "well", "today"]
SENTENCES = [[PATTERN[(k + j) % 10] for j in range(3 + k % 5)] for k in range(120)]
WORDS = ["<S>", "</S>", "<UNK>", *PATTERN, *(f"rare{k}" for k in range(10))]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def job(folder: Path, settings: Training = SETTINGS, lr_of: dict[str, float] | None = None) -> Job:
    shards = folder.parent / "shards"
    if not shards.exists():
        write_shards(shards, SENTENCES, heldout_every=7, shard_sentences=25)
    bilm = BiLM(NETWORK, characters=261)
    bilm.reset_parameters(settings.seed)
    softmax = Softmax(len(WORDS), NETWORK.projection)
    softmax.reset_parameters(settings.seed)
    counts = [100, 100, 1, *[50] * 10, *[1] * 10]
    return Job(
        bilm, softmax, Vocabulary(WORDS, counts), Characters(), Shards(shards), settings, folder,
        lr_of or {},
    )  # fmt: skip


def weights(done: Job) -> dict[str, torch.Tensor]:
    return {**done.bilm.state_dict(), **done.softmax.state_dict()}


def ignore(kind: str, figures: dict[str, float]) -> None:
    pass


@pytest.mark.parametrize("change", [{}, {"softmax": "full"}, {"reset": "never"}])
def test_it_learns_a_pattern(tmp_path: Path, change: dict[str, str]) -> None:
    made = job(tmp_path / "run", replace(SETTINGS, epochs=12, **change))
    before = heldout_perplexity(made, workers=Workers())
    heard: list[str] = []
    fit(made, workers=Workers(), report=lambda kind, figures: heard.append(kind))
    after = heldout_perplexity(made, workers=Workers())
    assert after.average < before.average / 4
    assert after.average < after.unigram / 2
    assert {"train", "heldout"} <= set(heard)


def test_2018_settings_learn_too(tmp_path: Path) -> None:
    adagrad = replace(
        ADAMW, name="adagrad", lr=0.2, warmup_steps=0, decay="constant", clip=10.0,
        accumulator=1.0, epsilon=0.0,
    )  # fmt: skip
    settings = replace(
        SETTINGS, epochs=20, optimizer=adagrad, draws="separate", loss_scale=5.0, reset="never"
    )
    made = job(tmp_path / "run", settings)
    fit(made, workers=Workers(), report=ignore)
    found = heldout_perplexity(made, workers=Workers())
    assert found.average < found.unigram / 2


class Killed(Exception):
    pass


@pytest.mark.parametrize("at", [10, 20, 30])
def test_killed_and_started_again_ends_the_same(tmp_path: Path, at: int) -> None:
    whole = job(tmp_path / "whole")
    fit(whole, workers=Workers(), report=ignore)

    def kill(kind: str, figures: dict[str, float]) -> None:
        if figures["step"] >= at:
            raise Killed

    broken = job(tmp_path / "broken")
    with pytest.raises(Killed):
        fit(broken, workers=Workers(), report=kill)
    again = job(tmp_path / "broken")
    fit(again, workers=Workers(), report=ignore)
    for name, value in weights(again).items():
        assert torch.equal(value, weights(whole)[name]), name
    for curve in ("train.tsv", "heldout.tsv"):
        ours, theirs = ((tmp_path / run / curve).read_bytes() for run in ("broken", "whole"))
        assert ours == theirs


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    made = job(tmp_path / "run")
    fit(made, workers=Workers(), report=ignore)
    heard: list[str] = []
    again = job(tmp_path / "run")
    fit(again, workers=Workers(), report=lambda kind, figures: heard.append(kind))
    assert heard == []
    for name, value in weights(again).items():
        assert torch.equal(value, weights(made)[name])


def test_a_torn_checkpoint_is_passed_over(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=5)
    for step in (1, 2):
        checkpoints.save(step, {"x": torch.full((3,), float(step))}, {"step": step}, best=None)
    checkpoints.wait()
    torn = tmp_path / "step-000000002" / "state.safetensors"
    torn.write_bytes(torn.read_bytes()[:-1])
    found = checkpoints.newest()
    assert found is not None
    assert found[1]["step"] == 1


def test_the_last_and_the_best_checkpoints_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in range(1, 6):
        checkpoints.save(step, {}, {}, best=1)
    checkpoints.wait()
    assert checkpoints.steps() == [1, 4, 5]


def test_sigterm_saves_and_stops(tmp_path: Path) -> None:
    def terminate(kind: str, figures: dict[str, float]) -> None:
        if figures["step"] == 10 and kind == "train":
            os.kill(os.getpid(), signal.SIGTERM)

    made = job(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        fit(made, workers=Workers(), report=terminate)
    assert Checkpoints(tmp_path / "run" / "checkpoints", keep=1).steps()[-1] == 10


def test_divergence_stops_and_says_what_to_change(tmp_path: Path) -> None:
    settings = replace(SETTINGS, optimizer=replace(ADAMW, lr=1e30, warmup_steps=0, clip=0.0))
    with pytest.raises(ElmoError, match=r"diverged after step \d+: .* lower optimizer\.lr"):
        fit(job(tmp_path / "run", settings), workers=Workers(), report=ignore)


def test_patience_stops_early(tmp_path: Path) -> None:
    still = replace(ADAMW, lr=1e-30)
    settings = replace(SETTINGS, epochs=50, evaluate_every=2, patience=2, optimizer=still)
    progress = fit(job(tmp_path / "run", settings), workers=Workers(), report=ignore)
    assert progress.step == 6


def test_frozen_parameters_stay(tmp_path: Path) -> None:
    made = job(tmp_path / "run", lr_of={"bilm.lstm.weight.0": 0.0})
    before = {name: value.clone() for name, value in weights(made).items()}
    fit(made, workers=Workers(), report=ignore)
    assert torch.equal(weights(made)["lstm.weight.0"], before["lstm.weight.0"])
    assert not torch.equal(weights(made)["lstm.weight.1"], before["lstm.weight.1"])


WORKER = """
    import sys
    from pathlib import Path
    sys.path[:0] = [{tests!r}, {root!r}]
    import torch, torch.distributed as dist
    import test_training as t
    from dataclasses import replace
    from elmo.step import Workers
    rank, size, steps = (int(sys.argv[k]) for k in (1, 2, 4))
    folder = Path(sys.argv[3])
    torch.set_num_threads(1)
    class Stop(Exception): pass
    def report(kind, figures):
        if kind == "train" and figures["step"] >= steps: raise Stop
    if size > 1:
        meet = "file://" + sys.argv[5]
        dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=size)
    made = t.job(folder, t.SETTINGS)
    try:
        t.fit(made, workers=Workers(rank, size), report=report)
    except Stop:
        pass
    if rank == 0:
        torch.save(t.weights(made), folder / "weights.pt")
    import os; sys.stdout.flush(); os._exit(0)
"""


def run_workers(tmp_path: Path, folder: Path, size: int, steps: int = 10**9) -> None:
    here = Path(__file__).resolve().parent
    script = tmp_path / "worker.py"
    script.write_text(textwrap.dedent(WORKER).format(tests=str(here), root=str(here.parents[1])))
    meeting = tmp_path / f"meet-{folder.name}-{size}"
    folder.mkdir(exist_ok=True)
    command = [sys.executable, str(script)]
    environment = os.environ | {"ELMO_COMPILE": "0"}
    workers = [
        subprocess.Popen(
            [*command, str(rank), str(size), str(folder), str(steps), str(meeting)],
            env=environment,
        )
        for rank in range(size)
    ]
    assert [worker.wait(120) for worker in workers] == [0] * size


def test_one_two_and_three_workers_take_the_same_steps(tmp_path: Path) -> None:
    job(tmp_path / "one")
    curves = {}
    for size in (1, 2, 3):
        folder = tmp_path / f"workers{size}"
        run_workers(tmp_path, folder, size)
        curves[size] = [
            [float(x) for x in line.split("\t")]
            for line in (folder / "train.tsv").read_text().splitlines()[1:]
        ]
    assert len(curves[1]) > 3
    for size in (2, 3):
        for ours, theirs in zip(curves[size], curves[1], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-3)
        assert curves[size][0][2] == pytest.approx(curves[1][0][2], rel=1e-5)


def test_perplexity_of_shards_and_of_lists_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score, "TOKENS", 30)  # several batches, of several sizes
    made = job(tmp_path / "run")
    fit(made, workers=Workers(), report=ignore)
    shards = made.shards
    lines = [
        shard.tokens(k)
        for shard in map(shards.open, shards.infos("heldout"))
        for k in range(len(shard))
    ]
    softmax = {name: value.detach() for name, value in made.softmax.state_dict().items()}
    model = Model(made.bilm, made.vocabulary, made.characters, softmax, {}, "")
    ours, theirs = perplexity(model, lines), heldout_perplexity(made, workers=Workers())
    for name, value in ours.to_dict().items():
        assert value == pytest.approx(theirs.to_dict()[name], rel=1e-4), name
    total = [sum(score[way] for score in scores(model, lines)) for way in (0, 1)]
    count = ours.tokens + ours.sentences
    assert math.exp(total[0] / count) == pytest.approx(ours.forward, rel=1e-4)
    assert math.exp(total[1] / count) == pytest.approx(ours.backward, rel=1e-4)


def test_perplexity_is_that_of_the_equation(tmp_path: Path) -> None:
    """One sentence, the softmax written out."""
    made = job(tmp_path / "run")
    softmax = {name: value.detach() for name, value in made.softmax.state_dict().items()}
    model = Model(made.bilm, made.vocabulary, made.characters, softmax, {}, "")
    sentence = ["the", "cat", "안녕"]
    found = perplexity(model, [sentence, []])
    tokens = ["<S>", *sentence, "</S>"]
    for direction, name in ((0, "forward"), (1, "backward")):
        read = tokens if direction == 0 else tokens[::-1]
        with torch.no_grad():
            x_TP = made.bilm.encode(torch.from_numpy(Characters().encode(read[:-1])))
            x_STBP = torch.stack([x_TP, x_TP])[:, :, None]
            ys, _ = made.bilm.lstm(x_STBP, made.bilm.lstm.zero_state(1))
            logits = ys[-1][direction, :, 0] @ softmax["weight"].T + softmax["bias"]
        targets = torch.from_numpy(made.vocabulary.ids(read[1:])).long()
        mean = torch.nn.functional.cross_entropy(logits, targets)
        assert getattr(found, name) == pytest.approx(math.exp(mean), rel=1e-4)
    assert (found.tokens, found.sentences) == (3, 1)
    assert found.unk_rate == pytest.approx(1 / 3)
    bits = 4 * (math.log2(found.forward) + math.log2(found.backward)) / 2
    assert found.bits_per_byte == pytest.approx(bits / len("the cat 안녕\n".encode()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(SETTINGS, reset="always"), "reset must be one of sentence, never"),
        (lambda: replace(SETTINGS, rows=0), "rows must be 1 or more, found 0"),
        (lambda: replace(SETTINGS, dropout=1.0), "dropout must be at least 0 and below 1"),
    ],
)
def test_bad_settings_are_refused(make: Callable[[], Training], message: str) -> None:
    with pytest.raises(ElmoError, match=message):
        make()


def test_a_model_without_softmax_has_no_perplexity(tmp_path: Path) -> None:
    made = job(tmp_path / "run")
    model = Model(made.bilm, made.vocabulary, made.characters, None, {}, "")
    with pytest.raises(ElmoError, match="the model has no softmax"):
        perplexity(model, [["the"]])


def test_rows_that_ran_dry_are_not_counted(tmp_path: Path) -> None:
    made = job(tmp_path / "run", replace(SETTINGS, rows=50))
    found = heldout_perplexity(made, workers=Workers())
    assert found.tokens == sum(info["tokens"] for info in made.shards.infos("heldout"))
