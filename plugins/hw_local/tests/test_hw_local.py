"""The machine as the kernel tells it, and what is placed on it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from grpo_bench.contract import Need, PluginContext
from grpo_bench_hw_cluster import reproducible
from grpo_bench_hw_local import LocalConfig, plugin
from grpo_bench_hw_local import local as local_module
from grpo_bench_hw_local.local import LocalHardware, create
from grpo_bench_hw_local.machine import available_cores, cpu_quota, facts, memory_limit


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def hardware(monkeypatch: pytest.MonkeyPatch, cores: int, quota: float | None = None, gpus: int = 0,
             **config: Any) -> LocalHardware:
    has = {"gpus": gpus} if gpus else {}
    monkeypatch.setattr(local_module, "facts", lambda: {"usable_cores": cores, "cpu_quota": quota, **has})
    return LocalHardware(LocalConfig(**config), deterministic=False)


def workers(machine: LocalHardware, **needs: int) -> dict[str, int]:
    placed = machine.place({role: Need(count) for role, count in needs.items()})
    return {role: place.workers for role, place in placed.items()}


def test_the_tightest_group_of_the_unified_hierarchy_counts(tmp_path: Path) -> None:
    root = tree(tmp_path, {
        "proc/self/cgroup": "0::/outer/inner\n",
        "sys/fs/cgroup/cpu.max": "max 100000\n",
        "sys/fs/cgroup/outer/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/outer/inner/cpu.max": "400000 100000\n",
        "sys/fs/cgroup/outer/memory.max": "max\n",
        "sys/fs/cgroup/outer/inner/memory.max": "1048576\n",
    })
    assert cpu_quota(root) == 1.5
    assert memory_limit(root) == 2**20


def test_the_older_hierarchy_counts_too(tmp_path: Path) -> None:
    root = tree(tmp_path, {
        "proc/self/cgroup": "4:memory:/box\n3:cpu,cpuacct:/box\n",
        "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "300000\n",
        "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    })
    assert cpu_quota(root) == 3.0
    assert memory_limit(root) is None


def test_facts_take_the_smaller_memory_and_survive_a_kernel_that_tells_nothing(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/meminfo": "MemTotal: 100 kB\nMemFree: 1 kB\n", "proc/self/cgroup": "0::/\n",
                           "sys/fs/cgroup/memory.max": "2048\n", "proc/cpuinfo": "model name\t: Fast One\n"})
    assert (facts(root)["memory_bytes"], facts(root)["cpu"]) == (2048, "Fast One")
    silent = facts(tmp_path / "nothing")
    assert (silent["memory_bytes"], silent["cpu_quota"]) == (None, None)


@pytest.mark.parametrize(("usable", "quota", "cores"), [(8, None, 8), (8, 2.5, 2), (2, 16.0, 2), (4, 0.5, 1)])
def test_available_cores(usable: int, quota: float | None, cores: int) -> None:
    assert available_cores({"usable_cores": usable, "cpu_quota": quota}) == cores


def test_unasked_every_role_gets_a_worker_on_each_core_up_to_four(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = {"trainer": 0, "generator": 0, "rollout": 0}
    assert workers(hardware(monkeypatch, 2), **needs) == {"trainer": 2, "generator": 2, "rollout": 2}
    assert workers(hardware(monkeypatch, 64), **needs) == {"trainer": 4, "generator": 4, "rollout": 4}
    assert workers(hardware(monkeypatch, 8, threads=4), **needs) == {"trainer": 2, "generator": 2, "rollout": 2}
    assert workers(hardware(monkeypatch, 1, threads=4), **needs) == {"trainer": 1, "generator": 1, "rollout": 1}


def test_a_plugins_wish_comes_before_the_sections_number(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = hardware(monkeypatch, 2, trainer=3, generator=5)
    assert workers(machine, trainer=0, generator=0, rollout=0) == {"trainer": 3, "generator": 5, "rollout": 5}
    assert workers(machine, trainer=1, generator=0, rollout=7) == {"trainer": 1, "generator": 5, "rollout": 7}


def test_workers_are_told_their_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    place = hardware(monkeypatch, 4, threads=2).place({"trainer": Need(1)})["trainer"]
    assert (place.threads, place.env["OMP_NUM_THREADS"], place.env["TOKENIZERS_PARALLELISM"]) == (2, "2", "false")


@pytest.mark.parametrize(("gpus", "trainer", "generator", "each"), [
    (8, Need(4, 1), Need(1, 4), (1, 4)), (8, Need(4, 1), Need(2, 4), (0, 0)), (1, Need(1, 1), Need(1, 1), (0, 0)),
    (0, Need(2, 1), Need(1, 1), (0, 0)), (4, Need(2), Need(2, 2), (0, 2)), (4, Need(2), Need(2), (0, 0))])
def test_gpus_are_shared_out_where_there_are_enough(gpus: int, trainer: Need, generator: Need, each: tuple[int, int],
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    needs = {"trainer": trainer, "generator": generator, "rollout": Need(3)}
    placed = hardware(monkeypatch, 2, gpus=gpus).place(needs)
    assert (placed["trainer"].gpus, placed["generator"].gpus) == each
    assert {role: place.workers for role, place in placed.items()} == {
        "trainer": trainer.workers, "generator": generator.workers, "rollout": 3}
    assert not any(place.nodes for place in placed.values()) and placed["rollout"].gpus == 0


@pytest.mark.parametrize(("cpuinfo", "kernels"), [
    ("vendor_id\t: GenuineIntel\nmodel name\t: A\n\nvendor_id\t: GenuineIntel\n", {"MKL_CBWR": "AUTO,STRICT"}),
    ("vendor_id\t: AuthenticAMD\n", {}), ("CPU implementer\t: 0x41\n", {})])
def test_equal_runs_get_the_kernels_that_allow_them(
        cpuinfo: str, kernels: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = reproducible(tree(tmp_path, {"proc/cpuinfo": cpuinfo}))
    assert found == kernels
    monkeypatch.setattr(local_module, "reproducible", lambda: found)
    for deterministic, expected in ((True, kernels), (False, {})):
        placed = LocalHardware(LocalConfig(), deterministic=deterministic).place({"generator": Need()})
        assert {key: value for key, value in placed["generator"].env.items() if key.startswith("MKL_C")} == expected


def test_this_very_machine() -> None:
    nothing: Any = None
    machine = create(PluginContext(
        config=plugin.config(), fabric=nothing, placement=nothing, run_folder=Path(), policy=nothing, seed=0,
        deterministic=True, clock=nothing, logger=nothing))
    described = machine.describe()
    assert 1 <= described["available_cores"] <= described["usable_cores"] <= (os.cpu_count() or 1)
    assert machine.place({"trainer": Need()})["trainer"].workers <= described["available_cores"]
