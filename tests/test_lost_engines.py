"""Engines of the generator that break down under a run: they are started again, and have the weights before they
sample."""

import pytest

from grpo_bench.contract import Kind

TWO = ("generator.faults=[{at = \"generate\", kind = \"break\", call = %d}]", "hardware.workers=2",
       "grpo.max_steps=4", "grpo.prompts_per_step=4", "grpo.generations_per_prompt=3",
       "validation.max_tasks=4", "validation.period=2", "validation.metric=off", "validation.target=off",
       "checkpoint.period=0", "generator.token_s=0.01", "trainer.update_s=5", "limits.engine_restarts=100",
       "limits.rollout_retries=5")
ASYNC = ("schedule.mode=async", "schedule.max_age=1", "deterministic=false")


def versions_of(events):
    """For each rollout that is a sample: the step it ended in and the versions behind its tokens."""
    return [(event.step, event.data["versions"]) for event in events
            if event.kind == Kind.ROLLOUT and event.data["reward"] is not None]


def lost(events):
    return [event.data for event in events if event.kind == Kind.ALARM and event.data["name"] == "engine_lost"]


@pytest.mark.parametrize("schedule", [(), ASYNC, (*ASYNC, "schedule.in_flight=keep")], ids=["sync", "drain", "keep"])
@pytest.mark.parametrize("beside", [0, 1])
@pytest.mark.parametrize("call", [52, 60])
def test_a_broken_engine_serves_again_under_the_right_weights(virtual, schedule, beside, call):
    done = virtual(TWO[0] % call, *TWO[1:], *schedule, f"rollout.workers={beside}")
    assert done.outcome.status == "completed", done.outcome.error
    found = lost(done.events)
    assert found
    assert {data["engine"] for data in found} <= {0, 1}
    assert all("told to break at generate" in data["cause"] for data in found)
    at = next(number for number, event in enumerate(done.events) if event.data.get("name") == "engine_lost")
    after = next(event for event in done.events[at:] if event.kind == Kind.REFIT)
    assert after.data["version"] <= (after.step or 0)
    age = 1 if schedule else 0
    for step, versions in versions_of(done.events):
        assert all(0 <= (step or 0) - version <= age + 1 for version in versions)
    steps = [event.data["version"] for event in done.of(Kind.STEP)]
    assert steps == list(range(1, 5))
    refits = [event.data["version"] for event in done.of(Kind.REFIT)]
    assert sorted(set(refits)) == list(range(5)) and refits == sorted(refits)


def test_rollouts_that_a_lost_engine_took_along_are_started_again_once(virtual):
    done = virtual(TWO[0] % 60, *TWO[1:], "rollout.workers=1")
    failed = [event.data for event in done.of(Kind.ROLLOUT) if event.data["cause"] is not None]
    assert failed and {data["cause"] for data in failed} == {"generator"}
    assert max(data["attempt"] for data in failed) == 0
    assert not any(event.data["not_samples"] for event in done.of(Kind.BATCH))


def test_requests_that_outlast_a_refit_may_end_before_the_weights_come(virtual):
    done = virtual(TWO[0] % 60, *TWO[1:], *ASYNC, "rollout.workers=1", "generator.token_s=0.5", "limits.refit_s=3")
    assert done.outcome.status == "completed", done.outcome.error
    assert lost(done.events)


def test_an_engine_that_breaks_down_again_and_again_ends_the_run(virtual):
    done = virtual('generator.faults=[{at = "generate", kind = "break", step = 2}]', "rollout.workers=1",
                   "limits.engine_restarts=2", "limits.rollout_retries=9")
    assert done.outcome.status == "failed"
    for part in ("engine 0 of the generator broke down: ", "told to break at generate", "plugin mock, role generator",
                 "step 3", "limits.engine_restarts = 2", "grpo-bench resume"):
        assert part in str(done.outcome.error)
    assert len(lost(done.events)) == 2
