"""What-ifs: which variants there are, and what comes of each on runs whose times can be told in the head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from grpo_bench_sim.laws import Linear, Lognormal
from grpo_bench_sim.model import Model, Quantity, Rollouts, Shares, Stalls
from grpo_bench_sim.simulation import simulate
from grpo_bench_sim.standing import Planner, Scenario
from grpo_bench_sim.statuses import standings
from grpo_bench_sim.variants import variants
from grpo_bench_sim.what_if import Change, changed, what_if

from grpo_bench.contract import Finding, InputError
from grpo_bench.registry import Plan

from .shown import model_like, plan_of
from .small import DEFERRED, MOCK, planned, small, varied

HALF, TWICE = "half the concurrency: 128 rollouts", "twice the concurrency: 512 rollouts"
UPDATE, DECODING = "updates in half the time", "decoding twice as fast"
SLOW = "checkpoints written a quarter as fast"
MOVED = ("12 GPUs to train, 28 to generate", "16 GPUs to train, 24 to generate")
ASYNC = ("schedule.mode=async", "schedule.max_age=1")


def planner(*base: str) -> Planner:
    return lambda overrides: planned(*base, *overrides)


def changes(plans: Planner, model: Model, *names: str, passes_at: int = 4) -> dict[str, Change]:
    """What comes of those variants that are named."""
    base = simulate(plans(()), model, Scenario(passes_at), (3,), None)
    return {variant.name: changed(plans, base, variant, (3,))
            for variant in variants(base.plan, model, base.scenario) if variant.name in names}


def overrides_of(plan: Plan, model: Model | None = None) -> dict[str, tuple[str, ...]]:
    return {item.name: item.overrides for item in variants(plan, model or model_like(), Scenario())}


def test_the_benchmark_has_all_of_them() -> None:
    assert overrides_of(plan_of()) == {
        "max age 0: synchronous": ("schedule.mode=sync", "schedule.max_age=0"),
        "max age 2": ("schedule.max_age=2",), "max age 4": ("schedule.max_age=4",),
        "refits with rollouts in flight": ("schedule.in_flight=keep",),
        "at most 16 prompts in flight": ("schedule.prompts_in_flight=16",),
        "half the concurrency: 128 rollouts": ("limits.concurrency=8",),
        "twice the concurrency: 512 rollouts": ("limits.concurrency=32",),
        "48 GPUs to train, 208 to generate": ("trainer.workers=48", "generator.workers=26", "hardware.policy_nodes=12"),
        "80 GPUs to train, 176 to generate": ("trainer.workers=80", "generator.workers=22", "hardware.policy_nodes=20"),
        "128 GPUs to train, 128 to generate": ("trainer.workers=128", "generator.workers=16",
                                               "hardware.policy_nodes=32"),
        "half the stalls": (), "no stalls": (), "agent's time-out of 900 s": ("agent.agent_timeout_s=900",),
        "updates in half the time": (), "decoding twice as fast": (),
        "inline evaluation": ("validation.deferred=false",),
        "checkpoints written 4 times as fast": (), "checkpoints written a quarter as fast": (),
        "checkpoints that take no time": (),
    }


def test_prompts_in_flight_go_with_the_age_that_they_are_limited_by() -> None:
    found = overrides_of(plan_of("schedule.prompts_in_flight=16", "schedule.in_flight=keep"))
    assert found["max age 4"] == ("schedule.max_age=4", "schedule.prompts_in_flight=64")
    assert found["max age 0: synchronous"][-1] == "schedule.prompts_in_flight=16"
    assert found["no limit to prompts in flight"] == ("schedule.prompts_in_flight=off",)
    assert found["refits that wait for rollouts"] == ("schedule.in_flight=drain",)
    assert overrides_of(plan_of("schedule.prompts_in_flight=24"))["max age 2"] == ("schedule.max_age=2",)


def test_what_means_nothing_for_a_profile_is_left_out() -> None:
    names = list(overrides_of(planned(*MOCK), small()))
    assert names == [HALF, TWICE, UPDATE, DECODING, "deferred evaluation", "checkpoints written 4 times as fast", SLOW,
                     "checkpoints that take no time"]
    nothing = ("checkpoint.period=0", "checkpoint.final=false", "validation.start_at=50", "validation.metric=off",
               "validation.target=off", "limits.concurrency=1")
    assert list(overrides_of(planned(*MOCK, *nothing), small())) == [
        "twice the concurrency: 2 rollouts", UPDATE, DECODING]


def test_the_ruleset_says_whether_there_is_anything_to_evaluate() -> None:
    ruled = planned(*MOCK, "validation.start_at=50", "validation.metric=off", "validation.target=off",
                    "ruleset.use=mock", "ruleset.period=3")
    assert "deferred evaluation" in overrides_of(ruled, small())
    assert Quantity.VALIDATION in {item.quantity for item in standings(ruled, small(), Scenario())}


def test_a_scenario_is_kept_and_its_scales_multiply() -> None:
    scenario = Scenario(4, {Quantity.UPDATE: 3.0, Quantity.REFIT: 2.0}, decoding=2.0)
    found = {item.name: item.scenario for item in variants(planned(*MOCK), small(), scenario)}
    assert found["updates in half the time"] == replace(scenario, scales={Quantity.UPDATE: 1.5, Quantity.REFIT: 2.0})
    assert found["decoding twice as fast"] == replace(scenario, decoding=4.0)


def test_where_nothing_overlaps_each_change_is_what_was_changed() -> None:
    """Steps of 128 s: rollouts 100, log-probabilities 5, update 20, refit 3; the target is met with the fourth."""
    found = changes(planner(*DEFERRED), small(), UPDATE, DECODING, HALF)
    update = found[UPDATE]
    assert update.minutes == pytest.approx(-4 * 10 / 60) and update.moves == pytest.approx({"update": -4 * 10 / 60})
    assert update.whole_minutes == pytest.approx(-6 * 10 / 60) and not update.late
    assert update.to_target == pytest.approx((4 * 128 - 3 - 40 + 4 * 1) / 60, abs=4 / 60)
    decoding = found[DECODING]
    assert decoding.phase == "rollout" and decoding.phase_minutes == pytest.approx(-4 * 25 / 60)
    assert decoding.moves == pytest.approx({"rollout": decoding.minutes})
    assert found[HALF].moves == {}


def test_what_comes_after_the_target_moves_the_whole_run_only() -> None:
    slow = changes(planner(*DEFERRED), small(), SLOW)[SLOW]
    assert slow.minutes == pytest.approx(12 / 60) and slow.whole_minutes == pytest.approx(3 * 12 / 60)
    first = changes(planner(*DEFERRED), small(), SLOW, passes_at=2)[SLOW]
    assert first.minutes == 0 and first.late and first.phase == "checkpoint"
    assert first.phase_minutes == pytest.approx(3 * 12 / 60)


def test_stalls_are_taken_out_of_rollouts() -> None:
    stalled = small(stalls=Stalls(order=(30.0,), block=1))
    found = changes(planner(*DEFERRED), stalled, "no stalls", "half the stalls")
    assert found["no stalls"].moves == pytest.approx({"rollout": -4 * 30 / 60})
    assert found["half the stalls"].moves == pytest.approx({"rollout": -4 * 15 / 60})


def test_an_inline_evaluation_is_part_of_the_time_to_target() -> None:
    inline = changes(planner(*DEFERRED), small(), "inline evaluation")["inline evaluation"]
    assert inline.phase == "validation" and inline.moves["validation"] == pytest.approx(2 * 100 / 60)
    assert inline.whole and inline.to_target
    assert inline.whole == pytest.approx(inline.to_target + 1.0, abs=0.2), "it ends where the target is met"


def test_differences_are_between_runs_of_the_same_seed() -> None:
    plans, model = planner(*DEFERRED), varied()
    seeds = (1, 2, 3)
    base = simulate(plans(()), model, Scenario(4), seeds, None)
    faster = next(variant for variant in variants(base.plan, model, base.scenario) if variant.name == UPDATE)
    update = changed(plans, base, faster, seeds)
    assert len({run.score for run in base.runs}) == 3
    assert update.minutes == pytest.approx(-4 * 10 / 60) and update.moves == pytest.approx({"update": update.minutes})
    alone = changed(plans, base, faster, seeds[:1]).to_target
    assert alone == pytest.approx((base.runs[0].score or 0.0) / 60 - 4 * 10 / 60)


def test_runs_without_a_target_are_compared_as_a_whole() -> None:
    update = changes(planner(*MOCK, "validation.metric=off", "validation.target=off"), small(), UPDATE)[UPDATE]
    assert update.to_target is None and update.minutes == update.whole_minutes == pytest.approx(-6 * 10 / 60)


def test_what_cannot_be_planned_is_told_with_its_reason() -> None:
    def refusing(overrides: Sequence[str]) -> Plan:
        if any(item.startswith("limits.concurrency") for item in overrides):
            raise InputError("there is no room")
        return planned(*DEFERRED, *overrides)

    change = changes(refusing, small(), HALF)[HALF]
    assert change.refused == "there is no room"
    assert (change.to_target, change.whole, change.minutes, change.phase) == (None, None, None, "")


def test_a_run_that_fails_is_told_with_its_reason() -> None:
    model = small(reads={"timeout_s": "limits.score_s"})
    name = "agent's time-out of 75 s"
    change = changes(planner(*DEFERRED, "limits.score_s=150"), model, name)[name]
    assert "fails" in change.refused and change.minutes is None


def test_a_split_that_no_plan_can_be_made_of_is_simulated_all_the_same() -> None:
    """Of 8 trainer's GPUs and 8 engines of 4: six and 34, ten and 30, sixteen and 24."""
    reads = {"ranks": "limits.engine_restarts", "engines": "checkpoint.keep", "engine_gpus": "validation.k"}
    model = small(reads=reads, like={"policy.config": None, "limits.engine_restarts": 8, "validation.k": 4})
    base = (*DEFERRED, "limits.engine_restarts=8", "checkpoint.keep=8")

    def refusing(overrides: Sequence[str]) -> Plan:
        if any(item.startswith("limits.engine_restarts") for item in overrides):
            raise InputError("8 cannot be divided so")
        return planned(*base, *overrides)

    found = changes(refusing, model, *MOVED)
    assert list(found) == [MOVED[1]], "a quarter of the trainer's is half an engine"
    more = found[MOVED[1]]
    assert "8 cannot be divided so" in more.note and not more.refused
    assert more.moves["update"] == pytest.approx(-4 * 10 / 60)
    assert more.moves["log_probabilities"] == pytest.approx(-4 * 2.5 / 60)
    kept = changes(planner(*base), model, *MOVED)[MOVED[1]]
    assert not kept.note and kept.moves == pytest.approx(more.moves), "the same, planned"


