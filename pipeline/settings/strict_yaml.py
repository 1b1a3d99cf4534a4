"""Read YAML files strictly, as frozen dataclasses with checked types and ranges.

Every error names the line. The range of a field is in its type (`elmo.settings`). The reader is
DVC's, ruamel.yaml: it reads YAML 1.2 and refuses repeated keys.
"""

from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, get_args, get_origin

from elmo.errors import BadSettings, ElmoError
from elmo.io.records import check_regular_file
from elmo.settings import check_value, describe_type, field_types

Settings = TypeVar("Settings")
KeyPath = tuple[str | int, ...]  # the keys from the root of a file to a value


def read_settings(path: Path, type_: type[Settings], *, is_complete: bool = False) -> Settings:
    """Read a YAML file as the dataclass `type_`; an `ElmoError` names file, line and key.

    A missing key gets the default of its field; with `is_complete`, it is an error.
    """
    reader = _SettingsReader(path, is_complete)
    settings: Settings = reader.build(reader.root, type_, ())
    return settings


def parse_file(path: Path) -> Any:
    """Return the values of a YAML file, with their line numbers; None if it is empty.

    Raises `ElmoError`, with the line, for a file that is not YAML.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    check_regular_file(path)
    try:
        return YAML().load(path.read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise BadSettings(f"{path}: not UTF-8; save the file as UTF-8") from None
    except (YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise BadSettings(f"{path}{line}: not valid YAML ({problem}); correct it") from None


def parse_text(text: str) -> Any:
    """Parse a text as YAML if it is a number, boolean, null or a list of these; else return the
    text unchanged.

    Numbers are as in files of settings.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        value = YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError, RecursionError):
        return text
    items = value if isinstance(value, list) else [value]
    return value if all(isinstance(item, bool | int | float | None) for item in items) else text


def check_scalar(name: str, value: Any, type_: Any) -> Any:
    """Return a value that is in its range; 1e3 becomes an integer if the type needs one. Otherwise
    raise an `ElmoError` that begins with `name`."""
    if isinstance(value, float) and value.is_integer():
        with suppress(ElmoError):
            return check_value(name, int(value), type_)
    return check_value(name, value, type_)


class _SettingsReader:
    """Turns the values of one file into settings."""

    def __init__(self, path: Path, is_complete: bool) -> None:
        self.path, self.is_complete = path, is_complete
        self.root = parse_file(path)

    def build(self, value: Any, type_: Any, keys: KeyPath) -> Any:
        """Return a value as `type_`; `keys` is its path from the root."""
        if is_dataclass(type_):
            return self.section(value, type_, keys)
        bare_type = get_args(type_)[0] if get_origin(type_) is Annotated else type_
        if get_origin(bare_type) is dict:
            if not isinstance(value, dict):
                self.refuse(keys, f"must be a section of names (or {{}}), found {_describe(value)}")
            key_type, item_type = get_args(bare_type)
            return {
                self.check(str(name), key_type, (*keys, name)): self.build(
                    item, item_type, (*keys, name)
                )
                for name, item in value.items()
            }
        if get_origin(bare_type) is tuple:
            items = self.items(value, get_args(bare_type), keys)
            return items if bare_type is type_ else self.check(items, type_, keys)
        if isinstance(value, dict | list):
            self.refuse(keys, f"must be one value, found {_describe(value)}")
        if isinstance(value, date) or hasattr(value, "tag"):  # `!name value`
            self.refuse(keys, f"must be {describe_type(type_)}, found {value}")
        return self.check(_to_scalar(value), type_, keys)

    def section(self, value: Any, type_: Any, keys: KeyPath) -> Any:
        """Return a mapping as a dataclass."""
        if not isinstance(value, dict) and value is not None:
            self.refuse(keys, f"must be a section of settings, found {_describe(value)}")
        members = {field.name: field for field in fields(type_)}
        values = value or {}
        for name in values:
            if name not in members:
                self.refuse((*keys, name), f"is not a setting; choose from {', '.join(members)}")
        for name, field in members.items():
            if name not in values and (self.is_complete or field.default is MISSING):
                self.refuse((*keys, name), "is missing; add it")
        types = field_types(type_)
        field_values = {
            name: self.build(item, types[name], (*keys, name)) for name, item in values.items()
        }
        try:
            return type_(**field_values)
        except ElmoError as error:
            self.refuse(keys, str(error), separator=".")

    def items(self, value: Any, kinds: tuple[Any, ...], keys: KeyPath) -> tuple[Any, ...]:
        """Return a sequence as a tuple."""
        if not isinstance(value, list):
            self.refuse(keys, f"must be a list, found {_describe(value)}")
        if kinds[-1] is Ellipsis:
            kinds = (kinds[0],) * len(value)
        if len(kinds) != len(value):
            self.refuse(keys, f"must have {len(kinds)} items, found {len(value)}")
        pairs = enumerate(zip(value, kinds, strict=True))
        return tuple(self.build(item, type_, (*keys, k)) for k, (item, type_) in pairs)

    def check(self, value: Any, type_: Any, keys: KeyPath) -> Any:
        """Return a value if it is in its range, else refuse it."""
        try:
            return check_scalar("", value, type_)
        except ElmoError as error:
            self.refuse(keys, str(error).strip())

    def refuse(self, keys: KeyPath, message: str, *, separator: str = " ") -> NoReturn:
        """Raise the error for a value, with its line."""
        line, values = 1, self.root
        subject = f"{_dotted_name(keys)}{separator}" if keys else ""
        # The message of a section's own check begins with the name of a setting.
        names = message.split()[0].strip(":").split(".") if separator == "." else ()
        for name in (*keys, *names):
            with suppress(AttributeError, KeyError, TypeError):  # a key that is not there
                line, values = values.lc.data[name][0] + 1, values[name]
        raise BadSettings(f"{self.path}:{line}: {subject}{message}")


def _dotted_name(keys: KeyPath) -> str:
    return "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in keys).removeprefix(".")


def _to_scalar(value: Any) -> Any:
    """Return a plain Python scalar, without the reader's formatting information."""
    for type_ in (float, str):
        if isinstance(value, type_):
            return type_(value)
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _describe(value: Any) -> str:
    """Describe a value of the wrong shape, for a message."""
    if isinstance(value, dict):
        return "a section"
    return "a list" if isinstance(value, list) else repr(value)
