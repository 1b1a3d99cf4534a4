"""Each node is asked before a stage works: what it answers, and how a line names it."""

import http.server
import threading
from pathlib import Path
from typing import Any

import pytest

from elmo.io.location import Location
from pipeline.cluster import preflight
from pipeline.cluster.node import check_node


def wanted(folder: Path, **changed: Any) -> dict[str, Any]:
    import sys

    return {
        "python": list(sys.version_info[:2]),
        "packages": {name: preflight.package_version(name) for name in preflight.PACKAGES},
        "module": preflight.__name__,
        "code": preflight.code_digest(),
        "markers": {},
        "urls": {},
        "free": 1,
        "stale": 0.0,
        "tracking_uri": None,
    } | changed


def test_a_node_like_the_driver_has_no_problem(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    folders = [Location(tmp_path / "data" / "shards"), Location(tmp_path / "new" / "out")]
    with preflight.markers(folders) as (contents, _):
        assert set(contents) == {str(tmp_path), str(tmp_path / "data")}
        assert check_node(wanted(tmp_path, markers=contents)) == []
    assert [p.name for p in tmp_path.rglob("*")] == ["data"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"python": [3, 7]}, "and the driver has 3.7"),
        ({"packages": {"torch": "1.0"}}, "and the driver has 1.0"),
        ({"packages": {"no-such-package": "1.0"}}, "no-such-package is not installed"),
        ({"code": "other"}, "holds another version of the code"),
        ({"free": 10**18}, "MB free in"),
        ({"tracking_uri": "http://127.0.0.1:1"}, "the tracking server does not answer"),
    ],
)
def test_one_line_says_what_a_node_lacks(
    changed: dict[str, Any], said: str, tmp_path: Path
) -> None:
    (problem,) = check_node(wanted(tmp_path, **changed))
    assert said in problem and "\n" not in problem


def test_all_that_a_node_lacks_is_one_answer(tmp_path: Path) -> None:
    lacks = {"python": [3, 7], "packages": {"torch": "1.0", "no-such-package": "1.0"}}
    folder = str(tmp_path / "no")
    asked = wanted(tmp_path, markers={folder: ("a", "b")}, tracking_uri="http://127.0.0.1:1")
    found = check_node(asked | lacks | {"free": 10**18})
    said = ["3.7", "has 1.0", "no-such-package", "is not there", "MB free in", "tracking server"]
    assert len(found) == len(said)
    assert all(word in problem for word, problem in zip(said, found, strict=True))


def test_a_url_needs_the_package_that_reads_it() -> None:
    pytest.importorskip("s3fs")
    assert preflight.needed_packages(["s3://bucket/text", "/a/folder", "local:///b"]).keys() == {
        *preflight.PACKAGES,
        "s3fs",
    }


def test_a_folder_that_is_not_shared(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with preflight.markers([Location(tmp_path / "out")]) as (contents, _):
        name = contents[str(tmp_path)]
        assert check_node(wanted(tmp_path, markers={str(tmp_path): name})) == []
        (problem,) = check_node(wanted(tmp_path, markers={str(other): name}))
        assert problem == f"{other} is not the driver's folder; mount the shared storage there"
        (problem,) = check_node(wanted(tmp_path, markers={str(tmp_path / "no"): name}))
    assert problem == f"{tmp_path / 'no'} is not there; mount the shared storage there"


def test_a_tracking_server_that_answers(tmp_path: Path) -> None:
    """With a login in its address too."""
    logins: list[str | None] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            logins.append(self.headers["Authorization"])  # before whoever asks goes on
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{server.server_port}"
        assert check_node(wanted(tmp_path, tracking_uri=uri)) == []
        with_login = uri.replace("//", "//me:hunter%402@")
        assert check_node(wanted(tmp_path, tracking_uri=with_login)) == []
        server.shutdown()
    assert logins == [None, "Basic bWU6aHVudGVyQDI="]  # me:hunter@2
