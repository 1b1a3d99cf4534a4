"""labels: the authors' marks become tags, and nothing of the text is lost or tagged twice."""

import json
from pathlib import Path

import pytest

from elmo.data.tokenizer import load_sentence_splitter
from elmo.errors import ElmoError
from elmo.tasks.example_files import read_examples
from elmo.tasks.formats.fields import TextSplitter
from pipeline.settings.params import LabelsSettings
from pipeline.stages import labels

DOCSTRING = """Return the mean of `values` along ``axis=0``, as :func:`~numpy.mean` does.

    A sentence in which nothing is marked is left out here. The *order* of `values`
    does not matter, see `the manual <https://example.org>`_ for why [1]_.
    """


def sentences(docstring: str) -> list[tuple[str, str]]:
    cut, split = TextSplitter("unicode"), load_sentence_splitter()[0]
    pairs = labels.label_sentences(docstring, splitter=cut, split_text=split)
    return [(" ".join(tokens), " ".join(tags)) for tokens, tags in pairs]


def test_marks_become_tags_and_leave_the_text() -> None:
    assert sentences(DOCSTRING) == [
        (
            "Return the mean of values along axis = 0 , as numpy . mean does .",
            "O O O O B-CODE O B-CODE I-CODE I-CODE O O B-CODE I-CODE I-CODE O O",
        ),
        (
            "The order of values does not matter , see the manual for why .",
            "O O O B-CODE O O O O O O O O O O",
        ),
    ]


def test_code_inside_a_token_or_of_many_tokens_is_left_out() -> None:
    text = "The values of the `array`s are added here.\n\nIt is `a(b, c)[d]` that is called then."
    cut, split = TextSplitter("unicode"), load_sentence_splitter()[0]
    assert list(labels.label_sentences(text, splitter=cut, split_text=split)) == []


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    out = tmp_path_factory.mktemp("labels") / "labels"
    return out, labels.run(out, LabelsSettings(package="click", train=40, dev=10, test=20))


def test_files_of_a_package_are_read_as_a_task(made: tuple[Path, dict[str, int]]) -> None:
    out, counts = made
    seen: set[tuple[str, ...]] = set()
    for split in ("train", "dev", "test"):
        examples = read_examples("tagging", out / f"{split}.jsonl").examples
        assert len(examples) == counts[f"{split}_sentences"] > 4
        tokens = {example.tokens for example in examples}
        assert len(tokens) == len(examples) and seen.isdisjoint(tokens)
        seen |= tokens
    assert counts["train_sentences"] == 40


@pytest.mark.slow
def test_a_larger_file_begins_with_the_smaller(
    made: tuple[Path, dict[str, int]], tmp_path: Path
) -> None:
    small = LabelsSettings(package="click", train=5, dev=5, test=5)
    labels.run(tmp_path / "small", small)
    for name in ("train", "dev", "test"):
        first = (tmp_path / "small" / f"{name}.jsonl").read_text().splitlines()
        assert first == (made[0] / f"{name}.jsonl").read_text().splitlines()[:5]
        assert all(json.loads(line)["tags"].count("B-CODE") for line in first)


@pytest.mark.parametrize("package", ["no_such_package", "encodings"])
def test_a_package_without_marks_is_refused(tmp_path: Path, package: str) -> None:
    with pytest.raises(ElmoError, match=f"labels.package: .*{package}"):
        labels.run(tmp_path / "out", LabelsSettings(package=package, train=5, dev=5, test=5))
    assert list(tmp_path.iterdir()) == []


def test_without_a_package_nothing_is_labelled(tmp_path: Path) -> None:
    figures = labels.run(tmp_path / "out", LabelsSettings(package="", train=5, dev=5, test=5))
    assert labels.summary(figures) == "none: labels.package is empty"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["manifest.json"]
