"""The page of the report as data: sections of blocks, which report.html shows.

Text is escaped where it is shown; what is HTML already is `Markup`.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup


@dataclass(frozen=True)
class Table:
    """Rows of cells. With `head` or `numbers` all columns but `words` hold numbers."""

    rows: Sequence[Sequence[str]]
    head: tuple[str, ...] = ()
    numbers: bool = False
    words: tuple[int, ...] = (0,)
    kind: str = "table"

    @property
    def cards(self) -> bool:
        """Tell whether a narrow screen shows each row as a card."""
        return len(self.head) > 3 or 2 in self.words


@dataclass(frozen=True)
class Paragraph:
    """A paragraph."""

    text: str
    small: bool = True
    kind: str = "paragraph"


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    text: str
    kind: str = "heading"


@dataclass(frozen=True)
class Picture:
    """A PNG, and where there is one, another for narrow screens."""

    name: str
    wide: bytes
    narrow: bytes = b""
    kind: str = "picture"

    @property
    def data(self) -> str:
        """The PNG as a URL."""
        return _url(self.wide)

    @property
    def narrow_data(self) -> str:
        """The narrow PNG as a URL."""
        return _url(self.narrow)


@dataclass(frozen=True)
class Drawing:
    """An SVG or other HTML as it is."""

    html: Markup
    kind: str = "drawing"


@dataclass(frozen=True)
class Fold:
    """Blocks that are shown when they are asked for."""

    title: str
    blocks: "Sequence[Block]"
    kind: str = "fold"


Block = Table | Paragraph | Heading | Picture | Drawing | Fold


def render(title: str, summary: str, sections: Mapping[str, Sequence[Block]]) -> str:
    """The page; a section without blocks is left out."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    shown = [
        (name, name.lower().replace(" ", "-"), blocks)
        for name, blocks in sections.items()
        if blocks
    ]
    page = environment.get_template("report.html").render(
        title=title, summary=summary, sections=shown
    )
    return f"{page}\n"


def code(text: str) -> Markup:
    """Text in the type of a terminal."""
    return Markup("<code>{}</code>").format(text)


def _url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
