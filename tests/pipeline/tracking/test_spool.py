"""The spool: nothing lost, in order, and nobody waits, whatever the server and the writers do."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from pipeline.tracking.spool import (
    Refused,
    Spool,
    SpooledRecord,
    count_records,
)

ROOT = Path(__file__).resolve().parents[3]


class Server:
    """Takes records while it is open."""

    def __init__(self) -> None:
        self.taken: list[SpooledRecord] = []
        self.open = threading.Event()
        self.asked = threading.Event()

    def __call__(self, records: Sequence[SpooledRecord]) -> None:
        self.asked.set()
        if not self.open.is_set():
            raise ConnectionError("no answer")
        self.taken += records


def test_an_outage_is_bridged_in_order(tmp_path: Path) -> None:
    server, said = Server(), []
    spool = Spool(tmp_path, server, say=said.append)
    for n in range(500):
        spool.add({"n": n})
    assert server.asked.wait(60)
    server.open.set()
    for n in range(500, 1000):
        spool.add({"n": n})
    assert spool.close(60) == 0
    assert [record["n"] for record in server.taken] == list(range(1000))
    assert len(said) == 2 and "no answer" in said[0] and "again" in said[1]
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_never_answers_costs_the_writer_nothing(tmp_path: Path) -> None:
    answer = threading.Event()
    spool = Spool(tmp_path, lambda records: answer.wait(600) and None, say=print)
    for n in range(1000):
        spool.add({"n": n})
    assert spool.close(0) == 1000
    assert count_records(tmp_path) == 1000
    answer.set()


def test_what_a_killed_writer_left_goes_out_first(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from pipeline.tracking.spool import Spool
def send(records):
    raise ConnectionError("no answer")
spool = Spool(Path({str(tmp_path)!r}), send, say=lambda line: None)
for n in range(300):
    spool.add({{"n": n}})
os.write(spool._own.descriptor, b'{{"n": 30')
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT)
    assert done.returncode == -signal.SIGKILL and count_records(tmp_path) == 300
    server = Server()
    server.open.set()
    spool = Spool(tmp_path, server, say=print)
    for n in range(300, 400):
        spool.add({"n": n})
    assert spool.close(60) == 0
    assert [record["n"] for record in server.taken] == list(range(400))
    assert list(tmp_path.iterdir()) == []


def test_no_record_is_lost_between_several_writers(tmp_path: Path) -> None:
    """Processes write, find each other's files, and one is killed at some instant of its work."""
    code = """
import json, sys
from pathlib import Path
from pipeline.tracking.spool import Spool
name, folder = sys.argv[1], Path(sys.argv[2])
def send(records):
    with (folder / f"taken-{name}").open("a") as file:
        file.write("".join(json.dumps(r) + "\\n" for r in records))
for part in range(5):
    spool = Spool(folder / "spool", send, say=lambda line: None)
    for n in range(200):
        spool.add({"writer": name, "n": 200 * part + n})
        print(200 * part + n, flush=True)
    spool.close(60)
"""
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(name), str(tmp_path)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in range(4)
    ]
    victim = writers[0].stdout
    assert victim is not None
    while int(victim.readline()) < 500:
        pass
    os.kill(writers[0].pid, signal.SIGKILL)
    added = 500 + len([n for n in victim.read().splitlines() if n])
    for writer in writers:
        writer.communicate()
    last = Server()
    last.open.set()
    assert Spool(tmp_path / "spool", last, say=print).close(60) == 0
    taken = last.taken + [
        json.loads(line) for path in tmp_path.glob("taken-*") for line in path.open()
    ]
    found = {(record["writer"], record["n"]) for record in taken}
    assert {("0", n) for n in range(added)} <= found
    assert {(str(w), n) for w in (1, 2, 3) for n in range(1000)} <= found
    assert list((tmp_path / "spool").iterdir()) == []


def test_a_record_that_is_refused_keeps_no_other_back(tmp_path: Path) -> None:
    taken: list[int] = []

    def send(records: Sequence[SpooledRecord]) -> None:
        if any(record["n"] == 3 for record in records):
            raise Refused("not a number")
        taken.extend(record["n"] for record in records)

    said: list[str] = []
    spool = Spool(tmp_path, send, say=said.append)
    for n in range(7):
        spool.add({"n": n})
    assert spool.close(60) == 0
    assert taken == [0, 1, 2, 4, 5, 6]
    assert len(said) == 1 and "not a number" in said[0]
