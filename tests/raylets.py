"""A Ray cluster of several nodes on this machine, in a process of its own, whose nodes can be killed and come back.
Only who has its token may use it, as in an allocation.

``python -m tests.raylets NODE:DOMAIN ...`` starts it, the first node as its head, says in a line of JSON where it is,
then reads ``kill NODE`` and ``add NODE`` and answers each with a line. A node that is killed goes as a host does: its
raylet and all that runs under it at once, by SIGKILL. The cluster ends with the program's standard input.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from grpo_bench.fabric._proc import Process, family, kill, table

from .children import Child, words

ROOT = Path(__file__).parents[1]
QUICK = {
    "RAY_health_check_initial_delay_ms": "1000", "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000", "RAY_health_check_failure_threshold": "3",
    "RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0", "RAY_memory_monitor_refresh_ms": "0",
    "RAY_USAGE_STATS_ENABLED": "0", "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
}
"""A host that is gone is known to be within seconds."""
_TRIES = 3
GPUS = 4
"""That every node says it has; nobody looks for them."""


class Raylets:
    """The program as a test sees it. ``nodes`` is the domain of each node by name; ``environment`` is what a driver
    needs; ``loss_s`` what its fabric is to be told about the health checks."""

    loss_s = 4

    def __init__(self, nodes: Mapping[str, str]) -> None:
        self.nodes = dict(nodes)
        env = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        words = [f"{name}:{domain}" for name, domain in nodes.items()]
        said = None
        for _ in range(_TRIES):  # on a busy machine Ray may give up on a node that it is starting
            self._process = subprocess.Popen([sys.executable, "-m", "tests.raylets", *words], cwd=ROOT, text=True,
                                             env={**env, **QUICK}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            if (said := self._answer()) is not None:
                break
            self.close()
        assert said is not None, "the cluster does not start"
        self.environment: dict[str, str] = said

    def kill(self, node: str) -> None:
        self._tell(f"kill {node}")

    def add(self, node: str) -> None:
        self._tell(f"add {node}")

    def close(self) -> None:
        self._process.communicate(timeout=120)

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        assert self._answer() is not None, "the cluster ended"

    def _answer(self) -> dict[str, Any] | None:
        """The next line of JSON; None where the program has ended."""
        assert self._process.stdout is not None
        return next((json.loads(line) for line in self._process.stdout if line.startswith("{")), None)


def placed(folder: Path, *order: str, **hardware: int) -> dict[str, object]:
    """Settings that place a run on nodes of the cluster, in this order."""
    topology = folder / "topology.json"
    topology.write_text(json.dumps({"d": [*order]}))
    nodes = {"nodes": len(order), "gpus_per_node": 0, "topology": topology, **hardware}
    return {"fabric.use": "ray", "fabric.loss_s": Raylets.loss_s, "hardware.use": "cluster",
            **{f"hardware.{key}": value for key, value in nodes.items()}}


def seats(child: Child) -> dict[str, list[Process]]:
    """Worker processes of a run, on whatever node, by what their logs are called."""
    logs = {file.resolve() for file in (child.folder / "workers").glob("*.log")}
    found: dict[str, list[Process]] = {}
    for process in table().values():
        if "grpo_bench.fabric.worker" in " ".join(words(process.pid)):
            with suppress(OSError):
                log = Path(os.readlink(f"/proc/{process.pid}/fd/1"))
                if log in logs:
                    found.setdefault(log.stem, []).append(process)
    return found


class _Nodes:
    """The cluster inside the program."""

    def __init__(self, domains: Mapping[str, str], folder: str) -> None:
        from ray.cluster_utils import Cluster

        self._domains = domains
        self._folder = folder
        self._cluster = Cluster()
        self._nodes: dict[str, Any] = {}
        for number, name in enumerate(domains):
            self.add(name, wait=number == 0)
        self._cluster.wait_for_nodes(120)

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, name: str, *, wait: bool = True) -> None:
        labels = {"grpo-bench-node": name, "grpo-bench-domain": self._domains.get(name, "other")}
        self._nodes[name] = self._cluster.add_node(
            wait=wait, num_cpus=2, num_gpus=GPUS, object_store_memory=100 * 2**20, include_dashboard=False,
            labels=labels, temp_dir=self._folder)

    def kill(self, name: str) -> None:
        node = self._nodes.pop(name)
        raylet = node.all_processes["raylet"][0].process
        processes = table()
        kill([*family(raylet.pid, processes), processes[raylet.pid]])
        raylet.wait()

    def close(self) -> None:
        self._cluster.shutdown()


def main(words: list[str]) -> None:
    domains = dict(word.split(":") for word in words)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # whoever started it ends it, by the end of its input
    folder = Path(tempfile.mkdtemp(prefix="gbr", dir="/tmp"))  # Ray's sockets need a short path
    token = folder / "token"
    token.touch(0o600)
    token.write_text(secrets.token_hex(32))
    environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    os.environ.update(environment)
    try:
        nodes = _Nodes(domains, str(folder))
        print(json.dumps({**environment, "RAY_ADDRESS": nodes.address}), flush=True)
        for line in sys.stdin:
            what, name = line.split()
            {"kill": nodes.kill, "add": nodes.add}[what](name)
            print(json.dumps({"done": what}), flush=True)
        nodes.close()
    finally:
        kill(family(os.getpid(), table()))  # a node whose start failed is known to nobody
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
