"""The layout of gb300-256 on a Ray cluster of as many hosts, which are all this machine: a program of its own.

Each host is a node of Ray with four GPUs that are not there and the labels that a job's script gives it. The fabric is
opened with the placements of the profile, and a group is started on each role's, whose workers do nothing but say which
GPUs they have. Prints one line of JSON with seconds and bytes.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import structlog

from grpo_bench.contract import FabricHandle, GroupSpec
from grpo_bench.fabric._proc import family, table
from grpo_bench.registry import Plan, resolve, survey

PROFILE = "gb300-256"
START_S, GRACE_S = 1800.0, 300.0
KNOBS = {"RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0",
         "RAY_memory_monitor_refresh_ms": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled",
         "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}


def main() -> None:
    os.environ.update(KNOBS)
    plan = survey(resolve(PROFILE))
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        since = time.perf_counter()
        cluster = start(plan, folder)
        found = {"hosts": time.perf_counter() - since, "hosts_bytes": memory()}
        say("hosts", found)
        try:
            found |= asyncio.run(placed(plan, cluster.address, Path(folder)))
        finally:
            cluster.shutdown()
    print(json.dumps(found))


def start(plan: Plan, folder: str) -> Any:
    """The cluster, each host with the name and the domain that the plan gives it."""
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    names = plan.layout.hosts
    for domain, hosts in plan.layout.domains.items():
        for host in hosts:
            if host in names:
                first = {} if cluster.head_node else {"temp_dir": folder}
                cluster.add_node(
                    wait=not cluster.head_node, num_cpus=8, num_gpus=plan.form.gpus, object_store_memory=80_000_000,
                    include_dashboard=False, labels={"grpo-bench-node": host, "grpo-bench-domain": domain}, **first)
    cluster.wait_for_nodes(START_S)
    return cluster


async def placed(plan: Plan, address: str, folder: Path) -> dict[str, float]:
    """Seconds in which the fabric reaches all hosts, and starts one group after another."""
    from grpo_bench_fabric_ray._plugin import RayConfig
    from grpo_bench_fabric_ray.fabric import RayFabric

    config = RayConfig(address=address, wait_s=START_S, grace_s=GRACE_S)  # two cores answer for all hosts
    fabric = RayFabric(config, folder, structlog.get_logger(), say)
    since = time.perf_counter()
    found: dict[str, float] = {}
    try:
        await fabric.open(plan.placements)
        found["open"] = time.perf_counter() - since
        say("open", found["open"])
        for role in ("trainer", "generator", "rollout"):
            found |= await started(fabric, plan, role, folder)
    finally:
        since = time.perf_counter()
        await fabric.close()
    return {**found, "close": time.perf_counter() - since}


async def started(fabric: FabricHandle, plan: Plan, role: str, folder: Path) -> dict[str, float]:
    """One group, of which every worker has its GPUs to itself; it is over before the next one starts."""
    placement = plan.placements[role]
    since = time.perf_counter()
    group = await fabric.start_group(GroupSpec(
        name=role, target="grpo_bench.testing.workers:make", config={"closed": str(folder)}, placement=placement,
        start_deadline_s=START_S))
    found = {role: time.perf_counter() - since, f"{role}_bytes": float(memory())}
    say(role, found)
    seen = await group.call_all("variable", "CUDA_VISIBLE_DEVICES")
    if placement.gpus and any(len((given or "").split(",")) != placement.gpus_per_host for given in seen):
        raise RuntimeError(f"GPUs of {role}: {seen}")
    await group.close()
    return found


def memory() -> int:
    """Bytes that this process and all it started have in memory, each page counted once."""
    total = 0
    for pid in (os.getpid(), *(process.pid for process in family(os.getpid(), table()))):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
    return total


def say(name: str, message: object) -> None:
    print(f"{name}: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
