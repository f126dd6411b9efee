"""Random streams and the distributions tokens are drawn from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from grpo_bench_gen_torch.sampler import distribution, draw, stream_key, uniforms


def test_numbers_depend_on_seed_stream_and_position_only():
    keys = [stream_key(1, "a"), stream_key(1, "b"), stream_key(2, "a")]
    together = uniforms(keys * 2, [0, 0, 0, 9, 9, 9])
    alone = np.concatenate([uniforms([key], [position]) for position in (0, 9) for key in keys])
    assert np.array_equal(together, alone)
    assert len(set(together.tolist())) == 6


def test_numbers_are_uniform():
    values = uniforms([stream_key(0, "stream")] * 50_000, range(50_000))
    assert values.min() >= 0
    assert values.max() < 1
    assert np.abs(np.histogram(values, 20, (0, 1))[0] / 2500 - 1).max() < 0.08
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.02


def test_tokens_come_with_their_probabilities(sampling):
    logits = torch.tensor([[2.0, 0.0, -1.0, -torch.inf]])
    probability = logits[0].softmax(-1)
    tokens, values = draw(logits.expand(40_000, -1), sampling, uniforms([1] * 40_000, range(40_000)))
    share = np.bincount(tokens, minlength=4) / 40_000
    assert share[3] == 0
    assert share == pytest.approx(probability.numpy(), abs=0.01)
    assert values[:50] == pytest.approx([float(probability[token].log()) for token in tokens[:50]])


def test_the_ends_of_the_unit_interval_are_tokens_that_can_be_drawn(sampling):
    logits = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf]])
    assert draw(logits, sampling, np.array([0.0]))[0] == [1]
    assert draw(logits, sampling, np.array([1 - 2.0**-53]))[0] == [2]


def test_logits_that_are_nan_show_in_the_log_probability(sampling):
    _, values = draw(torch.full((1, 5), torch.nan), sampling, np.array([0.5]))
    assert np.isnan(values).all()


@pytest.mark.parametrize(("change", "kept"), [
    ({"top_k": 2}, [0, 1]), ({"top_k": 50}, [0, 1, 2, 3]), ({"top_p": 0.5}, [0]), ({"top_p": 0.6}, [0, 1]),
    ({"min_p": 0.3}, [0, 1]), ({"min_p": 0.01}, [0, 1, 2, 3]), ({"top_k": 3, "top_p": 0.85}, [0, 1]),
])
def test_narrowed_distributions_are_renormalised(sampling, change, kept):
    probability = torch.tensor([0.55, 0.3, 0.1, 0.05])
    table = distribution(probability.log()[None], replace(sampling, **change))[0]
    assert torch.isfinite(table).nonzero().flatten().tolist() == kept
    assert torch.allclose(table[kept].exp(), probability[kept] / probability[kept].sum())


def test_temperature_scales_the_logits_first(sampling):
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    table = distribution(logits, replace(sampling, temperature=0.5, top_k=2))
    assert torch.allclose(table[0, [1, 2]], torch.tensor([6.0, 4.0]).log_softmax(-1))
