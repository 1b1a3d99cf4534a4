"""Each task model against a plain derivation: one text at a time, no padding, loops over tokens.

Twelve random networks of each kind, over texts of several lengths.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn

from elmo.data.characters import Characters
from elmo.io.records import digest
from elmo.model.weights import load_weights
from elmo.tasks.examples import Classified, Document, Example, Pair, Predicate, Question, Tokens
from elmo.tasks.inputs import TaskInputs, WordTable
from elmo.tasks.kinds import KINDS, task_settings
from elmo.tasks.modules import BidirectionalRNN
from elmo.tasks.train import add_linear_models, fit_linear_models, fit_task
from tests.elmo.tasks.test_task import fit, network, settings_of
from tests.elmo.tasks.toys import DIM, LAYERS, NAMES, examples, word_vectors

WORDS = ["<pad>", "<unk>", *NAMES, "the", "not"]


def random_network(kind: str, number: int) -> tuple[Any, list[Any]]:
    """A network in float64 with random weights, and examples of different lengths."""
    torch.manual_seed(number)
    settings = task_settings(
        kind,
        {
            "hidden": 5,
            "characters": 4 * (number % 2),
            "word_dim": 6,
            "elmo_output": number % 3 == 0,
            "elmo_input": number % 3 != 2 or number % 2 == 1,
            "layer_norm": None,
            "span_tokens": 2,
            "antecedents": 3,
        }
        | ({} if number % 3 != 2 or number % 2 == 1 else {"elmo_output": True}),
    )
    given = [*examples(kind, 5, number), *lengthened(examples(kind, 2, 100 + number))]
    inputs = TaskInputs(settings, WordTable(WORDS, None), layers=LAYERS, dim=DIM)
    model_class = KINDS[kind].model_class()
    model = model_class(inputs, model_class.labels_of(given), settings).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0, 0.4)
    if inputs.embedding is not None:
        nn.init.zeros_(inputs.embedding.weight[0])
    return model, given


def lengthened(some: Sequence[Example]) -> list[Example]:
    """Return examples with two more words at the end of a text, by turns of each text they have."""
    more, changed = ("so", "big"), list[Example]()
    for number, example in enumerate(some):
        match example:
            case Classified():
                changed.append(replace(example, tokens=example.tokens + more))
            case Pair() if number % 2:
                changed.append(replace(example, premise=example.premise + more))
            case Pair():
                changed.append(replace(example, hypothesis=example.hypothesis + more))
            case Question() if number % 2:
                changed.append(replace(example, question=example.question + more))
            case Question():
                text, end = f"{example.text} so big", len(example.text)
                ranges = (*example.offsets, (end + 1, end + 3), (end + 4, end + 7))
                tokens = example.tokens + more
                changed.append(replace(example, text=text, tokens=tokens, offsets=ranges))
            case Predicate():
                tags = (*(example.tags or ()), "O", "O")
                changed.append(replace(example, tokens=example.tokens + more, tags=tags))
            case _:
                changed.append(example)
    return changed


def mixed(model: Any, tokens: Tokens) -> list[Tensor]:
    (layers,) = word_vectors([tokens])
    return [
        mix.gamma * (mix.weights.softmax(0)[:, None, None] * torch.from_numpy(layers)).sum(0)
        for mix in model.inputs.mixes
    ]


def inputs_of(model: Any, tokens: Tokens) -> tuple[Tensor, Tensor, Tensor]:
    """[x; ELMo], x alone, and ELMo for the output (of no width if it is not used there)."""
    inputs, rows = model.inputs, []
    for token in tokens:
        parts = [inputs.embedding.weight[WORDS.index(token) if token in WORDS else 1]]
        if inputs.characters is not None:
            ids = torch.from_numpy(Characters(max_characters=22).encode([token])).long()[0]
            vectors = inputs.characters.embedding.weight[ids]
            weight, bias = inputs.characters.convolution.weight, inputs.characters.convolution.bias
            windows = [
                (weight * vectors[k : k + 3].T).sum((1, 2)) + bias for k in range(len(ids) - 2)
            ]
            parts.append(torch.stack(windows).amax(0).clamp(min=0))
        rows.append(torch.cat(parts))
    words, elmo = torch.stack(rows), mixed(model, tokens)
    at_input = elmo[: int(inputs.settings.elmo_input)]
    at_output = elmo[-1] if inputs.settings.elmo_output else words[:, :0]
    return torch.cat([words, *at_input], 1), words, at_output


def both(rnn: BidirectionalRNN, x: Tensor) -> Tensor:
    for forwards, backwards in zip(rnn.forwards, rnn.backwards, strict=True):
        x = torch.cat([forwards(x[None])[0][0], backwards(x.flip(0)[None])[0][0].flip(0)], 1)
    return x


def plain_tagging(model: Any, example: Any) -> Tensor:
    """−log p(tags), the sum over all paths by recursion on prefixes."""
    x, _, elmo = inputs_of(model, example.tokens)
    emissions = model.scores(torch.cat([both(model.lstm, x), elmo], 1))
    tags = [model.labels.index(tag) for tag in example.tags]
    moves, K = model.transitions_KK, len(model.labels)
    gold = sum(emissions[t, k] for t, k in enumerate(tags))
    gold = gold + sum(moves[a, b] for a, b in zip(tags, tags[1:], strict=False))
    totals = [emissions[0, k] for k in range(K)]
    for row in emissions[1:]:
        totals = [
            torch.stack([totals[a] + moves[a, b] for a in range(K)]).logsumexp(0) + row[b]
            for b in range(K)
        ]
    return torch.stack(totals).logsumexp(0) - gold


def plain_classification(model: Any, example: Any) -> Tensor:
    x, _, elmo = inputs_of(model, example.tokens)
    h = both(model.encoder, model.read(x))
    seen = torch.stack([sum(w * v for w, v in zip((h @ a).softmax(0), h, strict=True)) for a in h])
    h = both(model.integrator, torch.cat([h, h - seen, h * seen], 1))
    h = torch.cat([h, elmo], 1)
    weights = model.attend(h)[:, 0].softmax(0)
    pools = [h.amax(0), h.amin(0), h.mean(0), sum(w * v for w, v in zip(weights, h, strict=True))]
    scores = model.decide(torch.cat(pools)[None])[0]
    return -scores.log_softmax(0)[model.labels.index(example.label)]


def plain_pairs(model: Any, example: Any) -> Tensor:
    sides = []
    for tokens in (example.premise, example.hypothesis):
        x, _, elmo = inputs_of(model, tokens)
        sides.append(torch.cat([both(model.encoder, x), elmo], 1))
    pools = []
    for one, other in (sides, sides[::-1]):
        seen = torch.stack([(other @ a).softmax(0) @ other for a in one])
        compared = model.compare(torch.cat([one, seen, one - seen, one * seen], 1))
        composed = both(model.compose, compared)
        pools += [composed.mean(0), composed.amax(0)]
    scores = model.decide(torch.cat(pools)[None])[0]
    return -scores.log_softmax(0)[model.labels.index(example.label)]


def plain_questions(model: Any, example: Any) -> Tensor:
    def similarity(module: Any, c: Tensor, q: Tensor) -> Tensor:
        return module.left(c)[0] + module.right(q)[0] + (module.both_D[0] * c * q).sum()

    texts = []
    for tokens in (example.tokens, example.question):
        x, _, elmo = inputs_of(model, tokens)
        texts.append(torch.cat([both(model.encoder, x), elmo], 1))
    c, q = texts
    scores = torch.stack([torch.stack([similarity(model.similarity, a, b) for b in q]) for a in c])
    summary = scores.amax(1).softmax(0) @ c
    x = torch.stack(
        [
            model.join(torch.cat([a, (seen := row.softmax(0) @ q), a * seen, a * summary])).relu()
            for a, row in zip(c, scores, strict=True)
        ]
    )
    branch, attention = both(model.again, x), model.self_attention
    rows = []
    for k, a in enumerate(branch):
        others = [j for j in range(len(branch)) if j != k]
        logits = [similarity(attention.similarity, a, branch[j]) for j in others]
        weights = torch.stack([*logits, attention.nothing]).softmax(0)[:-1]
        seen = sum(w * branch[j] for w, j in zip(weights, others, strict=True))
        seen = seen if others else torch.zeros_like(a)
        rows.append(attention.join(torch.cat([seen, a, seen * a])).relu())
    x = x + torch.stack(rows)
    start = both(model.start_rnn, x)
    end = both(model.end_rnn, torch.cat([x, start], 1))
    first, stop = example.answer
    return (
        -model.start(start)[:, 0].log_softmax(0)[first]
        - model.end(end)[:, 0].log_softmax(0)[stop - 1]
    )


def plain_roles(model: Any, example: Any) -> Tensor:
    x, _, elmo = inputs_of(model, example.tokens)
    marks = [int(k == example.predicate) for k in range(len(x))]
    h = torch.cat([x, model.indicator.weight[marks]], 1)
    for number, layer in enumerate(model.layers):
        H, outputs = layer.hidden, []
        state = cell = h.new_zeros(H)
        for row in h.flip(0) if number % 2 else h:
            carried = layer.input.weight[5 * H :] @ row
            gates = layer.input.weight[: 5 * H] @ row + layer.state(state)
            i, f, o, r = (gates[k * H : k * H + H].sigmoid() for k in range(4))
            cell = f * cell + i * gates[4 * H :].tanh()
            state = r * o * cell.tanh() + (1 - r) * carried
            outputs.append(state)
        h = torch.stack(outputs[::-1] if number % 2 else outputs)
    scores = model.tag(torch.cat([h, elmo], 1)).log_softmax(1)
    return -torch.stack(
        [scores[t, model.labels.index(tag)] for t, tag in enumerate(example.tags)]
    ).mean()


def plain_coreference(model: Any, example: Document) -> Tensor:
    """Each kept span against the three kept before it; distances count kept spans, from 1."""
    h, heads, spans, offset = [], [], [], 0
    for tokens in example.tokens_of:
        x, words, elmo = inputs_of(model, tokens)
        h.append(torch.cat([both(model.lstm, x), elmo], 1))
        heads.append(words if model.inputs.words_width else x)
        for a in range(len(tokens)):
            spans += [(offset + a, offset + b) for b in (a + 1, a + 2) if b <= len(tokens)]
        offset += len(tokens)
    states, words = torch.cat(h), torch.cat(heads)
    vectors = {}
    for a, b in spans:
        weights = model.head(states[a:b])[:, 0].softmax(0)
        width = model.width.weight[b - a - 1]
        vectors[a, b] = torch.cat([states[a], states[b - 1], width, weights @ words[a:b]])
    mention = {span: model.mention(vector)[0] for span, vector in vectors.items()}
    kept: list[tuple[int, int]] = []
    for a, b in sorted(spans, key=lambda span: -float(mention[span])):
        crosses = any(c < a < d < b or a < c < b < d for c, d in kept)
        if len(kept) < int(0.4 * offset) and not crosses:
            kept.append((a, b))
    kept.sort()
    home = {span: k for k, cluster in enumerate(example.clusters or ()) for span in cluster}
    total = torch.zeros(())
    for m, span in enumerate(kept):
        scores, right = [torch.zeros((), dtype=torch.float64)], []
        for distance in range(1, min(3, m) + 1):
            other = kept[m - distance]
            one, two = vectors[span], vectors[other]
            feature = model.distance.weight[distance if distance < 5 else 5]
            pair = model.pair(torch.cat([one, two, one * two, feature]))[0]
            scores.append(mention[span] + mention[other] + pair)
            if span in home and home.get(other) == home[span]:
                right.append(distance)
        every = torch.stack(scores)
        total = total + every.logsumexp(0) - every[right or [0]].logsumexp(0)
    return total


PLAIN: dict[str, Any] = {
    "tagging": plain_tagging,
    "classification": plain_classification,
    "pairs": plain_pairs,
    "questions": plain_questions,
    "roles": plain_roles,
    "coreference": plain_coreference,
}


@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize("kind", PLAIN)
def test_a_batch_has_the_loss_of_its_examples_one_by_one(kind: str, number: int) -> None:
    model, given = random_network(kind, number)
    with torch.no_grad():
        losses = torch.stack([PLAIN[kind](model, example) for example in given])
        summed = kind in ("tagging", "coreference")
        expected = losses.sum() if summed else losses.mean()
        assert float(model.loss(given, word_vectors)) == pytest.approx(float(expected), rel=1e-6)
    labels = ("tags", "label", "answer", "answers", "clusters")
    unlabelled = [replace(e, **dict.fromkeys(set(vars(e)) & {*labels})) for e in given]
    alone = [model.answer([example], word_vectors)[0] for example in unlabelled]
    for (prediction, score), (other, same) in zip(
        model.answer(given, word_vectors), alone, strict=True
    ):
        assert prediction == other
        torch.testing.assert_close(torch.tensor(score), torch.tensor(same), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", PLAIN)
def test_weights_begin_as_the_papers_say(kind: str) -> None:
    torch.manual_seed(0)
    settings = task_settings(kind, {"hidden": 5})
    model_class, given = KINDS[kind].model_class(), examples(kind, 5, 0)
    inputs = TaskInputs(settings, WordTable(WORDS, None), layers=LAYERS, dim=DIM)
    model = model_class(inputs, model_class.labels_of(given), settings)
    for name, value in model.named_parameters():
        first = {"weights": 0.0, "gamma": 1.0, "nothing": -1.0}.get(name.split(".")[-1])
        assert first is None or (value == first).all()
        if kind == "roles" and name.endswith("state.bias"):  # of i, f, o, r and the new, f forgets
            assert value.tolist() == [0.0] * 5 + [1.0] * 5 + [0.0] * 15
        if kind != "pairs" or name.startswith("inputs"):
            continue
        if "weight_hh" in name:
            torch.testing.assert_close(value.T @ value, torch.eye(5))
        elif "bias" in name:  # of the gates, the second forgets
            forgets = torch.arange(len(value)) // 5 == 1 if "bias_ih" in name else 0.0
            assert (value == torch.zeros(len(value)) + forgets).all()
        else:
            assert 0.5 < value.abs().max() / math.sqrt(6 / sum(value.shape)) <= 1


def test_dropout_that_papers_fix_is_theirs_and_the_rest_is_the_setting() -> None:
    rates = {}
    for kind in ("classification", "coreference"):
        settings = settings_of(kind, dropout=0.4, elmo_dropout=0.45)
        modules = network(kind, settings, examples(kind, 5)).modules()
        rates[kind] = {module.p for module in modules if isinstance(module, nn.Dropout)}
    assert rates["classification"] == {0.4, 0.45, 0.1, 0.2, 0.3, 0.0}  # McCann et al. 2017
    assert rates["coreference"] == {0.4, 0.45, 0.5, 0.0}  # Lee et al. 2017: of words


@pytest.mark.parametrize(
    ("optimizer", "l2"), [("adam", 0.0), ("adam", 1e6), ("adadelta", 0.0), ("adadelta", 1e6)]
)
def test_the_penalty_on_the_mixes_weights_is_in_the_loss(
    tmp_path: Path, optimizer: str, l2: float
) -> None:
    """Adam's first step is the rate, against the gradient's sign: 2 λ w outweighs all else.
    Adadelta's is the rate times √(ε / (1 − ρ)), with ε of 10⁻⁶ and ρ of 0.95."""
    changes = {"optimizer": optimizer, "epochs": 1, "batch_size": 99, "lr": 0.01}
    settings = settings_of("tagging", l2=l2, gradient_norm=0, **changes)
    given = examples("tagging", 9)
    model: Any = network("tagging", settings, given)
    weights = model.inputs.mixes[0].weights
    before = torch.tensor([0.5, 0.5])
    weights.data.copy_(before)
    fit(model, given, settings, tmp_path / "work")
    moved = weights.detach() - before
    step = 0.01 * (1 if optimizer == "adam" else (1e-6 / 0.05) ** 0.5)
    towards_zero = torch.allclose(moved, -step * before.sign(), rtol=1e-3, atol=0)
    assert towards_zero == bool(l2)  # else opposite ways: the softmax has one degree of freedom
    if l2:
        clipped = settings_of("tagging", l2=l2, gradient_norm=0.5, **changes)
        fit(model, given, clipped, tmp_path / "clipped")
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        assert float(torch.cat(gradients).norm()) == pytest.approx(0.5, rel=1e-4)


