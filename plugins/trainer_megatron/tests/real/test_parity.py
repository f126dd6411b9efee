"""Megatron computes what trainer_torch computes, however the model and the batch are cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from grpo_bench.contract import BatchError

pytestmark = pytest.mark.real("megatron")
BOUND = 1e-5
LAYOUTS = {
    "one rank": {"batch_tokens": 200},
    "one rank, rows padded": {"batch_tokens": 100, "packing": False},
    "tensor and sequence parallel": {"tensor_parallel": 2, "batch_tokens": 4096},
    "expert parallel": {"expert_parallel": 2, "batch_tokens": 60},
    "pipeline parallel": {"pipeline_parallel": 2, "batch_tokens": 100},
    "data parallel, rows one by one, unequally many": {"workers": 2, "batch_tokens": 1},
}


def near(lesson, expected):
    for found, wanted in zip(lesson.log_probabilities, expected.log_probabilities, strict=True):
        np.testing.assert_allclose(found, wanted, atol=BOUND, rtol=0)
    for found, wanted in zip(lesson.stats, expected.stats, strict=True):
        assert found.loss == pytest.approx(wanted.loss, abs=BOUND)
        assert found.grad_norm == pytest.approx(wanted.grad_norm, rel=BOUND)
        assert found.metrics.keys() == wanted.metrics.keys()
        assert found.metrics == pytest.approx(wanted.metrics, abs=BOUND)
        assert (found.tokens, found.learning_rate) == (wanted.tokens, wanted.learning_rate)
    assert lesson.weights.keys() == expected.weights.keys()
    for name, wanted in expected.weights.items():
        torch.testing.assert_close(lesson.weights[name], wanted, atol=BOUND, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_three_steps_are_those_of_trainer_torch(bench, expected, layout):
    near(bench.megatron(bench.lesson, **layout), expected)


def test_unpacked_rows_a_frozen_router_and_a_gradient_that_is_not_finite(bench, expected):
    """One group for what one rank can show."""
    make = bench.batches

    async def play(trainer):
        before = await bench.weights(trainer)
        lesson = await bench.lesson(trainer)
        held, batch = await trainer.weights_sha256(), bench.off_policy(make(0), lesson.log_probabilities[0])
        with pytest.raises(BatchError, match="norm is nan"):
            await trainer.update(replace(batch, advantages=np.full(batch.rows, np.nan, np.float32)))
        unchanged = held == await trainer.weights_sha256()
        return before, lesson, unchanged, await trainer.log_probabilities(make(0), "reference")

    before, lesson, unchanged, reference = bench.megatron(play, packing=False, freeze_router=True, batch_tokens=100)
    assert unchanged
    np.testing.assert_allclose(lesson.log_probabilities[0], expected.log_probabilities[0], atol=BOUND, rtol=0)
    np.testing.assert_array_equal(reference, lesson.log_probabilities[0])
    assert lesson.stats[0].loss == pytest.approx(expected.stats[0].loss, abs=BOUND)
    assert lesson.stats[0].grad_norm < expected.stats[0].grad_norm
    moved = {name for name, weight in lesson.weights.items() if not torch.equal(weight, before[name])}
    assert lesson.weights.keys() - moved == {name for name in before if name.endswith("mlp.gate.weight")}
