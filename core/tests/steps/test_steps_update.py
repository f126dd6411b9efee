"""Properties of the loss that hold for any batch."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_bench.contract import KLSettings, LossSettings, TruncationSettings
from grpo_bench.steps.update import combine_metrics, policy_loss

SETTINGS = [
    LossSettings(),
    LossSettings(dual_clip=1.5, importance_correction=True, kl=KLSettings(penalty=0.1), positive_nll_weight=0.3),
    LossSettings(reduction="sequence", ratio="gspo", importance_correction=True),
    LossSettings(ratio="cispo", importance_correction=True, truncation=TruncationSettings(kind="tis", max=1.1)),
    LossSettings(ratio="reinforce", kl=KLSettings(penalty=0.1, kind="k2", on_policy_approximation=True)),
    LossSettings(force_on_policy_ratio=True, importance_correction=True,
                 truncation=TruncationSettings(kind="seq-mask-tis", min=0.9, max=1.1)),
    LossSettings(reduction="sequence", importance_correction=True,
                 truncation=TruncationSettings(kind="icepop", min=0.9, max=1.1)),
]


def batch_of(seed: int, lengths: list[int]) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    tokens, rows = sum(lengths), len(lengths)

    def noise(count: int) -> torch.Tensor:
        return torch.randn(count, generator=random, dtype=torch.float64)

    cur = -noise(tokens).abs()
    return {"cur": cur, "gen": cur + 0.1 * noise(tokens), "prev": cur + 0.1 * noise(tokens),
            "ref": cur + noise(tokens), "row": torch.repeat_interleave(torch.arange(rows), torch.tensor(lengths)),
            "advantages": noise(rows), "rewards": (noise(rows) > 0).double(),
            "sample_mask": (noise(rows) > -1).double()}


def run(data: dict[str, torch.Tensor], loss: LossSettings, rows: range) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The part of a batch that ``rows`` are, with the whole batch's counts: metrics and gradient."""
    inside = (data["row"] >= rows.start) & (data["row"] < rows.stop)
    kept = data["sample_mask"][data["row"]]
    cur = data["cur"][inside].clone().requires_grad_()
    result = policy_loss(
        cur, data["row"][inside] - rows.start, gen=data["gen"][inside], prev=data["prev"][inside],
        ref=data["ref"][inside], advantages=data["advantages"][rows.start:rows.stop],
        sample_mask=data["sample_mask"][rows.start:rows.stop], rewards=data["rewards"][rows.start:rows.stop],
        n_tokens=float(kept.sum()), n_sequences=float(data["sample_mask"].sum()),
        n_positive_tokens=float((kept * data["rewards"][data["row"]]).sum()), settings=loss)
    result.loss.backward()
    assert cur.grad is not None
    return result.metrics, cur.grad


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), lengths=st.lists(st.integers(0, 6), min_size=2, max_size=7),
       cuts=st.sets(st.integers(1, 6)), which=st.integers(0, len(SETTINGS) - 1))
def test_any_split_into_parts_gives_the_same_step(seed: int, lengths: list[int], cuts: set[int], which: int) -> None:
    data, rows = batch_of(seed, lengths), len(lengths)
    edges = [0, *sorted(cut for cut in cuts if cut < rows), rows]
    parts = [run(data, SETTINGS[which], range(a, b)) for a, b in itertools.pairwise(edges)]
    metrics, gradient = run(data, SETTINGS[which], range(rows))
    torch.testing.assert_close(torch.cat([part for _, part in parts]), gradient, atol=1e-12, rtol=1e-9)
    together = combine_metrics(part for part, _ in parts)
    assert together == pytest.approx({name: float(value) for name, value in metrics.items()}, abs=1e-9)


@pytest.mark.parametrize("loss", SETTINGS)
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -1e9])
def test_masked_rows_change_nothing_whatever_they_hold(loss: LossSettings, poison: float) -> None:
    data = batch_of(3, [3, 2, 4])
    data["sample_mask"] = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    expected_metrics, expected = run(data, loss, range(3))
    masked = data["row"] == 1
    for name in ("cur", "gen", "prev", "ref"):
        data[name] = torch.where(masked, torch.tensor(poison, dtype=torch.float64), data[name])
    metrics, gradient = run(data, loss, range(3))
    assert torch.equal(gradient, expected)
    assert not gradient[masked].any()
    assert metrics == expected_metrics


def test_on_policy_ratio_is_one_and_carries_the_gradient() -> None:
    data = batch_of(5, [4, 4])
    data["sample_mask"] = torch.ones(2, dtype=torch.float64)
    metrics, gradient = run(data, LossSettings(force_on_policy_ratio=True), range(2))
    assert float(metrics["ratio_min"]) == float(metrics["ratio_max"]) == 1.0
    torch.testing.assert_close(gradient, -data["advantages"][data["row"]] / 8, atol=1e-9, rtol=0)


def test_a_part_without_tokens_adds_nothing() -> None:
    data = batch_of(1, [0, 3])
    metrics, gradient = run(data, SETTINGS[1], range(1))
    assert float(metrics["loss"]) == 0.0
    assert len(gradient) == 0


@pytest.mark.parametrize(("settings_", "left_out", "message"), [
    (LossSettings(), "prev", "prev is None"),
    (LossSettings(kl=KLSettings(penalty=0.1)), "ref", "ref is None"),
])
def test_missing_log_probabilities_are_named(settings_: LossSettings, left_out: str, message: str) -> None:
    data: dict[str, Any] = batch_of(1, [2])
    data[left_out] = None
    with pytest.raises(ValueError, match=message):
        policy_loss(data["cur"], data["row"], gen=data["gen"], prev=data["prev"], ref=data["ref"],
                    advantages=data["advantages"], sample_mask=data["sample_mask"], rewards=data["rewards"],
                    n_tokens=2.0, n_sequences=1.0, n_positive_tokens=0.0, settings=settings_)
