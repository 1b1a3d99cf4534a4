"""Linear models of hand-crafted features, of ELMo's vectors and of static vectors, which predict
together with a task's network.

The features of a token are the usual ones of taggers: the word, its shape, prefixes and suffixes,
the words around it and pairs of them. The features of a text are its words and word pairs, weighted
by TF-IDF. Features are hashed, so no list of them is kept. The vectors are all layers of the token,
or their means over the text. The static vectors, if the biLM has a softmax, are those of the word
and its two neighbours, or the mean over the text.

The models are fitted separately, because in a single one the many numbers of the vectors would
dominate the features. The scores of each model include the frequency of the labels. Their sum
counts it several times, so most of the excess is subtracted; otherwise rare labels, such as names,
would hardly ever be predicted.

Shapes: N items (tokens or texts), M features of all items, U distinct feature hashes in the
training data, D numbers of an item's vectors, S numbers of its static vectors, R rows of a model's
weights, K labels, L layers, T tokens of a sentence, P linear models.
"""

import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from elmo.nn.threads import one_thread
from elmo.tasks.examples import Classified, Pair, Tagged, Tokens
from elmo.tasks.vectors import Vectors

Labelled = Tagged | Classified | Pair
# Strengths of the priors of the weights of features, and of the weights of vectors (scaled to
# variance 1). With `FOLDS` to `MAX_CROSS_VALIDATED` items, cross-validation chooses one; otherwise
# the first is used.
TOKEN_PRIORS: tuple[Sequence[float], Sequence[float]] = (0.1,), (30.0,)
TEXT_PRIORS: tuple[Sequence[float], Sequence[float]] = (
    (0.01, 0.1, 1.0, 10.0),
    (300.0, 3.0, 30.0, 100.0, 1000.0),
)
FOLDS, MAX_CROSS_VALIDATED = 5, 3000
SHRINKAGE = 10.0  # shrinks the models' weights towards 1
CORRECTION = 0.75  # share of the excess label frequency that is subtracted
MAX_VECTOR_VALUES = 1 << 27  # numbers of the vectors to learn from: 0.5 GB
MAX_WEIGHTS = 1 << 26  # weights of features: 0.25 GB, and about 15 copies while fitting
MAX_STEPS = 100  # steps of L-BFGS
CACHED_EXAMPLES = 1024  # examples with cached hashes, because dev is scored several times
LETTER, REPEATED_CHARACTER = re.compile(r"[^\W\d_]"), re.compile(r"(.)\1+")


class FeatureBags(NamedTuple):
    """The features of N items, one item after another. `rows_M` and `values_M` have each feature's
    row of weights and its value; `starts_N` has the position of each item's first feature."""

    rows_M: Tensor
    values_M: Tensor
    starts_N: Tensor


class LinearFit(NamedTuple):
    """The weights and bias of a linear model. `held_out_NK` has the log-probabilities of each
    item's labels by a model fitted on the other folds (None without cross-validation)."""

    weights_RK: Tensor
    bias_K: Tensor
    held_out_NK: Tensor | None


class ModelShares(NamedTuple):
    """The weights of the network's scores and of each linear model's log-probabilities in their
    sum."""

    network: float
    features: float
    vectors: float
    static: float = 0.0


FEATURES_ALONE = ModelShares(0.0, 1.0, 0.0)


