"""Batch steps: what is sampled, and that neighbours, order, chunks and cache state do not change it."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from grpo_bench.contract import FinishReason
from grpo_bench_gen_torch.engine import Engine
from grpo_bench_model_qwen3 import log_probabilities, pack


def engine(model, slots=16, prompt_tokens=4096):
    made = Engine(model, slots, 200, prompt_tokens)
    made.version = 4
    return made


def sample(made, prompts, sampling, order=None):
    """Samples by prompt index; requests join two at a time while others run."""
    found = {}
    waiting = list(order if order is not None else range(len(prompts)))
    while waiting or made.running or made.queued:
        for index in waiting[:2]:
            made.add(f"r{index}", prompts[index], sampling, f"r{index}/0", f"g{index // 4}",
                     lambda value, index=index: found.__setitem__(index, value))
        del waiting[:2]
        made.step()
    return [found[index] for index in range(len(found))]


def same(a, b):
    return np.array_equal(a.ids, b.ids) and np.array_equal(a.log_probabilities, b.log_probabilities)


def recomputed(model, prompt, answer, temperature=1.0):
    ids = np.concatenate((prompt, answer.ids))
    at = np.arange(len(prompt), len(ids))
    packed = pack(ids, np.array([0, len(ids)]))
    return log_probabilities(model, packed, ids, at, temperature).detach().numpy()


def test_log_probabilities_are_those_of_the_training_forward(model, prompts, sampling):
    answers = sample(engine(model), prompts, sampling)
    assert len({tuple(answer.ids.tolist()) for answer in answers}) > 5
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.log_probabilities == pytest.approx(recomputed(model, prompt, answer), abs=1e-4)


def test_temperature_reaches_the_log_probabilities(model, prompts, sampling):
    cool = replace(sampling, temperature=0.6)
    answers = sample(engine(model), prompts[:2], cool)
    for prompt, answer in zip(prompts, answers, strict=False):
        assert answer.log_probabilities == pytest.approx(recomputed(model, prompt, answer, 0.6), abs=1e-4)


@pytest.mark.parametrize("variant", [{}, {"slots": 3}, {"prompt_tokens": 16}])
def test_a_reply_does_not_depend_on_its_neighbours(model, prompts, sampling, variant):
    expected = sample(engine(model), prompts, sampling)
    order = list(range(len(prompts)))
    random.Random(1).shuffle(order)
    for got, want in zip(sample(engine(model, **variant), prompts, sampling, order), expected, strict=True):
        assert same(got, want)
    alone = [sample(engine(model), [prompt], replace(sampling), None) for prompt in prompts[:1]]
    assert same(alone[0][0], expected[0])


def test_a_shared_prompt_is_computed_once(model, prompts, sampling):
    made = engine(model)
    sample(made, prompts[:4], replace(sampling, max_tokens=1))
    assert made.counters["computed_tokens"] == len(prompts[0]) + 3
    assert made.counters["reused_tokens"] == 3 * (len(prompts[0]) - 1)


def test_a_next_turn_computes_only_what_is_new(model, prompts, sampling):
    made = engine(model)
    (first,) = sample(made, prompts[:1], sampling)
    before = made.counters["computed_tokens"]
    longer = np.concatenate((prompts[0], first.ids, np.array([11, 12, 13], np.int32)))
    one = replace(sampling, max_tokens=1)
    (second,) = sample(made, [longer], one)
    assert made.counters["computed_tokens"] - before == 4
    (fresh,) = sample(engine(model), [longer], one)
    assert same(second, fresh)


def test_replies_end_at_stop_tokens_and_limits(model, prompts, sampling):
    answers = sample(engine(model), prompts * 8, sampling)
    reasons = {answer.finish for answer in answers}
    assert reasons == {FinishReason.STOP, FinishReason.LENGTH}
    for answer in answers:
        stopped = answer.finish is FinishReason.STOP
        assert (answer.ids[-1] in sampling.stop_token_ids) == stopped
        assert not set(answer.ids[:-1].tolist()) & set(sampling.stop_token_ids)
        assert stopped or len(answer.ids) == sampling.max_tokens
    (cut,) = sample(engine(model), prompts[:1], replace(sampling, max_context=len(prompts[0]) + 2, stop_token_ids=()))
    assert (len(cut.ids), cut.finish) == (2, FinishReason.LENGTH)


def test_aborting_frees_the_slot_and_gives_what_there_is(model, prompts, sampling):
    made, got = engine(model, slots=1), []
    endless = replace(sampling, stop_token_ids=())
    made.add("a", prompts[0], endless, "a/0", "g", got.append)
    made.add("b", prompts[4], endless, "b/0", "h", got.append)
    for _ in range(3):
        made.step()
    assert (made.running, made.queued) == (1, 1)
    made.abort("a")
    made.step()
    assert (made.running, made.queued) == (1, 0)
    assert got[0].finish is FinishReason.ABORT
    assert len(got[0].ids) == 3
    made.abort("unknown")


def test_after_a_change_of_weights_running_replies_go_on_with_a_cache_of_the_new_ones(model, prompts, sampling):
    made, got = engine(model), []
    endless = replace(sampling, stop_token_ids=())
    made.add("a", prompts[0], endless, "a/0", "g", got.append)
    for _ in range(5):
        made.step()
    made.forget()
    made.version = 5
    while made.running:
        made.step()
    assert got[0].versions == ((5, 4), (19, 5))
    assert got[0].log_probabilities == pytest.approx(recomputed(model, prompts[0], got[0]), abs=1e-4)


def test_a_prompt_without_room_for_a_reply_is_refused(model, sampling):
    with pytest.raises(ValueError, match="leaves no room"):
        engine(model).add("a", np.zeros(200, np.int32), sampling, "a/0", "g", print)


def test_probing_computes_what_sampling_computes(model, prompts, sampling):
    made = engine(model)
    answer = sample(made, prompts, sampling)[4]
    sequence = np.concatenate((prompts[4], answer.ids))
    (probed, short) = made.probe([sequence, prompts[0][:2]])
    assert probed[0] == 0
    assert len(short) == 2
    assert np.array_equal(probed[len(prompts[4]):], answer.log_probabilities)
