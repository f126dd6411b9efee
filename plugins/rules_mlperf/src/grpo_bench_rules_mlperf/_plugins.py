"""The descriptors."""

from __future__ import annotations

from grpo_bench.contract import Plugin, Role

from .config import MllogConfig, RulesetConfig

ruleset = Plugin(
    name="mlperf-training-6.1", role=Role.RULESET, summary="MLPerf Training 6.1, benchmark qwen35_397b_grpo",
    config=RulesetConfig, factory="grpo_bench_rules_mlperf.judge:create",
    judge="grpo_bench_rules_mlperf.judged:judge_path", preflight="grpo_bench_rules_mlperf.preflight:preflight",
    pace="grpo_bench_rules_mlperf.pace:pace",
)

observer = Plugin(
    name="mllog", role=Role.OBSERVER, summary="the run as MLLOG lines, in mllog.txt", config=MllogConfig,
    factory="grpo_bench_rules_mlperf.writer:create",
)
