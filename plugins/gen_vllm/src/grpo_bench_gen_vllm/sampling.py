"""From the contract's sampling to vLLM's parameters, and from vLLM's output to a sample. Plain data; no vLLM here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from grpo_bench.contract import FinishReason, Floats, Ids, PluginError, Sample, Sampling

_FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}


def distribution(sampling: Sampling) -> Sampling:
    """What a sampling profile fixes; the length of one reply may be shorter."""
    return replace(sampling, max_tokens=0, max_context=0)


def parameters(sampling: Sampling, stream: str, room: int) -> dict[str, Any]:
    """Arguments of ``SamplingParams``: every one that decides what is drawn, so that no default of vLLM, and none of
    the checkpoint's generation_config, has a say. ``room`` is how many tokens fit behind the prompt."""
    return {
        "n": 1, "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": max(sampling.top_k, 0),
        "min_p": sampling.min_p, "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty, "frequency_penalty": sampling.frequency_penalty,
        "seed": seed_of(sampling.seed, stream), "stop": None, "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": True, "max_tokens": min(sampling.max_tokens, room), "min_tokens": 0, "logprobs": 0,
        "prompt_logprobs": None, "flat_logprobs": True, "detokenize": False, "skip_special_tokens": False,
        "logit_bias": None, "allowed_token_ids": None, "bad_words": None, "structured_outputs": None,
        "watermarking": False,
    }


def scoring(temperature: float, last: int) -> dict[str, Any]:
    """Arguments of ``SamplingParams`` that ask for the log-probability of every prompt token, and of ``last`` after
    them, whatever token is drawn."""
    return {"n": 1, "temperature": temperature, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": 0, "max_tokens": 1,
            "ignore_eos": True, "logprobs": 1, "logprob_token_ids": [last], "prompt_logprobs": 0, "detokenize": False,
            "skip_reading_prefix_cache": True, "watermarking": False}


def seed_of(seed: int, stream: str) -> int:
    """The seed of one request's random stream, 63 bits."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{stream}".encode(), digest_size=8).digest(), "little") >> 1


def to_sample(output: Any) -> Sample:
    """The sample in a finished ``CompletionOutput``; PluginError where a token has no log-probability or version."""
    ids = np.array(output.token_ids, np.int32)
    given = output.logprobs
    values = np.array(given.logprobs if given is not None else [], np.float32)
    if len(values) != len(ids) or (given is not None and list(given.token_ids) != list(output.token_ids)):
        raise PluginError(f"vLLM gave {len(values)} log-probabilities for {len(ids)} tokens")
    if not np.isfinite(values).all():
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        raise PluginError(f"the log-probability of sampled token {at} of {len(ids)} is {values[at]}",
                          hint="the policy's weights or its arithmetic are not finite")
    versions = tuple((span.end - span.start, int(span.version)) for span in output.weight_versions or ())
    if sum(count for count, _ in versions) != len(ids):
        raise PluginError(f"vLLM told the weight version of {sum(count for count, _ in versions)} tokens of {len(ids)}")
    return Sample(ids=ids, log_probabilities=values, finish=_FINISH[output.finish_reason], versions=versions)


def to_scores(ids: Ids, prompt: Sequence[Mapping[int, Any] | None], last: Mapping[int, Any]) -> Floats:
    """Log-probability [T] of each token given those before it, 0 at index 0: those of ``ids[:-1]`` from vLLM's prompt
    log-probabilities, that of the last token from what came after the prompt."""
    values = np.zeros(len(ids), np.float32)
    for index, (token, found) in enumerate(zip(ids[:-1].tolist(), prompt, strict=True)):
        if index:
            values[index] = _score(found, token)
    values[-1] = _score(last, int(ids[-1]))
    return values


def _score(found: Mapping[int, Any] | None, token: int) -> float:
    if found is None or token not in found:
        raise PluginError(f"vLLM gave no log-probability for token {token} of the probe")
    return float(found[token].logprob)
