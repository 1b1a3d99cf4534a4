"""MLflow's own server application on loopback, in a process of its own, with faults in front.

Run as `python mlflow_server.py DATABASE FOLDER`: it writes its port to FOLDER/port. While
FOLDER/fault exists, requests meet the fault that the file names: `slow`, `refuse` (503) or `drop`
(the connection is closed). With FOLDER/password, a login is asked for.
"""

import base64
import os
import sys
import time
from pathlib import Path
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server


class Server(ThreadingMixIn, WSGIServer):
    """A thread for each request."""

    daemon_threads = True


class Quiet(WSGIRequestHandler):
    """No line for each request."""

    def log_message(self, *_):  # type: ignore[no-untyped-def]
        """Nothing."""


def main() -> None:
    """Serve until killed."""
    database, folder = sys.argv[1], Path(sys.argv[2])
    os.environ["_MLFLOW_SERVER_FILE_STORE"] = f"sqlite:///{database}"
    os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = (folder / "artifacts").as_uri()
    from mlflow.server import app

    def faulty(environ, start):  # type: ignore[no-untyped-def]
        password = folder / "password"
        if password.exists():
            login = base64.b64encode(f"user:{password.read_text()}".encode()).decode()
            if environ.get("HTTP_AUTHORIZATION") != f"Basic {login}":
                start("401 Unauthorized", [("Content-Type", "text/plain")])
                return [b"who are you?"]
        try:
            fault = (folder / "fault").read_text()
        except FileNotFoundError:
            fault = ""
        if fault == "slow":
            time.sleep(2)
        elif fault == "refuse":
            (folder / "refused").touch()
            start("503 Service Unavailable", [("Content-Type", "text/plain")])
            return [b"later"]
        return app(environ, start)

    server = make_server("127.0.0.1", 0, faulty, Server, Quiet)
    (folder / "port.new").write_text(str(server.server_port))
    (folder / "port.new").rename(folder / "port")
    server.serve_forever()


if __name__ == "__main__":
    main()
