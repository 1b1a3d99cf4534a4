"""What the pipeline takes from MLflow and DVC that they do not promise to keep: one name, with its
check. A name that is not listed is refused: list it with its check, or do without."""

import ast
from pathlib import Path
from typing import Any

import mlflow
from mlflow.pyfunc import PythonModel

from pipeline.tracking import pyfunc

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("pipeline/tracking", "pipeline/project", "pipeline/report", "elmo/integrations")
PRIVATE = {"_is_signature_from_type_hint"}


class Echo(PythonModel):
    """It answers with what it is given."""

    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
        return model_input


def test_each_private_name_is_listed_with_its_check() -> None:
    used = set()
    for path in [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
                owner = node.value.id if isinstance(node.value, ast.Name) else ""
                if owner not in ("self", "doc", "cls") and not node.attr.startswith("__"):
                    used.add(node.attr)
            if isinstance(node, ast.ImportFrom) and not node.level:
                used |= {alias.name for alias in node.names if alias.name.startswith("_")}
    assert used == PRIVATE


def test_the_signature_lets_a_model_check_its_own_input(tmp_path: Path) -> None:
    """Without it MLflow casts the input to a table."""
    given = ["He has", ["a", "gift"]]
    answers = []
    for private in (True, False):
        signature = pyfunc.make_signature()
        signature._is_signature_from_type_hint = private
        folder = tmp_path / str(private)
        mlflow.pyfunc.save_model(
            folder, python_model=Echo(), signature=signature, pip_requirements=[]
        )
        answers.append(mlflow.pyfunc.load_model(str(folder)).predict(given))
    assert answers[0] == given and not isinstance(answers[1], list)
