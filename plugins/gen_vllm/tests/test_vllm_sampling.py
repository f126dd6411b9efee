"""What vLLM is asked, and how its outputs are read."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from grpo_bench.contract import FinishReason, PluginError, Purpose, Sampling
from grpo_bench_gen_vllm.sampling import distribution, parameters, scoring, seed_of, to_sample, to_scores

SAMPLING = Sampling(purpose=Purpose.TRAIN, temperature=0.7, top_p=0.9, top_k=-1, min_p=0.1, repetition_penalty=1.1,
                    presence_penalty=0.2, frequency_penalty=0.3, stop_token_ids=(7, 9), max_tokens=24, max_context=64,
                    seed=5)


def output(tokens=(4, 5, 6), values=(-1.0, -2.0, -0.5), spans=((0, 2, "3"), (2, 3, "4")), reason="stop",
           named=None) -> Any:
    given = None if values is None else SimpleNamespace(logprobs=list(values), token_ids=list(named or tokens))
    return SimpleNamespace(token_ids=list(tokens), logprobs=given, finish_reason=reason, weight_versions=[
        SimpleNamespace(start=start, end=end, version=version) for start, end, version in spans])


def test_every_sampling_parameter_is_stamped():
    asked = parameters(SAMPLING, "r/0", 40)
    assert {name: asked[name] for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty",
                                           "presence_penalty", "frequency_penalty", "stop_token_ids")} == {
        "temperature": 0.7, "top_p": 0.9, "top_k": 0, "min_p": 0.1, "repetition_penalty": 1.1,
        "presence_penalty": 0.2, "frequency_penalty": 0.3, "stop_token_ids": [7, 9]}
    assert asked["ignore_eos"] and asked["min_tokens"] == 0 and asked["logprobs"] == 0 and not asked["detokenize"]
    assert parameters(replace(SAMPLING, top_k=20), "r/0", 40)["top_k"] == 20
    assert (asked["max_tokens"], parameters(SAMPLING, "r/0", 5)["max_tokens"]) == (24, 5)


def test_each_stream_has_a_seed_of_its_own():
    seeds = [seed_of(seed, stream) for seed in (1, 2) for stream in ("a/0", "a/1", "b/0")]
    assert len(set(seeds)) == 6 and all(0 <= seed < 2**63 for seed in seeds)
    assert seeds[0] == seed_of(1, "a/0")


def test_only_the_length_of_a_reply_may_differ_from_its_profile():
    assert distribution(SAMPLING) == distribution(replace(SAMPLING, max_tokens=3, max_context=9))
    assert distribution(SAMPLING) != distribution(replace(SAMPLING, stop_token_ids=(7,)))


def test_an_output_becomes_a_sample():
    sample = to_sample(output())
    np.testing.assert_array_equal(sample.ids, [4, 5, 6])
    np.testing.assert_allclose(sample.log_probabilities, [-1.0, -2.0, -0.5])
    assert (sample.finish, sample.versions) == (FinishReason.STOP, ((2, 3), (1, 4)))
    aborted = to_sample(output((), (), (), "abort"))
    assert (len(aborted.ids), aborted.finish, aborted.versions) == (0, FinishReason.ABORT, ())


@pytest.mark.parametrize(("wrong", "message"), [
    ({"values": (-1.0, float("nan"), -0.5)}, "sampled token 1 of 3 is nan"),
    ({"values": (-1.0, float("-inf"), -0.5)}, "sampled token 1 of 3 is -inf"),
    ({"values": (-1.0, -2.0)}, "2 log-probabilities for 3 tokens"),
    ({"values": None}, "0 log-probabilities for 3 tokens"),
    ({"named": (4, 5, 8)}, "log-probabilities for 3 tokens"),
    ({"spans": ((0, 2, "3"),)}, "weight version of 2 tokens of 3"),
])
def test_a_token_without_its_numbers_is_an_error(wrong, message):
    with pytest.raises(PluginError, match=message):
        to_sample(output(**wrong))


def test_the_probe_is_asked_at_the_training_temperature_past_the_cache():
    asked = scoring(0.7, 12)
    assert (asked["temperature"], asked["logprob_token_ids"], asked["prompt_logprobs"]) == (0.7, [12], 0)
    assert asked["skip_reading_prefix_cache"] and asked["top_p"] == 1.0


def test_scores_are_those_of_the_prompts_tokens_and_the_last():
    def score(**values: float) -> dict[int, Any]:
        return {int(token[1:]): SimpleNamespace(logprob=value) for token, value in values.items()}

    ids = np.array([3, 4, 5], np.int32)
    values = to_scores(ids, [None, score(t4=-1.5, t9=-0.1)], score(t5=-2.5, t1=-0.2))
    np.testing.assert_allclose(values, [0.0, -1.5, -2.5])
    with pytest.raises(PluginError, match="token 4 of the probe"):
        to_scores(ids, [None, score(t9=-0.1)], score(t5=-2.5))
