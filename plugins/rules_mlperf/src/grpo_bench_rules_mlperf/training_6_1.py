"""MLPerf Training 6.1, benchmark qwen35_397b_grpo, as the checker of mlperf-logging 4.1.68 has it."""

from __future__ import annotations

from fractions import Fraction

from .rules import Rules

_OPTIMIZER = {
    "opt_name": "adamw", "opt_adamw_beta_1": 0.9, "opt_adamw_beta_2": 0.999, "opt_adamw_epsilon": 1e-8,
    "opt_adamw_weight_decay": 0.0, "opt_learning_rate_warmup_steps": 0, "opt_learning_rate_decay_schedule": "constant",
}

RULES = Rules(
    name="mlperf-training-6.1", benchmark="qwen35_397b_grpo", checker="4.1.68", checker_ruleset="6.1.0",
    vocab_size=248_320, k=4, validation_tasks=251, target=Fraction(69, 100), reference_batch=256,
    learning_rate_there=1e-6, clip_norm_there=0.125, max_steps={256: 30, 512: 20, 1024: 10, 1152: 10},
    profile={
        "policy.max_context": 65_536, "policy.enable_thinking": False, "policy.tool_parser": "qwen3_xml",
        "grpo.generations_per_prompt": 16,
        "grpo.advantage.leave_one_out": True, "grpo.advantage.normalize": True, "grpo.advantage.clamp": None,
        "grpo.advantage.voters": "reference",
        "grpo.masks.overlong_filter": True, "grpo.masks.sequence_error_max": 2.0,
        "grpo.loss.reduction": "token", "grpo.loss.ratio": "ppo", "grpo.loss.clip_min": 0.2,
        "grpo.loss.clip_max": 0.28, "grpo.loss.dual_clip": None, "grpo.loss.force_on_policy_ratio": True,
        "grpo.loss.importance_correction": True, "grpo.loss.truncation.kind": "seq-mask-tis",
        "grpo.loss.truncation.min": 0.999, "grpo.loss.truncation.max": 1.002, "grpo.loss.kl.penalty": 0.0,
        "grpo.loss.positive_nll_weight": 0.0,
        "sampling.temperature": 1.0, "sampling.top_p": 1.0, "sampling.top_k": -1, "sampling.max_tokens": 65_536,
        "validation.sampling.temperature": 0.1, "validation.sampling.top_p": 0.95,
        "validation.k": 4, "validation.period": 1, "validation.at_start": False, "validation.at_end": False,
        "validation.metric": "pass_k", "validation.target": 0.69,
        "limits.max_failed_share": 0.0,
    },
    facts=_OPTIMIZER,
    fixed_keys=frozenset({
        *_OPTIMIZER, "opt_base_learning_rate", "opt_gradient_clip_norm", "max_sequence_length", "eval_samples",
        "init_checkpoint_step", "num_generations_per_prompt", "eval_accuracy",
        "generation_training_rollout_temperature", "generation_training_rollout_top_p",
        "generation_validation_rollout_temperature", "generation_validation_rollout_top_p",
    }),
)
