"""Question answering: bidirectional attention flow with self-attention (Clark and Gardner 2018).

A shared biGRU reads paragraph and question → [h; ELMo] → attention from the paragraph to the
question and back → a ReLU layer → a residual branch of a biGRU and self-attention, in which a token
may also attend to nothing → a biGRU for the start and another for the end.

Shapes: B questions, T tokens of paragraphs, Q tokens of questions, W width of x, D width of other
vectors, S sides of an answer (its start and its end).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from elmo.tasks.examples import Question, Range
from elmo.tasks.inputs import EncodedBatch, TaskInputs
from elmo.tasks.metrics import Tally, tally_answers
from elmo.tasks.model import TaskModel
from elmo.tasks.modules import BidirectionalRNN, SharedDropout, masked_softmax
from elmo.tasks.settings import TaskSettings
from elmo.tasks.vectors import Vectors


class TrilinearSimilarity(nn.Module):
    """The similarity of each paragraph token c to each question token q: u·c + v·q + (w ∘ c)·q,
    with learned vectors u, v and w."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.left = nn.Linear(width, 1, bias=False)
        self.right = nn.Linear(width, 1, bias=False)
        self.both_D = nn.Parameter(torch.empty(1, width))
        nn.init.xavier_uniform_(self.both_D)

    def forward(self, c_BTD: Tensor, q_BQD: Tensor) -> Tensor:
        """Return the similarity (B, T, Q) of tokens (B, T, D) and (B, Q, D)."""
        return self.left(c_BTD) + self.right(q_BQD).mT + (c_BTD * self.both_D) @ q_BQD.mT


class SelfAttention(nn.Module):
    """Attention of a paragraph's tokens to each other, in which a token may also attend to nothing.
    "Nothing" has a learned score in the softmax.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.similarity = TrilinearSimilarity(width)
        self.nothing = nn.Parameter(torch.tensor(-1.0))
        self.join = nn.Linear(3 * width, width)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        """Return each token's vector joined with the vector that it attends to, (B, T, D)."""
        B, T, _ = x_BTD.shape
        is_self_TT = torch.eye(T, dtype=torch.bool, device=x_BTD.device)
        scores_BTT = self.similarity(x_BTD, x_BTD)
        scores_BTT = scores_BTT.masked_fill(~mask_BT.unsqueeze(1) | is_self_TT, float("-inf"))
        nothing_BT1 = self.nothing.expand(B, T, 1)
        attention_BTT = torch.cat([scores_BTT, nothing_BT1], -1).softmax(-1)[:, :, :-1]
        attended_BTD = attention_BTT @ x_BTD
        return self.join(torch.cat([attended_BTD, x_BTD, attended_BTD * x_BTD], -1)).relu()


