"""The check of a cluster's nodes before a stage works on them: one line names nodes and causes.

This file is given Ray and imports it nowhere. The check itself is sent to each node by value, since
the project may be what the node lacks.
"""

import hashlib
import importlib.metadata
import secrets
import socket
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fsspec.registry import known_implementations

import elmo
from elmo.errors import ElmoError
from elmo.io.location import Location

from .. import PACKAGE
from .node import check_node

PACKAGES = ("torch", "numpy", "pyarrow", "safetensors", "fsspec", "msgspec")
LEAST_FREE = 1_000_000_000  # bytes in each folder and in the temporary one
ANSWER = 300.0  # seconds in which a node must have looked; importing torch may take a minute
ASKED = 5  # times a node is asked where what it runs is lost
STALE = 40.0  # seconds for which a network file system may hide what another node wrote


def check_nodes(
    ray: Any,
    folders: Iterable[Location],
    *,
    tracking_uri: str | None,
    answer: float = ANSWER,
) -> int:
    """Check each node of a cluster; return how many were checked, 0 where there is only one.

    Raises `ElmoError` with all that is wrong. Each node must see the local `folders`, reach those
    at URLs and, if `tracking_uri` names a server, that, and answer in `answer` seconds.
    """
    nodes = _alive(ray)
    if len(nodes) < 2:
        return 0
    if found := find_problems(ray, folders, tracking_uri=tracking_uri, answer=answer):
        raise ElmoError("; ".join(found))
    return len(_working(nodes))


def find_problems(
    ray: Any,
    folders: Iterable[Location],
    *,
    tracking_uri: str | None,
    urls: Iterable[str] = (),
    answer: float = ANSWER,
) -> list[str]:
    """Return what is wrong with each node, one line for each cause and its nodes.

    Each node must see the local `folders`, reach those at URLs and, if `tracking_uri` names a
    server, that, have the packages that read `urls`, and answer in `answer` seconds. The only node
    of a cluster is checked by this process, which runs on it.
    """
    folders = list(folders)
    needed = needed_packages([*map(str, folders), *urls])
    if absent := [name for name in needed if not needed[name]]:
        return [
            f"{socket.gethostname()}: {', '.join(absent)} is not installed; use one image for all"
        ]
    with markers(folders) as (contents, marked):
        wanted = {
            "python": list(sys.version_info[:2]),
            "packages": needed,
            "module": __name__,
            "code": code_digest(),
            "markers": contents,
            "urls": marked,
            "free": LEAST_FREE,
            "stale": STALE,
            "tracking_uri": tracking_uri if (tracking_uri or "").startswith("http") else None,
        }
        nodes = _alive(ray)
        if len(nodes) < 2:
            return [f"{_name(node)}: {cause}" for node in nodes for cause in check_node(wanted)]
        found = _ask(ray, _working(nodes), wanted, answer)
    by_cause: dict[str, list[str]] = {}
    for node, cause in found:
        by_cause.setdefault(cause, []).append(node)
    return [
        f"node{'s' * (len(names) > 1)} {', '.join(names)}: {cause}"
        for cause, names in by_cause.items()
    ]


def _alive(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _working(nodes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those with something to work with: a head often has none."""
    return [node for node in nodes if node["Resources"].keys() & {"CPU", "GPU"}]


def needed_packages(addresses: Iterable[str]) -> dict[str, str]:
    """Return the versions, here, of the packages that a node needs, with those for these URLs.

    They are by the package's name; the version of one that is not installed is empty.
    """
    names = [*PACKAGES, *filter(None, map(_package_of, addresses))]
    return {name: package_version(name) for name in dict.fromkeys(names)}


def _package_of(address: str) -> str:
    """The package that fsspec takes for a URL, such as s3fs; empty where none is needed."""
    protocol, separator, _ = address.partition("://")
    known = known_implementations.get(protocol, {"class": ""})["class"] if separator else ""
    module = known.partition(".")[0]
    return "" if module == "fsspec" else module


def _ask(
    ray: Any, nodes: Sequence[dict[str, Any]], wanted: dict[str, Any], answer: float
) -> list[tuple[str, str]]:
    """Return what is wrong with each node; the check runs on all at once.

    Where it was lost it is asked for again, and a node that is lost has nothing wrong.
    """
    pinned = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    ray.cloudpickle.register_pickle_by_value(sys.modules[check_node.__module__])
    remote = ray.remote(num_cpus=0, max_retries=0)(check_node)
    problems = []
    for _ in range(ASKED):
        alive = {node["NodeID"] for node in _alive(ray)}
        asked = {}
        for node in nodes:
            if node["NodeID"] in alive:
                there = pinned(node["NodeID"], soft=False)
                asked[remote.options(scheduling_strategy=there).remote(wanted)] = node
        if asked:
            ray.wait(list(asked), num_returns=len(asked), timeout=answer)
        nodes = []
        for reference, node in asked.items():
            try:
                problems += [(_name(node), cause) for cause in ray.get(reference, timeout=0)]
            except ray.exceptions.GetTimeoutError:
                problems.append((_name(node), f"did not answer in {answer:.0f} s"))
            except ray.exceptions.RayTaskError as error:  # of any kind: it is named
                lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                problems.append((_name(node), (lines or [type(error).__name__])[-1][:300]))
            except ray.exceptions.RayError:
                nodes.append(node)
    return problems + [(_name(node), f"the check was lost {ASKED} times") for node in nodes]


def _name(node: dict[str, Any]) -> str:
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


@contextmanager
def markers(
    folders: Sequence[Location],
) -> Iterator[tuple[dict[str, tuple[str, str]], dict[str, str]]]:
    """Yield small files by which a node proves that it sees the driver's folders, until the end of
    the block: name and content by local folder, and the name by URL.

    Where the driver may only read, the name is empty, and the nodes check that the folder exists.
    """
    contents: dict[str, tuple[str, str]] = {}
    urls: dict[str, str] = {}
    with ExitStack() as stack:
        for remote in [one for one in folders if one.local is None][-1:]:
            name = urls[remote.url] = f".preflight-{secrets.token_hex(8)}"
            remote.write(name, b"")
            stack.callback(remote.delete, name)
        local = [one.local for one in folders if one.local is not None]
        for folder in sorted({str(_folder(path)) for path in local}):
            name, content = f".preflight-{secrets.token_hex(8)}", secrets.token_hex(16)
            try:
                Path(folder, name).write_text(content)
                stack.callback(Path(folder, name).unlink, missing_ok=True)
            except OSError:
                name = ""
            contents[folder] = (name, content)
        yield contents, urls


def _folder(path: Path) -> Path:
    """The nearest folder that is there and is no output of a stage itself."""
    path = path.absolute().parent
    while not path.is_dir():
        path = path.parent
    return path


def package_version(name: str) -> str:
    """Return a package's version without its CPU or GPU suffix; empty if it is not installed."""
    try:
        return importlib.metadata.version(name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return ""


def code_digest() -> str:
    """Return a digest of the project's own code."""
    hasher = hashlib.sha256()
    for package in (Path(elmo.__file__).parent, PACKAGE):
        for path in sorted(package.rglob("*.py")):
            name = str(path.relative_to(package)).encode()
            hasher.update(name + b"\0" + path.read_bytes() + b"\0")
    return hasher.hexdigest()
