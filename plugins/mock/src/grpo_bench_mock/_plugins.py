"""The descriptors."""

from __future__ import annotations

from grpo_bench.contract import Capabilities, Plugin, Role

from .config import (
    AgentConfig, EnvironmentConfig, GeneratorConfig, HardwareConfig, RulesetConfig, ScriptedConfig, TrainerConfig,
)

SAFETENSORS = "safetensors"

trainer = Plugin(
    name="mock", role=Role.TRAINER, summary="a vector of weights that every trained token changes",
    config=TrainerConfig, factory="grpo_bench_mock.learner:create", stand_in=True,
    describe="grpo_bench_mock.config:describe",
    capabilities=Capabilities(sends=frozenset({"mock", SAFETENSORS}), computes="mock", deterministic=True),
    known_failures={
        "test_nothing_is_learned_where_nothing_was_better": "each trained token leaves a trace, so that none is lost",
        "test_only_sampled_tokens_within_the_clip_train": "it has a loss of its own, without ratios",
        "test_saved_weights_are_the_current_ones": "its weights are no tensors of the policy's",
        "test_the_loss_is_the_contracts": "it has a loss of its own, without ratios",
        "test_what_was_learned_is_sent": "its weights are no tensors of the policy's",
    },
)

_GENERATES = Capabilities(
    receives=frozenset({"mock", "hf_folder", SAFETENSORS}), computes="mock", deterministic=True,
    refit=frozenset({"drain", "keep"}),
    sampling=frozenset({"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
                        "frequency_penalty"}))

generator = Plugin(
    name="mock", role=Role.GENERATOR, summary="canned replies, the better the longer the policy was trained",
    config=GeneratorConfig, factory="grpo_bench_mock.sampler:create", client="grpo_bench_mock.sampler:make_client",
    stand_in=True, capabilities=_GENERATES,
    known_failures={"test_draws_follow_the_distribution": "its replies are canned"},
)

scripted = Plugin(
    name="scripted", role=Role.GENERATOR, summary="what a script says to each task, whatever the policy's weights",
    config=ScriptedConfig, factory="grpo_bench_mock.playing:create", client="grpo_bench_mock.sampler:make_client",
    describe="grpo_bench_mock.playing:describe", stand_in=True, capabilities=_GENERATES,
    known_failures={"test_draws_follow_the_distribution": "its replies are written down",
                    "test_a_stream_decides_what_is_drawn": "it says the same under every seed"},
)

environment = Plugin(
    name="mock", role=Role.ENVIRONMENT, summary="tasks with one right answer, sandboxes in memory",
    config=EnvironmentConfig, factory="grpo_bench_mock.world:create",
    worker_factory="grpo_bench_mock.world:create_in_worker", stand_in=True,
    capabilities=Capabilities(splits=frozenset({"train", "heldout", "final"}),
                              prompt=frozenset({"statement", "path", "files", "test_command"}),
                              sandbox=frozenset({"exec", "files"}), deterministic=True),
)

agent = Plugin(
    name="mock", role=Role.AGENT, summary="looks around, then hands in an answer", config=AgentConfig,
    worker_factory="grpo_bench_mock.solver:create", stand_in=True,
    capabilities=Capabilities(prompt=frozenset({"statement"}), sandbox=frozenset({"exec", "files"}),
                              deterministic=True),
)

hardware = Plugin(
    name="mock", role=Role.HARDWARE, summary="as many workers as asked for", config=HardwareConfig,
    factory="grpo_bench_mock.machine:create", stand_in=True, capabilities=Capabilities(deterministic=True),
)

ruleset = Plugin(
    name="mock", role=Role.RULESET, summary="a schedule of validations and a target, nothing forbidden",
    config=RulesetConfig, factory="grpo_bench_mock.rules:create", stand_in=True,
)
