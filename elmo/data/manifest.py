"""The manifest of a shards folder: its files, their content, and the text they were made from."""

from collections.abc import Sequence
from typing import Literal, TypedDict

import msgspec
from msgspec import Struct

from elmo.data.tokenizer import Tokenization
from elmo.errors import ElmoError
from elmo.io.location import Location
from elmo.io.records import Count, FileName, Header, Sha256

SHARDS_SCHEMA_VERSION = 2
Split = Literal["train", "heldout"]
SPLITS: tuple[Split, Split] = ("train", "heldout")


class ShardEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest entry of a shard file; `types` is the number of distinct tokens, `bytes` the
    size of the file.

    Readers add the two offsets to the ids stored in the file. `first_sentence_id` and
    `last_sentence_id` already include the offset.
    """

    file: FileName
    split: Split
    sentences: Count
    tokens: Count
    types: Count
    sentence_offset: Count
    document_offset: Count
    first_sentence_id: Count
    last_sentence_id: Count
    bytes: Count
    sha256: Sha256

    def with_corpus_position(self, *, sentences_before: int, documents_before: int) -> "ShardEntry":
        """Return this entry with its position in the whole corpus.

        `sentences_before` and `documents_before` count what precedes the shard in the corpus.
        """
        return msgspec.structs.replace(
            self,
            sentence_offset=sentences_before,
            document_offset=documents_before,
            first_sentence_id=self.first_sentence_id + sentences_before,
            last_sentence_id=self.last_sentence_id + sentences_before,
        )


class DroppedText(Struct, frozen=True, forbid_unknown_fields=True):
    """The lines and bytes of the input text that were dropped for one reason."""

    lines: Count
    bytes: Count


class ShardsCounts(Struct, frozen=True, forbid_unknown_fields=True):
    """The totals of a corpus; every byte of the input is either in a token or counted as dropped.

    `bytes` is the size of the input, and `token_bytes` the size of all tokens in UTF-8. `dropped`
    has the lines and bytes that were left out, by reason.
    """

    documents: Count
    sentences: Count
    blank_lines: Count
    tokens: Count
    bytes: Count
    token_bytes: Count
    dropped: dict[str, DroppedText]


class SplitCounts(Struct, frozen=True, forbid_unknown_fields=True):
    """The totals of one split of a corpus, `train` or `heldout`."""

    documents: Count
    sentences: Count
    tokens: Count


class CorpusFile(Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the input corpus: its name, its size in bytes and the SHA-256 of its content."""

    name: str
    bytes: Count
    sha256: Sha256


class TokenizerEntry(Tokenization, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The tokenization of the corpus, and two settings of the stage that affect no token.
    `documents` is the unit that is held out as a whole, such as `file`; `heldout` is the share of
    documents held out (None: not recorded)."""

    documents: str = ""
    heldout: float | None = None

    def tokenization(self) -> Tokenization:
        """Return the tokenization alone, without the two settings of the stage."""
        fields = {name: getattr(self, name) for name in Tokenization.__struct_fields__}
        return Tokenization(**fields)


class TextQuality(TypedDict, total=False):
    """Statistics of a text's quality; empty if the shards were not made from text.

    `duplicate_share` is the share of repeated sentences among the `duplicates_sampled` that were
    compared. `decomposed_tokens` are not in the Unicode form NFC; `wrapped_lines` end within a
    sentence. Sentences count as not text if most of their tokens have no letter; `scripts` counts
    the others by their main script.
    """

    duplicate_share: float
    duplicates_sampled: int
    decomposed_tokens: int
    wrapped_lines: int
    not_text_sentences: int
    scripts: dict[str, int]


class ShardsManifest(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a shards folder's `manifest.json`; `inputs` are the files of its text."""

    kind: Literal["shards"]
    schema: Count
    tokenizer: TokenizerEntry
    counts: ShardsCounts
    quality: TextQuality
    splits: dict[Split, SplitCounts]
    shards: tuple[ShardEntry, ...]
    inputs: tuple[CorpusFile, ...]


def read_shards_manifest(folder: Location) -> ShardsManifest:
    """Read the manifest of a shards folder; raise `ElmoError` if the folder is of another kind."""
    path = folder.path_of("manifest.json")
    header = folder.read_record("manifest.json", Header)
    if header.kind != "shards":
        raise ElmoError(f"{path}: is not the manifest of a shards folder; name another")
    header.check_version(path, "schema", SHARDS_SCHEMA_VERSION, remedy="make the shards again")
    return folder.read_record("manifest.json", ShardsManifest)


def write_manifest(
    folder: Location,
    *,
    shards: Sequence[ShardEntry],
    documents_by_split: dict[Split, int],
    tokenizer: TokenizerEntry,
    counts: ShardsCounts,
    inputs: Sequence[CorpusFile],
    quality: TextQuality,
) -> None:
    """Write `manifest.json` of a shards folder; call it last, once every shard is written.

    `documents_by_split` has the number of documents of each split.
    """
    manifest = ShardsManifest(
        kind="shards",
        schema=SHARDS_SCHEMA_VERSION,
        tokenizer=tokenizer,
        counts=counts,
        quality=quality,
        splits={
            split: SplitCounts(
                documents=documents_by_split[split],
                sentences=sum(entry.sentences for entry in shards if entry.split == split),
                tokens=sum(entry.tokens for entry in shards if entry.split == split),
            )
            for split in SPLITS
        },
        shards=tuple(shards),
        inputs=tuple(inputs),
    )
    folder.write_json("manifest.json", msgspec.to_builtins(manifest))
