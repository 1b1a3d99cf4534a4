"""Coreference: end-to-end span ranking with pruning (Lee et al. 2017).

[x; ELMo] → dropout → biLSTM over each sentence → every span of up to `span_tokens` tokens as
[h_start; h_stop; its width; a weighted sum of its words] → a score of being a mention; the best
`spans_per_token` share is kept → each span is linked to the best of the `antecedents` kept spans
before it, or to none (score 0). Linked spans form a cluster.

Shapes: B sentences, T tokens of the longest, N tokens of the document, W width of x, D width of
other vectors, S spans, L tokens of the longest span, M kept spans, A antecedents of a kept span, F
width of a feature, H hidden units.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from elmo.tasks.examples import Document, Range
from elmo.tasks.inputs import TaskInputs
from elmo.tasks.metrics import Clusters, Tally, tally_coreference, tally_links
from elmo.tasks.model import TaskModel
from elmo.tasks.modules import BidirectionalRNN
from elmo.tasks.settings import TaskSettings
from elmo.tasks.vectors import Vectors

FEATURE_DIM = 20
BUCKETS = (1, 2, 3, 4, 5, 8, 16, 32, 64)  # distances, in kept spans, at which a bucket begins


class CoreferenceModel(TaskModel):
    """A model that finds the coreferent spans of a document; `labels` is empty."""

    def __init__(self, inputs: TaskInputs, labels: Sequence[str], settings: TaskSettings) -> None:
        super().__init__(inputs, labels)
        self.settings = settings
        hidden = settings.hidden
        self.lexical_dropout = nn.Dropout(0.5 if settings.dropout else 0.0)
        self.dropout = nn.Dropout(settings.dropout)
        self.lstm = BidirectionalRNN(inputs.width, hidden)
        state_width = 2 * hidden + inputs.output_width
        # The head is a weighted sum of the words' x, or of [x; ELMo] if there is no x.
        self.head_width = inputs.words_width or inputs.width
        self.head = nn.Linear(state_width, 1)
        self.width = nn.Embedding(settings.span_tokens, FEATURE_DIM)
        self.distance = nn.Embedding(len(BUCKETS) + 1, FEATURE_DIM)
        span_width = 2 * state_width + FEATURE_DIM + self.head_width
        self.mention = _make_scorer(span_width, hidden, settings.dropout)
        self.pair = _make_scorer(3 * span_width + FEATURE_DIM, hidden, settings.dropout)

    def loss(self, examples: Sequence[Document], vectors: Vectors | None) -> Tensor:
        """Return −log of the probability that each span is linked to a correct earlier one
        (antecedent).

        For a span without an antecedent, the correct link is none. The sum is over the spans that
        pruning keeps, in all documents.
        """
        losses = []
        for document in examples:
            passage = self._cut_passage(document) if self.training else document
            spans, scores_MA1, antecedents_MA = self._score_antecedents(passage, vectors)
            cluster_of = {s: k for k, cluster in enumerate(passage.clusters or ()) for s in cluster}
            clusters = [cluster_of.get(span, -1 - m) for m, span in enumerate(spans)]
            cluster_M = torch.tensor(clusters, device=scores_MA1.device)
            is_correct_MA = cluster_M[antecedents_MA.clamp(min=0)] == cluster_M.unsqueeze(1)
            is_correct_MA = is_correct_MA & (antecedents_MA >= 0)
            is_correct_MA1 = torch.cat([~is_correct_MA.any(1, keepdim=True), is_correct_MA], 1)
            log_correct_M = scores_MA1.masked_fill(~is_correct_MA1, float("-inf")).logsumexp(1)
            losses.append((scores_MA1.logsumexp(1) - log_correct_M).sum())
        return torch.stack(losses).sum()

    @torch.inference_mode()
    def answer(
        self, examples: Sequence[Document], vectors: Vectors | None
    ) -> list[tuple[Clusters, list[float]]]:
        """Return the clusters of each document, and for each cluster the lowest probability of its
        links. A cluster is a list of two or more spans (start, stop) of the document's tokens."""
        scored_predictions = []
        for document in examples:
            spans, scores_MA1, antecedents_MA = self._score_antecedents(document, vectors)
            score_M, choice_M = (best_M.tolist() for best_M in scores_MA1.softmax(1).max(1))
            links = [
                (m, int(antecedents_MA[m, choice - 1]))
                for m, choice in enumerate(choice_M)
                if choice > 0
            ]
            clusters = build_clusters(spans, links)
            score_by_span = {spans[m]: score_M[m] for m, _ in links}
            scores = [min(score_by_span.get(span, 1.0) for span in cluster) for cluster in clusters]
            scored_predictions.append((clusters, scores))
        return scored_predictions

    def tally(self, examples: Sequence[Document], predictions: Sequence[Clusters]) -> Tally:
        """Return the tally of the mean F1 of MUC, B³ and CEAF-φ4. For texts of the GAP corpus, it
        is the tally of F1 over the pairs of a pronoun and a name."""
        if examples and all(document.links for document in examples):
            return tally_links([document.links for document in examples], predictions)
        return tally_coreference([document.clusters or () for document in examples], predictions)

    def describe(
        self, example: Document, prediction: Clusters, scores: Sequence[float] | None = None
    ) -> dict[str, Any]:
        """Return a prediction as a dictionary for JSON: id, sentences, clusters, their spans' texts
        and their scores.

        Spans are half-open ranges of the document's tokens.
        """
        tokens = [token for sentence in example.tokens_of for token in sentence]
        texts = [[" ".join(tokens[a:b]) for a, b in cluster] for cluster in prediction]
        return {
            "id": example.id,
            "sentences": example.tokens_of,
            "clusters": prediction,
            "texts": texts,
            **({} if scores is None else {"scores": [round(score, 4) for score in scores]}),
        }

    def _score_antecedents(
        self, document: Document, vectors: Vectors | None
    ) -> tuple[list[Range], Tensor, Tensor]:
        """Return the kept spans, their scores (M, 1 + A) and their antecedents (M, A). The first
        score is for no antecedent, the others are for the antecedents.

        An antecedent of −1 is padding, with a score of −∞.
        """
        batch = self.inputs(document.sentences, vectors)
        x_BTW = self.lexical_dropout(batch.x_BTW)
        h_BTD = self.dropout(self.lstm(x_BTW, batch.mask_BT))
        h_ND = batch.join_elmo(h_BTD, self.dropout)[batch.mask_BT]
        words_BTW = batch.words_BTW if self.inputs.words_width else batch.x_BTW
        words_NW = self.lexical_dropout(words_BTW)[batch.mask_BT]
        spans = candidate_spans(document, self.settings.span_tokens)
        g_SD = self._represent_spans(h_ND, words_NW, spans)
        mention_S = self.mention(g_SD).squeeze(-1)
        kept_indices = self._prune(document, spans, mention_S)
        kept_M = torch.tensor(kept_indices, device=g_SD.device)
        g_MD, mention_M = g_SD[kept_M], mention_S[kept_M]
        previous_M1 = torch.arange(len(kept_indices))[:, None] - 1
        antecedent_count = min(self.settings.antecedents, max(1, len(kept_indices) - 1))
        previous_MA = previous_M1 - torch.arange(antecedent_count)
        antecedents_MA = previous_MA.clamp(min=-1).to(g_SD.device)
        scores_MA = self._score_pairs(g_MD, mention_M, antecedents_MA)
        none_M1 = scores_MA.new_zeros(len(kept_indices), 1)
        return [spans[k] for k in kept_indices], torch.cat([none_M1, scores_MA], 1), antecedents_MA

    def _represent_spans(self, h_ND: Tensor, words_NW: Tensor, spans: Sequence[Range]) -> Tensor:
        """Return the representation of each span, (S, D): [h_start; h_last; width; head]."""
        starts = torch.tensor([start for start, _ in spans], device=h_ND.device)
        stops = torch.tensor([stop for _, stop in spans], device=h_ND.device)
        widths = stops - starts
        tokens_SL = torch.arange(int(widths.max()), device=h_ND.device) + starts[:, None]
        mask_SL = tokens_SL < stops[:, None]
        tokens_SL = tokens_SL.clamp(max=len(h_ND) - 1)
        scores_SL = self.head(h_ND).squeeze(-1)[tokens_SL].masked_fill(~mask_SL, float("-inf"))
        head_SW = (scores_SL.softmax(1).unsqueeze(1) @ words_NW[tokens_SL]).squeeze(1)
        width_S = (widths - 1).clamp(max=self.settings.span_tokens - 1)
        features = [h_ND[starts], h_ND[stops - 1], self.dropout(self.width(width_S)), head_SW]
        return torch.cat(features, -1)

    def _prune(self, document: Document, spans: Sequence[Range], mention_S: Tensor) -> list[int]:
        """Return the indices of the best-scored spans in document order; no two of them cross."""
        if document.links:
            return list(range(len(spans)))
        token_count = sum(map(len, document.tokens_of))
        limit = max(1, int(self.settings.spans_per_token * token_count))
        kept_indices: list[int] = []
        max_stops: dict[int, int] = {}  # start → the largest stop of a kept span
        min_starts: dict[int, int] = {}  # last token → the smallest start of a kept span
        for k in mention_S.detach().argsort(descending=True, stable=True).tolist():
            if len(kept_indices) == limit:
                break
            start, stop = spans[k]
            is_crossing = any(max_stops.get(t, 0) > stop for t in range(start + 1, stop)) or any(
                min_starts.get(t, start) < start for t in range(start, stop - 1)
            )
            if not is_crossing:
                kept_indices.append(k)
                max_stops[start] = max(max_stops.get(start, 0), stop)
                min_starts[stop - 1] = min(min_starts.get(stop - 1, start), start)
        return sorted(kept_indices)

    def _score_pairs(self, g_MD: Tensor, mention_M: Tensor, antecedents_MA: Tensor) -> Tensor:
        """Return m_i + m_j + pair(i, j) for each span and each of its antecedents, (M, A)."""
        is_none_MA = antecedents_MA < 0
        index_MA = antecedents_MA.clamp(min=0)
        distance_MA = torch.arange(len(g_MD), device=g_MD.device)[:, None] - index_MA
        bucket_MA = torch.bucketize(
            distance_MA, torch.tensor(BUCKETS, device=g_MD.device), right=True
        )
        features_MAF = self.dropout(self.distance(bucket_MA))
        pair_MA = self._score_products(g_MD, index_MA, features_MAF)
        scores_MA = mention_M[:, None] + mention_M[index_MA] + pair_MA
        return scores_MA.masked_fill(is_none_MA, float("-inf"))

    def _score_products(self, g_MD: Tensor, index_MA: Tensor, features_MAF: Tensor) -> Tensor:
        """Return the pair network's scores of [g_i; g_j; g_i ∘ g_j; features], (M, A).

        The first layer's products with g_i and g_j are computed once per span, not once per pair.
        """
        input_layer, upper_layers = self.pair[0], self.pair[1:]
        assert isinstance(input_layer, nn.Linear)
        D = g_MD.shape[1]
        span_HD, antecedent_HD, product_HD, features_HF = torch.split(
            input_layer.weight, [D, D, D, FEATURE_DIM], 1
        )
        hidden_MAH = (g_MD.unsqueeze(1) * g_MD[index_MA]) @ product_HD.T
        hidden_MAH = hidden_MAH + (g_MD @ span_HD.T + input_layer.bias).unsqueeze(1)
        hidden_MAH = hidden_MAH + (g_MD @ antecedent_HD.T)[index_MA] + features_MAF @ features_HF.T
        return upper_layers(hidden_MAH).squeeze(-1)

    def _cut_passage(self, document: Document) -> Document:
        """Return a random run of `sentences` sentences of a document; a GAP snippet stays whole."""
        max_sentences, sentence_count = self.settings.sentences, len(document.tokens_of)
        if sentence_count <= max_sentences or document.links:
            return document
        first_sentence = int(torch.randint(sentence_count - max_sentences + 1, ()))
        offset = sum(map(len, document.tokens_of[:first_sentence]))
        sentences = document.tokens_of[first_sentence : first_sentence + max_sentences]
        end = offset + sum(map(len, sentences))
        clusters = tuple(
            tuple((a - offset, b - offset) for a, b in cluster if offset <= a and b <= end)
            for cluster in document.clusters or ()
        )
        return Document(document.source, document.id, sentences, clusters)


