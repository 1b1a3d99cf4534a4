"""The input of all task models: [x; ELMo] for each token, where x is a word vector and the output
of a character CNN.

Shapes: B sentences, T tokens of the longest, W width of x, L layers, D their width, N distinct
tokens, K characters of a token, F filters.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from elmo.data.characters import Characters
from elmo.errors import ElmoError
from elmo.io.text_files import numbered_lines
from elmo.model.mix import ScalarMix
from elmo.nn.device import device_tensor
from elmo.tasks.examples import Tokens
from elmo.tasks.settings import TaskSettings
from elmo.tasks.vectors import Vectors

PAD, UNKNOWN = "<pad>", "<unk>"
CHARACTER_VOCABULARY = Characters(max_characters=22)
CHARACTER_DIM = 16
MAX_FILE_WORDS = 400_000  # the first words of a vector file are kept: all of GloVe 6B


class EncodedBatch(NamedTuple):
    """A padded batch of B sentences of up to T tokens; `mask_BT` is true where there is a token.

    `x_BTW` is the input of a model, [x; ELMo]; `words_BTW` is x alone. Both are 0 in the padding.
    `elmo_BTD` is the ELMo mix to add at the output, or None if ELMo is not used there.
    """

    x_BTW: Tensor
    words_BTW: Tensor
    elmo_BTD: Tensor | None
    mask_BT: Tensor

    def join_elmo(self, h_BTD: Tensor, dropout: nn.Module | None = None) -> Tensor:
        """Return [h; ELMo], the output of a layer joined with the ELMo mix after `dropout`; h alone
        if ELMo is not used at the output."""
        if self.elmo_BTD is None:
            return h_BTD
        return torch.cat([h_BTD, dropout(self.elmo_BTD) if dropout else self.elmo_BTD], -1)


class WordTable(NamedTuple):
    """The words that a task model knows, PAD and UNKNOWN first, and their initial vectors (words,
    dim); None for random vectors."""

    words: list[str]
    vectors: npt.NDArray[np.float32] | None


class CharacterCNN(nn.Module):
    """A character CNN: filters of width 3 over a token's characters, and their maximum over the
    token."""

    def __init__(self, filters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTER_VOCABULARY.size, CHARACTER_DIM)
        self.convolution = nn.Conv1d(CHARACTER_DIM, filters, 3)

    def forward(self, ids_NK: Tensor) -> Tensor:
        """Map the character ids of N tokens, (N, K), to vectors (N, F) of F filters."""
        features_NFK = self.convolution(self.embedding(ids_NK).transpose(1, 2))
        return features_NFK.relu().amax(-1)


class TaskInputs(nn.Module):
    """The input layer of all task models: [x; ELMo] for each token, and the ELMo mix for the
    output.

    x is a word vector and the output of a character CNN. The input and the output have their own
    mix weights. `layers` and `dim` are the shape of the vectors passed to `forward`.
    """

    def __init__(
        self, settings: TaskSettings, table: WordTable, *, layers: int = 0, dim: int = 0
    ) -> None:
        super().__init__()
        self.settings = settings
        self._id_by_word = {word: k for k, word in enumerate(table.words)}
        self.embedding = None
        if settings.words != "none":
            self.embedding = nn.Embedding(len(table.words), settings.word_dim, padding_idx=0)
            if table.vectors is not None:
                self.embedding.weight.data.copy_(torch.from_numpy(table.vectors))
            self.embedding.weight.requires_grad_(settings.words == "learned")
        self.characters = CharacterCNN(settings.characters) if settings.characters else None
        self.words_width = settings.characters
        self.words_width += settings.word_dim if self.embedding is not None else 0
        mix_count = 0 if settings.elmo == "none" else settings.elmo_input + settings.elmo_output
        self.own_mixes = nn.ModuleList(
            ScalarMix(layers, layer_norm=settings.layer_norm) for _ in range(mix_count)
        )
        if settings.mix == "average":
            for mix in self.mixes:
                mix.weights.requires_grad_(False)
        self.width = self.words_width + (dim if mix_count and settings.elmo_input else 0)
        self.output_width = dim if mix_count and settings.elmo_output else 0
        self.dropout = nn.Dropout(settings.elmo_dropout)

    @property
    def mixes(self) -> list[ScalarMix]:
        """Return the modules that mix ELMo's layers, for the input, the output, or both."""
        return [mix for mix in self.own_mixes if isinstance(mix, ScalarMix)]

    def forward(self, sentences: Sequence[Tokens], vectors: Vectors | None) -> EncodedBatch:
        """Encode token lists as a padded batch; `vectors` returns their ELMo layers, (layers,
        tokens, dim) each, and is None without ELMo."""
        device = next(self.parameters()).device
        lengths = torch.tensor([len(sentence) for sentence in sentences])
        mask_BT = (torch.arange(int(lengths.max())) < lengths[:, None]).to(device)
        words_BTW = self._encode_words(sentences, mask_BT)
        mixes = [self.dropout(mix_BTD) for mix_BTD in self._mix_elmo(sentences, vectors, mask_BT)]
        input_mixes = mixes[: int(self.settings.elmo_input)]
        elmo_BTD = mixes[-1] if mixes and self.settings.elmo_output else None
        return EncodedBatch(torch.cat([words_BTW, *input_mixes], -1), words_BTW, elmo_BTD, mask_BT)

    def l2(self) -> Tensor:
        """Return the L2 penalty λ·Σw² on the weights w that mix ELMo's layers, over all mixes; λ is
        the setting `l2`."""
        penalties = [mix.l2() for mix in self.mixes]
        return self.settings.l2 * torch.stack(penalties).sum() if penalties else torch.zeros(())

    def _encode_words(self, sentences: Sequence[Tokens], mask_BT: Tensor) -> Tensor:
        parameter = next(self.parameters())
        types = list(dict.fromkeys(token for sentence in sentences for token in sentence))
        x_parts = [parameter.new_zeros(len(types), 0)]
        if self.embedding is not None:
            ids = torch.tensor([self._word_id(token) for token in types], device=parameter.device)
            x_parts.append(self.embedding(ids))
        if self.characters is not None:
            ids_NK = torch.from_numpy(CHARACTER_VOCABULARY.encode(types)).long()
            x_parts.append(self.characters(ids_NK.to(parameter.device)))
        row_by_token = {token: k for k, token in enumerate(types)}
        index_BT = torch.zeros(mask_BT.shape, dtype=torch.long)
        for row, sentence in enumerate(sentences):
            index_BT[row, : len(sentence)] = torch.tensor([row_by_token[t] for t in sentence])
        x_BTW = torch.cat(x_parts, -1)[index_BT.to(parameter.device)]
        return x_BTW * mask_BT.unsqueeze(-1)

    def _word_id(self, token: str) -> int:
        """Return the id of a word, or of its lower case if the vector file has only that."""
        lowercase_token = token.lower() if self.settings.words == "file" else token
        return self._id_by_word.get(token) or self._id_by_word.get(lowercase_token, 1)

    def _mix_elmo(
        self, sentences: Sequence[Tokens], vectors: Vectors | None, mask_BT: Tensor
    ) -> list[Tensor]:
        """Return one ELMo mix (B, T, D) for each position where ELMo is used."""
        if not self.own_mixes:
            return []
        assert vectors is not None
        layer_arrays = vectors(sentences)
        L, _, D = layer_arrays[0].shape
        padded_BLTD = np.zeros((len(layer_arrays), L, mask_BT.shape[1], D), layer_arrays[0].dtype)
        for row, layers in enumerate(layer_arrays):
            padded_BLTD[row, :, : layers.shape[1]] = layers
        # The vectors stay float16 until they are on the device, to copy fewer bytes.
        layers_LBTD = device_tensor(padded_BLTD, mask_BT.device).transpose(0, 1)
        layers_LBTD = layers_LBTD.to(next(self.parameters()).dtype)
        return [mix(layers_LBTD, mask_BT) * mask_BT.unsqueeze(-1) for mix in self.mixes]


