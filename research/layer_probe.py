"""Measure how well each layer predicts tags, with a linear softmax on frozen vectors (Table 6).

This probe is multinomial logistic regression, fitted by L-BFGS from zero, so it depends on no seed.
There are two baselines: the most frequent tag of each word (for a word that is not in the training
text, of all words), and layer 0, which does not depend on context.

Shapes: N tokens, n tokens of a chunk, T tokens of a sentence, L layers, D width of a vector, C
tags.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmo.errors import ElmoError
from elmo.model.embedder import Embedder
from elmo.tasks.baselines import most_frequent_tagger

BATCH = 512
CHUNK = 65536  # tokens in one matrix product, which bounds memory
TaggedTokens = tuple[Sequence[str], Sequence[str]]  # the tokens of a sentence and their tags


@dataclass(frozen=True)
class ProbeScores:
    """The accuracy, on the test text, of a linear classifier of tags (a probe) on each layer.

    `most_frequent` is the accuracy of each word's most frequent tag, a baseline. `is_right`
    (layers, tokens) says which tokens each layer tags correctly, for confidence intervals.
    """

    layers: list[float]
    most_frequent: float
    tokens: int
    tags: int
    is_right: npt.NDArray[np.bool_]


def probe_layers(
    embedder: Embedder,
    train: Sequence[TaggedTokens],
    test: Sequence[TaggedTokens],
    *,
    l2: float = 1e-5,
    iterations: int = 100,
) -> ProbeScores:
    """Train a linear classifier of tags (a probe) on each layer's vectors of `train`; score it on
    `test`.

    The loss is the mean cross-entropy plus `l2` times the squared norm of the weights; L-BFGS takes
    at most `iterations` steps. Memory holds the vectors of one layer at a time: 4 × D bytes per
    token, where D is their width.
    """
    sources = [partial(_layer_vectors, embedder, layer) for layer in range(embedder.layers)]
    is_right_LN = np.stack(
        [probe_vectors(source, train, test, l2=l2, iterations=iterations) for source in sources]
    )
    return ProbeScores(
        layers=is_right_LN.mean(1).tolist(),
        most_frequent=_score_most_frequent(train, test),
        tokens=is_right_LN.shape[1],
        tags=len({tag for _, tags in train for tag in tags}),
        is_right=is_right_LN,
    )


def probe_vectors(
    vectors: Callable[[Sequence[TaggedTokens]], Tensor],
    train: Sequence[TaggedTokens],
    test: Sequence[TaggedTokens],
    *,
    l2: float = 1e-5,
    iterations: int = 100,
) -> npt.NDArray[np.bool_]:
    """Train a linear classifier of tags (a probe) on the vectors of `train`; return which tokens of
    `test` it tags correctly, as a boolean array (N,).

    `vectors` returns the vectors of all tokens of some sentences, end to end (N, D). `l2` and
    `iterations` are those of `probe_layers`.
    """
    if not any(len(tokens) for tokens, _ in train) or not any(len(tokens) for tokens, _ in test):
        raise ElmoError("a probe needs tagged tokens for training and for testing; add sentences")
    if sum(len(tokens) for tokens, _ in train) < 2:
        raise ElmoError("a probe needs two tagged tokens for training, found one; add sentences")
    tag_names = sorted({tag for _, tags in train for tag in tags})
    id_by_tag = {name: k for k, name in enumerate(tag_names)}
    train_N = torch.tensor([id_by_tag[tag] for _, tags in train for tag in tags])
    # A tag that is not in the training text is never predicted.
    test_N = torch.tensor([id_by_tag.get(tag, -1) for _, tags in test for tag in tags])
    train_ND = vectors(train)
    mean_D = train_ND.mean(0)
    std_D = train_ND.std(0, correction=int(len(train_ND) > 1)).clamp_min(1e-6)
    train_ND.sub_(mean_D).div_(std_D)
    weight_CD, bias_C = _fit_softmax(train_ND, train_N, len(tag_names), l2, iterations)
    del train_ND
    test_ND = vectors(test).sub_(mean_D).div_(std_D)
    best_N = torch.addmm(bias_C, test_ND, weight_CD.T).argmax(1)
    is_right_N: npt.NDArray[np.bool_] = (best_N == test_N).numpy()
    return is_right_N


def _layer_vectors(embedder: Embedder, layer: int, sentences: Sequence[TaggedTokens]) -> Tensor:
    """Return one layer of all tokens, (N, D)."""
    vectors_ND = np.empty((sum(len(tokens) for tokens, _ in sentences), embedder.dim), np.float32)
    start = 0
    for k in range(0, len(sentences), BATCH):
        batch = [list(tokens) for tokens, _ in sentences[k : k + BATCH]]
        for layers_LTD in embedder.embed(batch, layers=[layer]):
            stop = start + layers_LTD.shape[1]
            vectors_ND[start:stop] = layers_LTD[0]
            start = stop
    return torch.from_numpy(vectors_ND)


def _fit_softmax(
    x_ND: Tensor, tags_N: Tensor, tag_count: int, l2: float, iterations: int
) -> tuple[Tensor, Tensor]:
    """Return the weights (C, D) and bias (C) of the linear softmax that minimises the loss."""
    weight_CD = torch.zeros(tag_count, x_ND.shape[1], requires_grad=True)
    bias_C = torch.zeros(tag_count, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight_CD, bias_C], max_iter=iterations, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        total = l2 * weight_CD.square().sum()
        torch.autograd.backward(total)
        for x_nD, tags_n in zip(torch.split(x_ND, CHUNK), torch.split(tags_N, CHUNK), strict=True):
            logits_nC = torch.addmm(bias_C, x_nD, weight_CD.T)
            part = torch.nn.functional.cross_entropy(logits_nC, tags_n, reduction="sum")
            part = part / len(x_ND)
            torch.autograd.backward(part)
            total = total.detach() + part.detach()
        return total

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return weight_CD.detach(), bias_C.detach()


def _score_most_frequent(train: Iterable[TaggedTokens], test: Iterable[TaggedTokens]) -> float:
    """Return the accuracy of predicting the most frequent tag of each word."""
    predict_tag = most_frequent_tagger(train)
    is_right = [
        predict_tag(token) == tag
        for tokens, tags in test
        for token, tag in zip(tokens, tags, strict=True)
    ]
    return sum(is_right) / len(is_right)