def candidate_spans(document: Document, max_tokens: int) -> list[Range]:
    """Return the spans that may be mentions: all spans of at most `max_tokens` tokens within a
    sentence, as ranges of the document's tokens.

    For a text of the GAP corpus, return only the pronoun and the names that it asks about.
    """
    if document.links:
        return sorted({span for link in document.links for span in (link.pronoun, link.name)})
    spans, offset = [], 0
    for sentence in document.tokens_of:
        for start in range(len(sentence)):
            limit = min(start + max_tokens, len(sentence))
            spans += [(offset + start, offset + stop) for stop in range(start + 1, limit + 1)]
        offset += len(sentence)
    return spans


def build_clusters(spans: Sequence[Range], links: Sequence[tuple[int, int]]) -> Clusters:
    """Return the clusters of linked spans, each with its spans in order.

    A link is a pair of indices into `spans`: a later span and its antecedent.
    """
    cluster_by_span: dict[int, list[int]] = {}
    for span, antecedent in links:
        cluster = cluster_by_span.setdefault(antecedent, [antecedent])
        cluster.append(span)
        cluster_by_span[span] = cluster
    groups = {id(cluster): sorted(cluster) for cluster in cluster_by_span.values()}
    return sorted([spans[k] for k in group] for group in groups.values())


def _make_scorer(width: int, hidden: int, dropout: float) -> nn.Sequential:
    """Build a feed-forward network with two ReLU layers and one output."""
    return nn.Sequential(
        nn.Linear(width, hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, 1),
    )
