"""Every attack of the corpus, played against the environment in real sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from grpo_bench.contract import Sandbox, Task
from grpo_bench_env_r2egym import R2EGymConfig
from grpo_bench_env_r2egym.environment import R2EGym
from grpo_bench_sandbox import Limits, backend

from ..attacks.corpus import Attack, read_corpus
from ..attacks.decoys import Decoys
from ..attacks.playing import play
from ..toy import Toy

pytestmark = pytest.mark.real("bwrap")
ATTACKS = read_corpus()
LIMITS = Limits(memory_mb=256, pids=96, cpu_s=8, file_mb=16, scratch_mb=64, shm_mb=16, open_files=256,
                output_bytes=1 << 16, grace_s=0.5)
"""What the attacks on resources are told of; see resources.toml."""
HELD_BY = {"cgroups": ("memory", "processes")}


@dataclass
class Field:
    """An environment, one of its tasks, and a sandbox that stands beside every attack."""

    environment: R2EGym
    task: Task
    beside: Sandbox
    decoys: Decoys
    wait: Callable[[Coroutine[Any, Any, Any]], Any]
    lacks: frozenset[str]


@pytest.fixture(scope="module")
def field(toy: Toy) -> Iterator[Field]:
    environment = R2EGym(R2EGymConfig.model_validate(
        toy.options | {"limits": LIMITS, "test_timeout_s": 8.0, "command_timeout_s": 30.0}))
    held = backend("bwrap").facts(LIMITS)["limits"]
    lacks = {need for need, names in HELD_BY.items() if any(held[name] != "cgroup" for name in names)}
    task = next(task for task in environment.tasks("train") if task.id == toy.ids["total"])
    with asyncio.Runner() as runner, Decoys() as decoys:
        runner.run(environment.start())
        beside = runner.run(environment.open(task, mounts={}, sockets={}))
        runner.run(beside.write("kept", "as it was"))
        decoys_field = Field(environment, task, beside, decoys, runner.run, frozenset(lacks))
        yield decoys_field
        runner.run(beside.close())
        runner.run(environment.close())


@pytest.mark.parametrize("attack", [pytest.param(attack, id=f"{attack.family}-{attack.name}") for attack in ATTACKS])
def test_an_attack_gains_nothing(field: Field, attack: Attack):
    if lacking := field.lacks & set(attack.needs):
        pytest.skip(f"{attack.name} is only withstood where {', '.join(sorted(lacking))} are permitted")
    outcome = field.wait(play(attack, field.environment, field.task, field.beside, field.decoys))
    assert not outcome.complaints, "\n".join(outcome.complaints)


def test_the_fix_itself_is_rewarded_under_the_same_limits(field: Field, toy: Toy):
    assert field.wait(field.environment.score(field.task, toy.fix("total"))).reward == 1.0


def test_nothing_is_left_of_the_sandboxes(field: Field, toy: Toy):
    before = Path("/proc/self/mounts").read_text()

    async def cycle() -> None:
        sandbox = await field.environment.open(field.task, mounts={}, sockets={})
        await sandbox.exec(["true"], timeout_s=30.0)
        await sandbox.close()

    field.wait(cycle())
    after = Path("/proc/self/mounts").read_text()
    assert {line for line in after.splitlines() if "grpo-bench" in line} <= set(before.splitlines())