def test_dev_is_scored_with_the_average_of_the_weights(tmp_path: Path) -> None:
    settings = settings_of("tagging", average=0.999, epochs=1, batch_size=99, lr=0.5)
    given = examples("tagging", 9)
    model: Any = network("tagging", settings, given)
    before = model.scores.weight.detach().clone()
    used: list[Tensor] = []
    predict = model.predict
    model.predict = lambda *batch: (
        used.append(model.scores.weight.detach().clone()) or predict(*batch)  # type: ignore[func-returns-value]
    )
    fit(model, given, settings, tmp_path / "work")
    (file,) = (tmp_path / "work").glob("epoch-*/state.safetensors")
    plain = load_weights(file)["module.scores.weight"]
    decay = 2 / 11  # of the first step
    expected = before * decay + plain * (1 - decay)
    assert not math.isclose(float(plain.sum()), float(expected.sum()), rel_tol=1e-3)
    torch.testing.assert_close(used[0], expected)
    torch.testing.assert_close(model.scores.weight.detach(), expected)


MEASURED = {
    "tagging": [57.1221, 57.2351, 454.723],
    "classification": [0.690191, 0.697128, 46.2895],
    "pairs": [0.731783, 0.799689, 39.0277],
    "questions": [4.37392, 4.29410, 0.0605407],
    "roles": [1.91186, 1.74647],  # no answer is right yet, so either epoch's weights may stay
    "coreference": [38.1211, 35.4651, 2.52289],
}


