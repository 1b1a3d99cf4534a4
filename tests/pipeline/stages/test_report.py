"""The report: every figure on one page that needs nothing else, the same bytes each time."""

import base64
import json
import random
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import mlflow
import pytest

from elmo.data.characters import Characters
from elmo.data.shards import write_shards
from elmo.data.tokenizer import Tokenization
from elmo.data.vocabulary import Vocabulary
from elmo.errors import ElmoError
from elmo.io.atomic import write_json
from elmo.io.location import Location
from elmo.io.records import digest
from elmo.model.embedder import Embedder
from elmo.model.folder import load_model, save_model
from elmo.settings import StoreSettings
from elmo.store import FeatureStore, model_digest
from elmo.store import build as store_build
from elmo.store.neighbors import neighbors
from pipeline.report.page import find_neighbors
from pipeline.settings.params import ReportSettings
from pipeline.stages import report
from tests.elmo.conftest import save
from tests.elmo.run_job import NETWORK, random_bilm
from tests.files import contents

pytestmark = pytest.mark.usefixtures("own_mlflow")
PARAMS = ReportSettings(
    title="Cats & <dogs>", neighbors_of=("the [cat] sat & slept", "the [dog] sat"), neighbors=3
)
CONFIG = replace(NETWORK, filters=((1, 8), (3, 8)))
TOKENIZED = {
    "documents": 1234,
    "sentences": 5678,
    "tokens": 100000,
    "heldout_tokens": 5100,
    "bytes": 600000,
    "token_bytes": 480000,
    "dropped_space_bytes": 90000,
    "dropped_near_copy_bytes": 30000,
    "dropped_leak_bytes": 0,
    "duplicate_share": 0.0123,
}
METRICS: dict[str, dict[str, Any]] = {
    "tokenize-general": TOKENIZED,
    "tokenize-domain": {k: v for k, v in TOKENIZED.items() if k[:7] != "dropped"},
    "pretrain": {
        "heldout_perplexity": 81.81,
        "heldout_forward": 82.72,
        "heldout_backward": 80.94,
        "times_below_unigram": 4.9,
        "unigram_perplexity": 399.11,
        "tokens_seen": 1083132,
        "steps": 870,
    },
    "finetune": {
        "domain_perplexity_before": 150.03,
        "domain_perplexity_after": 85.14,
        "words_added": 918,
        "tokens_seen": 166550,
        "steps": 143,
    },
}


def score(average: float, unigram: float) -> dict[str, float]:
    return {
        "average": average,
        "unigram": unigram,
        "bits_per_byte": 1.3127,
        "tokens": 9467,
        "unk_rate": 0.0292,
    }