def test_fewer_engines_bear_the_load_of_all() -> None:
    """With so low a bound that load is all that counts: the same requests on half the engines take twice as long."""
    rollouts = Rollouts(seconds=Lognormal(median=100.0), tokens=Lognormal(median=50.0), shares=Shares(generate=1.0))
    model = small(train=(rollouts,), assumptions={"load_requests": 0.001}, load=32)

    def score(scenario: Scenario) -> float:
        run = simulate(planned(*DEFERRED), model, scenario, (3,), None).runs[0]
        return run.counted["rollout"]

    assert score(Scenario(engines=0.5)) == pytest.approx(2 * score(Scenario()), rel=1e-3)
    assert score(Scenario(decoding=2.0)) == pytest.approx(score(Scenario()) / 2, rel=1e-3)


def test_what_the_rules_would_not_allow_is_marked() -> None:
    bad = Finding("agent.time", False, "too short")
    known, unknown = Finding("policy", False, "another"), Finding("data", False, "not here", unknown=True)

    def judged(overrides: Sequence[str]) -> Plan:
        plan = planned(*DEFERRED, *overrides)
        return replace(plan, findings=(known, unknown, bad) if "limits.concurrency=128" in overrides else (known,))

    found = changes(judged, small(), HALF, TWICE)
    assert found[HALF].forbidden == ("agent.time: too short",) and found[TWICE].forbidden == ()


