"""Refits of whole runs that are held against the first one instead of a fixed bound."""

import json

import pytest

from grpo_bench.contract import Kind, Status

SMALL = ("grpo.max_steps=4", "grpo.prompts_per_step=4", "grpo.generations_per_prompt=3", "validation.period=100",
         "validation.metric=off", "validation.target=off", "checkpoint.period=1", "refit.probe_bound=off",
         "refit.probe_growth=1.5")


def test_each_refit_says_how_far_off_it_is_and_how_the_generator_followed(virtual):
    done = virtual(*SMALL)
    assert done.outcome.status is Status.COMPLETED, done.outcome.error
    refits = [event.data for event in done.of(Kind.REFIT)]
    assert [data["version"] for data in refits] == [0, 1, 2, 3, 4]
    assert all(data["probe_distance"] < 1e-6 for data in refits)
    assert refits[0]["probe_followed"] is None
    assert [data["probe_followed"] for data in refits[1:]] == pytest.approx([1.0] * 4, abs=1e-3)
    state = json.loads((done.outcome.folder / "checkpoints" / "step-00004" / "state.json").read_text())
    assert state["probe_first"] == refits[0]["probe_distance"]


def test_a_generator_that_keeps_its_old_weights_ends_the_run_with_both_vectors_in_the_log(virtual):
    done = virtual(*SMALL, 'generator.faults=[{at = "receive", kind = "wrong", step = 3}]')
    assert done.outcome.status is Status.FAILED
    line = str(done.outcome.error)
    for part in ("on average after the refit to version 3, and by 0 at the first refit", "around it the trainer has [",
                 "refit.probe_growth = 1.5", "plugin mock/mock, role trainer/generator, step 3"):
        assert part in line
    log = (done.outcome.folder / "engine.log").read_text()
    assert "trainer, sequence 15: [" in log and "generator, sequence 15: [" in log
