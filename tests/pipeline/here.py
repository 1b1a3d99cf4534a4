"""What Ray does for the stages, done in this process: one item after another, in their order."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any


def map_tasks(function: Callable[[Any], Any], items: Iterable[Any], **_: object) -> Iterator[Any]:
    """Call a function on each item."""
    return map(function, items)


def map_actors(kind: Any, arguments: Any, items: Iterable[Any], **_: object) -> Iterator[Any]:
    """Call one actor on each item."""
    return map(kind(*arguments), items)
