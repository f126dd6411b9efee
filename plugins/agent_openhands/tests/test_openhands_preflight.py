"""What is looked at before a run: templates, tools, and which OpenHands it is."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from grpo_bench.contract import Finding, PreflightContext
from grpo_bench_agent_openhands import OpenHandsConfig
from grpo_bench_agent_openhands.benchmark import SYSTEM_PROMPT, TOOLS
from grpo_bench_agent_openhands.preflight import preflight

INVENTORY = {"versions": {"openhands-ai": "0.62.0"}, "tools": dict(TOOLS), "system_prompt": {"sha256": SYSTEM_PROMPT}}


def found(inventory: Any = INVENTORY, **settings: Any) -> dict[str, Finding]:
    site: Any = SimpleNamespace(inventory=inventory)
    context = PreflightContext(site=site, settings={}, facts={}, provenance={}, runs=Path(), say=lambda line: None,
                               digests=lambda files, algorithm="sha256": {})
    config = OpenHandsConfig.model_validate(settings)
    return {finding.rule: finding for finding in preflight(config, context)}


def test_the_benchmarks_agent(tmp_path: Path) -> None:
    template = tmp_path / "user.j2"
    template.write_bytes(b"Repair it.\n")
    said = found(tools="benchmark-exact", user_template=template,
                 user_template_sha256=hashlib.sha256(b"Repair it.\n").hexdigest())
    assert all(finding.ok for finding in said.values())
    assert said["system_template"].message == "built in"
    assert said["user_template"].message == f"{template}, of the SHA-256 it should be"
    assert said["OpenHands"].message == "openhands-ai 0.62.0; the benchmark pins revision 0d766ad06b2b of its fork"
    assert said["tools"].message == "the 5 of the benchmark and its system prompt, by digest"


@pytest.mark.parametrize("name", ["system_template", "user_template"])
def test_a_template_that_is_not_the_one_it_should_be(tmp_path: Path, name: str) -> None:
    template, wanted = tmp_path / "t.j2", hashlib.sha256(b"one").hexdigest()
    settings = {name: template, f"{name}_sha256": wanted}
    assert found(**settings)[name].message == f"there is no file {template}"
    template.write_bytes(b"two")
    wrong = found(**settings)[name]
    assert (wrong.ok, wrong.key) == (False, f"agent.{name}")
    assert wrong.message.endswith(f"its SHA-256 is {hashlib.sha256(b'two').hexdigest()}, not {wanted}")
    template.write_bytes(b"one")
    assert found(**settings)[name].ok


def test_tools_that_are_not_the_benchmarks_matter_where_they_must_be() -> None:
    other = {**INVENTORY, "tools": {**TOOLS, "think": "0" * 64}}
    wrong = found(other, tools="benchmark-exact")["tools"]
    assert (wrong.ok, wrong.message) == (False, "tool think has digest 000000000000, the benchmark's 6366dd459e63")
    assert found(other, tools="any")["tools"].ok


def test_without_its_environment_nothing_is_known() -> None:
    said = found({})
    assert (said["OpenHands"].ok, said["OpenHands"].unknown) == (False, True)
    assert "tools" not in said
