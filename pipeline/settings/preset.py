"""Presets: files with some settings, which replace those in `params.yaml`.

The comments, the order and all other values of params.yaml are kept.
"""

import io
import json
from pathlib import Path
from typing import Any

from elmo.errors import BadSettings, ElmoError, suggest_name
from elmo.io.atomic import new_file

from .. import PACKAGE
from . import params, strict_yaml


def apply_preset(name: str, params_file: Path) -> None:
    """Write a preset's values into `params_file`.

    `presets/NAME.yaml` beside `params_file` takes precedence over the package's preset of that
    name. Raises `BadSettings`, and writes nothing, if the preset is missing or the result invalid.
    """
    folders = [PACKAGE / "project" / "presets", params_file.parent / "presets"]
    presets = {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}
    if name not in presets:
        names = f"; there are {', '.join(sorted(presets))}"
        raise BadSettings(f"no preset {name}{suggest_name(name, presets) or names}")
    source = presets[name]
    text = overlay_text(params_file, source)
    with new_file(params_file) as new_params:
        new_params.write_bytes(text.encode("utf-8"))
        try:
            params.load(new_params)
        except ElmoError as error:
            raise BadSettings(
                str(error).replace(str(new_params), f"{params_file} with {source}")
            ) from None


def overlay_text(params_file: Path, source: Path) -> str:
    """Return the text of `params_file` with the values of the YAML file `source`; the file itself
    is not written."""
    for path in (params_file, source):
        if not isinstance(strict_yaml.parse_file(path), dict):
            raise BadSettings(f"{path}: must hold sections of settings")

    def edit(values: Any) -> None:
        overlay = _make_yaml().load(source.read_text(encoding="utf-8-sig"))
        _merge(values, overlay, "", params_file, source)

    return edit_text(params_file, edit)


def edit_text(file: Path, edit: Any) -> str:
    """Return the text of a YAML file after the function `edit` has changed its parsed values.

    `edit` changes the nested dictionaries in place. Comments are kept; the file is not written.
    """
    yaml, out = _make_yaml(), io.StringIO()
    values = yaml.load(file.read_text(encoding="utf-8-sig"))
    edit(values)
    yaml.dump(values, out)
    return out.getvalue()


def quoted_value(value: object) -> Any:
    """Return a value whose strings are written in quotation marks.

    Three characters that end a line in YAML are escaped.
    """
    text = json.dumps(value, ensure_ascii=False)
    return _make_yaml().load(text.translate({0x85: "\\x85", 0x2028: "\\u2028", 0x2029: "\\u2029"}))


def _make_yaml() -> Any:
    """Return a YAML reader and writer that keeps comments and layout."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes, yaml.width = True, 1 << 20
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


def _merge(base: Any, overlay: Any, key: str, params_file: Path, source: Path) -> None:
    """Copy the values of `overlay` that differ into `base`."""
    for name, value in overlay.items():
        full_key = f"{key}.{name}" if key else str(name)
        if name not in base:
            line = overlay.lc.key(name)[0] + 1
            raise BadSettings(f"{source}:{line}: {params_file} has no {full_key}; correct the name")
        if isinstance(value, dict) and isinstance(base[name], dict):
            _merge(base[name], value, full_key, params_file, source)
        elif value != base[name]:
            base[name] = value
