"""``schedule.prompts_in_flight``: how many prompts of training are under way at once, with mock plugins in virtual
time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from grpo_bench.contract import Kind, Purpose, Status, canonical
from grpo_bench.engine import conduct, prepare, run_virtual
from grpo_bench.engine.rollouts import RolloutPool
from grpo_bench.observers import read_events

SMALL = ("grpo.max_steps=4", "grpo.prompts_per_step=4", "grpo.generations_per_prompt=3", "validation.period=100",
         "validation.metric=off", "validation.target=off", "generator.token_s=1", "trainer.update_s=40",
         "limits.request_s=1000", "limits.rollout_s=5000")
ASYNC = (*SMALL, "schedule.mode=async", "schedule.max_age=2", "deterministic=false")


@dataclass
class Watch:
    """The groups of training prompts by name, as they begin and end; ``most`` of them were under way at once. Those
    whose name is in ``stale`` come back as too old for their step."""

    seen: list[tuple[str, str]] = field(default_factory=list)
    stale: frozenset[str] = frozenset()
    under_way: int = 0
    most: int = 0

    @property
    def begun(self) -> list[str]:
        return [name for what, name in self.seen if what == "begins"]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch, group = Watch(), RolloutPool.group

    async def watched(pool: RolloutPool, task: Any, *, name: str, purpose: Purpose, **about: Any) -> Any:
        if purpose is not Purpose.TRAIN:
            return await group(pool, task, name=name, purpose=purpose, **about)
        watch.seen.append(("begins", name))
        watch.under_way += 1
        watch.most = max(watch.most, watch.under_way)
        try:
            found = await group(pool, task, name=name, purpose=purpose, **about)
        finally:
            watch.under_way -= 1
            watch.seen.append(("ends", name))
        return replace(found, target=found.oldest_version + 3) if name in watch.stale else found

    monkeypatch.setattr(RolloutPool, "group", watched)
    return watch


def in_order(prompts: int) -> list[str]:
    return [f"t{number}" for number in range(prompts)]


@pytest.mark.parametrize(("settings", "most"), [
    ((*SMALL, "schedule.prompts_in_flight=off"), 4), ((*SMALL, "schedule.prompts_in_flight=3"), 3),
    ((*ASYNC, "schedule.prompts_in_flight=off"), 12), ((*ASYNC, "schedule.prompts_in_flight=7"), 7),
    ((*ASYNC, "schedule.prompts_in_flight=7", "schedule.in_flight=keep"), 7),
    ((*ASYNC, "schedule.prompts_in_flight=1"), 1),
    ((*ASYNC, "schedule.prompts_in_flight=1", "schedule.in_flight=keep"), 1),
])
def test_so_many_prompts_are_under_way_at_once_and_they_begin_in_order(virtual, watch, settings, most):
    run = virtual(*settings)
    assert run.outcome.status is Status.COMPLETED, run.outcome.error
    assert watch.most == most
    assert watch.begun == in_order(16)
    assert [event.data["rollouts"] for event in run.of(Kind.STEP)] == [12] * 4
    ages = [event.data["target"] - event.data["oldest_version"] for event in run.of(Kind.GROUP)]
    assert len(ages) == 16 and max(ages) <= (2 if "schedule.max_age=2" in settings else 0)


def test_how_many_it_is_changes_times_and_nothing_that_is_computed(virtual):
    free, bound = virtual(*SMALL), virtual(*SMALL, "schedule.prompts_in_flight=1")
    ends = [run.of(Kind.RUN_ENDED)[0].data for run in (free, bound)]
    assert ends[0]["weights_sha256"] == ends[1]["weights_sha256"]
    assert ends[0]["wall_s"] < ends[1]["wall_s"]


def test_one_that_is_too_old_begins_again_before_new_ones_and_counts_like_them(virtual, watch):
    watch.stale = frozenset({"t2"})
    run = virtual(*ASYNC, "schedule.prompts_in_flight=2")
    assert run.outcome.status is Status.COMPLETED, run.outcome.error
    assert "group_evicted" in [event.data["name"] for event in run.of(Kind.ALARM)]
    assert watch.most == 2
    assert sorted(watch.begun) == sorted([*in_order(16), "t2e1"])
    assert [name for name in watch.begun if name != "t2e1"] == in_order(16)
    assert watch.seen[watch.seen.index(("ends", "t2")) + 1] == ("begins", "t2e1")


def test_a_resumed_run_keeps_to_it_and_trains_every_prompt_once(virtual, watch):
    run = virtual(*ASYNC, "schedule.prompts_in_flight=3", "checkpoint.period=2",
                  'trainer.faults=[{at = "update", call = 3, kind = "raise"}]')
    assert run.outcome.status is Status.FAILED
    began = len(watch.begun)
    watch.most, watch.under_way = 0, 0
    plan, resumption = prepare(run.outcome.folder)
    assert resumption is not None and resumption.from_step == 2
    outcome = run_virtual(lambda clock: conduct(plan, run.outcome.folder, clock, resumption=resumption))
    assert outcome.status is Status.COMPLETED, outcome.error
    again = watch.begun[began:]
    assert watch.most == 3 and again == sorted(again, key=lambda name: int(name[1:]))
    assert consumed(run.outcome.folder) == Counter(range(16))


def consumed(folder: Path) -> Counter[int]:
    """How often each prompt came to a group that some step took."""
    return Counter(event.data["group_id"] for event in canonical(read_events(folder / "events.jsonl"))
                   if event.kind == Kind.GROUP)
