"""The steps of a run: rollout, reward, advantage, update, refit, validate. Importing this package imports no torch.

The loss is in :mod:`grpo_bench.steps.update`; only that module and its helpers import torch, and trainers import it by
name.
"""

from .advantage import AdvantageResult, advantages
from .batch import BatchReport, apply_masks, build_batch, positive_tokens, with_advantages
from .heads import Entry, Head, head_of
from .masks import MaskResult, Reason, rollout_mask, sequence_logprob_error_mask
from .needs import needs_prev, needs_reference
from .probe import Answers, Followed, Probe, Verdict, answers, followed
from .refit import probe_batch, refit
from .reward import RewardSummary, check_failed_share, rewards_of, summarize
from .rollout import TARGET, PluginSpec, RolloutWorker, worker_config
from .validate import target_met, validation_report

__all__ = [
    "TARGET", "AdvantageResult", "Answers", "BatchReport", "Entry", "Followed", "Head", "MaskResult", "PluginSpec",
    "Probe", "Reason", "RewardSummary", "RolloutWorker", "Verdict", "advantages", "answers", "apply_masks",
    "build_batch", "check_failed_share", "followed", "head_of", "needs_prev", "needs_reference", "positive_tokens",
    "probe_batch", "refit", "rewards_of", "rollout_mask", "sequence_logprob_error_mask", "summarize", "target_met",
    "validation_report", "with_advantages", "worker_config",
]