@pytest.mark.parametrize("kind", KINDS)
def test_two_epochs_are_those_that_were_measured(kind: str, tmp_path: Path) -> None:
    """The losses, and a weighted sum of the squared scores of the answers, with the defaults of
    each kind. If they are meant to change, raise RESULTS_VERSION of `elmo.tasks`."""
    every = {name: msgspec.to_builtins(task_settings(name, {})) for name in KINDS}
    assert digest(every)[:16] == "c9c4d8a1a1d28453"
    train, dev = examples(kind, 24), examples(kind, 12, seed=1)
    small = {"hidden": 6, "words": "none", "characters": 3, "epochs": 2, "batch_size": 5}
    settings = task_settings(kind, small | ({"span_tokens": 2} if kind == "coreference" else {}))
    model: Any = network(kind, settings, train)
    curve: list[float] = []
    report = lambda kind, figures: curve.append(figures["loss"])  # noqa: E731
    options: Any = {"vectors": word_vectors, "settings": settings}
    folder = tmp_path / "work"
    fit_task(model, train, dev, seed=3, checkpoints_folder=folder, report=report, **options)
    if settings.features:
        add_linear_models(model, fit_linear_models(model, train, **options), dev, **options)
    scores = [torch.tensor(score).square().sum() for _, score in model.answer(dev, word_vectors)]
    weighted = sum(float(score) * (1 + k) for k, score in enumerate(scores))
    measured = [*curve, weighted][: len(MEASURED[kind])]
    assert measured == pytest.approx(MEASURED[kind], rel=1e-3)
