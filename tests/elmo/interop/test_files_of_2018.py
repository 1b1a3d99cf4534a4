"""2018 files come in and go out without loss, or are refused with one line."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from elmo.data.tokenizer import Tokenization, installed_tokenization
from elmo.errors import ElmoError
from elmo.interop.files_of_2018 import export_2018, import_2018
from elmo.model.embedder import Embedder
from elmo.model.folder import load_model
from tests.golden.models import GOLDEN, copy_golden

SHARED = Path(os.environ.get("ELMO_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))
FIXTURES = SHARED / "elmo-fixtures"
CASES = sorted(path.stem for path in GOLDEN.glob("*.npz"))
needs_fixtures = pytest.mark.skipif(
    not FIXTURES.is_dir(), reason=f"the reference's golden data is not at {FIXTURES}"
)


def datasets(path: Path) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = item[...]

    with h5py.File(path) as file:
        file.visititems(visit)
    return found


@pytest.mark.parametrize("name", CASES)
def test_import_then_export_is_the_same_datasets(tmp_path: Path, name: str) -> None:
    options, weights, words = copy_golden(name, tmp_path)
    import_2018(options, weights, tmp_path / "model", vocabulary=words)
    export_2018(tmp_path / "model", tmp_path / "out.json", tmp_path / "out.hdf5")
    assert json.loads((tmp_path / "out.json").read_text()) == json.loads(options.read_text())
    ours, theirs = datasets(tmp_path / "out.hdf5"), datasets(weights)
    assert ours.keys() == theirs.keys()
    for place, array in theirs.items():
        assert ours[place].dtype == array.dtype == np.float32
        assert ours[place].tobytes() == array.tobytes(), place
        assert ours[place].shape == array.shape


def test_an_export_killed_between_its_two_files_ends_when_run_again(tmp_path: Path) -> None:
    options, weights, _ = copy_golden("one_layer", tmp_path)
    import_2018(options, weights, tmp_path / "model", vocabulary=None)
    out = (tmp_path / "out.json", tmp_path / "out.hdf5")
    export_2018(tmp_path / "model", *out)
    expected = [file.read_bytes() for file in out]
    out[0].unlink()
    export_2018(tmp_path / "model", *out)
    assert [file.read_bytes() for file in out] == expected
    out[0].unlink()
    out[1].write_bytes(b"of another model")
    with pytest.raises(ElmoError, match=r"out\.hdf5: already exists"):
        export_2018(tmp_path / "model", *out)
    assert out[1].read_bytes() == b"of another model" and not out[0].exists()


def test_a_one_layer_model_without_multi_rnn_cell_names(tmp_path: Path) -> None:
    options, weights, _ = copy_golden("one_layer", tmp_path)
    with h5py.File(weights, "a") as file:
        for direction in (0, 1):
            group = file[f"RNN_{direction}/RNN"]
            group.move("MultiRNNCell/Cell0/LSTMCell", "LSTMCell")
            del group["MultiRNNCell"]
    import_2018(options, weights, tmp_path / "model", vocabulary=None)
    expected = np.load(GOLDEN / "one_layer.npz")["reset_4"]
    found = Embedder.load(tmp_path / "model").embed([["one"]])[0]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_261_while_training_is_accepted_and_262_written(tmp_path: Path) -> None:
    options, weights, _ = copy_golden("plain", tmp_path)
    value = json.loads(options.read_text())
    value["char_cnn"]["n_characters"] = 261
    options.write_text(json.dumps(value))
    import_2018(options, weights, tmp_path / "model", vocabulary=None)
    export_2018(tmp_path / "model", tmp_path / "out.json", tmp_path / "out.hdf5")
    assert json.loads((tmp_path / "out.json").read_text())["char_cnn"]["n_characters"] == 262


def test_an_imported_model_has_no_softmax_and_knows_where_it_came_from(tmp_path: Path) -> None:
    options, weights, _ = copy_golden("plain", tmp_path)
    import_2018(options, weights, tmp_path / "model", vocabulary=None)
    model = load_model(tmp_path / "model")
    assert model.softmax is None
    assert model.training["stage"] == "import"
    assert model.tokenizer == Tokenization("whitespace")
    with pytest.raises(ElmoError, match="unknown 'nltk'; choose from whitespace, unicode"):
        import_2018(options, weights, tmp_path / "other", tokenizer="nltk")
    with pytest.raises(ElmoError, match="model: already contains characters.json"):
        import_2018(options, weights, tmp_path / "model")
    import_2018(str(options), str(weights), str(tmp_path / "other"), tokenizer="unicode")
    assert load_model(tmp_path / "other").tokenizer == installed_tokenization("unicode")


def option(section: str, key: str, value: object) -> Callable[[Path, Path], None]:
    def apply(options: Path, weights: Path) -> None:
        found = json.loads(options.read_text())
        if value is ...:
            del found[section][key]
        else:
            found[section][key] = value
        options.write_text(json.dumps(found))

    return apply


def dataset(name: str, change: Callable[[np.ndarray], np.ndarray] | None) -> Any:
    def apply(options: Path, weights: Path) -> None:
        with h5py.File(weights, "a") as file:
            array = file[name][...]
            del file[name]
            if change is not None:
                file.create_dataset(name, data=change(array))

    return apply


def write(which: int, content: bytes) -> Callable[[Path, Path], None]:
    return lambda *paths: (paths[which].write_bytes(content), None)[1]


def nan(array: np.ndarray) -> np.ndarray:
    array.flat[0] = np.nan
    return array


CELL = "RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell"
MALFORMED = [
    (write(0, b'{"lstm":\n 1,,}'), r"options\.json:2: not valid JSON"),
    (write(0, b"[]"), r"options\.json: must be an object, found a list"),
    (write(0, b"\xff{}"), r"options\.json: not UTF-8 \(byte 0\)"),
    (write(0, b"{}"), r"options\.json: lstm must be a section, found null"),
    (lambda o, w: o.unlink(), r"options\.json: no such file"),
    (option("lstm", "dim", ...), r"options\.json: lstm\.dim is missing"),
    (option("lstm", "projection_dim", ...), r"lstm\.projection_dim is missing"),
    (option("lstm", "dim", 2**17), "W_0 has shape"),
    (option("lstm", "n_layers", 1), "has RNN_0/RNN/MultiRNNCell/Cell1, which options.json does"),
    (option("char_cnn", "n_highway", 1), "has CNN_high_1, which options.json does not name"),
    (option("lstm", "dim", "6"), "at most 131,072, found '6'"),
    (option("char_cnn", "filters", ...), r"char_cnn\.filters is missing"),
    (option("char_cnn", "n_characters", 300), "n_characters must be 262"),
    (option("char_cnn", "max_characters_per_token", 20), "must be 50, found 20"),
    (option("char_cnn", "embedding", 16), "embedding must be a section, found 16"),
    (lambda o, w: w.unlink(), r"weights\.hdf5: no such file"),
    (write(1, b"not hdf5"), r"weights\.hdf5: not an HDF5 file, or damaged"),
    (lambda o, w: w.write_bytes(w.read_bytes()[:2000]), "not an HDF5 file, or damaged"),
    (dataset("char_embed", None), "has no dataset char_embed"),
    (dataset("char_embed", lambda a: np.vstack([a, a[:1]])), "char_embed has 262 rows"),
    (dataset("char_embed", lambda a: a[:, :2]), r"char_embed has shape \(261, 2\)"),
    (dataset("CNN/W_cnn_1", lambda a: a[0]), "CNN/W_cnn_1 has shape"),
    (dataset("CNN/b_cnn_2", None), "has no dataset CNN/b_cnn_2"),
    (dataset("CNN_high_1/W_carry", None), "has no dataset CNN_high_1/W_carry"),
    (dataset("CNN_proj/W_proj", lambda a: a.T), "CNN_proj/W_proj has shape"),
    (dataset(f"{CELL}/W_0", lambda a: a[1:]), f"{CELL}/W_0 has shape"),
    (dataset(f"{CELL}/B", lambda a: a.astype("int32")), f"{CELL}/B holds int32, not floats"),
    (dataset(f"{CELL}/W_P_0", nan), f"{CELL}/W_P_0 holds values that are not finite"),
    (dataset(CELL + "/B", None), f"has no dataset {CELL}/B"),
]


@pytest.mark.parametrize(("broken", "message"), MALFORMED)
def test_a_malformed_file_is_one_line_and_leaves_nothing(
    tmp_path: Path, broken: Callable[[Path, Path], object], message: str
) -> None:
    options, weights, _ = copy_golden("plain", tmp_path)
    broken(options, weights)
    with pytest.raises(ElmoError, match=message) as caught:
        import_2018(options, weights, tmp_path / "model", vocabulary=None)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("kind", ["soft", "external", "group", "virtual", "storage", "unwritten"])
def test_values_that_are_not_in_the_file_are_refused(tmp_path: Path, kind: str) -> None:
    options, weights, _ = copy_golden("plain", tmp_path)
    name, other, raw = f"{CELL}/B", tmp_path / "other.hdf5", tmp_path / "raw"
    other.write_bytes(weights.read_bytes())
    with h5py.File(weights, "a") as file:
        array = file[name][...]
        raw.write_bytes(array.tobytes())
        file.move("RNN_1" if kind == "group" else name, "elsewhere")
        if kind == "soft":
            file[name] = h5py.SoftLink("/elsewhere")
        elif kind == "external":
            file[name] = h5py.ExternalLink("other.hdf5", name)
        elif kind == "group":
            file["RNN_1"] = h5py.ExternalLink("other.hdf5", "RNN_1")
        elif kind == "virtual":
            layout = h5py.VirtualLayout(array.shape, "f4")
            layout[...] = h5py.VirtualSource(other, name, array.shape)
            file.create_virtual_dataset(name, layout)
        elif kind == "storage":
            file.create_dataset(name, array.shape, "f4", external=[(raw, 0, array.nbytes)])
        else:
            file.create_dataset(name, array.shape, "f4", chunks=True)
    with pytest.raises(ElmoError, match="hdf5: .* is (a link|not stored in this)") as caught:
        import_2018(options, weights, tmp_path / "model")
    assert "\n" not in str(caught.value) and not (tmp_path / "model").exists()


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_file_is_one_line_or_the_same_model(tmp_path: Path, seed: int) -> None:
    """A stretch of the file's first bytes, which hold its structure, is overwritten."""
    options, weights, words = copy_golden("plain", tmp_path)
    draw = np.random.default_rng(seed)
    data = bytearray(weights.read_bytes())
    start = int(draw.integers(8, 6000))
    data[start : start + 16] = draw.bytes(16)
    weights.write_bytes(data)
    try:
        import_2018(options, weights, tmp_path / "model", vocabulary=words)
    except ElmoError as error:
        assert str(error).startswith(f"{weights}: ") and "\n" not in str(error)
        assert not (tmp_path / "model").exists()


