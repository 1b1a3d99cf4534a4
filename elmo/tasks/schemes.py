"""Conversion between spans and their tags, in the schemes BIO, IOB1 and BIOES.

BIO begins every span with B-. IOB1 (CoNLL-2003) begins one with B- only if it directly follows a
span of the same label. BIOES also marks the end of a span (E-) and a span of one token (S-); BILOU
and BMES do the same with other letters.
"""

import re
from collections.abc import Iterable, Sequence, Set

from elmo.errors import ElmoError
from elmo.tasks.examples import Span

SCHEMES = ("bio", "iob1", "bioes", "plain")
_SPAN_TAG = re.compile(r"O|[BIESLUM]-\S+")
_BIOES_LETTERS = str.maketrans("LUM", "ESI")  # converts the letters of BILOU and BMES
# Letters of other scripts that look like these letters match too.
_MARK_TAG = re.compile(
    r"[BIESLUM][\W_]\S+|[^\W\d_a-z]-\S+|\S+[\W_][BIESLUM]|[BIESLUM]", re.IGNORECASE
)
_OUTSIDE_TAG = re.compile(r"[O0_\u039f\u041e-]", re.IGNORECASE)


class TagError(ElmoError):
    """A tag that its scheme forbids; `position` is the index of its token."""

    def __init__(self, position: int, message: str) -> None:
        super().__init__(message)
        self.position = position


def detect_scheme(sentences: Iterable[Sequence[str]]) -> str:
    """Return the scheme of a file's tags, or `plain` if they mark no spans, as part-of-speech tags
    do; `sentences` are the tags of each sentence.

    Without E- and S- tags, the scheme is IOB1 if no span begins with an unnecessary B-, else BIO.
    """
    letters: set[str] = set()
    has_stray_inside = has_needless_begin = False
    for tags in sentences:
        previous_tag = "O"
        for tag in tags:
            if not _SPAN_TAG.fullmatch(tag):
                return "plain"
            letters.add(tag[0].translate(_BIOES_LETTERS))
            is_continued = previous_tag[1:] == tag[1:] and previous_tag != "O"
            has_stray_inside = has_stray_inside or (tag[0] == "I" and not is_continued)
            has_needless_begin = has_needless_begin or (tag[0] == "B" and not is_continued)
            previous_tag = tag
    if letters & {"E", "S"}:
        return "bioes"
    return "iob1" if has_stray_inside and not has_needless_begin else "bio"


def find_misfit_tags(tags: Set[str]) -> set[str]:
    """Return the tags that look like span tags but fit no scheme; none if the tags do not seem to
    mark spans. `tags` are a file's distinct tags.

    They seem to mark spans if one of them is B-LABEL, or if all of them look like span tags
    (`B_PER`, `b-per`, `PER-B`, a Cyrillic letter, or `B` alone) or outside tags (`O`, `0`, `_`).
    """
    misfit_tags = {tag for tag in tags if not _SPAN_TAG.fullmatch(tag)}
    outside_tags = {tag for tag in tags if _OUTSIDE_TAG.fullmatch(tag.strip())}
    mark_tags = {tag for tag in tags - outside_tags if _MARK_TAG.fullmatch(tag.strip())}
    b_tags = {tag for tag in mark_tags if "b" in tag.strip()[0].lower() + tag.strip()[-1].lower()}
    if b_tags - misfit_tags:
        return misfit_tags
    is_meant = b_tags or any("-" in tag for tag in mark_tags)
    return misfit_tags if is_meant and mark_tags | outside_tags == tags else set()


def spans_of_tags(tags: Sequence[str], scheme: str) -> list[Span]:
    """Return the spans that the tags of one sentence mark in `scheme` (`bio`, `iob1` or `bioes`);
    raise `TagError` for a tag that the scheme forbids."""
    spans: list[Span] = []
    start, label, is_inside = 0, "", False
    for position, tag in enumerate(tags):
        kind, name = _split_tag(tag, position, scheme)
        is_continued = is_inside and name == label and kind in "IE"
        if kind in "IE" and not is_continued and not (scheme == "iob1" and kind == "I"):
            predecessor = tags[position - 1] if position else "the beginning of the sentence"
            raise TagError(position, f"tag {tag} follows {predecessor}, which {scheme} forbids")
        if is_inside and not is_continued:
            if scheme == "bioes":
                raise TagError(
                    position, f"tag {tag} follows {tags[position - 1]}, but no E- tag ends its span"
                )
            spans.append(Span(start, position, label))
        if kind != "O" and not is_continued:
            start, label = position, name
        is_inside = kind in "BI"
        if kind in "ES":
            spans.append(Span(start, position + 1, label))
    if is_inside:
        if scheme == "bioes":
            end = len(tags) - 1
            raise TagError(end, f"tag {tags[end]} ends the sentence, but bioes ends a span with E-")
        spans.append(Span(start, len(tags), label))
    return spans


def lenient_spans(tags: Sequence[str]) -> list[Span]:
    """Return the spans of BIO tags like conlleval: an I- that continues no span begins one."""
    spans: list[Span] = []
    for position, tag in enumerate(tags):
        if tag == "O":
            continue
        kind, label = tag[0], tag[2:]
        if kind == "I" and spans and spans[-1][1:] == (position, label):
            spans[-1] = Span(spans[-1].start, position + 1, label)
        else:
            spans.append(Span(position, position + 1, label))
    return spans


def to_bio(spans: Iterable[Span], length: int) -> tuple[str, ...]:
    """Return the BIO tags of spans over `length` tokens; raise `ElmoError` if spans overlap."""
    tags = ["O"] * length
    for start, stop, label in spans:
        if set(tags[start:stop]) != {"O"}:
            raise ElmoError(f"spans overlap at token {start}")
        tags[start:stop] = [f"B-{label}", *[f"I-{label}"] * (stop - start - 1)]
    return tuple(tags)


def to_bioes(spans: Iterable[Span], length: int) -> tuple[str, ...]:
    """Return the BIOES tags of spans over `length` tokens; raise `ElmoError` if spans overlap."""
    spans = list(spans)
    tags = list(to_bio(spans, length))
    for start, stop, label in spans:
        tags[stop - 1] = f"{'S' if stop - start == 1 else 'E'}-{label}"
    return tuple(tags)


def may_follow(previous_tag: str | None, next_tag: str | None) -> bool:
    """Tell whether BIOES allows `next_tag` directly after `previous_tag`; None stands for the
    beginning or end of the sentence."""
    kind, label = (previous_tag or "O")[0], (previous_tag or "O")[2:]
    if kind in "BI":
        return next_tag is not None and next_tag[0] in "IE" and next_tag[2:] == label
    return next_tag is None or next_tag[0] in "OBS"


def _split_tag(tag: str, position: int, scheme: str) -> tuple[str, str]:
    if not _SPAN_TAG.fullmatch(tag):
        raise TagError(position, f"tag {tag!r} is neither O nor of the form B-LABEL")
    kind = tag[0].translate(_BIOES_LETTERS)
    letters = "OBIES" if scheme == "bioes" else "OBI"
    if kind not in letters:
        raise TagError(position, f"tag {tag} does not belong to the scheme {scheme}")
    return kind, tag[2:]
