"""The step that counts: the first that is validated from the one on that is taken to meet the target."""

from __future__ import annotations

from pathlib import Path

import pytest
from grpo_bench_sim.evaluating import evaluation
from grpo_bench_sim.laws import Recorded
from grpo_bench_sim.model import Quantity
from grpo_bench_sim.simulation import Simulation, simulate
from grpo_bench_sim.standing import Scenario, counted_step
from grpo_bench_sim.statuses import standings

from grpo_bench.engine import due_steps
from grpo_bench.observers import read_events, summarise

from .conftest import Verb
from .small import DEFERRED, MOCK, kept, planned, small, varied

BETWEEN = {"16": 48}
"""Met after step 3; validations are due after 2, 4 and 6."""


def simulated(*overrides: str, keep: Path | None = None, **model) -> Simulation:
    return simulate(planned(*overrides), small(**model), Scenario(), [3], keep)


@pytest.mark.parametrize(("assumed", "counts"), [(1, 2), (2, 2), (3, 4), (5, 6), (6, 6), (7, None)])
def test_the_first_step_that_is_due_counts(assumed: int, counts: int | None):
    assert counted_step(planned(*MOCK), small(), Scenario(passes_at=assumed)) == counts
    assert counted_step(planned(*MOCK), small(passes_after={"16": 16 * assumed}), Scenario()) == counts


def test_without_a_target_nothing_counts():
    aimless = planned(*DEFERRED, "validation.metric=off", "validation.target=off")
    assert counted_step(aimless, small(), Scenario()) is counted_step(aimless, small(), Scenario(4)) is None


def test_a_deferred_run_is_scored_as_its_own_report_says(tmp_path: Path):
    found = simulated(*DEFERRED, keep=tmp_path, passes_after=BETWEEN)
    report = summarise(list(read_events(found.folders[0] / "events.jsonl")))
    run = found.runs[0]
    assert found.counts == 4 and run.score == pytest.approx(3 + 3 * 128 + 4 + 125)
    assert run.score == pytest.approx(report["time_to_target_s"] - run.start)
    after = evaluation(found, due_steps(found.plan), [3])
    assert after is not None and (after.weights, after.saved) == (2, 3)


def test_an_inline_run_counts_the_same_step():
    found = simulated(*MOCK, passes_after=BETWEEN)
    assert found.counts == 4 and [step for step, _ in found.runs[0].validations] == [2, 4]


def test_where_no_validation_is_due_any_more_nothing_counts(verb: Verb):
    settings = (*DEFERRED, "grpo.max_steps=5")
    found = simulated(*settings, passes_after={"16": 80})
    assert found.counts is None and found.runs[0].score is None and found.plan.profile.validation.target is not None
    after = evaluation(found, due_steps(found.plan), [3])
    assert after is not None and (after.weights, after.saved) == (2, 2)
    verb.model = kept(small(passes_after={"16": 80}), verb.folder.parent)
    code, out, _ = verb.mock("--replicas", "1", settings=settings)
    assert code == 0 and "time to target" not in out and "no validation is due from the assumed step on" in out
    assert "That weights meet the target is not assumed" in (verb.out / "simulation.html").read_text()
    assert verb.mock("--replicas", "1", "--out", str(verb.folder / "inline"),
                     settings=(*MOCK, "grpo.max_steps=5"))[0] == 0


def test_steps_up_to_the_one_that_counts_have_to_be_in_the_logs():
    model = varied(train=varied().train * 3, passes_after=BETWEEN)
    found = {item.quantity: item for item in standings(planned(*MOCK), model, Scenario())}
    assert found[Quantity.ROLLOUT].why == "steps after 3 were in no log and are taken to be like that one"


def test_only_weights_are_read_for_an_evaluation():
    found = simulated(*DEFERRED, "checkpoint.period=1", checkpoint=Recorded(values=(40.0,)),
                      checkpoint_weights=Recorded(values=(4.0,)))
    assert found.runs[0].saved == (4.0, 4.0, 4.0) and len(found.runs[0].checkpoints) == 9
    after = evaluation(found, due_steps(found.plan), [3])
    assert after is not None and after.reading == (4.0,)
