"""Strict YAML: files read as frozen dataclasses, with types and ranges checked.

Every error names the line. A field's range stands in its type (`elmo.settings`). A file that
repeats a key is refused.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

from elmo.errors import BadSettings, ElmoError
from elmo.io.records import check_readable
from elmo.settings import check_value, field_types

Settings = TypeVar("Settings")
_WHOLE = re.compile(r"[-+]?(0x[0-9a-fA-F_]+|0o[0-7_]+|0b[01_]+|[0-9][0-9_]*)$")
_DECIMAL = re.compile(
    r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?$"
    r"|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$"
)
LARGEST = 1 << 20  # bytes of a file of settings


def read_settings(
    path: Path,
    kind: type[Settings],
    *,
    complete: bool = False,
    moved: Mapping[str, str] | None = None,
    changes: Sequence[str] = (),
) -> Settings:
    """Read a YAML file as the dataclass `kind`; an `ElmoError` names file, line and key.

    A missing key takes its field's default, unless the file must be `complete`. `moved` maps keys
    of older versions to advice on where they are now. `changes` are `section.key=value` each, in
    YAML, and override the file.
    """
    reader = _Reader(path, complete, moved or {})
    root = parse_nodes(path)
    for change in changes:
        root = _changed(root, change)
    built: Settings = reader.build(root, kind, "")
    return built


def parse_nodes(path: Path) -> Any:
    """Return the root of a file's parsed YAML nodes, which know their lines; None if it is empty.

    Raises `ElmoError`, with the line, for a file that is no YAML, not UTF-8 or far too large.
    """
    import yaml

    check_readable(path)
    with path.open("rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise BadSettings(
            f"{path}: is larger than {LARGEST:,} bytes; it can't be a file of settings"
        )
    try:
        root = yaml.compose(data.decode("utf-8-sig"), Loader=_loader())
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise BadSettings(f"{path}:{line}: not UTF-8; save the file as UTF-8") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        began = error.context_mark.line + 1 if error.context_mark else line
        within = f", {error.context} that begins on line {began}" if began < line else ""
        raise BadSettings(f"{path}:{line}: not valid YAML ({error.problem}{within})") from None
    except yaml.reader.ReaderError as error:
        line = data.decode("utf-8-sig")[: error.position].count("\n") + 1
        raise BadSettings(f"{path}:{line}: not valid YAML ({error.reason})") from None
    return root


@cache
def _loader() -> Any:
    """Return PyYAML's safe loader, with the numbers of YAML 1.2, as DVC reads and writes them.

    PyYAML's own are those of 1.1: `5e-05` would be text, and `010` eight.
    """
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        pass

    def whole_number(loader: Any, node: Any) -> int:
        text = node.value.replace("_", "")
        return int(text, 0) if text.lstrip("+-")[:2] in ("0x", "0o", "0b") else int(text)

    number, decimal = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
    Loader.yaml_implicit_resolvers = {
        first: [one for one in rules if one[0] not in (number, decimal)]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver(number, _WHOLE, list("-+0123456789"))
    Loader.add_implicit_resolver(decimal, _DECIMAL, list("-+.0123456789"))
    Loader.add_constructor(number, whole_number)
    return Loader


def _changed(root: Any, change: str) -> Any:
    """The tree with one value set, or added where the key is not there."""
    import yaml

    key, sign, text = change.partition("=")
    source = f"-S {change if len(change) <= 80 else change[:77] + '…'}"
    if not sign or not all(key.split(".")):
        raise BadSettings(f"{source}: write it as section.key=value")
    try:
        loader = _loader()(text)
        loader.name = source  # what errors name
        value = loader.get_single_node()
        loader.dispose()
    except yaml.YAMLError:
        raise BadSettings(f"{source}: the value is not valid YAML") from None
    mark = yaml.Mark(source, 0, 0, 0, None, None)
    value = value or yaml.ScalarNode("tag:yaml.org,2002:null", "", mark, mark)
    *sections, last = key.split(".")
    node = root
    for name in sections:
        inner = (
            dict((k.value, v) for k, v in node.value)
            if getattr(node, "id", "") == "mapping"
            else {}
        )
        if name not in inner:
            raise BadSettings(f"{source}: there is no section {name}")
        node = inner[name]
    if getattr(node, "id", "") != "mapping":
        raise BadSettings(f"{source}: {'.'.join(sections)} is no section of settings")
    named = yaml.ScalarNode("tag:yaml.org,2002:str", last, mark, mark)
    node.value = [pair for pair in node.value if pair[0].value != last] + [(named, value)]
    return root


def _is_branch(node: Any) -> bool:
    return getattr(node, "id", "") in ("mapping", "sequence")


class _Reader:
    """Turns the nodes of one file into settings."""

    def __init__(self, path: Path, complete: bool, moved: Mapping[str, str]) -> None:
        self.path, self.complete, self.moved = path, complete, moved

    def build(self, node: Any, kind: Any, key: str) -> Any:
        """Return a node as `kind`; `key` is its name from the root, with dots."""
        if is_dataclass(kind):
            return self.section(node, kind, key)
        plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
        if get_origin(plain) is dict:
            name_kind, value_kind = get_args(plain)
            return self.named(node, name_kind, value_kind, key)
        if get_origin(plain) is tuple:
            items = self.items(node, get_args(plain), key)
            return items if plain is kind else self.check(node, items, kind, key)
        if _is_branch(node):
            what = "a list" if node.id == "sequence" else "a section"
            self.refuse(node, f"{key} must be one value, found {what}")
        return self.check(node, self.scalar(node, key), kind, key)

    def section(self, node: Any, kind: Any, key: str) -> Any:
        """Return a mapping as a dataclass."""
        if node is not None and node.id != "mapping":
            shown = repr(node.value) if node.id == "scalar" else "a list"
            self.refuse(node, f"{key or 'it'} must be a section of settings, found {shown}")
        prefix = f"{key}." if key else ""
        known = {field.name: field for field in fields(kind)}
        given: dict[str, Any] = {}
        for name_node, value in node.value if node is not None else ():
            name = str(name_node.value) if name_node.id == "scalar" else "a list or section"
            if name not in known:
                end = self.moved.get(prefix + name) or f"there are {', '.join(known)}"
                self.refuse(name_node, f"{prefix}{name} is no setting; {end}")
            if name in given:
                self.refuse(name_node, f"{prefix}{name} is given twice; delete one")
            given[name] = value
        types = field_types(kind)
        built = {name: self.build(one, types[name], prefix + name) for name, one in given.items()}
        for name, field in known.items():
            if name not in given and (self.complete or field.default is MISSING):
                self.refuse(node, f"{prefix}{name} is missing")
        try:
            return kind(**built)
        except ElmoError as error:
            self.refuse(node, f"{prefix}{error}")

    def named(self, node: Any, name_kind: Any, kind: Any, key: str) -> dict[str, Any]:
        """Return a mapping whose keys the user chooses as a dictionary."""
        if node.id != "mapping":
            shown = repr(node.value) if node.id == "scalar" else "a list"
            self.refuse(node, f"{key} must be a section of names (or {{}}), found {shown}")
        built: dict[str, Any] = {}
        for name_node, value in node.value:
            if _is_branch(name_node):
                self.refuse(name_node, f"a name in {key} must be text, found a list or section")
            name = self.check(name_node, str(name_node.value), name_kind, f"a name in {key}")
            if name in built:
                self.refuse(name_node, f"{key}.{name} is given twice; delete one")
            built[name] = self.build(value, kind, f"{key}.{name}")
        return built

    def items(self, node: Any, kinds: tuple[Any, ...], key: str) -> tuple[Any, ...]:
        """Return a sequence as a tuple."""
        if node.id != "sequence":
            shown = repr(node.value) if node.id == "scalar" else "a section"
            self.refuse(node, f"{key} must be a list, found {shown}")
        if kinds[-1] is Ellipsis:
            kinds = (kinds[0],) * len(node.value)
        if len(kinds) != len(node.value):
            self.refuse(node, f"{key} must have {len(kinds)} items, found {len(node.value)}")
        pairs = enumerate(zip(node.value, kinds, strict=True))
        return tuple(self.build(item, kind, f"{key}[{k}]") for k, (item, kind) in pairs)

    def scalar(self, node: Any, key: str) -> Any:
        """Return what YAML reads of a scalar."""
        import yaml

        loader = _loader()("")
        try:
            return loader.construct_object(node, deep=True)
        except (ValueError, OverflowError) as error:
            self.refuse(node, f"{key} can't be read ({error})")
        except yaml.YAMLError:
            self.refuse(node, f"{key} has the tag {node.tag}; write a plain value")
        finally:
            loader.dispose()

    def check(self, node: Any, value: Any, kind: Any, key: str) -> Any:
        """Return a value that is in its range; refuse any other."""
        if isinstance(value, float) and value.is_integer():  # 1e3 may be a whole number
            with suppress(ElmoError):
                return check_value(key, int(value), kind)
        try:
            return check_value(key, value, kind)
        except ElmoError as error:
            self.refuse(node, str(error))

    def refuse(self, node: Any, message: str) -> Any:
        """Raise the error of a node, with its line."""
        source = getattr(node.start_mark, "name", "") if node is not None else ""
        if str(source).startswith("-S "):
            raise BadSettings(f"{source}: {message}")
        line = node.start_mark.line + 1 if node is not None else 1
        raise BadSettings(f"{self.path}:{line}: {message}")
