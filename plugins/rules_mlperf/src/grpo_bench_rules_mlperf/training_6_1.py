"""MLPerf Training 6.1, benchmark qwen35_397b_grpo, as the checker of mlperf-logging 4.1.68 has it.

All of it is data. Requirements that name no division hold in both; the last group is what the reference ran and anybody
may change.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from .rules import BOTH, CLOSED, Bound, Formula, Requirement, Rules

_NEAR = 1e-9
"""What the official checker allows learning rate and clipping norm to differ."""
_LAYERS = "15 x (linear_attention, linear_attention, linear_attention, full_attention)"
_TASKS = Formula(lambda rules, batch: rules.validation_tasks, "all validation tasks")
_ENVIRONMENT, _AGENT, _MODEL = "environment.use", "agent.use", "policy.architecture"


def _all(values: Mapping[str, Any], why: str, **common: Any) -> tuple[Requirement, ...]:
    """A requirement for each key of the profile."""
    return tuple(Requirement(key, (key,), value, why, **common) for key, value in values.items())


_VALIDATION = (
    *_all({"validation.k": 4}, "a task counts as solved where one of four rollouts solves it"),
    *_all({"validation.max_tasks": _TASKS}, "the quality is measured on every held-out task", also=(None,),
          mllog="eval_samples"),
    *_all({"validation.metric": "pass_k"}, "the quality metric is pass@4"),
    *_all({"validation.target": Formula(lambda rules, batch: float(rules.target), "the quality target")},
          "a run lasts until pass@4 over the held-out tasks reaches the target; without one there is no time to it",
          fix='set validation.metric = "pass_k" and validation.target = 0.69'),
    *_all({"validation.start_at": Formula(Rules.first_validation, "ceil(2.5 + 3840 / batch)")},
          "the first quality check comes at the step that the reference's convergence suggests", mllog="eval_accuracy"),
    *_all({"validation.period": 1}, "from the first quality check on there is one after every step"),
    *_all({"validation.at_start": False, "validation.at_end": False}, "there is no quality check beside the schedule"),
    *_all({"validation.deferred": True}, "weights are saved after each step and evaluated when training is over, so "
          "that quality checks take no time from it"),
    *_all({"limits.max_failed_share": 0.0}, "every rollout has to come to a normal end: one that timed out or failed "
          "is no sample, and no group or task does with fewer"),
    *_all({"policy.max_context": 65_536}, "context and generation are 65,536 tokens", mllog="max_sequence_length"),
)

_TASK_FILES = (
    *_all({_ENVIRONMENT: "r2egym"}, "tasks, sandboxes and grading are those of the benchmark's R2E-Gym environment; "
          "its settings are judged only where it is used"),
    *_all({"environment.validation_expected.bytes": 172_078_629, "environment.validation_expected.sha256":
           "2d5bddf717afb4389510a7d197f26ce5eb7f610aab4b20d6af6e0150de6f2c79"},
          "validation data is the benchmark's file, byte for byte", given=_ENVIRONMENT),
    Requirement("environment.validation_tasks", ("facts.environment.tasks.validation.tasks",), _TASKS,
                "the benchmark holds out that many tasks", key="environment.validation",
                fix="take the benchmark's file of validation tasks", given=_ENVIRONMENT),
    *_all({"validation.split": "validation"}, "quality is measured on the tasks held out for it", given=_ENVIRONMENT),
    *_all({"environment.grading": "r2e_exact"}, "a rollout's reward is what R2E-Gym's own grading says",
          given=_ENVIRONMENT),
    *_all({"environment.test_timeout_s": 60.0, "environment.command_timeout_s": 60.0},
          "the reference gives tests and commands a minute; less would fail patches that it accepts",
          bound=Bound.AT_LEAST, given=_ENVIRONMENT),
)

_AGENT_LOOP = (
    *_all({_AGENT: "openhands"}, "the agent is OpenHands' CodeActAgent; its settings are judged only where it is used"),
    *_all({"agent.max_turns": 30}, "an agent has 30 turns", given=_AGENT),
    *_all({"agent.tools": "benchmark-exact"}, "names and descriptions of the tools are those of the pinned OpenHands",
          given=_AGENT),
    *_all({"agent.system_template_sha256": "8aff26bf83a11605ca9bab0336804d56d202f1555b0a073d21db21e4e41b8b9a",
           "agent.user_template_sha256": "0b0489b934d2c229c439b7af2f588fe404a6327be9da3c12d4c7c9efd3cf1c03"},
          "prompt templates are part of the benchmark, byte for byte", given=_AGENT),
    *_all({"agent.agent_timeout_s": 1800.0}, "the reference gives an agent 1,800 s; the time-out should end no "
          "rollout, so more is free and less is not", bound=Bound.AT_LEAST, given=_AGENT),
    *_all({"agent.command_timeout_s": 60}, "the reference gives a command 60 s", bound=Bound.AT_LEAST, given=_AGENT),
    *_all({"limits.rollout_s": 1800.0}, "a rollout has to outlast the reference's agent", bound=Bound.AT_LEAST),
    *_all({"limits.score_s": 60.0}, "grading has to outlast the reference's tests", bound=Bound.AT_LEAST),
)

_POLICY = tuple(
    Requirement(f"policy.{name}", (f"model.{key}",), value, key="policy.checkpoint",
                why=f"every run starts from the weights of Qwen3.5-397B-A17B, which has {words}",
                fix="let policy.checkpoint be the benchmark's checkpoint", divisions=CLOSED,
                given="" if f"policy.{name}" == _MODEL else _MODEL)
    for name, key, value, words in (
        ("architecture", "architecture", "qwen3_5_moe", "an architecture of its own"),
        ("vocabulary", "vocab_size", 248_320, "248,320 tokens in its vocabulary"),
        ("layers", "num_hidden_layers", 60, "60 layers"),
        ("layout", "layout", _LAYERS, "three layers of Gated DeltaNet to one of gated attention, each with experts"),
        ("hidden", "hidden_size", 4096, "a model dimension of 4,096"),
        ("experts", "num_experts", 512, "512 routed experts"),
        ("active_experts", "num_experts_per_tok", 10, "10 active experts"),
        ("expert_size", "moe_intermediate_size", 1024, "experts of 1,024"),
        ("shared_expert_size", "shared_expert_intermediate_size", 1024, "one shared expert of 1,024"),
        ("attention_heads", "num_attention_heads", 32, "32 query heads"),
        ("kv_heads", "num_key_value_heads", 2, "2 key-value heads"),
        ("head_size", "head_dim", 256, "attention heads of 256"),
        ("rope_size", "rope_size", 64, "rotary embedding on 64 dimensions of a head"),
        ("delta_value_heads", "linear_num_value_heads", 64, "64 value heads of DeltaNet"),
        ("delta_key_heads", "linear_num_key_heads", 16, "16 query-key heads of DeltaNet"),
        ("delta_value_size", "linear_value_head_dim", 128, "DeltaNet value heads of 128"),
        ("delta_key_size", "linear_key_head_dim", 128, "DeltaNet key heads of 128"),
        ("native_context", "max_position_embeddings", 262_144, "a native context of 262,144 tokens")))

_TRAINING_DATA = (
    *_all({"environment.train_expected.bytes": 446_364_412, "environment.train_expected.sha256":
           "e772af09599270ab16a04ccbbcef395bcb2929607f050478033a84b087a606fc"},
          "training data is the benchmark's file, byte for byte; its order is part of it and nothing is shuffled",
          divisions=CLOSED, given=_ENVIRONMENT),
    Requirement("environment.training_tasks", ("facts.environment.tasks.train.tasks",),
                Formula(lambda rules, batch: rules.training_tasks, "all training tasks"),
                "the benchmark trains on that many tasks", key="environment.train",
                fix="take the benchmark's file of training tasks", divisions=CLOSED, given=_ENVIRONMENT),
    *_all({"grpo.split": "train"}, "the policy learns from the training tasks alone", given=_ENVIRONMENT),
)

_SAMPLING = (
    *_all({"policy.enable_thinking": False, "policy.tool_parser": "qwen3_xml"},
          "the policy answers without thinking first, and writes tool calls in Qwen3's XML", divisions=CLOSED),
    *(Requirement(f"{sections[0]}.{name}", tuple(f"{section}.{name}" for section in sections), value, why,
                  divisions=CLOSED, mllog=f"{log}_{name}" if name in ("temperature", "top_p") else "")
      for sections, log, why, values in (
          (("sampling",), "generation_training_rollout", "training samples from the policy as it is",
           {"temperature": 1.0, "top_p": 1.0}),
          (("validation.sampling", "sampling"), "generation_validation_rollout", "quality checks sample cautiously",
           {"temperature": 0.1, "top_p": 0.95}))
      for name, value in {**values, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
                          "frequency_penalty": 0.0, "max_tokens": 65_536}.items()),
    Requirement("generator.speculation", ("generator.engine.speculative_config",), None,
                "every token is drawn from the policy: no speculative decoding", unset=None,
                fix="leave generator.engine.speculative_config out"),
)

_LEARNING = (
    *_all({"grpo.generations_per_prompt": 16}, "a prompt has 16 rollouts", divisions=CLOSED,
          mllog="num_generations_per_prompt"),
    *_all({"grpo.max_steps": Formula(Rules.steps, "the benchmark's table, else free")},
          "the benchmark's table says when a run has failed", divisions=CLOSED),
    *_all({"grpo.advantage.leave_one_out": True, "grpo.advantage.normalize": True, "grpo.advantage.clamp": None},
          "a reward is measured against the other rollouts of its prompt, over their spread, and is not reshaped",
          divisions=CLOSED),
    *_all({"grpo.advantage.voters": "reference"}, "every rollout with a reward counts in its group's baseline, masked "
          "or not", divisions=CLOSED),
    *_all({"grpo.masks.overlong_filter": True}, "rollouts that the context limit cut off do not train",
          divisions=CLOSED),
    *_all({"grpo.masks.sequence_error_max": 2.0}, "sequences whose log-probabilities differ too much between sampling "
          "and training do not train", divisions=CLOSED),
    *_all({"grpo.loss.reduction": "token", "grpo.loss.ratio": "ppo", "grpo.loss.clip_min": 0.2,
           "grpo.loss.clip_max": 0.28, "grpo.loss.dual_clip": None, "grpo.loss.positive_nll_weight": 0.0},
          "the loss is PPO's per token, clipped at 0.2 and 0.28, with no further term", divisions=CLOSED),
    *_all({"grpo.loss.force_on_policy_ratio": True}, "the ratio is that of the policy with itself", divisions=CLOSED),
    *_all({"grpo.loss.importance_correction": True, "grpo.loss.truncation.kind": "seq-mask-tis",
           "grpo.loss.truncation.min": 0.999, "grpo.loss.truncation.max": 1.002},
          "tokens are weighed by how much likelier training finds them than sampling did, and a sequence outside the "
          "bounds is dropped", divisions=CLOSED),
    *_all({"grpo.loss.kl.penalty": 0.0}, "nothing holds the policy near a reference policy", divisions=CLOSED),
    *_all({"trainer.freeze_router": True}, "the experts' router stays as it is in the checkpoint", divisions=CLOSED),
    *(Requirement(f"trainer.model.{key}", (f"trainer.model.{key}",), wanted, why, divisions=divisions, also=also,
                  unset=wanted, fix=f"leave trainer.model.{key} out")
      for key, wanted, also, divisions, why in (
          ("mtp_num_layers", None, (0,), BOTH, "layers that predict several tokens are neither trained nor used"),
          ("moe_aux_loss_coeff", 0.0, (), CLOSED, "the loss has no term that balances the experts"),
          ("moe_z_loss_coeff", None, (0.0,), CLOSED, "the loss has no term on the router's logits"),
          ("moe_expert_capacity_factor", None, (), CLOSED, "every token reaches the experts it was routed to"))),
)

_OPTIMIZER = tuple(
    Requirement(f"trainer.{key}", (f"facts.trainer.{key}", *places), value, why, mllog=key, tolerance=tolerance,
                divisions=BOTH if key == "opt_name" else CLOSED)
    for key, places, value, why, tolerance in (
        ("opt_name", (), "adamw", "the optimizer is Adam, which logs call adamw", 0.0),
        ("opt_base_learning_rate", ("trainer.learning_rate",), Formula(Rules.learning_rate, "1e-6 sqrt(batch / 256)"),
         "the learning rate grows with the root of the batch", _NEAR),
        ("opt_end_learning_rate", ("trainer.learning_rate",), Formula(Rules.learning_rate, "1e-6 sqrt(batch / 256)"),
         "the learning rate stays as it is", _NEAR),
        ("opt_gradient_clip_norm", ("trainer.clip_norm",), Formula(Rules.clip_norm, "0.125 sqrt(256 / batch)"),
         "gradients are clipped the harder the larger the batch", _NEAR),
        ("opt_adamw_beta_1", ("trainer.betas.0",), 0.9, "Adam's averages are the reference's", 0.0),
        ("opt_adamw_beta_2", ("trainer.betas.1",), 0.999, "Adam's averages are the reference's", 0.0),
        ("opt_adamw_epsilon", ("trainer.eps",), 1e-8, "Adam's denominator is the reference's", 0.0),
        ("opt_adamw_weight_decay", ("trainer.weight_decay",), 0.0, "weights do not decay", 0.0),
        ("opt_learning_rate_warmup_steps", ("trainer.warmup_steps",), 0, "the learning rate is there from the start",
         0.0),
        ("opt_learning_rate_decay_schedule", ("trainer.schedule",), "constant", "the learning rate stays as it is",
         0.0)))

_FREE = "free: the reference's value is here to compare"
_REFERENCE = (
    *_all({
        "schedule.max_age": 1, "checkpoint.period": 0, "trainer.workers": 64, "trainer.tensor_parallel": 4,
        "trainer.pipeline_parallel": 2, "trainer.expert_parallel": 32, "trainer.context_parallel": 1,
        "trainer.precision": "bfloat16", "trainer.router_precision": "float32",
        "trainer.precision_aware_optimizer": True, "trainer.attention": "flash", "trainer.dispatcher": "flex",
        "trainer.flex_sms": 32, "generator.workers": 24, "generator.tensor_parallel": 8,
        "generator.expert_parallel": True, "generator.dtype": "bfloat16", "generator.batched_tokens": 16_384,
        "generator.prefix_caching": True, "generator.cuda_graphs": "full_and_piecewise",
        "generator.moe_backend": "triton", "generator.performance_mode": "throughput",
        "environment.backend": "apptainer", "hardware.nodes": 64, "hardware.policy_nodes": 16,
    }, _FREE, bound=Bound.REFERENCE),
    *(Requirement(f"version of {package}", (f"facts.{role}.versions.{package}",), version, _FREE, key=f"{role}.env",
                  bound=Bound.REFERENCE)
      for role, package, version in (
          ("trainer", "megatron-core", "0.19.0"), ("trainer", "megatron-bridge", "0.6.0"),
          ("trainer", "transformer-engine", "2.15.0+42b8400"), ("generator", "vllm", "0.20.0"))),
)

RULES = Rules(
    name="mlperf-training-6.1", benchmark="qwen35_397b_grpo", summary="MLPerf Training 6.1, benchmark qwen35_397b_grpo",
    checker="4.1.68", checker_ruleset="6.1.0", model="Qwen/Qwen3.5-397B-A17B",
    revisions=("8472618112abcbd45acbcdc58436aff4233c23f7", "98d1a504ba52e88924b3a3a008447cf2fdbd518c"),
    k=4, training_tasks=700, validation_tasks=251, target=Fraction(69, 100), reference_batch=256,
    learning_rate_there=1e-6, clip_norm_there=0.125, max_steps={256: 30, 512: 20, 1024: 10, 1152: 10},
    reference_samples={256: 4608, 512: 5120, 1024: 7168},
    logged=frozenset({
        "config_filename", "micro_batch_size", "tensor_parallelism", "pipeline_parallelism", "context_parallelism",
        "expert_parallelism", "lowest_numerical_precision_in_linear", "lowest_numerical_precision_in_attn",
        "lowest_numerical_precision_in_comm"}),
    log_only={"init_checkpoint_step": 0},
    requirements=(*_VALIDATION, *_TASK_FILES, *_AGENT_LOOP, *_POLICY, *_TRAINING_DATA, *_SAMPLING, *_LEARNING,
                  *_OPTIMIZER, *_REFERENCE),
)
