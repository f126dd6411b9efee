"""``simulation.html`` and its figures: what is in them is what was given, whatever it is called."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from grpo_bench_sim.figures import MOST_STEPS, Compared, change_svg, distributions_svg, ledger_svg, steps_svg, sweep_svg
from grpo_bench_sim.model import Quantity
from grpo_bench_sim.page import page, write_page
from grpo_bench_sim.standing import Scenario
from grpo_bench_sim.statuses import Standing
from grpo_bench_sim.sweep import Sweep
from grpo_bench_sim.units import MINUTES, shown

from grpo_bench.contract import Finding, GrpoBenchError

from .shown import (
    COUNTS, HOSTILE, STANDINGS, changes_of, comparison_of, plan_of, run_of, simulation_of, sweep_of, whole,
)

SECTIONS = ["ledger", "steps", "what-if", "sweep", "compared", "standings", "model", "assumptions"]


def test_the_page_has_every_section_once_and_needs_nothing_else() -> None:
    found = whole()
    assert found.ids == SECTIONS
    names = [tag for tag, _ in found.tags]
    assert not {"script", "link", "img", "iframe"} & set(names) and names.count("h1") == 1
    assert not [value for _, given in found.tags for key, value in given.items() if key in ("href", "src")]
    pictures = [given for tag, given in found.tags if tag == "svg"]
    assert all(given["role"] == "img" and given["aria-label"] for given in pictures)
    assert names.count("figure") * 3 + 3 == len(pictures), "each figure for three widths, and the bars of what-ifs"


def test_the_answer_is_the_median_of_the_replicas() -> None:
    simulation = simulation_of()
    scores = sorted(run.score / 60 for run in simulation.runs if run.score)
    text = whole().text
    assert f"{shown(scores[1])} minutes to target" in text
    assert f"Median of 3 replicas, from {shown(scores[0])} to {shown(scores[2])}" in text
    assert f"Step {COUNTS} is taken to be the first whose weights meet the target; that is an assumption." in text
    assert "Its times are calibrated, but for rollout and checkpoint." in text


def test_it_says_nothing_of_what_is_learned() -> None:
    text = whole().text.lower()
    assert not [word for word in ("accuracy", "reward", "loss", "pass@", "pass_k") if word in text]


def test_no_target_no_time_to_it() -> None:
    found = whole(simulation=simulation_of(counts=None))
    assert "minutes, no target met" in found.text and "to the target:" not in found.text
    assert "That weights meet the target is not assumed: no validation is due that could find it." in found.text


def test_a_profile_without_a_target_is_told_as_a_whole() -> None:
    aimless = plan_of("validation.target=off", "validation.metric=off", "ruleset=off")
    found = whole(simulation=simulation_of(counts=None, plan=aimless))
    assert re.search(r"[\d.]+ minutes in all ", found.text) and "no target met" not in found.text
    assert "The profile has no target, so all of its steps are simulated." in found.text


def test_a_short_training_is_told_in_seconds() -> None:
    long = simulation_of()
    runs = tuple(replace(run, wall=run.wall / 100, score=(run.score or 0.0) / 100, counted={"rollout": 30.0})
                 for run in long.runs)
    found = whole(simulation=replace(long, runs=runs), comparison=[])
    scores = sorted(run.score or 0.0 for run in runs)
    assert f"{shown(scores[1])} seconds to target" in found.text and "minutes" not in found.text.lower()
    assert f"from {shown(scores[0])} to {shown(scores[2])}" in found.text
    text = found.text.replace(" ", "")
    assert "rollout30.0100.0%" in text and "rollout−1,500.0−1,344.07,872.0" in text, "25 and 22.4 minutes less"
    labels = " ".join(label for label in found.labels if "minutes" in label.lower() or " min" in label)
    assert not labels and "-1344.00 seconds" in found.labels
    assert f"1: {shown(60 * (sweep_of().points[0].to_target or (0.0,))[0])} s" in " ".join(found.labels)


def test_what_could_not_be_simulated_is_said_at_the_top() -> None:
    found = whole(failed=("the evaluation: the simulated run fails",))
    assert found.text.index("the evaluation: the simulated run fails") < found.text.index("Where the time goes")


def test_what_the_rules_have_against_the_plan_is_said() -> None:
    plan = replace(plan_of(), findings=(Finding("agent.time", False, "too short"), Finding("policy", True, "as wanted"),
                                        Finding("data", False, "not here", unknown=True)))
    assert "The rules do not allow it: agent.time: too short Its" not in whole().text
    text = whole(simulation=simulation_of(plan=plan)).text
    assert "The rules do not allow it: agent.time: too short" in text and "data: not here" not in text


@pytest.mark.parametrize(("left_out", "section"), [
    ({"changes": []}, "what-if"), ({"sweep": None}, "sweep"), ({"comparison": []}, "compared"),
    ({"sweep": Sweep("x", ())}, "sweep")])
def test_what_was_not_asked_for_has_no_section(left_out, section: str) -> None:
    assert whole(**left_out).ids == [name for name in SECTIONS if name != section]


def test_names_cannot_become_elements() -> None:
    counts = [tag for tag, _ in whole().tags]
    simulation = simulation_of(name=HOSTILE, source=HOSTILE, method=HOSTILE, assumed={"train": HOSTILE})
    changes = changes_of(HOSTILE)
    changes[2] = replace(changes[2], forbidden=(HOSTILE,), because=(HOSTILE,), note=HOSTILE)
    changes[5] = replace(changes[5], refused=HOSTILE)
    findings = (Finding(HOSTILE, False, HOSTILE),)
    simulation = replace(simulation, plan=replace(simulation.plan, findings=findings))
    sweep = sweep_of(HOSTILE, ("1", HOSTILE, "3", "4"))
    sweep = replace(sweep, points=(*sweep.points[:-1], replace(sweep.points[-1], failed=HOSTILE, forbidden=(HOSTILE,))))
    standings = (*STANDINGS[:2], Standing(Quantity.CHECKPOINT, "assumed", HOSTILE))
    found = whole(simulation=simulation, standings=standings, changes=changes, sweep=sweep,
                  comparison=comparison_of(HOSTILE), failed=(HOSTILE,))
    assert "script" not in {tag for tag, _ in found.tags}
    assert found.text.count("alert('x')") >= 17 and HOSTILE in found.text
    assert {tag for tag, _ in found.tags} == set(counts)


def test_the_ledger_adds_up() -> None:
    found = ledger_svg([("to the target", {"rollout": 60.0, "update": 20.0}), ("the whole run", {"rollout": 160.0})],
                       MINUTES)
    svg = found.split("</svg>")[0]
    assert "to the target 80.0 min: rollout 60.0, update 20.0; the whole run 160.0 min" in svg
    widths = [float(width) for width in re.findall(r'height="26.0" width="([\d.]+)"', svg)]
    assert widths[0] == pytest.approx(3 * widths[1], abs=0.4)
    assert sum(widths[:2]) == pytest.approx(widths[2] / 2, abs=0.2)


def test_the_median_replica_is_one_of_them() -> None:
    simulation = simulation_of()
    middle = sorted(simulation.runs, key=lambda run: run.score or 0.0)[1]
    label = next(label for label in whole().labels if label.startswith("Minutes by phase"))
    for phase, seconds in middle.counted.items():
        assert f"{phase.replace('log_probabilities', 'log-probabilities')} {shown(seconds / 60)}" in label


def test_each_replica_has_a_dot_in_each_step() -> None:
    runs = [run_of(seed, steps=20) for seed in range(3)]
    svg = steps_svg(runs, COUNTS).split("</svg>")[0]
    assert svg.count('class="replica"') == 60 and svg.count("target taken as met") == 1
    assert "Seconds of each of 20 steps in 3 replicas" in svg
    waited = [median(run.steps[at].phases["rollout"] + run.steps[at].phases["drain"] for run in runs)
              for at in range(20)]
    assert f"exposed generation is {min(waited):,.0f} to {max(waited):,.0f} s" in svg
    heights = [float(height) for height in re.findall(r'height="([\d.]+)" class="p-rollout"', svg)]
    waits = [sorted(runs, key=lambda run: run.steps[at].wall)[1].steps[at].phases["rollout"] for at in range(20)]
    assert [height / heights[0] for height in heights] == pytest.approx([wait / waits[0] for wait in waits], rel=0.02)


def test_more_steps_than_can_be_told_apart_are_said_to_be_left_out() -> None:
    found = whole(simulation=simulation_of(1, steps=MOST_STEPS + 30))
    assert f"The first {MOST_STEPS} of {MOST_STEPS + 30} steps." in found.text
    label = next(label for label in found.labels if label.startswith("Seconds of each of "))
    assert label.startswith(f"Seconds of each of the first {MOST_STEPS} of {MOST_STEPS + 30} steps in 1 replica: ")
    assert "The first" not in whole().text


def test_a_step_that_is_not_there_is_not_marked() -> None:
    assert "target taken as met" not in steps_svg([run_of(steps=4)], COUNTS)


def test_a_sweep_shows_what_its_points_say() -> None:
    sweep = sweep_of()
    svg = sweep_svg(sweep, MINUTES).split("</svg>")[0]
    spreads = [point.to_target for point in sweep.points if point.to_target]
    assert len(spreads) == 4 and svg.count("<circle") == 4 and svg.count('class="band"') == 1
    for point, spread in zip(sweep.points, spreads):
        assert f"{point.value}: {shown(spread[0])} min ({shown(spread[1])} to {shown(spread[2])})" in svg
    places = [float(x) for x in re.findall(r'cx="([\d.]+)"', svg)]
    assert places[2] - places[0] == pytest.approx(3 * (places[1] - places[0]), abs=0.3), "1, 2, 4 lie by their size"
    heights = [float(y) for y in re.findall(r'cy="([\d.]+)"', svg)]
    assert sorted(heights, reverse=True) == [heights[at] for at in sorted(range(4), key=lambda at: spreads[at][0])]


def test_points_that_are_extrapolated_say_why() -> None:
    sweep = sweep_of()
    assert "extrapolated: rollout" in whole(changes=[], sweep=replace(sweep, points=(
        sweep.points[0], replace(sweep.points[1], because=(f"rollout: {HOSTILE}",))))).text
    assert "extrapolated:" not in whole(changes=[], sweep=sweep).text


def test_points_that_the_rules_do_not_allow_are_marked() -> None:
    sweep = sweep_of()
    text = whole(changes=[], sweep=replace(sweep, points=(
        sweep.points[0], replace(sweep.points[1], forbidden=("agent.time: too short",))))).text
    assert "2not allowed by the rules" in text and "the rules do not allow it: agent.time: too short" in text
    assert "not allowed by the rules" not in whole(changes=[], sweep=sweep).text


def test_values_that_are_no_numbers_lie_one_after_the_other() -> None:
    svg = sweep_svg(sweep_of("schedule.in_flight", ("drain", "keep", "other")), MINUTES).split("</svg>")[0]
    places = [float(x) for x in re.findall(r'cx="([\d.]+)"', svg)]
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.2) and ">drain</text>" in svg


def test_a_sweep_of_which_every_run_failed_has_no_picture() -> None:
    failed = tuple(replace(point, simulation=None, failed="no") for point in sweep_of().points)
    found = whole(sweep=Sweep("schedule.max_age", failed))
    assert found.text.count("schedule.max_age = ") == 5
    assert not [label for label in found.labels if "by schedule.max_age" in label]


def test_distributions_go_from_nothing_to_all() -> None:
    compared = Compared(256, "step", "s", (1.0, 2.0, 3.0), (2.0, 2.0, 4.0, 6.0), 0.1)
    assert (compared.measured_median, compared.simulated_median, compared.deviation) == (2.0, 3.0, 0.5)
    svg = distributions_svg(compared).split("</svg>")[0]
    for style, corners in (("measured", 2 + 2 * 3), ("metric", 2 + 2 * 4)):
        points = re.search(rf'<path d="([^"]+)" class="{style}"', svg)
        assert points
        heights = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", points[1])]
        assert len(heights) == corners and heights == sorted(heights, reverse=True)
        assert (heights[0], heights[-1]) == (196.0, 14.0)
    assert "measured (median 2.0 s of 3) and simulated (median 3.0 s of 4)" in svg


@pytest.mark.parametrize("values", [(5.0,), (0.0, 0.0), (7.0, 7.0, 7.0)])
def test_distributions_of_one_value_can_be_drawn(values: tuple[float, ...]) -> None:
    compared = Compared(256, "refit", "s", values, values)
    assert compared.deviation == 0.0 and "NaN" not in distributions_svg(compared)


def test_what_is_compared_is_told_with_its_bound() -> None:
    near, far = (Compared(256, "step", "s", (100.0,), (value,), 0.1) for value in (109.0, 111.0))
    text = whole(comparison=[near, far, replace(far, bound=None)]).text
    assert "Median 100.0 s measured, 109.0 simulated: +9.0%, within 10%" in text
    assert "111.0 simulated: +11.0%, outside 10%" in text and text.count("outside") == 1


def test_bars_of_changes_are_in_proportion() -> None:
    def of(minutes: float) -> tuple[float, float]:
        found = re.search(r'<rect x="([\d.]+)" y="3.0" width="([\d.]+)"', change_svg(minutes, 40.0, MINUTES))
        assert found
        return float(found[1]), float(found[2])

    assert of(40.0) == (80.0, 76.0) and of(-40.0) == (4.0, 76.0) and of(-10.0) == (61.0, 19.0)
    assert 'class="saved"' in change_svg(-1.0, 40.0, MINUTES) and 'class="added"' in change_svg(1.0, 40.0, MINUTES)


def test_every_change_has_a_row_with_its_figures_or_its_reason() -> None:
    text = whole().text
    assert "max age 2 rollout −25.0 −22.4 131.2 240.5 rollout −25.0".replace(" ", "") in text.replace(" ", "")
    assert "not allowed by the rules" in text
    assert "the rules do not allow it: agent.agent_timeout_s: 900; the rules want at least 1800" in text
    assert "not simulated: trainer.workers = 32 cannot be divided by 64" in text
    assert "extrapolated: rollout: limits.concurrency is 8, not 16" in text


def test_phases_that_move_against_each_other_are_both_told() -> None:
    change = replace(changes_of()[1], moves={"refit": 0.1, "drain": -20.0, "rollout": 45.0, "update": -23.0})
    text = whole(changes=[change]).text
    assert "rollout +45.0" in text and "update −23.0" in text and "drain −20.0" not in text


def test_one_replica_is_no_median() -> None:
    assert "One replica; from the end of start-up" in whole(simulation=simulation_of(1)).text


def test_a_change_after_the_target_says_so() -> None:
    late = replace(changes_of()[4], whole_minutes=-20.0, whole_moves={"checkpoint": -20.0})
    assert "checkpoint −20.0 after the target" in whole(changes=[late]).text


def test_assumptions_and_the_model_are_told_in_full() -> None:
    scenario = Scenario(scales={Quantity.UPDATE: 0.5}, decoding=2.0)
    simulation = simulation_of(scenario=scenario)
    text = whole(simulation=simulation).text
    for said in (*simulation.model.assumed.values(), simulation.model.source, simulation.model.date,
                 "update × 0.5, speed of decoding × 2", "assumptions.bytes_per_s", "train.shares"):
        assert said in text
    for item in STANDINGS:
        assert item.kind in text and item.why in text
    assert "schedule.in_flight is drain, not keep assumed: one was logged" in text


def test_the_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    given = (simulation_of(), STANDINGS, [], None, [])
    file = write_page(tmp_path / "simulation.html", *given)
    assert file.read_text(encoding="utf-8") == page(*given) and list(tmp_path.iterdir()) == [file]
    with pytest.raises(GrpoBenchError, match="cannot write"):
        write_page(tmp_path / "missing" / "simulation.html", *given)
