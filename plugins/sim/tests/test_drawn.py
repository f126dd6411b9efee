"""What a rollout draws depends on the rollout alone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from grpo_bench_sim.config import PartConfig
from grpo_bench_sim.laws import Lognormal
from grpo_bench_sim.model import Quantity, Rollouts, Shares
from grpo_bench_sim.rollouts import Drawn, ModelledPolicy
from grpo_bench_sim.simulation import simulate
from grpo_bench_sim.standing import Scenario

from grpo_bench.contract import Purpose, Remote, Sampling

from .small import MOCK, planned, small, varied


class Engine:
    async def call(self, method: str, *arguments: object) -> Any:
        return 0


async def drawn(engines: int) -> tuple[list[Drawn], set[Remote]]:
    remotes = [cast(Remote, Engine()) for _ in range(engines)]
    policy = ModelledPolicy(PartConfig(model=varied(), prompts=4), remotes)
    sampling = cast(Sampling, SimpleNamespace(purpose=Purpose.TRAIN))
    opened = [policy.open(f"t{group}.{number}", f"train-{group}", sampling, 1.0)
              for group in range(20) for number in range(8)]
    return [await session.draw() for session in opened], {session._engine for session in opened}


def test_the_number_of_engines_changes_no_rollout():
    (few, used), (many, all_used) = asyncio.run(drawn(3)), asyncio.run(drawn(22))
    assert few == many and len({each.generate for each in few}) > 100
    assert (len(used), len(all_used)) == (3, 22)


def rollouts(seconds: float) -> Rollouts:
    return Rollouts(seconds=Lognormal(median=seconds), tokens=Lognormal(median=50.0),
                    shares=Shares(sandbox_start=0.5, generate=0.5))


@pytest.mark.parametrize(("scales", "rolled", "validated"), [
    ({}, 100, 10), ({Quantity.VALIDATION: 0.0}, 100, 0), ({Quantity.ROLLOUT: 0.0}, 0, 10)])
def test_a_sandbox_starts_in_its_share_of_its_own_rollout(scales, rolled, validated):
    model = small(train=(rollouts(100),), validation=(rollouts(10),))
    run = simulate(planned(*MOCK), model, Scenario(scales=scales), [3], None).runs[0]
    assert (run.median("rollout"), run.validations[0][1]) == pytest.approx((rolled, validated))


def test_starting_a_sandbox_is_no_part_of_the_agents_own_limit():
    model = small(train=(rollouts(100),), validation=(rollouts(10),), reads={"timeout_s": "limits.score_s"})
    run = simulate(planned(*MOCK, "limits.score_s=60"), model, Scenario(), [3], None).runs[0]
    assert run.median("rollout") == pytest.approx(100) and run.status == "target_met"