def test_what_moves_in_a_short_training_is_told_to_the_hundredth_of_a_second() -> None:
    quick = Rollouts(seconds=Lognormal(median=1.0), tokens=Lognormal(median=50.0))
    model = small(train=(quick,), start=Lognormal(median=1.0), update=Linear(fixed=0.05))
    update = changes(planner(*DEFERRED), model, UPDATE)[UPDATE]
    assert update.moves == pytest.approx({"update": -4 * 0.025 / 60})


def test_only_what_the_variant_adds_makes_it_an_extrapolation() -> None:
    model = small(like={"policy.config": None, "limits.concurrency": 256, "schedule.mode": "async"},
                  needs={Quantity.ROLLOUT: ("limits.concurrency",), Quantity.UPDATE: ("schedule.mode",)})
    none = "checkpoints that take no time"
    found = changes(planner(*DEFERRED), model, UPDATE, HALF, none)
    assert found[UPDATE].because[0].startswith("update: ")
    assert [text.split(":")[0] for text in found[HALF].because] == ["rollout"]
    assert found[none].because == ("checkpoint: scaled by 0",)


def test_fewer_reasons_than_those_of_the_base_make_no_extrapolation() -> None:
    """Inline, nothing has to be assumed of an evaluation's own process: what is left is so without the variant."""
    model = small(like={"policy.config": None, "schedule.mode": "async"},
                  needs={Quantity.VALIDATION: ("schedule.mode",)})
    inline = changes(planner(*DEFERRED), model, "inline evaluation")["inline evaluation"]
    assert [item.kind for item in inline.standings if item.quantity is Quantity.VALIDATION] == ["extrapolated"]
    assert inline.because == ()


def test_a_later_age_waits_less_for_rollouts() -> None:
    ages = ("max age 0: synchronous", "max age 4")
    found = changes(planner(*DEFERRED, *ASYNC, "schedule.in_flight=keep"), varied(), *ages)
    assert found[ages[0]].moves["rollout"] > 0 > found[ages[1]].moves["rollout"]
    assert found[ages[0]].phase == found[ages[1]].phase == "rollout"


@pytest.fixture(autouse=True)
def nothing_left_behind(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_all_variants_are_simulated_in_order_and_nothing_is_kept(tmp_path) -> None:
    base = simulate(planned(*DEFERRED), small(), Scenario(4), (3,), None)
    found = what_if(planner(*DEFERRED), base, (3,))
    assert [change.variant for change in found[1:]] == variants(base.plan, base.model, base.scenario)
    assert (found[0].variant.name, found[0].minutes, found[0].phase) == ("as it is, seed 3", 0.0, "")
    assert found[0].whole == pytest.approx(base.runs[0].wall / 60) and found[0].standings
    assert all(change.whole for change in found) and base.folders == () and list(tmp_path.iterdir()) == []
