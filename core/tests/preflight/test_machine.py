"""What a run needs of the machine, each thing short of what it should be."""

import os
import resource
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from grpo_bench.contract import Capabilities, Placement, Role
from grpo_bench.preflight import disk, machine
from grpo_bench.registry import Plan, resolve, survey

GB = 10**9


@pytest.fixture
def plan(bench) -> Plan:
    return survey(resolve("base", overrides=["validation.period=2"]))


def surveyed(*overrides: str) -> Plan:
    return survey(resolve("base", overrides=overrides))


def found(plan: Plan, runs: Path, facts: Any = None) -> dict[str, tuple[bool, str]]:
    return {item.rule: (item.ok, item.message) for item in machine.findings(plan, facts or {}, runs)}


def with_free(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(os, "statvfs", lambda folder: SimpleNamespace(f_bavail=count // 4096, f_frsize=4096))


def test_a_machine_that_has_it_all(plan, tmp_path):
    said = found(plan, tmp_path / "runs" / "deep")
    assert {rule: ok for rule, (ok, _) in said.items()} == {
        "run folder": True, "disk space": True, "open files": True, "clocks": True}
    assert said["run folder"] == (True, f"{tmp_path} can be written and locked")
    assert not (tmp_path / "runs").exists()


def test_a_run_folder_that_cannot_be_written(plan, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    assert found(plan, file)["run folder"] == (False, f"{file} is no folder")


def test_a_run_folder_that_cannot_be_locked(plan, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(machine.fcntl, "flock", refuse)  # type: ignore[attr-defined]
    assert found(plan, tmp_path)["run folder"] == (
        False, f"{tmp_path} cannot be written and locked: No locks available")


@pytest.mark.parametrize(("sets", "count"), [
    (["checkpoint.final=false"], 0),
    ([], 1),
    (["checkpoint.period=2"], 4),
    (["checkpoint.period=2", "checkpoint.keep=5", "checkpoint.final=false"], 6),
    (["validation.deferred=true", "validation.start_at=4"], 7),
    (["validation.deferred=true", "validation.period=4"], 3),
    (["validation.deferred=true", "validation.period=4", "checkpoint.final=false"], 2),
    (["validation.deferred=true", "validation.period=4", "checkpoint.period=2"], 6),
    (["validation.deferred=true", "validation.period=4", "validation.at_end=true"], 3),
    (["validation.deferred=true", "validation.period=5", "validation.at_end=true"], 2),
])
def test_checkpoints_that_are_kept_at_once(bench, sets, count):
    assert disk.checkpoints(surveyed(*sets)) == count


def test_checkpoints_are_as_large_as_the_trainer_says_or_as_the_policy(plan):
    assert disk.weights_bytes(plan, {"trainer": {"weights_bytes": 5}}) == 5
    assert disk.weights_bytes(plan, {}) == len(b"weights")
    (plan.checkpoint.checkpoint / "model.safetensors").unlink()
    assert disk.weights_bytes(plan, {}) is None


def test_a_disk_that_is_too_small(bench, tmp_path, monkeypatch):
    plan = surveyed("validation.deferred=true", "validation.start_at=4")
    facts = {"trainer": {"weights_bytes": 741 * GB}}
    with_free(monkeypatch, 5100 * GB)
    assert found(plan, tmp_path, facts)["disk space"] == (
        False, f"7 checkpoints of 741.0 GB and 1.1 GB for the record are 5.2 TB; 5.1 TB are free at {tmp_path}")
    with_free(monkeypatch, 5300 * GB)
    assert found(plan, tmp_path, facts)["disk space"][0]


def test_checkpoints_of_a_size_that_nobody_knows(plan, tmp_path):
    (plan.checkpoint.checkpoint / "model.safetensors").unlink()
    unknown = next(item for item in machine.findings(plan, {}, tmp_path) if item.rule == "disk space")
    assert (unknown.ok, unknown.unknown, unknown.key) == (False, True, "policy.checkpoint")


@pytest.mark.parametrize(("limits", "ok", "fix"), [
    ((768, 768), True, "ulimit -n 768"),
    ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), True, "ulimit -n 768"),
    ((767, 1000), False, "ulimit -n 768"),
    ((767, 767), False, "have the hard limit of 767 raised, or lower limits.concurrency"),
])
def test_open_files(plan, tmp_path, monkeypatch, limits, ok, fix):
    monkeypatch.setattr(resource, "getrlimit", lambda what: limits)
    finding = next(item for item in machine.findings(plan, {}, tmp_path) if item.rule == "open files")
    assert (finding.ok, finding.fix) == (ok, fix)


def test_a_program_takes_more_files_than_an_agent_in_the_process(bench, tmp_path):
    plan = surveyed("limits.concurrency=10")
    agent = plan.parts[Role.AGENT]
    program = replace(agent, descriptor=replace(agent.descriptor, capabilities=Capabilities(form="program")))
    other = replace(plan, parts={**plan.parts, Role.AGENT: program})
    assert "take about 276" in found(plan, tmp_path)["open files"][1]
    assert "take about 376" in found(other, tmp_path)["open files"][1]


def test_a_port_that_is_taken(plan, tmp_path):
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        assert found(plan, tmp_path, {"hardware": {"ports": [port]}})["ports"] == (True, f"{port} free")
        holder.listen()
        said = found(plan, tmp_path, {"hardware": {"ports": [port]}})
    assert said[f"port {port}"] == (False, "the hardware listens on it, and it is taken")
    assert "ports" not in said


def test_variables_that_somebody_wants(plan, tmp_path, monkeypatch):
    facts = {"hardware": {"environment": {"GB_ONE": 1, "GB_TWO": "2", "GB_THREE": "3"}}}
    monkeypatch.setenv("GB_ONE", "1")
    monkeypatch.setenv("GB_TWO", "8")
    said = found(plan, tmp_path, facts)
    assert said["variable GB_ONE"] == (True, "is 1")
    assert said["variable GB_TWO"] == (False, "is 8, and the hardware wants 2")
    assert said["variable GB_THREE"] == (False, "is not set, and the hardware wants 3")


def test_clocks_of_several_nodes_are_unknown(plan, tmp_path, monkeypatch):
    assert found(plan, tmp_path)["clocks"] == (True, "one machine, one clock")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "4")
    assert found(plan, tmp_path)["clocks"] == (False, "those of 4 nodes cannot be compared from here")
    monkeypatch.delenv("SLURM_JOB_NUM_NODES")
    spread = replace(plan, placements={"trainer": Placement(nodes=("a", "b")), "generator": Placement(nodes=("c",))})
    finding = machine._clocks(spread)
    assert (finding.unknown, finding.message) == (True, "those of 3 nodes cannot be compared from here")


def test_variables_that_workers_start_with_are_told(plan, tmp_path):
    given = replace(plan, placements={role: Placement(env={"GB_ONE": "1"}) for role in ("trainer", "generator")})
    assert found(given, tmp_path)["variables"] == (True, "workers start with GB_ONE = 1")
