"""Run moto's S3 server in memory; it can imitate a slow store, or one without conditional writes.

    python -m benchmarks.s3 127.0.0.1 5555 [--milliseconds 30] [--without-conditions]

`--milliseconds` delays each answer; requests still run at the same time. `--without-conditions`
ignores the header `If-None-Match`, so two writers can overwrite each other's objects.
"""

import argparse
import time
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.server import MotoRequestHandler
from werkzeug.serving import run_simple

StartResponse = Callable[..., Any]
Application = Callable[[Any, StartResponse], Iterable[bytes]]


def make_application(milliseconds: float, *, has_conditions: bool) -> Application:
    """Return the server's WSGI application."""
    moto = DomainDispatcherApplication(create_backend_app)

    def application(environ: Any, start_response: StartResponse) -> Iterable[bytes]:
        time.sleep(milliseconds / 1000)
        if not has_conditions:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        response: Iterable[bytes] = moto(environ, start_response)
        return response

    return application


def main() -> None:
    """Serve until the process is killed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("--milliseconds", type=float, default=0.0)
    parser.add_argument("--without-conditions", action="store_true")
    options = parser.parse_args()
    run_simple(
        options.host,
        options.port,
        make_application(options.milliseconds, has_conditions=not options.without_conditions),
        threaded=True,
        request_handler=MotoRequestHandler,
    )


if __name__ == "__main__":
    main()
