"""The check of a cluster's nodes before a stage works on them: one line names nodes and causes.

This file is given Ray and imports it nowhere. Ray itself refuses a node with another Python.
"""

import hashlib
import importlib.metadata
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import elmo
from elmo.errors import ElmoError
from elmo.io.location import Location

from .. import PACKAGE

PACKAGES = ("torch", "numpy", "pyarrow", "safetensors", "fsspec", "msgspec")
ANSWER = 300.0  # seconds in which a node must have looked; importing torch may take a minute
CACHE_SECONDS = 40.0  # seconds for which a network file system may hide what another node wrote
_IMAGE = "use one image for all"


def check_nodes(ray: Any, folders: Sequence[Location], *, answer: float = ANSWER) -> int:
    """Check each node of a cluster; return how many were checked, 0 if there is only one.

    Raises `ElmoError` with all that is wrong, each cause with its nodes. Each node must see the
    local ones of `folders`, and answer in `answer` seconds. The only node of a cluster
    is this machine, and is not asked.
    """
    packages = {name: package_version(name) for name in PACKAGES}
    nodes = _other_nodes(ray)
    with markers(folders) as contents:
        causes = _ask_all(ray, nodes, (packages, code_digest(), contents), answer)
    by_cause: dict[str, list[str]] = {}
    for node, cause in causes:
        by_cause.setdefault(cause, []).append(node)
    if by_cause:
        raise ElmoError(
            "; ".join(
                f"node{'s' * (len(names) > 1)} {', '.join(names)}: {cause}"
                for cause, names in by_cause.items()
            )
        )
    return len(nodes)


def check_node(
    packages: Mapping[str, str],
    code: str,
    contents: Mapping[str, tuple[str, str]],
    *,
    cache_seconds: float = CACHE_SECONDS,
) -> list[str]:
    """Return what the node that calls this lacks, a sentence for each thing.

    It must have the versions `packages` by name, the `code_digest` `code`, and the files that
    `markers` yields, which may be hidden for `cache_seconds` seconds.
    """
    problems = []
    for name, version in packages.items():
        if (installed := package_version(name)) != version:
            note = f"{installed}, and the driver has {version}" if installed else "is not installed"
            problems.append(f"{name} {note}; {_IMAGE}")
    if code_digest() != code:
        problems.append(
            f"{PACKAGE.parent} holds another version of the code; send it (elmo submit) or mount it"
        )
    deadline = time.monotonic() + cache_seconds
    for folder, (name, content) in contents.items():
        while not (is_there := _is_there(Path(folder, name), content)):
            if time.monotonic() > deadline:
                break
            time.sleep(0.5)
        if not is_there:
            state = "is not the driver's folder" if Path(folder).is_dir() else "is not there"
            problems.append(f"{folder} {state}; mount the shared storage there")
    return problems


def _other_nodes(ray: Any) -> list[dict[str, Any]]:
    """The living nodes with something to work with, which a head often has not; none if this
    machine is the only one."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if len(nodes) < 2:
        return []
    return [node for node in nodes if node["Resources"].keys() & {"CPU", "GPU"}]


def _ask_all(
    ray: Any, nodes: Sequence[dict[str, Any]], arguments: tuple[Any, ...], answer: float
) -> list[tuple[str, str]]:
    """Return what is wrong with each node; the check runs on all at once.

    Ray repeats a check whose process is lost; a node that is lost has nothing wrong.
    """
    node_affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    remote = ray.remote(num_cpus=0, max_retries=4)(check_node)
    names = {}
    for node in nodes:
        strategy = node_affinity(node["NodeID"], soft=False)
        name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        names[remote.options(scheduling_strategy=strategy).remote(*arguments)] = name
    if names:
        ray.wait(list(names), num_returns=len(names), timeout=answer)
    problems = []
    for reference, name in names.items():
        try:
            problems += [(name, cause) for cause in ray.get(reference, timeout=0)]
        except ray.exceptions.GetTimeoutError:
            problems.append((name, f"did not answer in {answer:.0f} s"))
        except ray.exceptions.RayTaskError as error:  # it can't import the code, for instance
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            cause = (lines or [type(error).__name__])[-1][:300]
            problems.append((name, f"{cause}; send the code (elmo submit) or mount it"))
        except ray.exceptions.RayError:
            continue
    return problems


@contextmanager
def markers(folders: Sequence[Location]) -> Iterator[dict[str, tuple[str, str]]]:
    """Yield small files by which a node proves that it sees the driver's local folders, until the
    end of the block: name and content by folder."""
    contents: dict[str, tuple[str, str]] = {}
    with ExitStack() as stack:
        for folder in {_marker_folder(item.local) for item in folders if item.local is not None}:
            name, content = f".preflight-{secrets.token_hex(8)}", secrets.token_hex(16)
            try:
                (folder / name).write_text(content)
            except OSError:  # it may only be read
                continue
            stack.callback((folder / name).unlink, missing_ok=True)
            contents[str(folder)] = (name, content)
        yield contents


def _marker_folder(path: Path) -> Path:
    """The nearest folder that is there and is no output of a stage itself."""
    path = path.absolute().parent
    while not path.is_dir():
        path = path.parent
    return path


def _is_there(marker: Path, content: str) -> bool:
    try:
        return marker.read_text() == content
    except OSError:
        return False


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