class QuestionsModel(TaskModel):
    """A model that finds the answer to a question in a paragraph; `labels` is empty."""

    def __init__(self, inputs: TaskInputs, labels: Sequence[str], settings: TaskSettings) -> None:
        super().__init__(inputs, labels)
        self.answer_tokens = settings.answer_tokens
        hidden = settings.hidden
        self.dropout = SharedDropout(settings.dropout)
        self.encoder = BidirectionalRNN(inputs.width, hidden, gru=True)
        width = 2 * hidden + inputs.output_width
        self.similarity = TrilinearSimilarity(width)
        self.join = nn.Linear(4 * width, 2 * hidden)
        self.again = BidirectionalRNN(2 * hidden, hidden, gru=True)
        self.self_attention = SelfAttention(2 * hidden)
        self.start_rnn = BidirectionalRNN(2 * hidden, hidden, gru=True)
        self.end_rnn = BidirectionalRNN(4 * hidden, hidden, gru=True)
        self.start = nn.Linear(2 * hidden, 1, bias=False)
        self.end = nn.Linear(2 * hidden, 1, bias=False)

    def loss(self, examples: Sequence[Question], vectors: Vectors | None) -> Tensor:
        """Return the cross-entropy of the start plus that of the end, averaged over the batch."""
        start_BT, end_BT = self._logits(examples, vectors)
        spans = [example.answer for example in examples if example.answer is not None]
        starts = torch.tensor([start for start, _ in spans], device=start_BT.device)
        last_tokens = torch.tensor([stop - 1 for _, stop in spans], device=start_BT.device)
        cross_entropy = nn.functional.cross_entropy
        return cross_entropy(start_BT, starts) + cross_entropy(end_BT, last_tokens)

    @torch.inference_mode()
    def answer(
        self, examples: Sequence[Question], vectors: Vectors | None
    ) -> list[tuple[Range, float]]:
        """Return for each question the best span (start, stop) of at most `answer_tokens` tokens in
        its paragraph, and the probability of this span among all such spans.

        If the question or its paragraph has no tokens, the span is empty and the probability 0.
        """
        readable_examples = [example for example in examples if all(example.sentences)]
        if not readable_examples:
            return [((0, 0), 0.0)] * len(examples)
        start_BT, end_BT = self._logits(readable_examples, vectors)
        spans = iter(best_spans(start_BT, end_BT, self.answer_tokens))
        return [next(spans) if all(example.sentences) else ((0, 0), 0.0) for example in examples]

    def tally(self, examples: Sequence[Question], predictions: Sequence[Range]) -> Tally:
        """Return the tally of F1 and exact match against all reference answers."""
        texts = [e.text_of(*span) for e, span in zip(examples, predictions, strict=True)]
        return tally_answers([example.answers or () for example in examples], texts)

    def describe(
        self, example: Question, prediction: Range, scores: float | None = None
    ) -> dict[str, Any]:
        """Return a prediction as a dictionary for JSON: the question's id, the answer as text, its
        character offset in the paragraph (−1 if the answer is empty), and its score."""
        start, stop = prediction
        start = example.offsets[start][0] if start < stop else -1
        answer = {"id": example.id, "answer": example.text_of(*prediction), "answer_start": start}
        return answer if scores is None else answer | {"score": round(scores, 4)}

    def _logits(
        self, examples: Sequence[Question], vectors: Vectors | None
    ) -> tuple[Tensor, Tensor]:
        """Return the logits of the start and of the end, (B, T); −∞ beyond the paragraph."""
        paragraph = self.inputs([example.tokens for example in examples], vectors)
        question = self.inputs([example.question for example in examples], vectors)
        mask_BT = paragraph.mask_BT
        x_BTD = self._attend(
            self._encode(paragraph), self._encode(question), mask_BT, question.mask_BT
        )
        branch_BTD = self.dropout(self.again(self.dropout(x_BTD), mask_BT))
        x_BTD = self.dropout(x_BTD + self.self_attention(branch_BTD, mask_BT))
        start_BTD = self.start_rnn(x_BTD, mask_BT)
        end_BTD = self.end_rnn(torch.cat([x_BTD, start_BTD], -1), mask_BT)
        start_BT = self.start(start_BTD).squeeze(-1).masked_fill(~mask_BT, float("-inf"))
        end_BT = self.end(end_BTD).squeeze(-1).masked_fill(~mask_BT, float("-inf"))
        return start_BT, end_BT

    def _encode(self, batch: EncodedBatch) -> Tensor:
        h_BTD = self.dropout(self.encoder(self.dropout(batch.x_BTW), batch.mask_BT))
        return batch.join_elmo(h_BTD)

    def _attend(self, c_BTD: Tensor, q_BQD: Tensor, c_mask_BT: Tensor, q_mask_BQ: Tensor) -> Tensor:
        """Apply bidirectional attention between paragraph and question."""
        scores_BTQ = self.similarity(c_BTD, q_BQD)
        attended_BTD = masked_softmax(scores_BTQ, q_mask_BQ.unsqueeze(1)) @ q_BQD
        max_score_BT = scores_BTQ.masked_fill(~q_mask_BQ.unsqueeze(1), float("-inf")).amax(-1)
        summary_B1D = masked_softmax(max_score_BT, c_mask_BT).unsqueeze(1) @ c_BTD
        parts = [c_BTD, attended_BTD, c_BTD * attended_BTD, c_BTD * summary_B1D]
        return self.join(torch.cat(parts, -1)).relu()


def best_spans(start_BT: Tensor, end_BT: Tensor, max_tokens: int) -> list[tuple[Range, float]]:
    """Return the best span (start, stop) of each row, and its probability among all spans of at
    most `max_tokens` tokens. The best span has the largest sum of the logits of its first and last
    tokens."""
    B, T = start_BT.shape
    is_span_TT = torch.ones(T, T, dtype=torch.bool, device=start_BT.device)
    is_span_TT = is_span_TT.triu().tril(max_tokens - 1)
    sums_BTT = start_BT.unsqueeze(2) + end_BT.unsqueeze(1)
    sums_BS = sums_BTT.masked_fill(~is_span_TT, float("-inf")).view(B, -1)
    best_B = sums_BS.argmax(1)
    scores = sums_BS.softmax(1).gather(1, best_B.unsqueeze(1)).squeeze(1).tolist()
    spans = [(index // T, index % T + 1) for index in best_B.tolist()]
    return list(zip(spans, scores, strict=True))
