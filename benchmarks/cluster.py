"""A cluster's size on one machine: Slurm 24.11 with 72 nodes in 4 blocks, jobs of 64, Ray across them, a way back.

Takes long and 17 GiB of memory, so it runs only where it is named, as root: ``make bench ARGS=cluster``. The nodes are
namespaces with fake GPUs, so times say how the job's script, Ray and the fabric grow with the number of nodes, and
nothing of a GPU. Segments of 8 nodes stand beside 64 nodes from anywhere.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from grpo_bench.contract import Kind
from tests.slurm.launching import Launch
from tests.slurm.layout import Layout
from tests.slurm.rig import RigError, Slurm, slurm

from . import Result
from ._slurm24 import absent, system

ON_REQUEST = True
_NODES, _SEGMENT = 64, 8
_PATIENCE_S = 1800.0
_RUN = {"fabric.use": "ray", "fabric.wait_s": _PATIENCE_S, "limits.start_s": _PATIENCE_S, "hardware.use": "cluster",
        "hardware.nodes": _NODES, "hardware.gpus_per_node": 0, "hardware.nodes_per_domain": 18,
        "hardware.segment": _SEGMENT, "hardware.policy_nodes": 1, "rollout.workers": 16, "checkpoint.period": 1,
        "validation.metric": "off", "validation.target": "off", "validation.period": 100, "grpo.max_steps": 6,
        "trainer.update_s": 3.0}
"""A run of stand-ins over 64 nodes: one has the trainer, each of the others an engine, 16 of them rollouts."""
_ASK = "#!/bin/bash\nsrun --ntasks-per-node=1 bash -c 'echo $SLURM_TOPOLOGY_ADDR $CUDA_VISIBLE_DEVICES'\n"


def run() -> Iterator[Result | str]:
    if (reason := absent()) is not None:
        print(f"a cluster's size is not timed: {reason}")
        return
    layout = Layout(racks=4, per_rack=18, blocks=True, root=system())
    since = time.perf_counter()
    with slurm(layout) as rig:
        yield f"{len(layout.nodes)} nodes idle in {time.perf_counter() - since:.1f} s"
        yield from _segments(rig)
        yield from _run(rig)
    yield from _layout()


def _segments(rig: Slurm) -> Iterator[Result | str]:
    """Where nodes of a job come from, and what becomes of one whose segments do not fit."""
    script = rig.folder / "ask.sh"
    script.write_text(_ASK)
    anywhere, _ = _asked(rig, script)
    by_segment, racks = _asked(rig, script, f"--segment={_SEGMENT}")
    if any(count % _SEGMENT for count in racks.values()):
        raise RigError(f"segments of {_SEGMENT} were cut: {racks}")
    yield Result(f"a job of {_NODES} nodes, segments of {_SEGMENT}", by_segment, "from anywhere", anywhere)
    yield "its nodes: " + ", ".join(f"{count} of {rack}" for rack, count in sorted(racks.items()))
    rig.run("scontrol", "update", "nodename=n[36-38]", "state=drain", "reason=benchmark")
    waiting = rig.submit(script, *_options(_NODES), f"--segment={_SEGMENT}")
    rig.until(lambda: rig.job(waiting)["Reason"] != "None", "Slurm to say why a job waits")
    fits, _ = _asked(rig, script, f"--segment={_SEGMENT}", nodes=_NODES - _SEGMENT)
    rig.run("scancel", str(waiting))
    rig.run("scontrol", "update", "nodename=n[36-38]", "state=resume")
    rig.until(rig.all_idle, "all nodes to be idle")
    yield f"3 of 18 nodes of a block drained, 69 idle: {_NODES} nodes wait, {_NODES - _SEGMENT} run in {fits:.1f} s"


def _asked(rig: Slurm, script: Path, *options: str, nodes: int = _NODES) -> tuple[float, Counter[str]]:
    """Seconds from submission until every node has answered and the job is over; nodes by rack."""
    since = time.perf_counter()
    job = rig.submit(script, *_options(nodes), *options)
    ended = rig.until_job(job, "COMPLETED")
    taken = time.perf_counter() - since
    lines = [line.split() for line in Path(ended["StdOut"]).read_text().splitlines()]
    if len(lines) != nodes or any(gpus != "0,1,2,3" for _, gpus in lines):
        raise RigError(f"not every node answered with its GPUs: {lines}")
    return taken, Counter(address.partition(".")[0] for address, _ in lines)


def _options(nodes: int) -> tuple[str, ...]:
    return f"--nodes={nodes}", "--gres=gpu:4", "--exclusive"


def _run(rig: Slurm) -> Iterator[str]:
    """What the launcher submits, up to a checkpoint; then as before the wall time, back into the queue, to the end."""
    since = time.perf_counter()
    launch = Launch(rig, "launched", _RUN)
    launch.until_step(1, _PATIENCE_S)
    yield f"launch over {_NODES} nodes: a step is over after {time.perf_counter() - since:.0f} s; workers on " \
          f"{len(launch.nodes_of_workers())} nodes"
    since = time.perf_counter()
    rig.run("scancel", "--signal=USR1", "--batch", str(launch.job))
    rig.until(lambda: launch.of(Kind.RUN_ENDED), "the run to leave", _PATIENCE_S)
    left = time.perf_counter() - since
    rig.until(lambda: rig.job(launch.job)["Restarts"] == "1", "the job to be in the queue again", _PATIENCE_S)
    queued = time.perf_counter() - since
    launch.until_step(launch.of(Kind.RUN_ENDED)[0]["steps"] + 1, _PATIENCE_S)
    again = time.perf_counter() - since
    rig.until_job(launch.job, "COMPLETED", "FAILED", patience_s=_PATIENCE_S)
    statuses = [data["status"] for data in launch.of(Kind.RUN_ENDED)]
    yield f"USR1: the run has left after {left:.0f} s, the job is back in the queue after {queued:.0f} s, its next " \
          f"step over after {again:.0f} s; it ends {', then '.join(statuses)}"
    rig.until(rig.all_idle, "all nodes to be idle", _PATIENCE_S)
    if work := rig.working():
        raise RigError(f"left of the job: {work}")


def _layout() -> Iterator[str]:
    """The benchmark's own layout, whose GPUs are placed and not there."""
    command = [sys.executable, "-m", "benchmarks._ray_hosts"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    memory = max(value for key, value in found.items() if key.endswith("bytes")) / 2**30
    yield f"{_NODES} Ray nodes with 256 GPUs: up in {found['hosts']:.0f} s, {found['hosts_bytes'] / 2**30:.1f} GiB"
    yield f"gb300-256 placed on them: open {found['open']:.1f} s, 64 trainers {found['trainer']:.1f} s, 24 engines " \
          f"over 2 nodes each {found['generator']:.1f} s, 16 rollout workers {found['rollout']:.1f} s, closed in " \
          f"{found['close']:.1f} s; {memory:.1f} GiB at most"
