"""What people give for a batch of texts is read the same way by all, or refused by all."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from elmo import ElmoError, Embedder
from elmo.data.texts import list_texts
from elmo.data.tokenizer import Tokenization
from elmo.tasks.task import Task
from tests.elmo.conftest import WHITESPACE, save_tiny_model
from tests.elmo.tasks.test_task import trained
from tests.pipeline.command_line import elmo

pandas = pytest.importorskip("pandas", reason="pandas is not installed")
polars = pytest.importorskip("polars", reason="polars is not installed")
pyarrow = pytest.importorskip("pyarrow")
datasets = pytest.importorskip("datasets", reason="datasets is not installed")

TEXTS = ["he has a gift", "the gift"]
TABLE = {"text": TEXTS, "id": [1, 2]}
READ: dict[str, Callable[[], Any]] = {
    "a list": lambda: TEXTS,
    "a generator": lambda: (text for text in TEXTS),
    "the values of a dictionary": lambda: dict(enumerate(TEXTS)).values(),
    "an array": lambda: np.array(TEXTS),
    "an array of one column": lambda: np.array(TEXTS)[:, None],
    "a column of pandas": lambda: pandas.Series(TEXTS, index=[7, 3]),
    "categories": lambda: pandas.Series(TEXTS, dtype="category"),
    "a column of Polars": lambda: polars.Series(TEXTS),
    "an array of Arrow": lambda: pyarrow.array(TEXTS),
    "chunks of Arrow": lambda: pyarrow.chunked_array([TEXTS[:1], TEXTS[1:]]),
    "a column of datasets": lambda: datasets.Dataset.from_dict(TABLE)["text"],
    "a table of pandas": lambda: pandas.DataFrame({"text": TEXTS}),
    "a table of Polars": lambda: polars.DataFrame({"text": TEXTS}),
    "a table of Arrow": lambda: pyarrow.table({"text": TEXTS}),
    "a table of datasets": lambda: datasets.Dataset.from_dict({"text": TEXTS}),
}
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a number": (lambda: 5, "found 5"),
    "bytes": (lambda: b"he has", "found b'he has'"),
    "a set": (lambda: set(TEXTS), "found {"),
    "nothing": (lambda: None, "found None"),
    "an array of two columns": (lambda: np.array([TEXTS, TEXTS]), r"shape \(2, 2\)"),
    "an array of no dimension": (lambda: np.array("he has"), r"shape \(\)"),
    "numbers": (lambda: [1, 2], "found 1"),
    "two equal names": (lambda: pandas.DataFrame([TEXTS], columns=["a", "a"]), "found a, a"),
    "two names of Arrow": (lambda: pyarrow.table([TEXTS] * 2, names=["a", "a"]), "found a, a"),
    "a text that is None": (lambda: ["he", None], "1: is missing, found None"),
    "a text that is NaN": (
        lambda: pandas.Series(["he", np.nan], dtype=object),
        "1: is missing, found nan",
    ),
    "a text that is NA": (
        lambda: pandas.Series(["he", pandas.NA], dtype=object),
        "1: .*found <NA>",
    ),
    "a text that Arrow lacks": (lambda: pyarrow.array(["he", None]), "1: is missing, found None"),
    "a text that Polars lacks": (lambda: polars.Series(["he", None]), "1: is missing, found None"),
    "printed lists": (lambda: ["['he' 'has']", '["a",\n "gift"]'], "where texts belong"),
    "bytes among texts": (lambda: ["he", b"has"], "1: .*found b'has'"),
}


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[[Any], Any]]:
    """All that take a batch of texts; each returns an array with a row for each text."""
    from pipeline.tracking.pyfunc import ServedEmbedder

    folder = tmp_path_factory.mktemp("texts")
    save_tiny_model(folder / "model", tokenizer=WHITESPACE)
    embedder = Embedder.load(folder / "model", device="cpu")
    changes = {"elmo": "none", "epochs": 1}
    options: dict[str, Any] = {"count": 8, "tokenizer": Tokenization("whitespace")}
    task = Task.load(trained("tagging", folder, None, changes=changes, **options))
    served = ServedEmbedder()
    served.embedder = embedder

    def embed(texts: Any) -> list[Any]:
        """The vectors that `elmo embed` writes for a file of these texts."""
        file, out = folder / "texts.parquet", folder / "out.npz"
        if isinstance(texts, pyarrow.Table):
            pyarrow.parquet.write_table(texts, file)
        elif write := getattr(texts, "write_parquet", getattr(texts, "to_parquet", None)):
            write(file)
        else:
            is_column = getattr(texts, "ndim", 1) == 1 and not hasattr(texts, "dtype")
            table = pandas.DataFrame(list(texts) if is_column else texts)
            table.rename(columns={0: "text"}).to_parquet(file)
        code, _, error = elmo(
            "embed", folder / "model", "--input", file, "--output", out, "--overwrite"
        )
        if code:
            raise ElmoError(error)
        vectors = np.load(out)
        return [vectors[name].mean(0).sum(0) / max(1, vectors[name].shape[1]) for name in vectors]

    return {
        "embed": embed,
        "encode": embedder.encode,
        "served": lambda texts: served.predict(None, texts, {"pooling": "mean"}),
        "task": lambda texts: [answer["tags"] for answer in task(texts)],
    }


@pytest.mark.parametrize("what", READ)
def test_what_is_a_batch_of_texts(what: str, readers: dict[str, Callable[[Any], Any]]) -> None:
    for name, read in readers.items():
        found, expected = read(READ[what]()), read(list(TEXTS))
        assert len(found) == 2, name
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other, name)
        if name in ("embed", "served"):
            np.testing.assert_allclose(found, readers["encode"](TEXTS), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_none(what: str, readers: dict[str, Callable[[Any], Any]]) -> None:
    make, message = REFUSED[what]
    for name, read in readers.items():
        if name == "embed":  # it reads files
            continue
        with pytest.raises(Exception, match=message.split(" ")[-1]) as refused:
            read(make())
        assert type(refused.value).__name__ in ("ElmoError", "MlflowException"), name
        if name == "encode":
            assert refused.match(message)


def test_a_file_without_texts_is_refused(readers: dict[str, Callable[[Any], Any]]) -> None:
    assert list_texts(['("he")']) == ['("he")']  # which no tuple is printed as
    printed = ["['he' 'has']", "('a', 'gift')", TEXTS[0]]
    for table in ([1, 2], [b"he"], printed, pandas.DataFrame({"a": TEXTS, "b": TEXTS})):
        message = "must hold strings|no column 'text', found a, b|where texts belong"
        with pytest.raises(ElmoError, match=message):
            readers["embed"](table)
    for what, (make, _) in REFUSED.items():
        if what.startswith("a text that"):
            assert not readers["embed"](make())[1].any()  # a missing text is a blank one in a file


def test_a_table_of_several_columns_names_them(readers: dict[str, Callable[[Any], Any]]) -> None:
    for table in (TABLE, pandas.DataFrame(TABLE), polars.DataFrame(TABLE), pyarrow.table(TABLE)):
        with pytest.raises(ElmoError, match=r"columns text, id; pass .* table\['text'\]"):
            readers["encode"](table)
        assert len(readers["served"](table)) == 2  # it reads the column that it knows
