"""From groups to a batch: rows, masks, counts, advantages, and what is told about them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from grpo_bench.contract import (
    AdvantageSettings, BatchError, Cause, End, Failure, FinishReason, Group, GrpoSettings, KLSettings, LossSettings,
    MaskSettings, Position, Purpose, TokenSequence, Trajectory, Turn,
)
from grpo_bench.steps import (
    advantages, apply_masks, build_batch, needs_prev, needs_reference, positive_tokens, with_advantages,
)

NO_ERROR_MASK = MaskSettings(sequence_error_max=None)


def sequence(*turns: tuple[int, int], version: int = 0) -> TokenSequence:
    """Turns of (context tokens, sampled tokens); ids count up, log-probabilities are -1."""
    return TokenSequence(tuple(
        Turn(np.arange(context, dtype=np.int32), np.arange(sampled, dtype=np.int32), np.full(sampled, -1, np.float32),
             ((sampled, version),), FinishReason.STOP) for context, sampled in turns))


def trajectory(reward: float | None, *sequences: TokenSequence, group: int = 0, end: End = End.COMPLETED,
               masked: bool = False) -> Trajectory:
    failure = None if end.is_sample else Failure(Cause.AGENT, "it broke")
    return Trajectory(f"r{group}", group, f"task-{group}", Purpose.TRAIN, sequences or (sequence((3, 2)),), end, reward,
                      failure, masked)


def group(number: int, *trajectories: Trajectory, target: int = 0) -> Group:
    return Group(number, f"task-{number}", Position(0, number), target, trajectories)


def grpo(**values: object) -> GrpoSettings:
    return GrpoSettings.model_validate({"prompts_per_step": 2, "generations_per_prompt": 2, "max_steps": 1,
                                        "masks": NO_ERROR_MASK, **values})


def test_rows_carry_their_tokens_and_their_rollout() -> None:
    two = trajectory(1.0, sequence((3, 2), (1, 4)), sequence((5, 1)))
    batch, report = build_batch(7, [group(0, two, trajectory(0.0))], grpo())
    assert (batch.step, batch.rows, batch.rollout.tolist()) == (7, 3, [0, 0, 1])
    assert batch.offsets.tolist() == [0, 10, 16, 21]
    assert batch.token_mask[:10].tolist() == [False] * 3 + [True] * 2 + [False] + [True] * 4
    assert batch.gen_log_probabilities[:10].tolist() == [0] * 3 + [-1] * 2 + [0] + [-1] * 4
    assert (batch.n_tokens, batch.n_sequences) == (9, 3)
    assert (report.rollouts, report.sampled_tokens, report.reward_mean) == (2, 9, 0.5)
    assert positive_tokens(batch) == 7


def test_every_row_of_a_rollout_gets_its_advantage() -> None:
    two = trajectory(1.0, sequence((3, 2)), sequence((5, 1)))
    batch, report = build_batch(1, [group(0, two, trajectory(0.0)), group(1, trajectory(1.0, group=1))], grpo())
    batch, report = with_advantages(batch, report, grpo())
    assert batch.advantages.tolist() == [1.0, 1.0, -1.0, 0.0]
    assert report.zero_advantage_groups == 1
    assert not report.alarms


def test_rollouts_that_are_no_samples_leave_no_row_and_no_vote() -> None:
    groups = [group(0, trajectory(1.0), trajectory(0.0), trajectory(None, end=End.TIMEOUT),
                    trajectory(None, end=End.FAILED))]
    batch, report = with_advantages(*build_batch(1, groups, grpo()), grpo())
    assert batch.advantages.tolist() == [1.0, -1.0]
    assert (report.rollouts, dict(report.not_samples)) == (4, {"timeout": 1, "failed": 1})


def test_all_equal_rewards_raise_an_alarm_and_keep_their_tokens() -> None:
    batch, report = with_advantages(*build_batch(1, [group(0, trajectory(1.0), trajectory(1.0))], grpo()), grpo())
    assert not batch.advantages.any()
    assert batch.n_tokens == 4
    assert "advantages_all_zero" in report.alarms


@pytest.mark.parametrize(("ends", "reason"), [
    ({"end": End.TRUNCATED}, "truncated"), ({"masked": True}, "environment"),
])
def test_masked_rollouts_stay_as_rows_without_weight(ends: dict, reason: str) -> None:
    groups = [group(0, trajectory(1.0), trajectory(0.0), trajectory(0.0, sequence((1, 5)), **ends))]
    batch, report = build_batch(1, groups, grpo())
    assert batch.sample_mask.tolist() == [1, 1, 0]
    assert (batch.n_tokens, batch.n_sequences, dict(report.masked)) == (4, 2, {reason: 1})


def test_a_prompt_that_fills_the_context_never_trains() -> None:
    empty = trajectory(0.0, sequence((9, 0)), end=End.TRUNCATED)
    settings = grpo(masks={"overlong_filter": False, "sequence_error_max": None})
    batch, report = build_batch(1, [group(0, trajectory(1.0), empty)], settings)
    assert batch.sample_mask.tolist() == [1, 0]
    assert dict(report.masked) == {"overlong_prompt": 1}


@pytest.mark.parametrize(("voters", "expected"), [("exclude_masked", [0.0, 0.0]), ("reference", [0.5, 0.5])])
def test_masked_rollouts_vote_only_in_reference_mode(voters: str, expected: list[float]) -> None:
    settings = grpo(advantage={"voters": voters, "normalize": False})
    groups = [group(0, trajectory(1.0), trajectory(1.0), trajectory(0.0, end=End.TRUNCATED))]
    batch, _ = with_advantages(*build_batch(1, groups, settings), settings)
    assert batch.advantages[:2].tolist() == expected


def test_the_error_mask_takes_out_single_rows_and_their_counts() -> None:
    settings = grpo(masks={"sequence_error_max": 2.0})
    two = trajectory(1.0, sequence((3, 2)), sequence((5, 1)))
    batch, report = build_batch(1, [group(0, two, trajectory(0.0))], settings)
    prev = batch.gen_log_probabilities.copy()
    prev[3] += 5
    masked, told = apply_masks(batch, report, prev, settings)
    assert masked.sample_mask.tolist() == [0, 1, 1]
    assert (masked.n_tokens, masked.n_sequences) == (3, 2)
    assert dict(told.masked) == {"log_probability_error": 1}
    assert batch.sample_mask.tolist() == [1, 1, 1]
    masked, _ = with_advantages(masked, told, settings)
    assert masked.advantages.tolist() == [1, 1, -1]


def test_a_batch_without_a_token_to_train_on_is_an_error() -> None:
    batch, report = build_batch(4, [group(0, trajectory(None, end=End.FAILED),
                                          trajectory(0.0, end=End.TRUNCATED))], grpo())
    with pytest.raises(BatchError, match=r"1 failed.*1 truncated.*step 4"):
        apply_masks(batch, report, None, grpo())


def test_no_sample_at_all_is_an_error_too() -> None:
    batch, report = build_batch(4, [group(0, trajectory(None, end=End.FAILED))], grpo())
    with pytest.raises(BatchError):
        apply_masks(batch, report, None, grpo())


def test_age_is_that_of_the_oldest_token() -> None:
    mixed = trajectory(1.0, sequence((3, 2), version=5), sequence((3, 2), version=3))
    _, report = build_batch(6, [group(0, mixed, trajectory(0.0, sequence((1, 1), version=5)), target=5)], grpo())
    assert dict(report.ages) == {0: 1, 2: 1}


@pytest.mark.parametrize(("masks", "loss", "expected"), [
    (2.0, {"force_on_policy_ratio": True}, True),
    (None, {"force_on_policy_ratio": True}, False),
    (None, {"force_on_policy_ratio": True, "importance_correction": True}, False),
    (None, {}, True),
    (None, {"ratio": "reinforce"}, False),
    (None, {"ratio": "reinforce", "importance_correction": True}, True),
    (None, {"ratio": "cispo"}, True),
])
def test_the_pass_before_the_update_is_made_where_something_reads_it(masks: float | None, loss: dict,
                                                                      expected: bool) -> None:
    assert needs_prev(grpo(masks={"sequence_error_max": masks}, loss=loss)) is expected


def test_the_reference_pass_is_made_for_a_penalty_only() -> None:
    assert not needs_reference(grpo())
    assert needs_reference(grpo(loss=LossSettings(kl=KLSettings(penalty=0.1))))


def test_one_success_among_eight() -> None:
    result = advantages([1.0] + [0.0] * 7, [0] * 8, AdvantageSettings())
    assert result.advantage[0] == 1.0
    assert result.advantage[1:] == pytest.approx(-0.378, abs=1e-3)


def test_a_missing_reward_is_no_zero() -> None:
    result = advantages([1.0, 0.0, np.nan], [3, 3, 3], AdvantageSettings(voters="reference"))
    assert result.advantage.tolist() == [1.0, -1.0, 0.0]
    assert np.isnan(result.baseline[2])


def test_the_clamp_comes_last() -> None:
    result = advantages([1.0, 0.0, 0.0, 0.0], [0] * 4, AdvantageSettings(clamp=(-0.25, 0.5)))
    assert result.advantage.tolist() == [0.5, -0.25, -0.25, -0.25]


def test_importing_the_steps_imports_no_torch() -> None:
    code = "import sys, grpo_bench.steps; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
