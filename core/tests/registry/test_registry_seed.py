"""Where a run's seed comes from."""

from __future__ import annotations

import json

import pytest

from grpo_bench.contract import RegistryError
from grpo_bench.registry import make_plan, recorded, resolve

RANDOM = ("seed=random",)


def test_a_random_seed_is_drawn_once_for_each_plan_and_recorded(bench) -> None:
    resolved = resolve("base", overrides=RANDOM)
    plans = [make_plan(resolved) for _ in range(3)]
    assert len({plan.seed for plan in plans}) == 3
    assert all(plan.resolved["seed"] == plan.seed and 0 <= plan.seed < 2**32 for plan in plans)
    seed = next(item for item in plans[0].explained if item.key == "seed")
    assert str(seed.origin) == "--set (random: drawn for this plan)"


def test_the_command_line_comes_before_it(bench) -> None:
    plan = make_plan(resolve("base", overrides=RANDOM), 7)
    assert (plan.seed, plan.resolved["seed"]) == (7, 7)


def test_what_was_drawn_stays(bench) -> None:
    plan = make_plan(resolve("base", overrides=RANDOM))
    file = bench.folder / "profile.json"
    file.write_text(json.dumps(plan.resolved))
    assert make_plan(recorded(file, "base")).seed == plan.seed


@pytest.mark.parametrize("value", ["chance", "-1", "4294967296", "1.5"])
def test_nothing_else_is_a_seed(bench, value: str) -> None:
    with pytest.raises(RegistryError, match="--set seed"):
        resolve("base", overrides=(f"seed={value}",))
