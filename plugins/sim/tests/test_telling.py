"""What a simulation's text says, of what was given."""

from __future__ import annotations

from dataclasses import replace

from grpo_bench_sim.account import account
from grpo_bench_sim.telling import changes, heading, how_long, points
from grpo_bench_sim.units import MINUTES, SECONDS, unit_of

from grpo_bench.contract import Finding

from .shown import changes_of, plan_of, simulation_of, sweep_of

HOLDS, UNKNOWN = Finding("policy", True, "as wanted"), Finding("data", False, "not here", unknown=True)


def rules(*findings: Finding) -> list[str]:
    simulation = simulation_of(plan=replace(plan_of(), findings=(HOLDS, *findings, UNKNOWN)))
    return [line for line in heading(simulation, (1, 2, 3)) if line.startswith("rules")]


def test_rules_that_the_plan_breaks_are_one_line() -> None:
    broken = [Finding(f"rule {number}", False, f"{number}; the rules want 0") for number in range(1, 6)]
    assert rules() == []
    assert rules(broken[0]) == ["rules   of the closed division: 1 does not hold: rule 1: 1; the rules want 0"]
    assert rules(*broken) == ["rules   of the closed division: 5 do not hold: rule 1: 1; the rules want 0; "
                              "rule 2: 2; the rules want 0; rule 3: 3; the rules want 0; and 2 more"]


def test_an_evaluation_that_fails_is_in_the_table_of_the_length() -> None:
    simulation = simulation_of()
    lines = how_long(account(simulation, None, (), failed=True), simulation, lambda needed: "")
    assert [line.split("  ")[0] for line in lines[1:]] == [
        "start-up", "time to target", "training ends", "evaluation after it"]
    assert lines[-1].split("  ")[-1] == "fails"


def test_a_variant_that_cannot_be_planned_or_breaks_a_rule_is_named_below_the_table() -> None:
    found = [replace(change, whole_minutes=change.minutes) for change in changes_of()]
    lines = changes([*found[:3], replace(found[3], note="as if its parts could be divided so"), *found[4:]], MINUTES)
    assert lines[len(found) + 1:] == [
        "agent's time-out of 900 s: the rules do not allow it",
        "half the concurrency: 128 rollouts: no plan can be made of it; simulation.html says why",
        "32 GPUs to train, 224 to generate: trainer.workers = 32 cannot be divided by 64",
        "* extrapolated from what was measured; simulation.html says why"]


def test_a_point_of_a_sweep_that_breaks_a_rule_is_named_below_the_table() -> None:
    sweep = sweep_of()
    barred = replace(sweep, points=(*sweep.points[:-1], replace(sweep.points[-1], forbidden=("agent.time: short",))))
    assert points(barred, MINUTES)[1 + len(sweep.points):] == ["schedule.max_age = 16: the rules do not allow it"]
    assert len(points(sweep, MINUTES)) == 1 + len(sweep.points)


def test_what_is_compared_is_told_in_the_unit_of_the_whole() -> None:
    long = simulation_of()
    short = tuple(replace(run, wall=599.0) for run in long.runs)
    assert (unit_of(long.runs), unit_of(short)) == (MINUTES, SECONDS)
    found = [replace(change, whole_minutes=change.minutes) for change in changes_of()]
    head, _, faster, *_ = changes(found, SECONDS)
    assert head.startswith("what if, s ")
    assert faster.split()[3:] == ["7,872.0", "-1,344.0", "14,430.0", "-1,344.0", "rollout", "-1,500.0"]
    assert "to target, s" in points(sweep_of(), SECONDS)[0]
    small = changes([replace(found[1], minutes=0.004, whole_minutes=-0.00006)], SECONDS)[1]
    assert small.split()[4:] == ["+0.24", "14,430.0", "0.00", "rollout", "-1,500.0"]