TRAINING = {
    "run_id": "run-abc",
    "inputs": {"corpus": "c" * 64, "general": "d" * 64, "parent": "e" * 64},
    "perplexity": {
        "before": {"domain": score(150.03, 472.97), "general": score(86.02, 414.44)},
        "after": {"domain": score(85.14, 472.97), "general": score(114.97, 414.44)},
    },
}
TRAIN = (
    "step\ttokens\tperplexity\tlr\tgradient_norm\n"
    "10\t1000\t900\t0.1\t2.5\n20\t2000\t300\t0.1\t1.5\n"
)
HELDOUT = (
    "step\ttokens\tforward\tbackward\taverage\n10\t1000\t400\t380\t390\n20\t2000\t90\t91\t90\n"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the stages before leave behind: a model, its store, curves and figures."""
    folder = tmp_path_factory.mktemp("made")
    bilm = random_bilm(CONFIG, 0.3)
    words = ["the", "cat", "sat", "<b>", "&", "dog", "slept"]
    vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", *words], [9, 9, 2, 70, 60, 50, 40, 30, 20, 10])
    save_model(
        folder / "model",
        bilm=bilm,
        vocabulary=vocabulary,
        characters=Characters(),
        softmax=None,
        training=TRAINING,
        tokenizer=Tokenization("whitespace"),
    )
    draw = random.Random(0)
    sentences = [draw.choices(words, k=draw.randrange(12)) for _ in range(60)]
    write_shards(folder / "shards", sentences, heldout_every=6, shard_sentences=30)
    settings = StoreSettings(row_group_tokens=256)
    store_build.build(
        folder / "store", shards=folder / "shards", model=folder / "model", settings=settings
    )
    for stage in ("pretrain", "finetune"):
        (folder / "curves" / stage).mkdir(parents=True)
        (folder / "curves" / stage / "train.tsv").write_text(TRAIN)
        (folder / "curves" / stage / "heldout.tsv").write_text(HELDOUT)
    for name, figures in METRICS.items():
        write_json(folder / "numbers" / f"{name}.json", figures)
    digest = model_digest(folder / "model")
    registered = {"uri": "models:/elmo@champion", "version": 7, "name": "elmo"}
    registered["model_digest"] = digest
    write_json(folder / "registered.json", registered)
    return folder


@pytest.fixture
def given(made: Path, tmp_path: Path) -> Path:
    """The same, to break."""
    return Path(shutil.copytree(made, tmp_path / "given"))


def run(given: Path, out: Path, *, named: str = "") -> dict[str, int]:
    return report.run(
        out,
        PARAMS,
        numbers_in=given / "numbers",
        curves=given / "curves",
        model=Location(given / "model"),
        store=Location(given / "store"),
        registered=given / "registered.json",
        model_name=named,
    )


@pytest.fixture(scope="module")
def page(made: Path) -> str:
    assert run(made, made / "report") == {"tasks": 0}
    return (made / "report" / "index.html").read_text(encoding="utf-8")


def report_of(given: Path, *, named: str = "") -> str:
    """The text of the report that is made of changed inputs."""
    assert run(given, given / "report", named=named) == {"tasks": 0}
    return text_of((given / "report" / "index.html").read_text(encoding="utf-8"))


def empty_curves(given: Path, stage: str) -> None:
    """Leave the header of each curve, as a stage that trains nothing does."""
    for curve in (given / "curves" / stage).iterdir():
        curve.write_text(curve.read_text().splitlines()[0] + "\n")


def text_of(page: str) -> str:
    """The page as it is read: text alone, a space between its pieces."""
    pieces: list[str] = []
    parser = HTMLParser()
    parser.handle_data = pieces.append  # type: ignore[method-assign]
    parser.feed(page)
    return " ".join(" ".join(pieces).split())


@pytest.mark.parametrize(
    "said",
    [
        "models:/elmo@champion , version 7",
        "general text in 870 steps: 1,083,132 tokens and sentence ends, counting every epoch",
        "General 1,234 5,678 100,000 5.1% 600,000 80.0% 1.2%",
        "Left out of the general text, in bytes: near copy 30,000, space 90,000. Left out",
        "Left out of the domain text, in bytes: nothing.",
        "General text 414.4 86.0 115.0 +33.7% 3.60× 1.313 9,467 2.9%",
        "Domain text 473.0 150.0 85.1 −43.3% 5.56×",
        "81.8 on general text (forward 82.7, backward 80.9; unigram model 399.1)",
        "Two random tokens have a cosine of 0.",
    ],
)
def test_the_page_says(page: str, said: str) -> None:
    assert said in text_of(page)


def test_the_page_names_model_and_store_by_digest(page: str, made: Path) -> None:
    assert model_digest(made / "model") in page
    assert FeatureStore(made / "store").digest in page


def test_the_page_needs_nothing_else(page: str, made: Path) -> None:
    assert "http" not in re.sub('base64,[^"]*', "", page)
    sources = re.findall(r'(?:src|href)="([^"]*)"', page)
    pictures = [source for source in sources if not source.startswith("#")]
    files = sorted(path.name for path in (made / "report").iterdir())
    assert files == ["curves.png", "index.html"]
    found = [
        base64.b64decode(picture.removeprefix("data:image/png;base64,")) for picture in pictures
    ]
    assert sorted(found) == sorted(
        (made / "report" / name).read_bytes() for name in files if name.endswith(".png")
    )
    anchors = {source[1:] for source in sources if source.startswith("#")}
    assert anchors == set(re.findall(r'id="([^"]*)"', page))


def test_the_page_is_in_mlflow(page: str, tmp_path: Path) -> None:
    client = mlflow.MlflowClient()
    (logged,) = client.search_runs(["1"], "tags.stage = 'report'", max_results=1)
    file = client.download_artifacts(logged.info.run_id, "index.html", str(tmp_path))
    assert Path(file).read_text(encoding="utf-8") == page


def test_text_is_escaped(page: str) -> None:
    assert "<title>Cats &amp; &lt;dogs&gt;</title>" in page
    assert "Cats & <dogs>" in text_of(page)


def test_neighbours_are_the_nearest_of_the_store_marked(page: str, made: Path) -> None:
    section = page.split('id="neighbours"')[1].split("<h2")[0]
    store = FeatureStore(made / "store")
    for query in ("the <b>cat</b> sat &amp; slept", "the <b>dog</b> sat"):
        cells = section.split(f"<h3>{query}</h3>")[1].split("</table>")[0]
        number = r"<td [^>]*>([\d.]+)</td>"
        rows = re.findall(rf"{number}{number}{number}<td [^>]*>(.*?)</td>", cells)
        assert len(rows) == 3
        for _, document, sentence, shown in rows:
            assert store.document(int(sentence)) == int(document)
            assert text_of(shown).split() == store.tokens(int(sentence))
            assert shown.count("<b>") == 1
        cosines = [float(row[0]) for row in rows]
        assert cosines == sorted(cosines, reverse=True)


def test_the_sentence_that_a_query_begins_is_no_neighbour_of_it(made: Path) -> None:
    store, embedder = FeatureStore(made / "store"), Embedder.load(made / "model")
    number, tokens = next((k, t) for k in range(len(store)) if len(t := store.tokens(k)) > 9)
    begun = tokens[:-1]
    assert number in [one.sentence_id for one in neighbors(store, embedder, begun, 0, k=3)]
    query = " ".join([f"[{tokens[0]}]", *begun[1:]])
    ((_, rows),) = find_neighbors(replace(PARAMS, neighbors_of=(query,)), store, embedder)[
        "neighbors"
    ]
    assert len(rows) == PARAMS.neighbors and number not in [row["sentence"] for row in rows]


@pytest.mark.slow
def test_the_same_inputs_give_the_same_bytes(made: Path, page: str, tmp_path: Path) -> None:
    run(made, tmp_path / "again")
    assert contents(tmp_path / "again") == contents(made / "report")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("unk_rate", 0.21, "Up to 21% of the tokens are unknown words"),
        ("unigram", None, "General text unknown 86.0 115.0 +33.7% unknown 1.313"),
    ],
)
def test_unknown_words_and_unknown_counts_of_words_are_noted(
    given: Path, name: str, value: float | None, said: str
) -> None:
    """A model of 2018 has no counts of its words, so no unigram model to compare with."""
    file = given / "model" / "training.json"
    training = json.loads(file.read_text())
    for figures in training["perplexity"]["after"].values():
        figures[name] = value
    del training["digest"]
    write_json(file, training | {"digest": digest(training)})
    assert said in report_of(given)


MISSING = [
    "curves/finetune/train.tsv",
    "curves/pretrain/heldout.tsv",
    "numbers/pretrain.json",
    "registered.json",
    "model/training.json",
    "store/__elmo/manifest.json",
]


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_input_is_one_line_and_nothing_is_written(
    given: Path, tmp_path: Path, name: str
) -> None:
    (given / name).unlink()
    with pytest.raises((ElmoError, OSError), match=re.escape(name)) as error:
        run(given, tmp_path / "out" / "report")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("curves/pretrain/train.tsv", "", "is no curve .*elmo run --force pretrain"),
        ("curves/finetune/heldout.tsv", "tokens\taverage\nx\t1\n", "is no curve"),
        ("registered.json", '{"version": 7}', "missing required field"),
    ],
)
def test_a_file_of_another_kind_is_refused(
    given: Path, tmp_path: Path, name: str, text: str, message: str
) -> None:
    (given / name).write_text(text)
    with pytest.raises(ElmoError, match=f"{name}.*{message}"):
        run(given, tmp_path / "report")


def test_another_models_registration_is_refused(given: Path, tmp_path: Path) -> None:
    value = json.loads((given / "registered.json").read_text())
    write_json(given / "registered.json", value | {"model_digest": "f" * 64})
    with pytest.raises(ElmoError, match=r"registered\.json: names model ffffffffffff…"):
        run(given, tmp_path / "report")


def test_one_text_alone_has_no_column_of_fine_tuning(given: Path) -> None:
    """The model was taken as it is, so nothing is compared with itself."""
    training = {
        "run_id": "run-abc",
        "inputs": {"corpus": "c" * 64},
        "perplexity": {"after": {"general": score(86.02, 414.44)}},
    }
    save(given / "model", load_model(given / "model"), training=training)
    taken = {"domain_perplexity_after": 86.02, "words_added": 0}
    write_json(given / "numbers" / "finetune.json", taken)
    empty_curves(given, "finetune")
    said = report_of(given)
    assert "The domain text is the general text, so nothing was fine-tuned." in said
    head = "Held-out unigram pretrained below unigram bits per byte tokens unknown"
    assert f"{head} General text 414.4 86.0 4.82× 1.313 9,467 2.9%" in said
    assert "Domain text 4" not in said


def test_a_model_taken_as_it_is_has_no_panel_of_pretraining(
    given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty pair of axes says nothing."""
    from pipeline.report import pictures

    drawn: list[list[str]] = []
    draw = pictures.draw_curves
    monkeypatch.setattr(
        pictures,
        "draw_curves",
        lambda results, path: drawn.append(list(results.curves)) or draw(results, path),
    )
    write_json(given / "numbers" / "pretrain.json", {})
    empty_curves(given, "pretrain")
    said = report_of(given, named="english")
    assert drawn == [["fine-tuning on domain text"]]
    head = "Held-out perplexity 150.0 on domain text before fine-tuning english, 85.1 after."
    assert head in said and "Started from english, trained elsewhere" in said
    assert re.search(r" 85 equally likely .*473\.", said)
    assert said.index("Domain text 473.0") < said.index("General text 414.4")