def build_word_table(settings: TaskSettings, train: Iterable[Tokens]) -> WordTable:
    """Return the words of a task model: those of `train`, the token lists of the training text, or
    those of a vector file, where PAD is zeros and UNKNOWN the mean of all vectors.

    Words of the dev text are not added, so that dev has unknown words as test has.
    """
    if settings.words == "none":
        return WordTable([PAD, UNKNOWN], None)
    train = list(train)
    counts = Counter(token for sentence in train for token in sentence)
    if settings.words == "file":
        task_words = {*counts, *(token.lower() for token in counts)}
        path = Path(settings.word_file)
        words, vectors = read_word_vectors(path, task_words, dim=settings.word_dim)
        special_vectors = np.stack([np.zeros_like(vectors[0]), vectors.mean(0)])
        return WordTable([PAD, UNKNOWN, *words], np.concatenate([special_vectors, vectors]))
    words = sorted(word for word, count in counts.items() if count >= settings.min_count)
    return WordTable([PAD, UNKNOWN, *words], None)


def read_word_vectors(
    path: Path, task_words: set[str], *, dim: int
) -> tuple[list[str], npt.NDArray[np.float32]]:
    """Read the words and vectors (words, dim) of a word2vec or GloVe text file whose vectors have
    `dim` numbers.

    The words in `task_words` and the first `MAX_FILE_WORDS` (400,000) words of the file are kept.
    Raises `ElmoError` for a malformed line.
    """
    row_by_word: dict[str, int] = {}
    rows: list[npt.NDArray[np.float32]] = []
    for number, line in numbered_lines(path):
        fields = line.rstrip(" ").rsplit(" ", dim)
        if number == 1 and len(line.split()) == 2 and dim != 1:
            if line.split()[1] != str(dim):
                raise ElmoError(
                    f"{path}:1: has {line.split()[1]} numbers per word, but word_dim is {dim}; set "
                    f"word_dim={line.split()[1]}"
                )
            continue
        try:
            vector = np.array(fields[1:], np.float32)
        except ValueError:
            vector = np.empty(0, np.float32)
        if len(vector) != dim or not np.isfinite(vector).all() or not fields[0]:
            raise ElmoError(
                f"{path}:{number}: must be a word and {dim} numbers; set "
                "word_dim to the width of the vectors"
            )
        if (number <= MAX_FILE_WORDS or fields[0] in task_words) and fields[0] not in row_by_word:
            row_by_word[fields[0]] = len(row_by_word)
            rows.append(vector)
    if not row_by_word:
        raise ElmoError(f"{path}: holds no vectors; name another file")
    return list(row_by_word), np.stack(rows)
