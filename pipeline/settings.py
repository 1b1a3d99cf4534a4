"""Read YAML as frozen dataclasses: strict, typed, without defaults."""

import types
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from elmo.errors import ElmoError

Settings = TypeVar("Settings")


def read(path: Path, kind: type[Settings]) -> Settings:
    """Read a YAML file as `kind`; `ElmoError` where a key is unknown, missing or mistyped."""
    import yaml

    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ElmoError(f"{path}: no such file") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ElmoError(f"{path}:{line}: not valid YAML ({error.problem})") from None
    found: Settings = _build(value, kind, f"{path}:", " ")
    return found


def _build(value: Any, kind: Any, where: str, join: str = ".") -> Any:
    """Turn a YAML value into `kind`; `where` opens every error, `join` comes before a key."""
    if is_dataclass(kind):
        return _section(value, kind, where, join)
    if get_origin(kind) is tuple:
        return _items(value, get_args(kind), where)
    if get_origin(kind) in (types.UnionType, Union):
        if value is None:
            return None
        (one,) = (of for of in get_args(kind) if of is not type(None))
        return _build(value, one, where)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        article = "an" if kind is int else "a"
        raise ElmoError(f"{where} must be {article} {kind.__name__}, found {value!r}")
    return value


def _section(value: Any, kind: Any, where: str, join: str) -> Any:
    if not isinstance(value, dict):
        raise ElmoError(f"{where} must be a section of settings, found {value!r}")
    hints = get_type_hints(kind)
    known = [field.name for field in fields(kind)]
    for key in value:
        if key not in known:
            raise ElmoError(f"{where}{join}{key} is no setting; there are {', '.join(known)}")
    for key in known:
        if key not in value:
            raise ElmoError(f"{where}{join}{key} is missing")
    built = {key: _build(value[key], hints[key], f"{where}{join}{key}") for key in known}
    try:
        return kind(**built)
    except ElmoError as error:
        raise ElmoError(f"{where}{join}{error}") from None


def _items(value: Any, kinds: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ElmoError(f"{where} must be a list, found {value!r}")
    if kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise ElmoError(f"{where} must have {len(kinds)} items, found {value!r}")
    pairs = enumerate(zip(value, kinds, strict=True))
    return tuple(_build(item, kind, f"{where}[{k}]") for k, (item, kind) in pairs)