def test_a_model_that_reads_words_needs_their_list(tmp_path: Path) -> None:
    options, weights, _ = copy_golden("words", tmp_path)
    with pytest.raises(ElmoError, match="pass them with --vocabulary"):
        import_2018(options, weights, tmp_path / "model", vocabulary=None)
    short = tmp_path / "short"
    short.write_text("<S>\n</S>\n<UNK>\n")
    with pytest.raises(
        ElmoError, match=r"embedding has shape \(8, 4\), but the vocabulary requires \(3, 4\)"
    ):
        import_2018(options, weights, tmp_path / "model", vocabulary=short)


def reference(folder: Path, file: str, tmp_path: Path) -> tuple[Embedder, list[list[str]]]:
    import_2018(
        folder / "options.json", folder / "lm_weights.hdf5", tmp_path / "model", vocabulary=None
    )
    rows = json.loads((folder / file).read_text())
    batches = zip(*rows, strict=True)
    sentences = [s.split() if isinstance(s, str) else s for batch in batches for s in batch]
    return Embedder.load(tmp_path / "model"), sentences


@needs_fixtures
@pytest.mark.parametrize(
    ("folder", "file"),
    [("bilm-tf/model", "lm_embeddings_sentences.json"), ("allennlp", "sentences.json")],
)
def test_the_references_golden_vectors(folder: str, file: str, tmp_path: Path) -> None:
    embedder, sentences = reference(FIXTURES / folder, file, tmp_path)
    found = embedder.embed(sentences, 3, state="carry")
    for row in range(3):
        with h5py.File(FIXTURES / folder / f"lm_embeddings_{row}.hdf5") as expected:
            for k in range(10):
                forward, backward = expected[str(k)][...]
                top = np.concatenate([forward, backward], 1)
                np.testing.assert_allclose(found[3 * k + row][-1], top, atol=1e-5)


