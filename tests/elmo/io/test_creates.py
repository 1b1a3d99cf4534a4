"""Of two that create one name at a store of objects one is told: tried on S3 servers over HTTP."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from elmo.errors import ElmoError
from elmo.io.location import Location

pytest.importorskip("s3fs")
pytest.importorskip("moto.server")


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of an S3 server; one without conditions is told none, as those that know none."""
    from moto.server import MotoRequestHandler
    from werkzeug.serving import make_server

    from benchmarks.s3 import make_application

    options = {"threaded": True, "request_handler": MotoRequestHandler}
    moto = make_server("127.0.0.1", 0, make_application(0, has_conditions=request.param), **options)
    threading.Thread(target=moto.serve_forever, daemon=True).start()
    yield moto.port
    moto.shutdown()
    moto.server_close()


def bucket(port: int) -> Location:
    options = {"key": "k", "secret": "s", "endpoint_url": f"http://127.0.0.1:{port}"}
    location = Location("s3://bucket/folder", options)
    files, _ = location._remote.file_system()
    files.makedirs("bucket", exist_ok=True)
    location.delete("name")
    return location


@pytest.mark.parametrize("server", [True], indirect=True)
def test_a_store_that_gives_a_name_once_is_used(server: int) -> None:
    location = bucket(server)
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda k: location.create("name", str(k).encode()), range(4)))
    assert made.count(True) == 1
    assert location.read("name").decode() == str(made.index(True))
    assert location.names() == ["name"]  # nothing is left of the question


@pytest.mark.parametrize("server", [False], indirect=True)
def test_a_store_that_gives_a_name_twice_is_refused(server: int) -> None:
    location = bucket(server)
    with pytest.raises(ElmoError, match="ignores If-None-Match"):
        location.create("name", b"first")
    assert location.names() == []
    location.write("name", b"whole")  # what one writer does alone needs no condition
    assert location.read("name") == b"whole"
