"""Account for every byte of a text: it is in a token, or dropped for a counted reason."""

from collections.abc import Iterable

from msgspec import Struct, field

from elmo.data.manifest import DroppedText, ShardsCounts
from elmo.io.records import Count


class Accounting(Struct):
    """Counts of the bytes of a text or a part of it, each in a token or left out for a reason.

    `bytes` counts all bytes read: `mark` those of byte order marks, `fields` those outside the text
    of records, `blank_bytes` those of blank lines, `space_bytes` white space in other lines, and
    `lost_bytes` those that the tokenizer dropped. `left_out` counts the lines left out, by reason.
    `lines` includes these and blank lines; `document_ids` includes blank documents.
    `added_newlines` counts newlines that are not in the file.
    """

    bytes: Count = 0
    mark: Count = 0
    fields: Count = 0
    added_newlines: Count = field(default=0, name="added")
    lines: Count = 0
    blank_lines: Count = 0
    blank_bytes: Count = 0
    space_bytes: Count = 0
    lost_bytes: Count = 0
    token_bytes: Count = 0
    tokens: Count = 0
    sentences: Count = 0
    document_ids: Count = 0
    train_documents: Count = 0
    heldout_documents: Count = 0
    left_out: dict[str, DroppedText] = {}

    def leave_out(self, reason: str, count: DroppedText) -> None:
        """Count lines that are left out for a reason."""
        earlier_count = self.left_out.get(reason, DroppedText(0, 0))
        self.left_out[reason] = DroppedText(
            earlier_count.lines + count.lines, earlier_count.bytes + count.bytes
        )

    def counts(self) -> ShardsCounts:
        """Return the counts as a manifest records them; each byte read is counted once."""
        newlines = self.lines - self.added_newlines
        dropped_by_reason = {
            "blank": DroppedText(self.blank_lines, self.blank_bytes),
            "newline": DroppedText(newlines, newlines),
            "space": DroppedText(0, self.space_bytes),
            "fields": DroppedText(0, self.fields),
            "mark": DroppedText(0, self.mark),
            "tokenizer": DroppedText(0, self.lost_bytes),
            "copy": DroppedText(0, 0),
            **self.left_out,
        }
        total = self.token_bytes + sum(reason.bytes for reason in dropped_by_reason.values())
        assert total == self.bytes, f"{self.bytes} bytes read, {total} accounted for"
        return ShardsCounts(
            documents=self.train_documents + self.heldout_documents,
            sentences=self.sentences,
            blank_lines=self.blank_lines,
            tokens=self.tokens,
            bytes=self.bytes,
            token_bytes=self.token_bytes,
            dropped=dropped_by_reason,
        )


def sum_accounts(accounts: Iterable[Accounting]) -> Accounting:
    """Return the sum of several accounts."""
    total = Accounting()
    for account in accounts:
        for reason, count in account.left_out.items():
            total.leave_out(reason, count)
        for name in Accounting.__struct_fields__:
            if name != "left_out":
                setattr(total, name, getattr(total, name) + getattr(account, name))
    return total
