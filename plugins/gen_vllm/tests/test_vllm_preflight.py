"""What is looked at before a run: the environment of the engines."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from grpo_bench.contract import Finding, PreflightContext
from grpo_bench_gen_vllm import VllmGeneratorConfig
from grpo_bench_gen_vllm.preflight import preflight


def found(inventory: Any) -> list[Finding]:
    site: Any = SimpleNamespace(inventory=inventory)
    context = PreflightContext(site=site, settings={}, facts={}, provenance={}, runs=Path(), say=lambda line: None,
                               digests=lambda files, algorithm="sha256": {})
    return list(preflight(VllmGeneratorConfig(), context))


def inventory(kind: str) -> Any:
    return {"versions": {"vllm": "0.32.0"}, "weight_transfer": ["ipc", "nccl"],
            "device": {"type": kind, "names": ["GB300", "GB300"], "memory": [2**38, 2**37]}}


def test_version_and_devices_are_told() -> None:
    finding, = found(inventory("cuda"))
    assert (finding.ok, finding.message) == (
        True, "vLLM 0.32.0 on 2 x GB300 of 131,072 MiB; transports of weights: ipc, nccl")


def test_a_vllm_for_devices_that_are_not_here() -> None:
    finding, = found(inventory("none"))
    assert (finding.ok, finding.unknown) == (False, False)
    assert finding.message == "vLLM 0.32.0 is built for devices that this machine does not show"


def test_without_its_environment_nothing_is_known() -> None:
    finding, = found({})
    assert (finding.ok, finding.unknown, finding.key) == (False, True, "generator.env")
