"""The report's page as data: sections of blocks, rendered by the template page.html.

Text is escaped when it is rendered; text that is HTML already is `Markup`.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup


@dataclass(frozen=True)
class Table:
    """A table: columns in `words` hold text; with `head`, all others hold numbers.

    `rows` are lists of cells, `head` the titles of the columns, which count from 0. By `kind` the
    template tells blocks apart.
    """

    rows: Sequence[Sequence[str]]
    head: tuple[str, ...] = ()
    words: tuple[int, ...] = (0,)
    kind: str = "table"

    @property
    def shows_cards(self) -> bool:
        """Tell whether a narrow screen shows each row as a card instead of a table row."""
        return len(self.head) > 3 or 2 in self.words


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of text, in small print unless `small` is False."""

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
    """A PNG, as the bytes of its file.

    `name` is the text for those who don't see it. By `kind` the template tells blocks apart.
    """

    name: str
    png: bytes
    kind: str = "picture"

    @property
    def data_url(self) -> str:
        """Return the PNG as a data URL."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode()}"


Block = Table | Paragraph | Heading | Picture


def render(title: str, summary: str, sections: Mapping[str, Sequence[Block]]) -> str:
    """Return the page as HTML; a section without blocks is left out.

    `sections` has the blocks of each section by its title, in order; `summary` stands at the head.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    rows = [
        (name, name.lower().replace(" ", "-"), blocks)
        for name, blocks in sections.items()
        if blocks
    ]
    page = environment.get_template("page.html").render(title=title, summary=summary, sections=rows)
    return f"{page}\n"


def code_html(text: str) -> Markup:
    """Return `text`, escaped, as an HTML <code> element."""
    return Markup("<code>{}</code>").format(text)
