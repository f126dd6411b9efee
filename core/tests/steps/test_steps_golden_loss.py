"""Loss, gradient, KL and metrics against vectors of the reference implementation, each case in its own precision."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_bench.contract import KLSettings, LossSettings, TruncationSettings
from grpo_bench.steps.kl import kl_estimate
from grpo_bench.steps.update import LossResult, combine_metrics, policy_loss

GOLDEN = Path(os.environ.get("GRPO_BENCH_GOLDEN") or Path(__file__).parents[3] / "tests" / "data" / "golden")

METRICS = {"ratio": "probs_ratio", "ratio_clipped": "probs_ratio_clamped", "ratio_min": "probs_ratio_min",
           "ratio_max": "probs_ratio_max", "probability_error": "token_mult_prob_error", "gen_kl": "gen_kl_error",
           "policy_kl": "policy_kl_error", "js_divergence": "js_divergence_error", "entropy": "approx_entropy",
           "importance_weight": "sampling_importance_ratio", "truncated_share": "is_oob_ratio"}


def cases(file: str) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in json.loads((GOLDEN / file).read_text())["cases"]]


def close(case: dict[str, Any], ours: torch.Tensor, theirs: torch.Tensor) -> None:
    exact = case["dtype"] == "float64"
    torch.testing.assert_close(ours, theirs, atol=1e-9 if exact else 2e-5, rtol=1e-9 if exact else 1e-5, equal_nan=True)


def tensor(case: dict[str, Any], data: Any) -> torch.Tensor:
    def numbers(item: Any) -> Any:
        return [numbers(part) for part in item] if isinstance(item, list) else float(item)

    return torch.tensor(numbers(data), dtype=getattr(torch, case["dtype"]))


def settings_of(theirs: dict[str, Any]) -> LossSettings:
    kind = theirs.get("truncated_importance_sampling_type")
    ratio = "gspo" if theirs.get("sequence_level_importance_ratios") else "cispo" if theirs.get("use_cispo") else "ppo"
    kl = KLSettings(
        penalty=theirs.get("reference_policy_kl_penalty", 0.01), kind=theirs.get("reference_policy_kl_type", "k3"),
        input_clamp=theirs.get("kl_input_clamp_value", 20.0), output_clamp=theirs.get("kl_output_clamp_value", 10.0),
        in_reward=theirs.get("use_kl_in_reward", False),
        on_policy_approximation=theirs.get("use_on_policy_kl_approximation", False),
    )
    truncation = kind and TruncationSettings(kind=kind, min=theirs.get("truncated_importance_sampling_ratio_min"),
                                             max=theirs["truncated_importance_sampling_ratio"])
    return LossSettings(
        reduction="token" if theirs.get("token_level_loss", True) else "sequence",
        ratio="reinforce" if theirs.get("disable_ppo_ratio") else ratio,
        clip_min=theirs.get("ratio_clip_min", 0.2), clip_max=theirs.get("ratio_clip_max", 0.2),
        dual_clip=theirs.get("ratio_clip_c"), force_on_policy_ratio=theirs.get("force_on_policy_ratio", False),
        importance_correction=theirs.get("use_importance_sampling_correction", False), truncation=truncation, kl=kl,
        positive_nll_weight=theirs.get("positive_example_nll_weight", 0.0),
    )


def run_flat(case: dict[str, Any], first: int = 0, last: int | None = None) -> tuple[LossResult, torch.Tensor]:
    """Rows ``first:last`` of a padded case through the flat loss; returns the gradient [rows, S - 1] too."""
    data = {name: tensor(case, value) for name, value in case["inputs"].items()}
    rows = slice(first, last)
    cur = data["curr_logprobs"][rows].clone().requires_grad_()
    mask = data["token_mask"][rows, 1:] > 0
    sample_mask, rewards = data["sample_mask"][rows], data.get("rewards", torch.zeros(len(data["sample_mask"])))

    def flat(name: str) -> torch.Tensor | None:
        return data[name][rows, 1:][mask] if name in data else None

    settings = settings_of(case["setting"])
    gen = flat("generation_logprobs")
    assert gen is not None
    all_kept = (data["token_mask"][:, 1:] * data["sample_mask"][:, None])
    result = policy_loss(
        cur[mask], torch.nonzero(mask)[:, 0], gen=gen, prev=flat("prev_logprobs"),
        ref=flat("reference_policy_logprobs"), advantages=data["advantages"][rows, 0], sample_mask=sample_mask,
        rewards=rewards[rows], n_tokens=float(data["global_valid_toks"]),
        n_sequences=float(data["global_valid_seqs"]), settings=settings,
        n_positive_tokens=float((all_kept * (rewards > 0)[:, None]).sum()),
    )
    result.loss.backward()
    assert cur.grad is not None
    return result, cur.grad


@pytest.mark.parametrize("case", cases("loss.json"))
def test_loss_and_gradient(case: dict[str, Any]) -> None:
    result, gradient = run_flat(case)
    close(case, result.loss.detach(), tensor(case, case["loss"]))
    close(case, gradient, tensor(case, case["grad_curr_logprobs"]))


@pytest.mark.parametrize("case", cases("loss.json"))
def test_loss_metrics(case: dict[str, Any]) -> None:
    result, _ = run_flat(case)
    skipped = {"importance_weight"} if settings_of(case["setting"]).ratio == "gspo" else set()  # a sum over rows there
    if case["setting"].get("reference_policy_kl_type", "k3") != "k3":
        skipped |= {"gen_kl", "policy_kl"}  # always k3 here
    for ours, theirs in METRICS.items():
        if ours in result.metrics and theirs in case["metrics"] and ours not in skipped:
            close(case, result.metrics[ours], tensor(case, case["metrics"][theirs]))


@pytest.mark.parametrize("case", cases("loss_microbatch.json"))
def test_micro_batches_add_up(case: dict[str, Any]) -> None:
    parts = [run_flat(case, first, last) for first, last in case["splits"]]
    for (result, gradient), loss, expected in zip(parts, case["micro_losses"], case["micro_grads"], strict=True):
        close(case, result.loss.detach(), tensor(case, loss))
        close(case, gradient, tensor(case, expected))
    whole, _ = run_flat(case)
    together = combine_metrics(result.metrics for result, _ in parts)
    close(case, tensor(case, together["loss"]), tensor(case, case["full_loss"]))
    close(case, torch.cat([gradient for _, gradient in parts]), tensor(case, case["full_grad"]))
    assert together == pytest.approx({name: float(value) for name, value in whole.metrics.items()}, abs=1e-12)


@pytest.mark.parametrize("case", cases("kl.json"))
def test_kl_and_gradient(case: dict[str, Any]) -> None:
    settings = KLSettings(kind=case["kl_type"], input_clamp=case["input_clamp"], output_clamp=case["output_clamp"])
    cur = tensor(case, case["logprobs"]).requires_grad_()
    weight = None if case["weights"] is None else tensor(case, case["weights"])
    kl = kl_estimate(cur, tensor(case, case["logprobs_reference"]), settings, weight)
    kl.sum().backward()
    assert cur.grad is not None
    close(case, kl.detach(), tensor(case, case["kl"]))
    close(case, cur.grad, tensor(case, case["grad_sum_wrt_logprobs"]))