class LinearModels(nn.Module):
    """Three linear models of texts or, for tagging, of tokens. They read features, vectors of
    `width` numbers (0: none), and the vectors of `static_width` numbers that `static` returns.

    Features are hashed to numbers below `hash_count`; `rows` of them have weights. `shares` has the
    weight of each model in a prediction.
    """

    hash_U: Tensor
    weights_UK: Tensor
    bias_K: Tensor
    idf_U: Tensor
    vector_weights_DK: Tensor
    vector_bias_K: Tensor
    static_weights_SK: Tensor
    static_bias_K: Tensor
    frequency_K: Tensor

    def __init__(
        self,
        hash_count: int,
        labels: int,
        *,
        rows: int = 0,
        width: int = 0,
        static_width: int = 0,
        shares: ModelShares = FEATURES_ALONE,
        static: Vectors | None = None,
    ) -> None:
        super().__init__()
        self.hash_count, self.shares, self.static = hash_count, shares, static
        self.model_weights = [1.0, 1.0, 1.0]  # of features, vectors and static vectors
        self.register_buffer("hash_U", torch.zeros(rows))  # float32 is exact below 2²⁴
        self.register_buffer("weights_UK", torch.zeros(rows, labels))
        self.register_buffer("bias_K", torch.zeros(labels))
        self.register_buffer("idf_U", torch.ones(rows))
        self.register_buffer("vector_weights_DK", torch.zeros(width, labels))
        self.register_buffer("vector_bias_K", torch.zeros(labels))
        if static_width:  # older tasks have none
            self._set_static_weights(torch.zeros(static_width, labels), torch.zeros(labels))
        self.register_buffer("frequency_K", torch.zeros(labels))

    def forward(self, examples: Sequence[Labelled], vectors: Vectors | None = None) -> Tensor:
        """Return the label scores (N, K) of each text or, one sentence after another, of each
        token: the sum of the models' log-probabilities, weighted by `shares`, minus the excess
        log-frequency of the labels."""
        shares = self.shares
        correction_K = CORRECTION * (sum(shares) - 1) * self.frequency_K
        score_sums_NK = weighted_sums(self._make_bags(examples), self.weights_UK, self.bias_K)
        scores_NK = shares.features * score_sums_NK.log_softmax(1) - correction_K
        if shares.vectors and vectors is not None:
            x_ND = _item_vectors(examples, vectors).to(scores_NK)
            logits_NK = x_ND @ self.vector_weights_DK + self.vector_bias_K
            scores_NK = scores_NK + shares.vectors * logits_NK.log_softmax(1)
        if shares.static and self.static is not None:
            x_NS = _item_vectors(examples, self.static).to(scores_NK)
            logits_NK = x_NS @ self.static_weights_SK + self.static_bias_K
            scores_NK = scores_NK + shares.static * logits_NK.log_softmax(1)
        return scores_NK

    def fit(
        self,
        train: Sequence[Labelled],
        labels: Sequence[str],
        vectors: Vectors | None = None,
        class_weights: Tensor | None = None,
    ) -> None:
        """Fit the models to the labels of `train`; `class_weights` (K,) weight the labels.

        `vectors` gives the ELMo layers of sentences.
        """
        labels_N = _label_ids(train, labels)
        class_weights = torch.ones(len(labels)) if class_weights is None else class_weights
        counts_K = (labels_N.bincount(minlength=len(labels)) + 0.5) * class_weights
        self.frequency_K = (counts_K / counts_K.sum()).log()
        feature_priors, vector_priors = TOKEN_PRIORS
        hashes_M, _, _ = self._hash_features(train)
        hash_U, count_U = torch.unique(hashes_M, return_counts=True)
        by_count_U = count_U.argsort(descending=True, stable=True)
        kept_U = by_count_U[: MAX_WEIGHTS // len(labels)].sort().values
        hash_U, count_U = hash_U[kept_U], count_U[kept_U]
        self.hash_U, self.idf_U = hash_U.float(), torch.ones(len(hash_U))
        if not isinstance(train[0], Tagged):
            feature_priors, vector_priors = TEXT_PRIORS
            self.idf_U = ((1 + len(train)) / (1 + count_U)).log() + 1
        bags = self._make_bags(train)
        item_bags = _items_by_feature(bags, len(hash_U))
        features_fit = _fit_logistic(
            lambda weights_UK, bias_K: weighted_sums(bags, weights_UK, bias_K),
            lambda gradient_NK: weighted_sums(item_bags, gradient_NK, torch.zeros(len(labels))),
            len(hash_U),
            labels_N,
            priors=feature_priors,
            class_weights=class_weights,
        )
        vectors_fit, static_fit = (
            source
            and _fit_vectors(train, labels, source, vector_priors, class_weights, N=len(labels_N))
            for source in (vectors, self.static)
        )
        self.weights_UK, self.bias_K = features_fit.weights_RK, features_fit.bias_K
        if vectors_fit:
            self.vector_weights_DK, self.vector_bias_K = vectors_fit.weights_RK, vectors_fit.bias_K
        if static_fit:
            self._set_static_weights(static_fit.weights_RK, static_fit.bias_K)
        held_out = [fit and fit.held_out_NK for fit in (features_fit, vectors_fit, static_fit)]
        self.model_weights = _fit_model_weights(held_out, labels_N, self.frequency_K)

    def predict(
        self, examples: Sequence[Labelled], labels: Sequence[str], vectors: Vectors | None = None
    ) -> list[Any]:
        """Return the likeliest of `labels` for each text or, in a list, each token of a
        sentence."""
        picks = (labels[index] for index in self(examples, vectors).argmax(1).tolist())
        return [
            [next(picks) for _ in example.tokens] if isinstance(example, Tagged) else next(picks)
            for example in examples
        ]

    @property
    def static_width(self) -> int:
        """Return how many numbers the static vectors of an item have; 0 without such a model."""
        return len(self.static_weights_SK) if "static_weights_SK" in self._buffers else 0

    def _set_static_weights(self, weights_SK: Tensor, bias_K: Tensor) -> None:
        self.register_buffer("static_weights_SK", weights_SK)
        self.register_buffer("static_bias_K", bias_K)

    def _make_bags(self, examples: Sequence[Labelled]) -> FeatureBags:
        """Return the features of the items that have weights; the values of a text have norm 1."""
        hashes_M, counts_M, lengths_N = self._hash_features(examples)
        hash_U = self.hash_U.cpu().long()
        rows_M = torch.searchsorted(hash_U, hashes_M)
        is_learned_M = torch.cat([hash_U, torch.tensor([-1])])[rows_M] == hashes_M
        items_M = torch.arange(len(lengths_N)).repeat_interleave(lengths_N)[is_learned_M]
        rows_M, counts_M = rows_M[is_learned_M], counts_M[is_learned_M]
        lengths_N = items_M.bincount(minlength=len(lengths_N))
        starts_N = lengths_N.cumsum(0) - lengths_N
        if examples and isinstance(examples[0], Tagged):
            return FeatureBags(rows_M, torch.ones(len(rows_M)), starts_N)
        values_M = (counts_M.float().log() + 1) * self.idf_U.cpu()[rows_M]
        squares_N = torch.zeros(len(lengths_N)).index_add(0, items_M, values_M.square())
        return FeatureBags(rows_M, values_M / squares_N.sqrt().clamp_min(1e-9)[items_M], starts_N)

    def _hash_features(self, examples: Sequence[Labelled]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the hash of each feature and its count in its item (M,), one item after another;
        and the number of features of each item (N,)."""
        hashed_examples = [_hash_example(example, self.hash_count) for example in examples]
        hashes_M, counts_M, lengths_N = (
            torch.tensor([number for h in hashed_examples for number in h[k]], dtype=torch.long)
            for k in range(3)
        )
        return hashes_M, counts_M, lengths_N


def weighted_sums(bags: FeatureBags, weights_UK: Tensor, bias_K: Tensor) -> Tensor:
    """Return for each item the sum of its features' weights times their values, plus the bias (K,)
    or (N, K); shape (N, K)."""
    device = weights_UK.device
    score_sums_NK = nn.functional.embedding_bag(
        bags.rows_M.to(device),
        weights_UK,
        bags.starts_N.to(device),
        mode="sum",
        per_sample_weights=bags.values_M.to(device),
    )
    return score_sums_NK + bias_K


def _fit_logistic(
    compute_scores: Callable[[Tensor, Tensor], Tensor],
    compute_gradient: Callable[[Tensor], Tensor],
    rows: int,
    labels_N: Tensor,
    *,
    priors: Sequence[float],
    class_weights: Tensor,
) -> LinearFit:
    """Fit a logistic regression with `rows` rows of weights, on one thread so that sums are
    reproducible.

    Given weights and bias, `compute_scores` returns the scores (N, K). Given the gradient of the
    scores, `compute_gradient` returns that of the weights (rows, K). The first of `priors` is used
    unless another has a higher likelihood in cross-validation by more than a standard error. Folds
    are stratified by label.
    """
    ids_N1 = labels_N.unsqueeze(1)
    importance_N1 = class_weights[ids_N1]
    folds_N1 = (labels_N.argsort(stable=True).argsort() % FOLDS).unsqueeze(1)

    def fit(prior: float, importance_N1: Tensor) -> tuple[Tensor, Tensor]:
        weights_RK, bias_K = torch.zeros(rows, len(class_weights)), torch.zeros(len(class_weights))
        optimizer = torch.optim.LBFGS(
            [weights_RK, bias_K], max_iter=MAX_STEPS, history_size=5, line_search_fn="strong_wolfe"
        )
        N = importance_N1.count_nonzero()

        def compute_loss() -> Tensor:
            logp_NK = compute_scores(weights_RK, bias_K).log_softmax(1)
            loss = -(logp_NK.gather(1, ids_N1) * importance_N1).sum()
            targets_NK = torch.zeros_like(logp_NK).scatter_(1, ids_N1, 1.0)
            gradient_NK = (logp_NK.exp() - targets_NK) * importance_N1
            bias_K.grad = gradient_NK.sum(0) / N
            weights_RK.grad = (compute_gradient(gradient_NK) + prior * weights_RK) / N
            return (loss + prior / 2 * weights_RK.square().sum()) / N

        optimizer.step(compute_loss)  # type: ignore[no-untyped-call]
        return weights_RK, bias_K

    def predict_held_out(prior: float) -> Tensor:
        held_out_NK = torch.zeros(len(labels_N), len(class_weights))
        for fold in range(FOLDS):
            is_held_out_N1 = folds_N1 == fold
            logp_NK = compute_scores(*fit(prior, importance_N1 * ~is_held_out_N1)).log_softmax(1)
            held_out_NK += logp_NK * is_held_out_N1
        return held_out_NK

    with one_thread(), torch.no_grad():
        if len(priors) == 1 or not FOLDS <= len(labels_N) <= MAX_CROSS_VALIDATED:
            return LinearFit(*fit(priors[0], importance_N1), None)
        held_out = {prior: predict_held_out(prior) for prior in priors}
        logps = {k: logp_NK.gather(1, ids_N1) * importance_N1 for k, logp_NK in held_out.items()}
        best_prior = max(priors, key=lambda prior: logps[prior].sum().item())
        gain_N1 = logps[best_prior] - logps[priors[0]]
        is_better = gain_N1.mean() * len(labels_N) ** 0.5 > gain_N1.std(correction=0)
        best_prior = best_prior if is_better else priors[0]
        return LinearFit(*fit(best_prior, importance_N1), held_out[best_prior])


def _fit_model_weights(
    held_out: Sequence[Tensor | None], labels_N: Tensor, frequency_K: Tensor
) -> list[float]:
    """Return the weight of each linear model in their sum. The weights maximise the likelihood of
    the `held_out` log-probabilities (N, K), but stay near 1. A model without these has 1."""
    logps = [logp_NK for logp_NK in held_out if logp_NK is not None]
    model_weights = [1.0 for _ in held_out]
    if not logps:
        return model_weights
    logp_NKP, weights_P = torch.stack(logps, 2), torch.ones(len(logps), requires_grad=True)
    optimizer = torch.optim.LBFGS([weights_P], max_iter=MAX_STEPS)

    def compute_loss() -> Tensor:
        optimizer.zero_grad()
        clamped_P = weights_P.clamp_min(0)
        scores_NK = logp_NKP @ clamped_P - CORRECTION * (clamped_P.sum() - 1) * frequency_K
        loss = nn.functional.cross_entropy(scores_NK, labels_N, reduction="sum")
        loss = loss + SHRINKAGE * (weights_P - 1).square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with one_thread(), torch.enable_grad():
        optimizer.step(compute_loss)  # type: ignore[no-untyped-call]
    fitted_weights = iter(weights_P.detach().clamp_min(0).tolist())
    return [1.0 if logp_NK is None else next(fitted_weights) for logp_NK in held_out]


def _fit_vectors(
    train: Sequence[Labelled],
    labels: Sequence[str],
    vectors: Vectors,
    priors: Sequence[float],
    class_weights: Tensor,
    *,
    N: int,
) -> LinearFit:
    """Fit a logistic regression on the vectors of N items, with weights (D, K)."""
    width = _item_vectors(train[:1], vectors).shape[1]
    sample = train[:: width * N // MAX_VECTOR_VALUES + 1]  # spread evenly
    x_ND = _item_vectors(sample, vectors)
    mean_D = x_ND.mean(0)
    scale_D = x_ND.sub_(mean_D).square().mean(0).sqrt().clamp_min(1e-4)
    x_ND.div_(scale_D)
    linear_fit = _fit_logistic(
        lambda weights_DK, bias_K: x_ND @ weights_DK + bias_K,
        lambda gradient_NK: x_ND.T @ gradient_NK,
        width,
        _label_ids(sample, labels),
        priors=priors if len(sample) == len(train) else priors[:1],
        class_weights=class_weights,
    )
    weights_DK = linear_fit.weights_RK / scale_D.unsqueeze(1)
    return LinearFit(weights_DK, linear_fit.bias_K - mean_D @ weights_DK, linear_fit.held_out_NK)


def _items_by_feature(bags: FeatureBags, rows: int) -> FeatureBags:
    """Return the transpose of `bags`: the items of each of `rows` features. Weighted sums over it
    are gradients, several times as fast as torch's."""
    ends_N = torch.cat([bags.starts_N[1:], torch.tensor([len(bags.rows_M)])])
    items_M = torch.arange(len(ends_N)).repeat_interleave(ends_N - bags.starts_N)
    order_M = bags.rows_M.argsort(stable=True)
    counts_U = bags.rows_M.bincount(minlength=rows)
    return FeatureBags(items_M[order_M], bags.values_M[order_M], counts_U.cumsum(0) - counts_U)


def _label_ids(examples: Sequence[Labelled], labels: Sequence[str]) -> Tensor:
    id_by_label = {label: index for index, label in enumerate(labels)}
    gold = [e.tags or () if isinstance(e, Tagged) else [e.label or ""] for e in examples]
    return torch.tensor([id_by_label[label] for item_labels in gold for label in item_labels])


def _item_vectors(examples: Sequence[Labelled], vectors: Vectors) -> Tensor:
    """Return the vectors of each item (N, D): the layers of a token, or their means over a text;
    for a pair, those of both sentences and their absolute difference."""
    sentences = list(dict.fromkeys(s for example in examples for s in example.sentences if s))
    layers_by_sentence = dict(zip(sentences, vectors(sentences), strict=True)) if sentences else {}
    width = sum(layers.shape[0] * layers.shape[2] for layers in [*layers_by_sentence.values()][:1])

    def concatenate_layers(sentence: Tokens) -> Tensor:
        if not sentence:
            return torch.zeros(0, width)
        layers_LTD = torch.from_numpy(layers_by_sentence[sentence]).float()
        return layers_LTD.transpose(0, 1).flatten(1)

    rows: list[Tensor] = []
    for example in examples:
        if isinstance(example, Tagged):
            rows.append(concatenate_layers(example.tokens))
            continue
        means = [concatenate_layers(text).sum(0) / max(1, len(text)) for text in example.sentences]
        differences = [(means[0] - means[1]).abs()] if isinstance(example, Pair) else []
        rows.append(torch.cat([*means, *differences]).unsqueeze(0))
    return torch.cat(rows)


@lru_cache(maxsize=CACHED_EXAMPLES)
def _hash_example(example: Labelled, hash_count: int) -> tuple[list[int], list[int], list[int]]:
    """Return the hashes below `hash_count` of an example's features, how often each occurs in its
    item, and the number of features of each item."""
    bags = [
        Counter(
            zlib.crc32(feature.encode("utf-8", "backslashreplace")) % hash_count
            for feature in features
        )
        for features in _extract_features(example)
    ]
    hashes_M = [number for bag in bags for number in bag]
    counts_M = [count for bag in bags for count in bag.values()]
    return hashes_M, counts_M, [len(bag) for bag in bags]


def _extract_features(example: Labelled) -> Iterator[list[str]]:
    """Yield the features of each item of an example: the text, or each token."""
    match example:
        case Tagged():
            yield from tagging_features(example.tokens)
        case Classified():
            yield words_and_pairs(example.tokens)
        case Pair():
            premise, hypothesis = (
                words_and_pairs(text) for text in (example.premise, example.hypothesis)
            )
            premise_words = set(premise)
            yield [
                *(f"premise {word}" for word in premise),
                *(f"hypothesis {word}" for word in hypothesis),
                *(f"{'both' if word in premise_words else 'new'} {word}" for word in hypothesis),
            ]


def words_and_pairs(tokens: Tokens) -> list[str]:
    """Return the words of a text in lower case, and each pair of neighbouring words."""
    words = [word.lower() for word in tokens]
    return [*words, *(f"{a} {b}" for a, b in zip(words, words[1:], strict=False))]


def tagging_features(tokens: Tokens) -> Iterator[list[str]]:
    """Yield the features of each token of a sentence."""
    forms = ["", "", *tokens, "", ""]
    words = [word.lower() for word in forms]
    for k in range(2, len(words) - 2):
        word = words[k]
        features = [f"{offset} {words[k + offset]}" for offset in range(-2, 3)]
        features += [
            f"pair {offset} {words[k + offset]} {words[k + offset + 1]}" for offset in (-1, 0)
        ]
        features += [f"around {words[k - 1]} {words[k + 1]}", f"word {forms[k]}"]
        features += [f"shape {offset} {describe_shape(forms[k + offset])}" for offset in (-1, 0, 1)]
        for length in range(1, 5):
            features += [f"begins {word[:length]}", f"ends {word[-length:]}"]
        features += [f"ends {offset} {words[k + offset][-3:]}" for offset in (-1, 1)]
        yield features


def describe_shape(word: str) -> str:
    """Return the shape of a word: its characters by class, with repeats merged, such as `Xx-d`."""
    letters = LETTER.sub(lambda match: "X" if match[0].isupper() else "x", word)
    return REPEATED_CHARACTER.sub(r"\1", re.sub(r"\d", "d", letters))
