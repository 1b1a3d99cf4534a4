"""Of two that create one name at a store of objects one is told: tried on S3 servers over HTTP."""

import http.client
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from elmo.errors import ElmoError
from elmo.io.location import Location

pytest.importorskip("s3fs")
moto = pytest.importorskip("moto.server")


class _Forgetful(BaseHTTPRequestHandler):
    """Passes requests on without their conditions, as servers do that do not know them."""

    protocol_version = "HTTP/1.1"
    behind = 0
    conditions = 0

    def pass_on(self) -> None:
        """Answer as the server behind does."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name: value for name, value in self.headers.items() if name != "If-None-Match"}
        type(self).conditions += len(self.headers) - len(headers)
        server = http.client.HTTPConnection("127.0.0.1", self.behind)
        server.request(self.command, self.path, body, headers)
        answer = server.getresponse()
        text = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        length = answer.headers.get("Content-Length", "0") if self.command == "HEAD" else len(text)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on

    def log_message(self, *_: Any) -> None:
        """Nothing: the test's output is its own."""


@pytest.fixture
def server() -> Iterator[int]:
    started = moto.ThreadedMotoServer("127.0.0.1", port=0)
    started.start()
    yield started.get_host_and_port()[1]
    started.stop()


@pytest.fixture
def forgetful(server: int) -> Iterator[int]:
    """The port of the same server where it can be told no condition."""
    handler = type("Handler", (_Forgetful,), {"behind": server})
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    yield proxy.server_port
    assert handler.conditions  # it was asked
    proxy.shutdown()
    proxy.server_close()


def bucket(port: int) -> Location:
    options = {"key": "k", "secret": "s", "endpoint_url": f"http://127.0.0.1:{port}"}
    location = Location("s3://bucket/folder", options)
    files, _ = location._remote.file_system()
    files.makedirs("bucket", exist_ok=True)
    location.delete("name")
    return location


def test_a_store_that_gives_a_name_once_is_used(server: int) -> None:
    location = bucket(server)
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda k: location.create("name", str(k).encode()), range(4)))
    assert made.count(True) == 1
    assert location.read("name").decode() == str(made.index(True))
    assert location.names() == ["name"]  # nothing is left of the question


def test_a_store_that_gives_a_name_twice_is_refused(forgetful: int) -> None:
    location = bucket(forgetful)
    with pytest.raises(ElmoError, match="ignores If-None-Match"):
        location.create("name", b"first")
    assert location.names() == []
    location.write("name", b"whole")  # what one writer does alone needs no condition
    assert location.read("name") == b"whole"
