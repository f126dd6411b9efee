"""How fast the reference was: where the packaged numbers are from, and for which profiles they hold."""

from __future__ import annotations

import copy
import importlib.util
import json
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from grpo_bench_rules_mlperf import ruleset
from grpo_bench_rules_mlperf.pace import pace

SCRIPT = Path(__file__).parents[1] / "tools" / "reference_pace.py"
LIKE: dict[str, Any] = {
    "policy": {"config": "package:grpo_bench_rules_mlperf/qwen35_397b_a17b.json", "max_context": 65536},
    "grpo": {"prompts_per_step": 16, "generations_per_prompt": 16}, "schedule": {"mode": "async"},
    "agent": {"max_turns": 30}, "trainer": {"workers": 64}, "generator": {"workers": 24, "tensor_parallel": 8},
    "hardware": {"gpu": "GB300"}, "validation": {"max_tasks": 251, "k": 4, "deferred": True},
}


def profile(**changed: Any) -> dict[str, Any]:
    """One like the reference's, but for keys as in ``grpo__prompts_per_step``."""
    found = copy.deepcopy(LIKE)
    for key, value in changed.items():
        section, _, name = key.partition("__")
        found[section][name] = value
    return found


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("reference_pace", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "reference_pace", module)
    spec.loader.exec_module(module)
    return module


def test_least_and_most_are_those_of_the_logs(script: Any) -> None:
    runs = [{"gbs": "8", "steps": "5", "init_min": "2", "cache_clear_to_init_start_s": "3",
             "train_min_to_block_stop": "10", "first_step_wall_s": "200"},
            {"gbs": "8", "steps": "5", "init_min": "1", "cache_clear_to_init_start_s": "5",
             "train_min_to_block_stop": "12", "first_step_wall_s": "120"},
            {"gbs": "16", "steps": "3", "init_min": "1", "cache_clear_to_init_start_s": "9",
             "train_min_to_block_stop": "20", "first_step_wall_s": "400"}]
    found = script.made(runs, [{"eval_duration_s": "70.04"}, {"eval_duration_s": "50"}], 1000, "today")
    assert found["start_s"] == [65.0, 123.0] and found["validation_s"] == [50.0, 70.0]
    assert found["batches"] == {"8": {"first_step_s": [120.0, 160.0, 200.0], "step_s": [100.0, 125.0, 150.0]},
                                "16": {"first_step_s": [400.0, 400.0, 400.0], "step_s": [400.0, 400.0, 400.0]}}
    assert found["weights_bytes"] == 2000 and "2 at batch 8 and 1 at batch 16" in found["source"]


def test_the_packaged_numbers_are_what_the_script_makes_of_the_logs(script: Any) -> None:
    packaged = json.loads(files("grpo_bench_rules_mlperf").joinpath("reference_pace.json").read_text("utf-8"))
    made = script.made(script.rows("runs.csv"), script.rows("evaluations.csv"), script.parameters(), packaged["date"])
    assert packaged == made


def test_a_run_of_the_reference_lies_within_the_estimate_for_its_batch(script: Any) -> None:
    for row in script.rows("runs.csv"):
        found = pace(profile(grpo__prompts_per_step=int(row["gbs"]) // 16))
        assert found is not None
        (first, longest_first), (step, longest), later = found.first_step_s, found.step_s, int(row["steps"]) - 1
        seconds = float(row["train_min_to_block_stop"]) * 60
        assert first + later * step - 1 <= seconds <= longest_first + later * longest + 1


def test_the_pace_at_a_batch_that_the_reference_ran() -> None:
    found = pace(profile())
    assert found is not None
    assert found.first_step_s == (854.7, 1091.4) and found.step_s == (422.8, 492.9) and found.wall_s == 14_400
    assert found.checkpoint_s == pytest.approx((792.692700672 / 25, 792.692700672 / 2.5))
    assert found.validation_s == pytest.approx((965.5 * 1004 / 1024 + found.checkpoint_s[0],
                                                1234.1 * 1004 / 1024 + found.checkpoint_s[1]))
    assert found.source.endswith("read 2026-11-30; a checkpoint is 793 GB, assumed to be written and read at 2.5 to "
                                 "25 GB/s")
    inline = pace(profile(validation__deferred=False))
    assert inline is not None and inline.validation_s == pytest.approx((965.5 * 1004 / 1024, 1234.1 * 1004 / 1024))


@pytest.mark.parametrize(("prompts", "words"), [(24, "between them"), (64, "beyond them"), (8, "beyond them")])
def test_other_batches_lie_on_a_line_through_those(prompts: int, words: str) -> None:
    found = pace(profile(grpo__prompts_per_step=prompts))
    assert found is not None and f"batch {prompts * 16} is on the straight line through 256 and 512, {words}" in (
        found.source)
    mean = 450.0 + (675.2 - 450.0) * (prompts * 16 - 256) / 256
    assert found.step_s == pytest.approx((mean * 612.8 / 675.2, mean * 492.9 / 450.0))
    assert 0 < found.first_step_s[0] < found.first_step_s[1]


@pytest.mark.parametrize("changed", [
    {"trainer__workers": 32}, {"generator__workers": 12}, {"hardware__gpu": "H100"}, {"agent__max_turns": 50},
    {"policy__config": None}, {"schedule__mode": "sync"}])
def test_of_other_runs_the_reference_says_nothing(changed: dict[str, Any]) -> None:
    assert pace(profile(**changed)) is None


def test_the_ruleset_names_it() -> None:
    assert ruleset.pace == "grpo_bench_rules_mlperf.pace:pace"
