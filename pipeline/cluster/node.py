"""The check of a node: does it have the Python, packages, folders and code that a stage needs?

The driver sends these functions by value, since the project may be what the node lacks: standard
library only, until the project is known to be there.
"""

import base64
import importlib
import importlib.metadata
import importlib.util
import pathlib
import shutil
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any


def check_node(wanted: dict[str, Any]) -> list[str]:
    """Return what this node lacks, a sentence for each thing.

    `wanted` is what `preflight.find_problems` asks for: versions of Python and packages, the digest
    of the code, files to be found in folders and at URLs, free bytes, and the tracking server.
    """
    causes = list(_environment(wanted))
    for check in (_code, _urls):  # each needs what was looked for before it
        causes += [] if causes else check(wanted)
    return [*causes, *_shared_folders(wanted), *_room(wanted), *_tracking(wanted)]


def _environment(wanted: dict[str, Any]) -> Iterator[str]:
    if list(sys.version_info[:2]) != wanted["python"]:
        node, driver = (".".join(map(str, v)) for v in (sys.version_info[:2], wanted["python"]))
        yield f"Python {node}, and the driver has {driver}; use one image for all"
    for name, version in wanted["packages"].items():
        try:
            installed = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            yield f"{name} is not installed; use one image for all"
            continue
        if installed != version:
            yield f"{name} {installed}, and the driver has {version}; use one image for all"


def _shared_folders(wanted: dict[str, Any]) -> Iterator[str]:
    for folder, (name, content) in wanted["markers"].items():
        until = time.monotonic() + wanted["stale"]
        while not _is_there(pathlib.Path(folder, name or "any"), content if name else ""):
            if time.monotonic() > until:
                exists = pathlib.Path(folder).is_dir()
                what = "is not the driver's folder" if exists else "is not there"
                yield f"{folder} {what}; mount the shared storage there"
                break
            time.sleep(0.5)


def _room(wanted: dict[str, Any]) -> Iterator[str]:
    for folder in sorted({*wanted["markers"], tempfile.gettempdir()}):
        free = shutil.disk_usage(folder).free if pathlib.Path(folder).is_dir() else None
        if free is not None and free < wanted["free"]:
            least = wanted["free"] / 1e6
            yield f"{free / 1e6:.0f} MB free in {folder}; {least:.0f} MB are needed"


def _code(wanted: dict[str, Any]) -> Iterator[str]:
    try:
        for name in ("torch", "elmo.nn.bilm", wanted["module"]):
            importlib.import_module(name)
    except Exception as error:
        yield f"can't import {name} ({error}); send the code (elmo submit) or mount it"
        return
    own: Any = sys.modules[wanted["module"]]
    if own.code_digest() != wanted["code"]:
        folder = pathlib.Path(own.__file__).parents[2]
        yield f"{folder} holds another version of the code; send it (elmo submit) or mount it"


def _urls(wanted: dict[str, Any]) -> Iterator[str]:
    for url, name in wanted["urls"].items():
        try:
            from elmo.io.location import Location

            if not Location(url).exists(name):
                yield f"{url} does not hold there what the driver has put in it"
        except Exception as error:
            yield f"{error}; does this node have the address and the credentials?"


def _tracking(wanted: dict[str, Any]) -> Iterator[str]:
    if uri := wanted["tracking_uri"]:
        if importlib.util.find_spec("mlflow") is None:
            yield "mlflow is not installed; use one image for all"
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
            yield f"the tracking server does not answer ({error}); is its address right there?"


def _is_there(marker: pathlib.Path, content: str) -> bool:
    try:
        return marker.read_text() == content if content else marker.parent.is_dir()
    except OSError:
        return False
