"""The page of `elmo inspect`: fills `text.html` with what was found in a text."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elmo.io.atomic import check_output, new_file

from ..terminal.progress import human_size
from .page import data_url, load_templates
from .phrases import describe_rule
from .pictures import draw_text

_TITLE = "Inspection of a text"


def check_page(out: Path) -> None:
    """Raise `ElmoError` if `out` cannot be written, or is another kind of file."""
    check_output(out, pattern=rb".*<title>" + _TITLE.encode())


def write_page(out: Path, inspection: Mapping[str, Any]) -> None:
    """Write a self-contained HTML page of `inspection`, the result of `inspect_text`, to `out`."""
    with tempfile.TemporaryDirectory() as folder, new_file(out) as file:
        curves = Path(folder, "curves.png")
        draw_text(inspection, curves)
        template = load_templates(data_url, describe_rule, human_size).get_template("text.html")
        page = template.render(title=_TITLE, curves=curves, **inspection)
        file.write_text(f"{page}\n", encoding="utf-8")