@needs_fixtures
def test_the_references_token_vectors(tmp_path: Path) -> None:
    folder = FIXTURES / "allennlp"
    embedder, _ = reference(folder, "sentences.json", tmp_path)
    words = (folder / "vocab_test.txt").read_text(encoding="utf-8").splitlines()
    with h5py.File(folder / "elmo_token_embeddings.hdf5") as file:
        expected = file["embedding"][...]
    np.testing.assert_allclose(embedder.encode_types(words), expected, atol=1e-5)


def test_cached_token_vectors_stand_for_the_characters(tmp_path: Path) -> None:
    options, weights, _ = copy_golden("plain", tmp_path)
    import_2018(options, weights, tmp_path / "characters")
    words = tmp_path / "vocabulary"
    words.write_text("<S>\n</S>\n<UNK>\nhe\nhas\n한국어\n", encoding="utf-8")
    table = tmp_path / "table.hdf5"
    vectors = Embedder.load(tmp_path / "characters").encode_types(words.read_text("utf-8").split())
    with h5py.File(table, "w") as file:
        file["embedding"] = vectors
    with pytest.raises(ElmoError, match="the model reads characters; leave out --embedding"):
        import_2018(options, weights, tmp_path / "no", vocabulary=words, embedding=table)
    value = json.loads(options.read_text())
    del value["char_cnn"]
    options.write_text(json.dumps(value))
    import_2018(options, weights, tmp_path / "words", vocabulary=words, embedding=table)
    sentences = [["he", "has"], ["한국어", "<UNK>"]]
    by_characters, by_words = (
        Embedder.load(tmp_path / name).embed(sentences) for name in ("characters", "words")
    )
    for expected, found in zip(by_characters, by_words, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_one_file_for_options_and_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ElmoError, match="same: .* pass another file"):
        export_2018(tmp_path / "model", tmp_path / "same", tmp_path / "model" / ".." / "same")
    assert not (tmp_path / "same").exists()
