"""Run moto's S3 server in memory, on request as slow as a distant one, or as limited as an old one.

    python -m benchmarks.s3 127.0.0.1 5555 [--milliseconds 30] [--without-conditions]

`--milliseconds` delays each answer; requests still run at the same time. `--without-conditions`
drops the header `If-None-Match`, so a name can be written more than once.
"""

import argparse
import time
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.server import MotoRequestHandler
from werkzeug.serving import run_simple

Start = Callable[..., Any]


def served(milliseconds: float, *, conditions: bool) -> Callable[[Any, Start], Iterable[bytes]]:
    """Return the application."""
    moto = DomainDispatcherApplication(create_backend_app)

    def application(environ: Any, start_response: Start) -> Iterable[bytes]:
        time.sleep(milliseconds / 1000)
        if not conditions:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        answer: Iterable[bytes] = moto(environ, start_response)
        return answer

    return application


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("--milliseconds", type=float, default=0.0)
    parser.add_argument("--without-conditions", action="store_true")
    options = parser.parse_args()
    application = served(options.milliseconds, conditions=not options.without_conditions)
    run_simple(
        options.host,
        options.port,
        application,
        threaded=True,
        request_handler=MotoRequestHandler,
    )


if __name__ == "__main__":
    main()
