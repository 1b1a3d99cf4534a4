"""Presets: files that name only what differs from `params.yaml`, and are written into it.

The text of `params.yaml` stays as it is but for the values that change: comments, order and the
user's own values are kept.
"""

from pathlib import Path
from typing import Any

from elmo.errors import ElmoError
from elmo.files import new_file

from . import params, strict_yaml

OURS = Path(__file__).parent / "project" / "presets"


def run(name: str, params_file: Path) -> list[str]:
    """Write the preset of that name into `params.yaml`: one in `presets/` beside it, or our own.

    Returns a line for each value that changed. The result is checked before anything is written.
    """
    own = params_file.parent / "presets"
    presets = {path.stem: path for folder in (OURS, own) for path in folder.glob("*.yaml")}
    if name not in presets:
        raise ElmoError(f"no preset {name}; there are {', '.join(sorted(presets))}")
    source = presets[name]
    text, changes = overlay(params_file, source)
    with new_file(params_file) as new:
        new.write_text(text, encoding="utf-8")
        try:
            params.load(new)
        except ElmoError as error:
            raise ElmoError(str(error).replace(str(new), f"{params_file} with {source}")) from None
    return changes


def overlay(params_file: Path, source: Path) -> tuple[str, list[str]]:
    """The text of `params_file` with the values of `source`, and what changed."""
    root, chosen = strict_yaml.tree(params_file), strict_yaml.tree(source)  # refuse what is no file
    text = params_file.read_text(encoding="utf-8")
    for path, node in ((params_file, root), (source, chosen)):
        if node is None or node.id != "mapping":
            raise ElmoError(f"{path}: must hold sections of settings")
    edits: list[tuple[int, int, str]] = []
    changes: list[str] = []
    waiting = [("", root, chosen)]
    while waiting:
        key, ours, theirs = waiting.pop(0)
        if theirs.id == "mapping" and ours.id == "mapping":
            known = {name.value: value for name, value in ours.value}
            for name, value in theirs.value:
                dotted = f"{key}.{name.value}" if key else str(name.value)
                if name.value not in known:
                    line = name.start_mark.line + 1
                    raise ElmoError(f"{source}:{line}: {params_file} has no {dotted}")
                waiting.append((dotted, known[name.value], value))
        elif _value(theirs) != _value(ours):
            new = _text(source, theirs)
            start, end = ours.start_mark.index, ours.end_mark.index
            end = start + len(text[start:end].rstrip())
            changes.append(f"{key}: {text[start:end]} → {new}")
            edits.append((start, end, new))
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text, changes


def _value(node: Any) -> Any:
    """What a node holds, whatever its style."""
    if node.id == "scalar":
        return node.tag, node.value
    return node.id, [_value(one) for one in node.value] if node.id == "sequence" else node.value


def _text(source: Path, node: Any) -> str:
    """A node as it stands in its file."""
    text = source.read_text(encoding="utf-8")[node.start_mark.index : node.end_mark.index]
    if "\n" in text.strip():
        line = node.start_mark.line + 1
        raise ElmoError(f"{source}:{line}: write a value on one line, a list as [a, b]")
    return text.strip()
