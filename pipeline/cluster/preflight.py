"""Before a stage works on several nodes: can each of them? One line names the node and the cause.

This file is given Ray and imports it nowhere. What a node runs is sent to it by value, since the
project may be what it lacks.
"""

import hashlib
import importlib.metadata
import secrets
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import elmo
from elmo.errors import ElmoError
from elmo.io.location import Location

from .. import PACKAGE

PACKAGES = ("torch", "numpy", "pyarrow", "safetensors", "fsspec", "msgspec")
LEAST_FREE = 1_000_000_000  # bytes in each folder and in the temporary one
ANSWER = 300.0  # seconds in which a node must have looked; importing torch may take a minute
ASKED = 5  # times a node is asked where what it runs is lost
STALE = 40.0  # seconds for which a network file system may hide what another node wrote


def check(
    ray: Any,
    folders: Iterable[Path | str],
    *,
    tracking_uri: str | None,
    answer: float = ANSWER,
) -> int:
    """Check the nodes that work, if there are several; how many were checked.

    Each must see the folders of the paths, and reach those at URLs.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if len(nodes) < 2:
        return 0
    markers = Markers(folders)
    try:
        wanted = {
            "python": list(sys.version_info[:2]),
            "packages": {name: version(name) for name in PACKAGES},
            "module": __name__,
            "code": code_digest(),
            "markers": markers.contents,
            "urls": markers.urls,
            "free": LEAST_FREE,
            "stale": STALE,
            "tracking_uri": tracking_uri if (tracking_uri or "").startswith("http") else None,
        }
        working = [node for node in nodes if node["Resources"].keys() & {"CPU", "GPU"}]
        problems = _ask(ray, working, wanted, answer)
    finally:
        markers.remove()
    if problems:
        by_cause: dict[str, list[str]] = {}
        for node, cause in problems:
            by_cause.setdefault(cause, []).append(node)
        raise ElmoError(
            "; ".join(
                f"node{'s' * (len(names) > 1)} {', '.join(names)}: {cause}"
                for cause, names in by_cause.items()
            )
        )
    return len(working)


def _ask(
    ray: Any, nodes: Sequence[dict[str, Any]], wanted: dict[str, Any], answer: float
) -> list[tuple[str, str]]:
    """Return what is wrong with each node; the check runs on all at once.

    Where it was lost it is asked for again, and a node that is lost has nothing wrong.
    """
    pinned = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    remote = ray.remote(num_cpus=0, max_retries=0)(looker())
    problems = []
    for _ in range(ASKED):
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
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
                problems += [(_name(node), cause) for cause in ray.get(reference, timeout=0)[:1]]
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


def looker() -> Callable[[dict[str, Any]], list[str]]:
    """The function that a node runs: standard library only until the project is known to be there.

    All is nested in one function, so that Ray sends all of it by value.
    """

    def environment(wanted: dict[str, Any]) -> str | None:
        import importlib.metadata
        import sys

        if list(sys.version_info[:2]) != wanted["python"]:
            node, driver = (".".join(map(str, v)) for v in (sys.version_info[:2], wanted["python"]))
            return f"Python {node}, and the driver has {driver}; use one image for all"
        for name, version in wanted["packages"].items():
            try:
                installed = importlib.metadata.version(name).partition("+")[0]
            except importlib.metadata.PackageNotFoundError:
                return f"{name} is not installed; use one image for all"
            if installed != version:
                return f"{name} {installed}, and the driver has {version}; use one image for all"
        return None

    def shared_folders(wanted: dict[str, Any]) -> str | None:
        import pathlib
        import time

        def is_there(marker: pathlib.Path, content: str) -> bool:
            try:
                return marker.read_text() == content if content else marker.parent.is_dir()
            except OSError:
                return False

        for folder, (name, content) in wanted["markers"].items():
            until = time.monotonic() + wanted["stale"]
            while not is_there(pathlib.Path(folder, name or "any"), content if name else ""):
                if time.monotonic() > until:
                    exists = pathlib.Path(folder).is_dir()
                    what = "is not the driver's folder" if exists else "is not there"
                    return f"{folder} {what}; mount the shared storage there"
                time.sleep(0.5)
        return None

    def room(wanted: dict[str, Any]) -> str | None:
        import shutil
        import tempfile

        for folder in {*wanted["markers"], tempfile.gettempdir()}:
            free = shutil.disk_usage(folder).free
            if free < wanted["free"]:
                least = wanted["free"] / 1e6
                return f"{free / 1e6:.0f} MB free in {folder}; {least:.0f} MB are needed"
        return None

    def code(wanted: dict[str, Any]) -> str | None:
        import importlib
        import pathlib
        import sys

        try:
            for name in ("torch", "elmo.nn.bilm", wanted["module"]):
                importlib.import_module(name)
        except Exception as error:
            return f"can't import {name} ({error}); send the code (elmo submit) or mount it"
        own: Any = sys.modules[wanted["module"]]
        if own.code_digest() != wanted["code"]:
            folder = pathlib.Path(own.__file__).parents[2]
            return f"{folder} holds another version of the code; send it (elmo submit) or mount it"
        return None

    def servers(wanted: dict[str, Any]) -> str | None:
        import base64
        import urllib.parse
        import urllib.request

        for url, name in wanted["urls"].items():
            try:
                from elmo.io.location import Location

                if not Location(url).exists(name):
                    return f"{url} does not hold there what the driver has put in it"
            except Exception as error:
                return f"{error}; does this node have the address and the credentials?"
        if uri := wanted["tracking_uri"]:
            parts = urllib.parse.urlsplit(uri)
            login, _, host = parts.netloc.rpartition("@")
            path = parts.path.rstrip("/") + "/health"
            request = urllib.request.Request(parts._replace(netloc=host, path=path).geturl())
            if login:
                words = base64.b64encode(urllib.parse.unquote(login).encode()).decode()
                request.add_header("Authorization", f"Basic {words}")
            try:
                urllib.request.urlopen(request, timeout=20).close()
            except OSError as error:
                return f"the tracking server does not answer ({error}); is its address right there?"
        return None

    def look(wanted: dict[str, Any]) -> list[str]:
        for check in (environment, shared_folders, room, code, servers):
            if cause := check(wanted):
                return [cause]
        return []

    return look


class Markers:
    """A small file in each folder that the nodes must share, those of the paths, and in one URL.

    Where the driver may only read, the nodes are asked for the folder alone.
    """

    def __init__(self, paths: Iterable[Path | str]) -> None:
        self.contents: dict[str, tuple[str, str]] = {}
        self.urls: dict[str, str] = {}
        paths = list(paths)
        local = [Path(path) for path in paths if ":/" not in str(path)]
        for url in [str(path) for path in paths if "://" in str(path)][-1:]:
            self.urls[url] = f".preflight-{secrets.token_hex(8)}"
            Location(url).write(self.urls[url], b"")
        for folder in sorted({str(_folder(path)) for path in local}):
            name, content = f".preflight-{secrets.token_hex(8)}", secrets.token_hex(16)
            try:
                Path(folder, name).write_text(content)
            except OSError:
                name = ""
            self.contents[folder] = (name, content)

    def remove(self) -> None:
        """Take them away."""
        for url, name in self.urls.items():
            Location(url).delete(name)
        for folder, (name, _) in self.contents.items():
            if name:
                Path(folder, name).unlink(missing_ok=True)


def _folder(path: Path) -> Path:
    """The nearest folder that is there and is no output of a stage itself."""
    path = path.absolute().parent
    while not path.is_dir():
        path = path.parent
    return path


def version(name: str) -> str:
    """The version of a package, without the part that tells builds for CPU and GPU apart."""
    return importlib.metadata.version(name).partition("+")[0]


def code_digest() -> str:
    """A digest of the project's own code."""
    hasher = hashlib.sha256()
    for package in (Path(elmo.__file__).parent, PACKAGE):
        for path in sorted(package.rglob("*.py")):
            name = str(path.relative_to(package)).encode()
            hasher.update(name + b"\0" + path.read_bytes() + b"\0")
    return hasher.hexdigest()
