"""Predictions as the official scorers read them: what was right is what the labelled file says."""

from pathlib import Path
from typing import Any

import pytest

from elmo.errors import ElmoError
from elmo.tasks.example_files import read_examples
from elmo.tasks.examples import Tagged
from elmo.tasks.scorer_files import SCORER_FILES

ROLES = """\
1\tHe\tPRP\t*\the\t-\t(ARG0*)\t(ARG0*)
2\tcame\tVBD\t*\tcome\tcome.01\t(V*)\t*
3\tand\tCC\t*\tand\t-\t*\t*
4\tsaw\tVBD\t*\tsee\tsee.01\t*\t(V*)
5\tthe\tDT\t*\tthe\t-\t*\t(ARG1*
6\tcity\tNN\t*\tcity\t-\t*\t*)

1\tRome\tNNP\t*\tRome\t-

1\tHe\tPRP\t*\the\t-\t(ARG0*)
2\tsleeps\tVBZ\t*\tsleep\tsleep.01\t(V*)
"""


def lines(name: str, predictions: Any, path: Path = Path("x"), **columns: str) -> list[str]:
    return list(SCORER_FILES[name].lines(predictions, path, columns))


def test_right_roles_are_the_columns_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "roles.props"
    path.write_text(ROLES)
    examples = read_examples("roles", path).examples
    found = lines("props", [(one, {"tags": one.tags}) for one in examples], path)  # type: ignore
    gold = ["\t".join(line.split("\t")[5:]) for line in ROLES.splitlines()]
    assert found == [*gold, ""]
    for other in (tmp_path, tmp_path / "x.jsonl"):
        with pytest.raises(ElmoError, match=f"^{other}: --as props takes one file of columns"):
            lines("props", [], other)


def test_tags_stand_beside_the_gold_ones() -> None:
    spans = Tagged("x:1", ("Ann", "Lee", "sees", "Rome"), ("B-PER", "E-PER", "O", "S-LOC"))
    said = {"tags": ["B-PER", "O", "O", "B-LOC"], "spans": []}
    assert lines("conll", [(spans, said)]) == [
        "Ann B-PER B-PER",
        "Lee I-PER O",
        "sees O O",
        "Rome B-LOC B-LOC",
        "",
    ]
    plain = Tagged("x:1", ("$", "5"), ("SYM", "NUM"))
    said = {"tags": ["SYM", "EX"]}
    assert lines("conll", [(plain, said)]) == ["$ SYM SYM", "5 NUM EX", ""]
    blank = Tagged("x:1", ("New York", "\n"), ("SYM", "A B"))
    assert lines("conll", [(blank, said)]) == ["New_York SYM SYM", "_ A_B EX", ""]


def test_answers_are_one_object() -> None:
    said = [{"id": "1", "answer": "a «gift»"}, {"id": "2", "answer": ""}]
    assert lines("squad", [(None, one) for one in said]) == ['{"1": "a «gift»", "2": ""}']
    with pytest.raises(ElmoError, match="two questions have the id '1'"):
        lines("squad", [(None, said[0])] * 2)
