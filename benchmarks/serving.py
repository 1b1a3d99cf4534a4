"""How long one sentence takes: the embedder in this process, and `mlflow models serve`.

    MLFLOW_TRACKING_URI=… python -m benchmarks.serving TEXT [--model models:/elmo@champion]

TEXT has one sentence per line, tokens between spaces. Each of the first `--requests` sentences is
one request for all layers. Prints JSON: milliseconds of the first request, the median, and the 95th
percentile.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles

import mlflow

from benchmarks.machine import show


def main() -> None:
    """Time the embedder, then the server."""
    options = _options()
    with options.text.open(encoding="utf-8") as file:
        lines = [line for line in map(str.strip, file) if line][: options.requests]
    embedder = mlflow.pyfunc.load_model(options.model).unwrap_python_model().embedder
    figures = {
        "requests": len(lines),
        "tokens a sentence": round(sum(len(line.split()) for line in lines) / len(lines), 1),
        "embedder": _time_requests(lines, lambda line: embedder.embed([line.split()])),
    }
    with socket.socket() as free_port:
        free_port.bind(("127.0.0.1", 0))
        port = free_port.getsockname()[1]
    scripts = Path(sys.executable).parent
    search_path = f"{scripts}{os.pathsep}{os.environ['PATH']}"
    arguments = ["-m", options.model, "-p", str(port), "--env-manager", "local"]
    server = subprocess.Popen(
        [scripts / "mlflow", "models", "serve", *arguments],
        env=os.environ | {"PATH": search_path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _wait_until_ready(f"http://127.0.0.1:{port}/ping", server)
        address = f"http://127.0.0.1:{port}/invocations"
        figures["mlflow models serve"] = _time_requests(lines, lambda line: _request(address, line))
    finally:
        os.killpg(server.pid, signal.SIGTERM)
    show(figures)


def _request(address: str, line: str) -> object:
    body = json.dumps({"inputs": [line], "params": {"layers": "all"}}).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)["predictions"][0]


def _time_requests(lines: list[str], embed: Callable[[str], object]) -> dict[str, float]:
    times = []
    for line in lines:
        start = time.perf_counter()
        embed(line)
        times.append((time.perf_counter() - start) * 1000)
    percentile = quantiles(times, n=20)[-1]
    return {
        "first_ms": round(times[0], 2),
        "median_ms": round(median(times), 2),
        "p95_ms": round(percentile, 2),
    }


def _wait_until_ready(address: str, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(address).close()
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.5)
    sys.exit("error: mlflow models serve did not start")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--model", default="models:/elmo@champion")
    parser.add_argument("--requests", type=int, default=200)
    return parser.parse_args()


if __name__ == "__main__":
    main()
