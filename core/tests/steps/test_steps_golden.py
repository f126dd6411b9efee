"""Advantages, the error mask and pass@k against vectors of the reference implementation."""

from __future__ import annotations

import json
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpo_bench.contract import AdvantageSettings, End, Group, Position, Purpose, Trajectory, ValidationReport
from grpo_bench.steps import advantages, sequence_logprob_error_mask, target_met, validation_report

GOLDEN = Path(os.environ.get("GRPO_BENCH_GOLDEN") or Path(__file__).parents[3] / "tests" / "data" / "golden")


def cases(file: str, *, defects: bool = False) -> list[Any]:
    found = json.loads((GOLDEN / file).read_text())["cases"]
    return [pytest.param(case, id=case["name"]) for case in found
            if ("KNOWN DEFECT" in case.get("note", "")) is defects]


def array(case: dict[str, Any], data: Any) -> np.ndarray:
    def numbers(item: Any) -> Any:
        return [numbers(part) for part in item] if isinstance(item, list) else float(item)

    return np.array(numbers(data), case["dtype"])


def close(case: dict[str, Any], ours: np.ndarray, theirs: Any) -> None:
    exact = case["dtype"] == "float64"
    np.testing.assert_allclose(ours, array(case, theirs), atol=1e-9 if exact else 2e-5, rtol=1e-9 if exact else 1e-5)


def settings_of(case: dict[str, Any]) -> AdvantageSettings:
    return AdvantageSettings(leave_one_out=case["leave_one_out"], normalize=case.get("normalize", True),
                             clamp=case.get("advantage_clip"))


def exact(case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Std and advantage of a float64 case without the one float32 rounding in it, that of the factor n / (n - 1)."""
    std, advantage = array(case, case["std"]), array(case, case.get("advantage", case["std"]))
    if case["dtype"] == "float32":
        return std, advantage
    group, valid = np.array(case["group"]), array(case, case.get("valid", [1.0] * len(std)))
    count = np.array([valid[group == name].sum() for name in group]) - case["leave_one_out"]
    factor = np.divide(count, count - 1, where=count > 1, out=np.ones(len(std)))
    true_std = std / np.sqrt(factor.astype(np.float32) / factor)
    divided = (std > 0) & case.get("normalize", True) & ~np.isin(advantage, case.get("advantage_clip") or [])
    return true_std, np.where(divided, advantage * (std + 1e-6) / (true_std + 1e-6), advantage)


@pytest.mark.parametrize("case", cases("advantages.json"))
def test_advantages(case: dict[str, Any]) -> None:
    result = advantages(array(case, case["rewards"]), case["group"], settings_of(case))
    close(case, result.baseline, case["baseline"])
    std, advantage = exact(case)
    close(case, result.std, std.tolist())
    close(case, result.advantage, advantage.tolist())


@pytest.mark.parametrize("case", cases("advantages.json", defects=True))
def test_advantages_where_the_reference_is_wrong(case: dict[str, Any]) -> None:
    reward = array(case, case["rewards"])
    merged = len(reward) == 16
    group = np.repeat([0, 1], 8) if merged else np.array(case["group"])
    advantage = advantages(reward, group, settings_of(case)).advantage
    if merged:
        assert not advantage.any()
    else:
        assert advantage[-1] == np.float64(reward[-1]) - np.float64(reward[0])
        close(case, advantage[:-1], exact(case)[1][:-1].tolist())


@pytest.mark.parametrize("case", cases("baseline_ragged_validity.json"))
def test_baseline_and_std_of_voters(case: dict[str, Any]) -> None:
    valid = array(case, case["valid"]) > 0
    settings = settings_of(case)
    result = advantages(array(case, case["rewards"]), case["group"], settings, valid)
    spread = advantages(array(case, case["std_rewards"] or case["rewards"]), case["group"], settings, valid)
    close(case, result.baseline[valid], array(case, case["baseline"])[valid].tolist())
    close(case, spread.std[valid], exact(case)[0][valid].tolist())
    if valid.sum() == 0:
        close(case, result.baseline, case["rewards"])


@pytest.mark.parametrize("case", cases("seq_logprob_error_mask.json"))
def test_sequence_error_mask(case: dict[str, Any]) -> None:
    data = {name: array(case, value) for name, value in case["inputs"].items()}
    rows, width = data["token_mask"].shape
    result = sequence_logprob_error_mask(
        data["prev_logprobs"].ravel(), data["generation_logprobs"].ravel(), data["token_mask"].ravel() > 0,
        np.arange(0, rows * width + 1, width), data["sample_mask"].astype(np.float32), case["threshold"])
    assert result.sample_mask.tolist() == case["sample_mask_after"]
    assert sum(result.masked.values()) == case["metrics"]["num_masked_seqs"]
    for ours, theirs in (("mean", "mean_seq_mult_prob_error"), ("max", "max_seq_mult_prob_error"),
                         ("mean_kept", "mean_seq_mult_prob_error_after_mask"),
                         ("max_kept", "max_seq_mult_prob_error_after_mask")):
        close(case, np.array(result.metrics[f"sequence_error_{ours}"]), case["metrics"][theirs])


def report_of(rewards: list[list[float]], k: int) -> ValidationReport:
    groups = [Group(number, f"task-{number}", Position(0, number), 0, tuple(
        Trajectory(f"{number}-{index}", number, f"task-{number}", Purpose.VALIDATION, (), End.COMPLETED, reward)
        for index, reward in enumerate(row))) for number, row in enumerate(rewards)]
    return validation_report(3, 3, groups, k, 1.0)


@pytest.mark.parametrize("case", cases("pass_k.json"))
def test_pass_k(case: dict[str, Any]) -> None:
    rewards = [[float(value) for value in row] for row in case["rewards_grouped"]]
    report = report_of(rewards[:case["max_val_samples"]], case["k"])
    assert report.passed == sum(any(value > 0 for value in row) for row in rewards[:report.tasks])
    assert report.metrics["pass_k"] == report.passed / report.tasks
    if case["name"] == "k4_floor_drops_partial":
        assert report.tasks == case["num_prompts"] > len(case["rollout_order_prompt_index"]) / case["k"]
        return
    assert round(case["metrics"]["pass_k"] * report.tasks) == report.passed
    assert report.metrics["accuracy"] == pytest.approx(case["metrics"]["accuracy"], abs=1e-6)
    if case["name"] == "k4_69_of_100_float32_rounding":
        assert target_met(report, "pass_k", 0.69)


@pytest.mark.parametrize("stop", json.loads((GOLDEN / "pass_k.json").read_text())["early_stop"])
def test_target(stop: dict[str, Any]) -> None:
    if stop["threshold"] is None:
        return
    value = Fraction(stop["pass_k"]).limit_denominator(1000)
    if abs(float(value) - stop["pass_k"]) > 1e-8:
        value = Fraction(str(stop["pass_k"]))
    report = ValidationReport(0, 0, 4, value.denominator, value.numerator, {"pass_k": float(value)}, 0.0, 0.0)
    rounded_down_by_float32 = float(np.float32(0.69)) == stop["pass_k"]
    assert target_met(report, stop["metric"], stop["threshold"]) is (stop["stops"] or rounded_down_by_float32)
