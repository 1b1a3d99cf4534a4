"""Machines on this machine: each has its own network, processes, mounts and temporary folder.

They need root and Linux's namespaces (iproute2, util-linux); where these lack, tests skip.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAD = "10.77.0.1"
_START = """
name=$1; tmp=$2; hosts=$3; shift 3
hostname $name; mount --make-rprivate /
mount -t tmpfs -o size=2g tmpfs $tmp; mount -t tmpfs -o size=1g tmpfs /dev/shm
mount --bind $hosts /etc/hosts
for folder in $HIDE; do mount -t tmpfs tmpfs $folder; done
exec "$@"
"""


class Nodes:
    """Ray nodes in namespaces of their own; node 1 is the head."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.home = Path(tempfile.mkdtemp(prefix="nodes", dir="/tmp"))
        (self.home / "tmp").mkdir()
        self.head_options = [f"--temp-dir={self.home / 'tmp'}"]
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY", "MLFLOW", "ELMO"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
        self.environment = kept | {
            "PATH": path,
            "RAY_AUTH_MODE": "disabled",
            "RAY_worker_niceness": "0",  # else other programs of this machine take all its cores
            "DVC_NO_ANALYTICS": "1",
            "ELMO_COMPILE": "0",
            "TMPDIR": str(self.home / "tmp"),
        }
        for k in range(1, count + 1):
            self._ip("netns", "add", self._name(k))
            self._ip("-n", self._name(k), "link", "set", "lo", "up")
        first = self._name(1)
        self._ip("-n", first, "link", "add", "br0", "type", "bridge")
        self._ip("-n", first, "addr", "add", f"{HEAD}/24", "dev", "br0")
        self._ip("-n", first, "link", "set", "br0", "up")
        for k in range(2, count + 1):
            veth = ["link", "add", f"v{k}", "type", "veth", "peer", "name", "eth0"]
            self._ip("-n", first, *veth, "netns", self._name(k))
            self._ip("-n", first, "link", "set", f"v{k}", "master", "br0", "up")
            self._ip("-n", self._name(k), "addr", "add", f"10.77.0.{k}/24", "dev", "eth0")
            self._ip("-n", self._name(k), "link", "set", "eth0", "up")

    def _name(self, k: int) -> str:
        return f"elmo{os.getpid()}n{k}"

    def _ip(self, *arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True)

    def start(self, k: int, *, cpus: int, hide: Sequence[Path] = ()) -> None:
        """Start Ray on node `k`, and wait for it; the folders in `hide` are empty there.

        Ray gives its processes 30 s to start, too few where much else runs: then it is tried again.
        """
        role = [f"--address={HEAD}:6379"]
        if k == 1:
            role = [
                "--head",
                "--port=6379",
                *self.head_options,
                f"--dashboard-host={HEAD}",
                "--dashboard-port=8265",
            ]
        hosts = self.home / f"hosts{k}"
        hosts.write_text(f"127.0.0.1 localhost\n10.77.0.{k} node{k}\n")
        ray = [
            "ray",
            "start",
            *role,
            "--block",
            f"--node-ip-address=10.77.0.{k}",
            f"--num-cpus={cpus}",
            "--object-store-memory=100000000",
            "--disable-usage-stats",
        ]
        inside = ["unshare", "-m", "-p", "-f", "-u", "--kill-child", "--mount-proc"]
        own = ["bash", "-c", _START, "node", f"node{k}", str(self.home / "tmp"), str(hosts)]
        log = self.home / f"{k}.log"
        for _ in range(20):
            with log.open("wb") as output:
                self.running[k] = subprocess.Popen(
                    ["ip", "netns", "exec", self._name(k), *inside, *own, *self.wrap(k, ray)],
                    env=self.environment | {"HIDE": " ".join(map(str, hide))},
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            while self.running[k].poll() is None:
                has_started = b"Ray runtime started" in log.read_bytes()
                time.sleep(2)  # in which Ray ends if one of its processes has
                if has_started and self.running[k].poll() is None:
                    return
        raise AssertionError(log.read_text()[-2000:])

    def wrap(self, k: int, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` where node `k` has its programs: on this machine."""
        return list(command)

    def on(self, k: int, *command: str, **variables: str) -> list[str]:
        """The command line that runs `command` on node `k`."""
        child = self._child(self.running[k].pid)
        given = [f"{name}={value}" for name, value in variables.items()]
        inside = self.wrap(k, ["env", *given, *command])
        return ["nsenter", "-t", str(child), "-m", "-p", "-n", "-u", "--", *inside]

    def _child(self, pid: int) -> int:
        """The first process inside: the one that `unshare` started."""
        for _ in range(100):
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                if children := task.read_text().split():
                    return int(children[0])
            time.sleep(0.1)
        raise AssertionError(f"node of process {pid} did not start")

    def run(
        self, k: int, *command: str, cwd: Path = ROOT, limit: float = 900, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on node `k` to its end."""
        shell = ["bash", "-c", 'cd "$0" && exec "$@"', str(cwd)]
        return subprocess.run(
            self.on(k, *shell, *command, PYTHONPATH=str(ROOT), **variables),
            env=self.environment,
            text=True,
            capture_output=True,
            timeout=limit,
        )

    def lose(self, k: int) -> None:
        """Kill everything on node `k` at once."""
        os.kill(self._child(self.running[k].pid), 9)
        self.running.pop(k).wait()

    def preempt(self, k: int) -> None:
        """Tell Ray that node `k` is about to be taken away, and take it away 5 s later."""
        code = "import ray; ray.init(address='auto', log_to_driver=False, logging_level='ERROR'); "
        code += "print(*(n['NodeID'] for n in ray.nodes() if n['NodeManagerAddress'] == "
        found = self.run(1, sys.executable, "-c", f"{code}'10.77.0.{k}'))")
        drain = ["ray", "drain-node", f"--address={HEAD}:6379", "--reason-message=sold"]
        drain += [f"--node-id={found.stdout.split()[-1]}", "--deadline-remaining-seconds=5"]
        told = self.run(1, *drain, "--reason=DRAIN_NODE_REASON_PREEMPTION")
        assert told.returncode == 0, told.stderr
        time.sleep(5)
        self.lose(k)

    def cut_off(self, k: int) -> None:
        """Take node `k` from the network; its processes keep running."""
        self._ip("-n", self._name(1), "link", "set", f"v{k}", "down")

    def down(self) -> None:
        """End all nodes."""
        for k in [k for k, one in self.running.items() if one.poll() is None]:
            self.lose(k)
        for k in range(1, self.count + 1):
            subprocess.run(["ip", "netns", "del", self._name(k)], check=False)
        shutil.rmtree(self.home, ignore_errors=True)


@pytest.fixture
def make_nodes() -> Iterator[Callable[[int], Nodes]]:
    """Makes nodes, and ends them after the test."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    for tool in ("ip", "unshare", "nsenter"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    if subprocess.run(["unshare", "-m", "-n", "true"], capture_output=True).returncode:
        pytest.skip("this machine allows no namespaces")
    made: list[Nodes] = []

    def make(count: int) -> Nodes:
        made.append(Nodes(count))
        return made[-1]

    yield make
    for nodes in made:
        nodes.down()
