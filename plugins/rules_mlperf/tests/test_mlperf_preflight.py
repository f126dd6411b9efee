"""What a submission needs of a machine, each thing wrong in turn."""

from __future__ import annotations

import json
import os
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from grpo_bench.contract import Finding, PolicyFacts, PreflightContext
from grpo_bench_rules_mlperf import RulesetConfig
from grpo_bench_rules_mlperf.preflight import OVERLAYS, preflight
from grpo_bench_rules_mlperf.training_6_1 import RULES

CONFIG = json.loads(files("grpo_bench_rules_mlperf").joinpath("qwen35_397b_a17b.json").read_text("utf-8"))["config"]
VOCABULARY = CONFIG["text_config"]["vocab_size"]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SHAPES = {256: (16, 30), 512: (32, 20), 1024: (64, 10), 1152: (72, 10)}
"""Prompts and steps by batch."""


def shard(name: str, size: int) -> bytes:
    """A safetensors file of one tensor."""
    head = json.dumps({name: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(head).to_bytes(8, "little") + head + bytes(size)


class Site:
    """A machine with the benchmark's policy in two tiny shards."""

    def __init__(self, folder: Path) -> None:
        self.runs = folder / "runs"
        self.policy = folder / "models" / "snapshots" / RULES.revisions[0]
        self.policy.mkdir(parents=True)
        self.config(CONFIG)
        self.index(30)
        for number, size in enumerate((10, 20), 1):
            self.shard(number).write_bytes(shard(f"w{number}", size))
        self.vocab_size = VOCABULARY
        self.facts: dict[str, Any] = {}
        self.provenance: dict[str, Any] = {
            "parts": {"trainer": {"stand_in": False}}, "sources": {}, "installs": {"grpo-bench": {"kind": "archive"}},
            "container": {"digest": None, "image": None}}

    def config(self, content: Any) -> None:
        (self.policy / "config.json").write_text(json.dumps(content))

    def index(self, total: int) -> None:
        (self.policy / "model.safetensors.index.json").write_text(json.dumps(
            {"metadata": {"total_size": total}, "weight_map": {"w1": self.shard(1).name, "w2": self.shard(2).name}}))

    def shard(self, number: int) -> Path:
        return self.policy / f"model-{number:05d}-of-00002.safetensors"

    def found(self, division: str = "closed", batch: int = 256) -> dict[str, Finding]:
        prompts, steps = SHAPES[batch]
        site: Any = SimpleNamespace(policy=PolicyFacts(self.policy, 65_536, self.vocab_size))
        context = PreflightContext(
            site=site, facts=self.facts, provenance=self.provenance, runs=self.runs, say=lambda line: None,
            digests=lambda files, algorithm="sha256": {},
            settings={"grpo": {"prompts_per_step": prompts, "generations_per_prompt": 16, "max_steps": steps},
                      "validation": {"deferred": True}})
        config = RulesetConfig.model_validate({"division": division})
        return {finding.rule: finding for finding in preflight(config, context)}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    for name in OVERLAYS:
        monkeypatch.delenv(name, raising=False)
    free(monkeypatch, 10**14)
    return Site(tmp_path)


def free(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let every disk have that many bytes free."""
    monkeypatch.setattr(os, "statvfs", lambda folder: SimpleNamespace(f_bavail=count // 1000, f_frsize=1000))


def failed(found: dict[str, Finding]) -> dict[str, str]:
    return {rule: finding.message for rule, finding in found.items() if not finding.ok}


def test_the_benchmarks_policy_and_clean_software(site) -> None:
    found = site.found()
    assert failed(found) == {}
    assert found["model table"].message == "all 18 values are those of Qwen/Qwen3.5-397B-A17B"
    assert found["shards"].message == "2 shards, 2 tensors, 30 bytes"
    assert found["revision"].message == RULES.revisions[0]


def test_a_config_without_its_outer_part(site) -> None:
    site.config({"model_type": "qwen3_5_moe_text", **CONFIG["text_config"]})
    assert failed(site.found()) == {}


@pytest.mark.parametrize("nested", [True, False])
def test_a_config_of_another_model(site, nested: bool) -> None:
    text = {**CONFIG["text_config"], "num_experts": 256, "num_experts_per_tok": 8}
    site.config({**CONFIG, "text_config": text} if nested else {"model_type": "qwen3_5_moe", **text})
    assert failed(site.found()) == {"model table": "2 of 18 values: experts 256; the rules want 512, active_experts 8; "
                                                   "the rules want 10"}
    assert failed(site.found("open")) == {}


def test_a_shard_that_is_missing(site) -> None:
    site.shard(2).unlink()
    assert failed(site.found()) == {
        "shards": f"1 of 2 are not whole: {site.shard(2).name}: No such file or directory"}


def test_a_shard_that_is_short(site) -> None:
    content = site.shard(1).read_bytes()
    site.shard(1).write_bytes(content[:-1])
    assert failed(site.found()) == {
        "shards": f"1 of 2 are not whole: {site.shard(1).name}: {len(content) - 1} bytes, should be {len(content)}"}


def test_shards_that_do_not_add_up(site) -> None:
    site.index(31)
    assert failed(site.found()) == {"shards": "tensors have 30 bytes, and the index says 31"}


def test_either_revision_will_do_and_no_other(site) -> None:
    other = site.policy.rename(site.policy.with_name(RULES.revisions[1]))
    site.policy = other
    assert failed(site.found()) == {}
    site.policy = other.rename(other.with_name(COMMIT))
    assert failed(site.found()) == {
        "revision": f"{COMMIT}; the rules know {RULES.revisions[0]} and {RULES.revisions[1]}"}
    link = site.runs.with_name("link")
    link.symlink_to(site.policy)
    site.policy = link
    assert list(failed(site.found())) == ["revision"]
    site.policy.resolve().rename(site.runs.with_name("plain"))
    site.policy = site.runs.with_name("plain")
    assert failed(site.found()) == {}


def test_a_policy_that_is_not_here_is_unknown(site) -> None:
    site.policy = site.policy / "none"
    finding = site.found()["policy"]
    assert (finding.ok, finding.unknown, finding.message) == (False, True, f"no checkpoint at {site.policy}")
    assert "policy" not in site.found("open")


@pytest.mark.parametrize(("batch", "count", "terabytes"), [(256, 13, "9.6"), (512, 11, "8.2"), (1024, 4, "3.0"),
                                                           (1152, 5, "3.7")])
def test_room_for_the_checkpoints_of_deferred_evaluation(site, monkeypatch, batch, count, terabytes) -> None:
    need = count * 741 * 10**9

    free(monkeypatch, need)
    fits = site.found(batch=batch)["checkpoints"]
    assert fits.ok
    assert fits.message.startswith(f"{count} of 741 GB, as the reference's, are {terabytes} TB; ")
    free(monkeypatch, need - 1000)
    assert not site.found(batch=batch)["checkpoints"].ok


def test_checkpoints_of_another_policy_are_of_another_size(site) -> None:
    site.vocab_size = 512
    assert "checkpoints" not in site.found("open")


@pytest.mark.parametrize("dirty", [True, False, None])
def test_a_source_tree_is_no_submission(site, dirty) -> None:
    site.provenance["sources"] = {"/src": {"commit": COMMIT, "dirty": dirty}}
    assert failed(site.found()) == {"source overlay": f"/src ({'with changes' if dirty else 'editable'})"}
    assert failed(site.found("open")) == {}
    site.provenance["parts"]["generator"] = {"stand_in": True}
    found = site.found()
    assert failed(found) == {}
    assert found["source overlay"].message.endswith("(no submission: generator stand in)")


@pytest.mark.parametrize("name", OVERLAYS)
def test_a_variable_that_lays_other_code_over(site, monkeypatch, name) -> None:
    monkeypatch.setenv(name, "/patched")
    assert failed(site.found()) == {"source overlay": f"{name} = /patched"}


def test_the_revision_that_the_image_says(site) -> None:
    site.provenance["installs"]["grpo-bench"] = {"kind": "vcs", "commit": COMMIT}
    assert failed(site.found()) == {}
    site.provenance["container"]["image"] = {"revision": COMMIT}
    found = site.found()
    assert failed(found) == {}
    assert found["revision of the software"].message == f"{COMMIT}, as the image says"
    site.provenance["container"]["image"] = {"revision": "f" * 40}
    assert failed(site.found()) == {
        "revision of the software": f"the image says {'f' * 40}, what runs is of {COMMIT}"}
    assert failed(site.found("open")) == {}


def test_versions_stand_beside_those_of_the_reference(site) -> None:
    site.facts = {"trainer": {"versions": {"megatron-core": "0.19.2"}},
                  "generator": {"versions": {"vllm": "0.32.0"}}}
    finding = site.found()["reference versions"]
    assert (finding.ok, finding.message) == (
        True, "megatron-core 0.19.2 (reference 0.19.0), vllm 0.32.0 (reference 0.20.0)")
