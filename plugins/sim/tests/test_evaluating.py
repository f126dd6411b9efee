"""The evaluation after a training that deferred it: of which weights, under which laws, in what process."""

from __future__ import annotations

import json

import pytest
from grpo_bench_sim import evaluating
from grpo_bench_sim.evaluating import Evaluation, evaluation
from grpo_bench_sim.laws import Lognormal, Recorded
from grpo_bench_sim.model import Evaluated, Model, Quantity, Rollouts
from grpo_bench_sim.simulation import simulate
from grpo_bench_sim.standing import Scenario
from grpo_bench_sim.statuses import standings
from grpo_bench_sim.sweep import sweep
from grpo_bench_sim.variants import variants
from grpo_bench_sim.what_if import changed

from grpo_bench.engine import due_steps

from .conftest import Verb
from .small import DEFERRED, MOCK, ROLLOUTS, kept, planned, seen, small

AIMLESS = ("validation.metric=off", "validation.target=off")
ALONE = Evaluated(start=Recorded(values=(7.0,)), reading=Recorded(values=(2.0,)), shutdown=Recorded(values=(3.0,)))


def evaluated(model: Model, *overrides: str, scenario: Scenario | None = None) -> Evaluation:
    """That of the weights after steps 2 and 4, of which the second pass, unless something says otherwise."""
    plan = planned(*DEFERRED, *overrides)
    found = evaluation(simulate(plan, model, scenario or Scenario(), [3], None), due_steps(plan), [3])
    assert found is not None
    return found


def taking(*seconds: float) -> tuple[Rollouts, ...]:
    """Laws of validations that take so long, by version."""
    return tuple(ROLLOUTS.model_copy(update={"seconds": Lognormal(median=each)}) for each in seconds)


def test_each_validation_takes_what_those_of_its_weights_do():
    model = small(validation=taking(1, 10, 20, 30, 50, 100))
    found = evaluated(model)
    assert found.weights == 2 and found.validation == pytest.approx([(20 + 50) / 2])
    assert found.whole == pytest.approx([60 + 20 + 50 + 2 * 4])
    assert evaluated(model, scenario=Scenario(6)).validation == pytest.approx([(20 + 50 + 100) / 3])


def test_one_law_is_simulated_once(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def counted(plan, model, *others):
        asked.append(model.validation)
        return simulate(plan, model, *others)

    monkeypatch.setattr(evaluating, "simulate", counted)
    evaluated(small(), scenario=Scenario(6))
    evaluated(small(validation=taking(1, 1, 10, 10, 10, 10, 20)), scenario=Scenario(6))
    assert asked == [taking(each) for each in (100, 10, 20)]


def test_its_process_takes_what_the_model_says():
    found = evaluated(small(evaluation=ALONE, shutdown=Lognormal(median=9.0)))
    assert found.reading == (2,) and found.whole == pytest.approx([7 + 2 * (2 + 100) + 3])
    scales = {Quantity.START: 10.0, Quantity.CHECKPOINT: 0.5, Quantity.VALIDATION: 0.1, Quantity.SHUTDOWN: 0.0}
    scaled = evaluated(small(evaluation=ALONE), scenario=Scenario(scales=scales))
    assert scaled.reading == (1,) and scaled.whole == pytest.approx([70 + 2 * (1 + 10)])


def test_its_process_is_assumed_to_take_what_the_training_does_where_the_model_knows_none():
    model = small(shutdown=Lognormal(median=9.0))
    assert evaluated(model).whole == pytest.approx([60 + 2 * (4 + 100) + 9])

    def validation(model: Model, *plan: str) -> tuple[str, str]:
        found = {item.quantity: item for item in standings(planned(*plan), model, Scenario())}[Quantity.VALIDATION]
        return found.kind, found.why

    kind, why = validation(model, *DEFERRED)
    assert kind == "extrapolated" and "an evaluation's start-up is assumed to be the training's" in why
    assert validation(small(evaluation=ALONE), *DEFERRED) == validation(model, *MOCK) == ("calibrated", "")


def test_without_a_target_all_weights_are_evaluated_and_none_counts(verb: Verb):
    aimless = (*DEFERRED, *AIMLESS)
    verb.model = kept(small(), verb.folder.parent)
    record = verb.json("--replicas", "1", settings=aimless)
    assert (record["evaluation"]["weights"], record["evaluation"]["saved"]) == (3, 3)
    assert record["target"] is None and record["target_assumed_at_step"] is None and record["runs"][0]["score"] is None
    assert "is taken to be the first whose weights" not in (verb.out / "simulation.html").read_text()
    base = simulate(planned(*MOCK, *AIMLESS), small(), Scenario(), [3], None)
    deferred, = (item for item in variants(base.plan, base.model, base.scenario) if item.name == "deferred evaluation")
    change = changed(lambda overrides: planned(*MOCK, *AIMLESS, *overrides), base, deferred, [3])
    assert change.to_target is None and change.minutes == change.whole_minutes != 0
    points = sweep(lambda overrides: planned(*aimless), small(), Scenario(), "scale.update", ("2",), [3]).points
    assert points[0].to_target is None and points[0].whole is not None


def test_of_an_evaluation_that_fails_the_training_is_told(verb: Verb):
    code, out, err = verb.mock("--replicas", "1", "--scale", "validation=1e6", "--json", settings=DEFERRED)
    record = json.loads(out)
    why, = record["failed"]
    assert code == 1 and why.startswith("the evaluation of its weights: the simulated run fails: ")
    assert err == f"grpo-bench: {why}\n"
    assert record["evaluation"] is None and record["whole"] is None and record["ended"]["median"] > 0
    assert json.loads((verb.out / "simulation.json").read_text()) == record
    assert "the evaluation of its weights: the simulated run fails: " in (verb.out / "simulation.html").read_text()
    code, out, err = verb.mock("--replicas", "1", "--scale", "validation=1e6", "--out", str(verb.folder / "again"),
                               settings=DEFERRED)
    assert code == 1 and "training ends" in out and "all of it" not in out
    assert err.splitlines()[-1].startswith("grpo-bench: the evaluation of its weights: ")


def test_of_a_comparison_that_fails_the_rest_is_told(verb: Verb):
    fails = (*MOCK, "limits.rollout_s=1", "limits.rollout_retries=0")
    verb.model = kept(small(conditions={"16": fails}, measured=(seen(16, step=(1.0,)),)), verb.folder.parent)
    code, out, err = verb.mock("--replicas", "1", "--held-out", "--json", settings=DEFERRED)
    record = json.loads(out)
    assert code == 1 and record["failed"][0].startswith("--held-out: the simulated run fails: ") and "--held-out" in err
    assert record["held_out"] == [] and record["evaluation"]["weights"] == 2 and record["whole"] is not None
    assert (verb.out / "simulation.html").is_file()
