"""Runs that ``grpo-bench launch`` submits to a real Slurm, over nodes with network, names and /tmp of their own.

Stand-ins in every role, no GPU; the fabric, the placement, the job's script and all of Slurm are real.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from grpo_bench.contract import Kind

from .slurm.launching import START_S, Launch
from .slurm.rig import Slurm, slurm

pytestmark = pytest.mark.real("slurm", "ray")

LAST = 6
QUICK = {"fabric.use": "ray", "fabric.wait_s": START_S, "rollout.workers": 2, "checkpoint.period": 1,
         "validation.max_tasks": 2, "validation.period": 1, "validation.start_at": LAST, "grpo.max_steps": 8,
         "trainer.skill_per_update": 1.0, "trainer.update_s": 1.5}
"""The target is met at the first validation, after the last of some steps of seconds each."""
OVER_NODES = {"hardware.use": "cluster", "hardware.gpus_per_node": 0}
LEAVES_S = 90.0
"""How long a job that is told to end may take: its own good-byes take less than a minute."""


@pytest.fixture(scope="module")
def rig() -> Iterator[Slurm]:
    with slurm() as rig:
        yield rig


def test_a_run_over_four_nodes_is_told_to_leave_comes_back_and_meets_its_target(rig: Slurm) -> None:
    launch = Launch(rig, "leaves", QUICK | OVER_NODES | {"hardware.nodes": 4})
    launch.until_step(2)
    assert launch.nodes_of_workers() == {*rig.layout.nodes}
    rig.run("scancel", "--signal=USR1", "--batch", str(launch.job))  # as Slurm does before the wall time
    ended = rig.until_job(launch.job, "COMPLETED", patience_s=START_S)
    assert (ended["ExitCode"], ended["Restarts"]) == ("0:0", "1")
    (started,), (resumed,) = launch.of(Kind.RUN_STARTED), launch.of(Kind.RESUMED)
    first, last = launch.of(Kind.RUN_ENDED)
    assert {host["name"]: host["domain"] for host in started["layout"]["hosts"]} == {
        name: rack for rack, names in rig.layout.domains.items() for name in names}
    assert (first["status"], last["status"], last["steps"]) == ("interrupted", "target_met", LAST)
    assert resumed["from_step"] == first["steps"] >= 2
    assert {data["version"] for data in launch.of(Kind.STEP)} == {*range(1, LAST + 1)}
    assert f"target_met, step {LAST}" in launch.verb("status").stdout
    assert "target met" in launch.verb("logs", "--lines", "100").stdout
    launch.assert_nothing_left()


def test_one_job_fails_with_its_message_beside_one_that_is_cancelled(rig: Slurm) -> None:
    without_end = {"hardware.nodes": 2, "validation.metric": "off", "validation.target": "off", "grpo.max_steps": 1000}
    endless = Launch(rig, "cancelled", QUICK | OVER_NODES | without_end)
    fault = '[{at = "update", kind = "raise", step = 2}]'
    failing = Launch(rig, "fails", QUICK | {"trainer.faults": fault})
    ended = rig.until_job(failing.job, "FAILED", patience_s=START_S)
    (error,) = failing.of(Kind.ERROR)
    assert ended["ExitCode"] == "1:0"
    assert error["message"] in failing.verb("logs", "--lines", "100").stdout
    assert "FAILED" in failing.verb("status").stdout
    assert not list(failing.replica.glob(".ray-token*"))
    endless.until_step(1)
    assert list(endless.replica.glob(".ray-token*"))
    assert "RUNNING" in endless.verb("status").stdout
    endless.verb("cancel")
    rig.until_job(endless.job, "CANCELLED", patience_s=LEAVES_S)
    rig.until(rig.all_idle, "the nodes of a cancelled job to be idle", patience_s=LEAVES_S)
    endless.assert_nothing_left()
