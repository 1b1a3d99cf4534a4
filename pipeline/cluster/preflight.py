"""Check a cluster's nodes before a stage runs on them; one line names the nodes and the problems.

The `ray` module is passed in, not imported. Ray itself refuses nodes with another Python.
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

CHECKED_PACKAGES = ("torch", "numpy", "pyarrow", "safetensors", "fsspec", "msgspec")
ANSWER_SECONDS = 300.0  # for a node to answer; importing torch may take a minute
CACHE_SECONDS = 40.0  # a network file system may hide another node's files this long
_IMAGE_ADVICE = "use one image for all"


def check_nodes(ray: Any, folders: Sequence[Location]) -> None:
    """Raise `ElmoError` that lists each problem of a cluster's nodes, and the nodes that have it.

    Each node must see the local ones of `folders` and answer within `ANSWER_SECONDS`. A cluster of
    one node is this machine and is not checked.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if len(nodes) < 2:
        return
    packages = {name: package_version(name) for name in CHECKED_PACKAGES}
    nodes_by_cause: dict[str, list[str]] = {}
    with write_markers(folders) as marker_by_folder:
        arguments = packages, code_digest(), marker_by_folder
        for node, cause in _find_problems(ray, nodes, arguments):
            nodes_by_cause.setdefault(cause, []).append(node)
    if nodes_by_cause:
        raise ElmoError(
            "; ".join(
                f"node{'s' * (len(names) > 1)} {', '.join(names)}: {cause}"
                for cause, names in nodes_by_cause.items()
            )
        )


def check_node(
    packages: Mapping[str, str],
    expected_digest: str,
    marker_by_folder: Mapping[str, tuple[str, str]],
    *,
    cache_seconds: float = CACHE_SECONDS,
) -> list[str]:
    """Return the problems of the node that this runs on, one sentence each.

    The node must have the package versions in `packages`, code with the digest `expected_digest`,
    and the files that `write_markers` wrote, which may take up to `cache_seconds` to appear.
    """
    problems = []
    for name, version in packages.items():
        if (installed_version := package_version(name)) != version:
            note = "is not installed"
            if installed_version:
                note = f"{installed_version}, and the driver has {version}"
            problems.append(f"{name} {note}; {_IMAGE_ADVICE}")
    if code_digest() != expected_digest:
        problems.append(
            f"{PACKAGE.parent} has another version of the code; send it (elmo submit) or mount it"
        )
    deadline = time.monotonic() + cache_seconds
    for folder, (name, content) in marker_by_folder.items():
        while not (has_marker := _has_content(Path(folder, name), content)):
            if time.monotonic() > deadline:
                break
            time.sleep(0.5)
        if not has_marker:
            state = "is not the driver's folder" if Path(folder).is_dir() else "is missing"
            problems.append(f"{folder} {state}; mount the shared storage there")
    return problems


def _find_problems(
    ray: Any, nodes: Sequence[dict[str, Any]], arguments: tuple[Any, ...]
) -> Iterator[tuple[str, str]]:
    """Yield the problems of nodes, each as (node, problem); all nodes are checked in parallel.

    Nodes without CPUs and GPUs, such as many head nodes, do no work and are not checked. If the
    process of a check dies, Ray repeats it. Lost nodes are left out.
    """
    node_affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    remote_check = ray.remote(num_cpus=0, max_retries=4)(check_node)
    name_by_reference = {}
    for node in nodes:
        if node["Resources"].keys() & {"CPU", "GPU"}:
            check = remote_check.options(
                scheduling_strategy=node_affinity(node["NodeID"], soft=False)
            )
            name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
            name_by_reference[check.remote(*arguments)] = name
    deadline = time.monotonic() + ANSWER_SECONDS
    for reference, name in name_by_reference.items():
        try:
            causes = ray.get(reference, timeout=max(0.0, deadline - time.monotonic()))
        except ray.exceptions.GetTimeoutError:
            causes = [f"did not answer in {ANSWER_SECONDS:.0f} s"]
        except ray.exceptions.RayTaskError as error:  # it can't import the code, for instance
            cause = str(error).strip().splitlines()[-1].strip()[:300]
            causes = [f"{cause}; send the code (elmo submit) or mount it"]
        except ray.exceptions.RayError:
            continue
        yield from ((name, cause) for cause in causes)


@contextmanager
def write_markers(folders: Sequence[Location]) -> Iterator[dict[str, tuple[str, str]]]:
    """Write a marker file into each local folder, by which nodes prove that they see it; yield the
    name and content of each by folder. The files are deleted at the end of the block."""
    marker_by_folder: dict[str, tuple[str, str]] = {}
    with ExitStack() as stack:
        for folder in {_marker_folder(item.local) for item in folders if item.local is not None}:
            name, content = f".preflight-{secrets.token_hex(8)}", secrets.token_hex(16)
            try:
                (folder / name).write_text(content)
            except OSError:  # a folder without write access has no marker
                continue
            stack.callback((folder / name).unlink, missing_ok=True)
            marker_by_folder[str(folder)] = (name, content)
        yield marker_by_folder


def _marker_folder(path: Path) -> Path:
    """Return the nearest existing parent of an output, which must not contain a marker itself."""
    path = path.absolute().parent
    while not path.is_dir():
        path = path.parent
    return path


def _has_content(marker: Path, content: str) -> bool:
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
