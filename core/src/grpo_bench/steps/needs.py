"""Which extra forward passes a step needs, decided from the settings alone."""

from __future__ import annotations

from grpo_bench.contract import GrpoSettings, LossSettings


def loss_reads_prev(loss: LossSettings) -> bool:
    """Whether the loss itself looks at log-probabilities from before the update.

    ``force_on_policy_ratio`` puts the current policy in their place everywhere. ``reinforce`` has no ratio, so there
    only the importance weights read them.
    """
    return not loss.force_on_policy_ratio and (loss.ratio != "reinforce" or loss.importance_correction)


def loss_reads_reference(loss: LossSettings) -> bool:
    """Whether the loss looks at log-probabilities of the reference policy."""
    return loss.kl.penalty > 0 and not loss.kl.in_reward


def needs_prev(grpo: GrpoSettings) -> bool:
    """Whether a step computes the trainer's log-probabilities before its update."""
    return grpo.masks.sequence_error_max is not None or loss_reads_prev(grpo.loss)


def needs_reference(grpo: GrpoSettings) -> bool:
    """Whether a step computes log-probabilities under the reference policy."""
    return loss_reads_reference(grpo.loss)
