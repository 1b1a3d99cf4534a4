"""Make the reference pages from the code: every command and every setting.

python docs/generate.py FOLDER
"""

import ast
import inspect
import sys
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import click
import yaml
from msgspec import Meta

ROOT = Path(__file__).resolve().parents[1]


def write_reference(folder: Path) -> None:
    """Write commands.md and settings.md."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("commands.md", commands()), ("settings.md", settings())):
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def commands() -> str:
    """Return every command with its arguments and options, as Markdown, in the order of use."""
    from pipeline.commands.cli import SECTIONS, cli
    from pipeline.stages import STAGES

    lines = ["# Command line", "", inspect.cleandoc(cli.help or "").replace("\b\n", ""), ""]
    sections = {name: [command.name or "" for command in SECTIONS[name]] for name in SECTIONS}
    sections["Stages, which `elmo run` and `dvc repro` call"] = list(STAGES)
    context = click.Context(cli, info_name="elmo")
    for section, names in sections.items():
        lines += [f"## {section}", ""]
        for name in names:
            command = cli.get_command(context, name)
            assert command is not None, name
            for path, leaf in _leaves(command, f"elmo {name}"):
                lines += _command(path, leaf)
    return "\n".join(lines)


def _leaves(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield a command, or those of a group, with the words that call it."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name, child in command.commands.items():
        yield from _leaves(child, f"{path} {name}")


def _command(path: str, command: click.Command) -> list[str]:
    usage = " ".join(command.collect_usage_pieces(click.Context(command, info_name=path)))
    lines = [f"### {path}", "", "```", f"{path} {usage}", "```", "", _prose(command.help or ""), ""]
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    if options:
        lines += ["| option | meaning | default |", "|---|---|---|"]
        lines += [_option_row(option) for option in options] + [""]
    return lines


def _option_row(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    if isinstance(option.type, click.Choice):
        names += " " + " · ".join(f"`{choice}`" for choice in option.type.choices)
    default = option.to_info_dict().get("default")
    shown = "required" if option.required else "" if default in (None, False) else f"`{default}`"
    return f"| {names} | {_cell(option.help or '')} | {shown} |"


def _prose(text: str) -> str:
    """A command's help as Markdown: what follows \b is set as it stands."""
    out = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b\n"):
            out.append("```\n" + paragraph.removeprefix("\b\n") + "\n```")
        else:
            out.append(paragraph)
    return "\n\n".join(out)


def settings() -> str:
    """Every setting of params.yaml and cluster.yaml: type, range, default value, effect."""
    from pipeline.settings.cluster import Cluster
    from pipeline.settings.params import Params

    values = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    lines = ["# Settings", "", "## params.yaml", ""]
    lines += ["Settings that change results. Every key is required; unknown keys are refused.", ""]
    for field in fields(Params):
        lines += _section(Params, field.name, values.get(field.name), "###")
    lines += ["## cluster.yaml", "", inspect.cleandoc(Cluster.__doc__ or ""), ""]
    lines += _table(Cluster, None)
    return "\n".join(lines)


def _section(owner: type, name: str, value: Any, level: str, path: str = "") -> list[str]:
    kind = typing.get_type_hints(owner, include_extras=True)[name]
    path = f"{path}{name}"
    if get_origin(kind) is dict:  # of names that the user chooses: the first is shown
        kind = get_args(kind)[1]
        chosen, value = next(iter(value.items()))
        path = f"{path}.{chosen}"
    lines = [f"{level} {path}", "", inspect.cleandoc(kind.__doc__ or ""), ""]
    lines += _table(kind, value)
    for field in fields(kind):
        inner = typing.get_type_hints(kind, include_extras=True)[field.name]
        if is_dataclass(inner):
            lines += _section(kind, field.name, (value or {}).get(field.name), level, f"{path}.")
    return lines


@cache
def _descriptions(kind: type) -> dict[str, str]:
    """The description of each field of a dataclass: the string below it in the source."""
    body = ast.parse(inspect.cleandoc(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _table(kind: Any, values: Any) -> list[str]:
    hints = typing.get_type_hints(kind, include_extras=True)
    effect_of = _descriptions(kind)
    rows = ["| setting | values | default | effect |", "|---|---|---|---|"]
    for field in fields(kind):
        if is_dataclass(hints[field.name]):
            continue
        value = (values or {}).get(field.name) if values is not None else field.default
        shown = yaml.safe_dump(value, default_flow_style=True).removesuffix("\n...\n").strip()
        effect = _cell(effect_of[field.name])
        rows.append(
            f"| `{field.name}` | {_cell(_values(hints[field.name]))} | `{shown}` | {effect} |"
        )
    return [*rows, ""]


def _values(kind: Any) -> str:
    """What a setting may be, in words."""
    if get_origin(kind) is Annotated:
        inner, *notes = get_args(kind)
        metas = [note for note in notes if isinstance(note, Meta)]
        described = next((meta.description for meta in metas if meta.description), None)
        return described or _values(inner) + "".join(_bounds(meta) for meta in metas)
    if get_origin(kind) is Literal:
        return " · ".join(f"`{value}`" for value in get_args(kind))
    if get_origin(kind) is tuple:
        return f"list of: {_values(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        return "settings by name"
    arguments = get_args(kind)
    if type(None) in arguments:
        (one,) = (argument for argument in arguments if argument is not type(None))
        return f"{_values(one)}, or null"
    names = {int: "integer", float: "number", str: "text", bool: "true · false"}
    return names.get(kind, getattr(kind, "__name__", str(kind)))


def _bounds(meta: Meta) -> str:
    signs = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
    bounds = [f"{sign} {getattr(meta, name):,}" for name, sign in signs if _has(meta, name)]
    return " " + ", ".join(bounds) if bounds else ""


def _has(meta: Meta, name: str) -> bool:
    return getattr(meta, name) is not None


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    write_reference(Path(sys.argv[1]))
