"""What a schema forbids, derived from the schema: for records and for settings.

`breakages` walks a type and yields what a valid value may be given in one spot that the type does
not allow; `altered` applies that to a real value.
"""

import copy
import math
from collections.abc import Iterator
from typing import Any

from msgspec import inspect

ESCAPES = ("../x", "/etc/hostname", "a\0b")
ABSENT = object()
FIRST = "*"  # whatever key a mapping has first
Spot = tuple[Any, ...]
Breakage = tuple[Spot, Any]


def breakages(kind: Any) -> dict[str, Breakage]:
    """By name, each single thing that `kind` forbids: the spot, and what to put there."""
    found = _walk(inspect.type_info(kind), ())
    return {f"{'.'.join(map(str, spot)) or 'whole'}-{name}": (spot, v) for spot, v, name in found}


def altered(value: Any, breakage: Breakage) -> Any:
    """A copy of `value` that is broken in one spot."""
    spot, wrong = breakage
    if not spot:
        return wrong
    whole = copy.deepcopy(value)
    inner, *_ = _followed(whole, spot[:-1])
    (key,) = (next(iter(inner)),) if spot[-1] == FIRST else spot[-1:]
    if wrong is ABSENT:
        del inner[key]
    elif isinstance(inner, list) and key == len(inner):
        inner.append(wrong)
    else:
        inner[key] = wrong
    return whole


def _followed(value: Any, spot: Spot) -> Iterator[Any]:
    for key in spot:
        value = value[next(iter(value)) if key == FIRST else key]
    yield value


def _walk(kind: Any, spot: Spot) -> Iterator[tuple[Spot, Any, str]]:
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        one, *more = (one for one in kind.types if not isinstance(one, inspect.NoneType))
        if more:  # any scalar
            yield spot, [1], "mistyped"
            return
        yield from (found for found in _walk(one, spot) if found[1] is not None)
    elif isinstance(kind, inspect.StructType | inspect.DataclassType):
        yield spot, [1], "mistyped"
        if getattr(kind, "forbid_unknown_fields", not spot):
            yield (*spot, "unheard_of"), 1, "unknown"
        for field in kind.fields:
            inner = (*spot, field.encode_name)
            if field.required:
                yield inner, ABSENT, "removed"
            yield from _walk(field.type, inner)
    elif isinstance(kind, inspect.VarTupleType | inspect.ListType):
        yield spot, 7, "mistyped"
        if kind.min_length:
            yield spot, [], "emptied"
        yield from _walk(kind.item_type, (*spot, 0))
    elif isinstance(kind, inspect.TupleType):
        yield spot, [], "short"
        for position, item in enumerate(kind.item_types):
            yield from _walk(item, (*spot, position))
    elif isinstance(kind, inspect.DictType):
        yield spot, 7, "mistyped"
        yield from _walk(kind.value_type, (*spot, FIRST))
    elif not isinstance(kind, inspect.AnyType):
        for name, wrong in _scalars(kind):
            yield spot, wrong, name


def _scalars(kind: Any) -> Iterator[tuple[str, Any]]:
    yield "null", None
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        yield "text", "many"
        whole = isinstance(kind, inspect.IntType)
        step = 1 if whole else 1e-3
        for bound, beyond in ((kind.ge, -step), (kind.gt, 0), (kind.le, step), (kind.lt, 0)):
            if bound is not None:
                yield f"out of range at {bound:g}", bound + beyond
        yield "endless", 10**400 if whole else math.inf
        yield ("fraction", 1.5) if whole else ("no number", math.nan)
    elif isinstance(kind, inspect.BoolType):
        yield "number", 7
    elif isinstance(kind, inspect.LiteralType):
        yield "other", "neither" if isinstance(kind.values[0], str) else 77
    elif isinstance(kind, inspect.StrType):
        yield "number", 7
        if kind.pattern is not None and not kind.pattern.startswith(r"\A[^"):
            for escape in ESCAPES:
                yield f"escape {escape[:3]!r}", escape
            yield "long", "x" * 100_000
