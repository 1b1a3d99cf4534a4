"""Presets: files of some settings, whose values replace those of `params.yaml`.

The comments, the order and all other values of params.yaml are kept.
"""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elmo.errors import BadSettings, ElmoError, did_you_mean
from elmo.io.atomic import new_file

from .. import PACKAGE
from . import params, strict_yaml

# The indents of a key and of the first item of the list below it.
_LIST = r"^( *)[^\s#][^\n]*:[ \t]*(?:#[^\n]*)?\n(?: *#[^\n]*\n|\n)*( *)- "
OURS = PACKAGE / "project" / "presets"


def find_presets(project: Path | None = None) -> dict[str, Path]:
    """Return the files of this package's presets and of a project's own, by name."""
    folders = [OURS] if project is None else [OURS, project / "presets"]
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}


def apply_preset(name: str, params_file: Path) -> list[str]:
    """Write a preset's values into `params_file`; return a line for each value that changed.

    `presets/NAME.yaml` beside `params_file` goes before the preset of that name that this package
    has. Raises `BadSettings` where there is no such preset or the result is invalid; nothing is
    written then.
    """
    presets = find_presets(params_file.parent)
    if name not in presets:
        known = f"; there are {', '.join(sorted(presets))}"
        raise BadSettings(f"no preset {name}{did_you_mean(name, presets) or known}")
    source = presets[name]
    text, changes = overlaid_text(params_file, source)
    with new_file(params_file) as new:
        new.write_bytes(text.encode("utf-8"))
        try:
            params.load(new)
        except ElmoError as error:
            raise BadSettings(
                str(error).replace(str(new), f"{params_file} with {source}")
            ) from None
    return changes


def overlaid_text(params_file: Path, source: Path) -> tuple[str, list[str]]:
    """Return the text of `params_file` with the values of the YAML file `source`, and the changes.

    These are a line for each value that differs; the file itself is not written.
    """
    for path in (params_file, source):
        if not isinstance(strict_yaml.parse_file(path), dict):
            raise BadSettings(f"{path}: must hold sections of settings")
    changes: list[str] = []

    def edit(ours: Any) -> None:
        text = source.read_bytes().decode("utf-8-sig")
        changes.extend(_merged(ours, _yaml(text).load(text), "", params_file, source))

    return edited_text(params_file, edit), changes


def edited_text(file: Path, edit: Any) -> str:
    """Return the text of a YAML file after the function `edit` has changed its parsed values.

    `edit` gets them as nested dictionaries, and changes these in place. Comments and line ends are
    kept; the file itself is not written.
    """
    text = file.read_bytes().decode("utf-8")
    plain = text.removeprefix("\ufeff").replace("\r\n", "\n")
    yaml, out = _yaml(plain), io.StringIO()
    values = yaml.load(plain)
    edit(values)
    yaml.dump(values, out)
    new = out.getvalue()
    return new.replace("\n", "\r\n") if "\r\n" in text else new


def _yaml(text: str) -> Any:
    """A reader and writer that keeps how a file is laid out."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes, yaml.width = True, 1 << 20
    listed = re.search(_LIST, text, re.M)
    offset = len(listed[2]) - len(listed[1]) if listed else 2
    yaml.indent(mapping=2, sequence=offset + 2, offset=offset)
    return yaml


def _merged(ours: Any, theirs: Any, key: str, params_file: Path, source: Path) -> Iterator[str]:
    """Set in `ours` what differs in `theirs`; yield a line for each value."""
    for name, value in theirs.items():
        dotted = f"{key}.{name}" if key else str(name)
        if name not in ours:
            line = theirs.lc.key(name)[0] + 1
            raise BadSettings(f"{source}:{line}: {params_file} has no {dotted}")
        if isinstance(value, dict) and isinstance(ours[name], dict):
            yield from _merged(ours[name], value, dotted, params_file, source)
        elif _shown(value) != _shown(ours[name]):
            yield f"{dotted}: {_shown(ours[name])} → {_shown(value)}"
            ours[name] = value


def _shown(value: Any) -> str:
    """A value as a file of settings has it."""
    if isinstance(value, str) and value:
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=str)
