"""A text that is made dirty holds what is said of it, and the score counts what was left out."""

from collections import Counter

from benchmarks.dirty_text import HEADER, make_dirty, score_filters


def test_what_is_put_in_is_what_is_counted() -> None:
    words = [f"word{k}" for k in range(100)]
    texts = [" ".join([f"begin{number}", *words]) for number in range(200)]
    clean = [{"id": k, "kind": "", "of": -1, "text": text} for k, text in enumerate(texts)]
    dirty = make_dirty(clean, 0.1)
    kinds = Counter(record["kind"] for record in dirty)
    assert kinds["copy"] == kinds["near"] == 10 and min(kinds["symbols"], kinds["script"]) > 0
    assert sum(record["text"].startswith(HEADER) for record in dirty) > 30
    text_by_id = {record["id"]: record["text"].removeprefix(f"{HEADER}\n") for record in dirty}
    for record in dirty:
        if record["of"] >= 0:
            pairs = zip(record["text"].split(), text_by_id[record["of"]].split(), strict=True)
            differing = sum(one != other for one, other in pairs)
            assert differing <= 10 and (differing > 0) == (record["kind"] == "near")
    ids = {record["id"] for record in dirty}
    copies = {record["id"] for record in dirty if record["of"] >= 0}
    filtered = {record["id"] for record in dirty if record["kind"] in ("symbols", "script")}
    perfect = {"copies, precision": 1, "copy, recall": 1, "near, recall": 1, "filters, recall": 1}
    assert score_filters(dirty, ids - copies - filtered) == perfect
    assert score_filters(dirty, ids) == dict.fromkeys(perfect, 0)
    innocent = next(iter(ids - copies - filtered - {record["of"] for record in dirty}))
    assert score_filters(dirty, ids - copies - filtered - {innocent})["copies, precision"] == 0.9524
