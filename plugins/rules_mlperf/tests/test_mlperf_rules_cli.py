"""The verb ``rules``: lists, shows and compares versions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from grpo_bench_rules_mlperf.training_6_1 import RULES
from grpo_bench_rules_mlperf.versions import VERSIONS

from grpo_bench.cli import main

DRAFT = "mlperf-training-6.1-draft"


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["rules", *arguments]) == 0
    found = capsys.readouterr()
    assert found.err == ""
    return found.out


def data(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(said(capsys, *arguments, "--json"))


def test_versions_are_listed_newest_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert [line.split()[0] for line in said(capsys, "list").splitlines()] == [rules.name for rules in VERSIONS]
    first = data(capsys, "list")[0]
    assert (first["name"], first["needed"], first["validation_tasks"]) == (RULES.name, 174, 251)


def test_every_requirement_is_shown_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "show", RULES.name)
    assert "validation.start_at: ceil(2.5 + 3840 / batch): 18, 10, 7, 6 at batch 256, 512, 1024, 1152" in text
    assert "validation.max_tasks: 251 or none (MLLOG eval_samples)\n    the quality is measured" in text
    assert "schedule.max_age: 1, not binding" in text and "agent.agent_timeout_s: at least 1800" in text
    found = {item["rule"]: item for item in data(capsys, "show", RULES.name)["requirements"]}
    assert list(found) == [item.rule for item in RULES.requirements]
    assert found["grpo.max_steps"]["values"] == {"256": 30, "512": 20, "1024": 10, "1152": 10}


def test_a_batch_and_a_division_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert "validation.start_at: 10 (MLLOG" in said(capsys, "show", RULES.name, "--batch", "512")
    free = data(capsys, "show", RULES.name, "--batch", "640")["requirements"]
    assert next(item for item in free if item["rule"] == "grpo.max_steps")["values"] == {"640": None}
    found = data(capsys, "show", RULES.name, "--division", "open")
    rules = {item["rule"] for item in found["requirements"]}
    assert found["division"] == "open" and "validation.target" in rules and "trainer.opt_name" in rules
    assert not rules & {"trainer.opt_base_learning_rate", "grpo.loss.ratio", "policy.layers"}


def test_a_difference_is_told_requirement_by_requirement(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "diff", DRAFT, RULES.name).splitlines()
    assert lines[0] == f"{DRAFT} -> {RULES.name}, closed division: 15 differences"
    assert "validation.deferred: no rule -> true" in lines and "needed: 177 -> 174" in lines
    assert "environment.test_timeout_s: at least 300 -> at least 60" in lines
    assert not [line for line in lines if line.startswith(("validation.start_at", "trainer."))]
    back = {item["rule"]: item for item in data(capsys, "diff", RULES.name, DRAFT)["differences"]}
    assert (back["validation.deferred"]["before"], back["validation.deferred"]["after"]) == ("true", "")
    assert back["validation.max_tasks"]["after"] == "256 or none" and len(back) == 15
    at_1152 = data(capsys, "diff", DRAFT, RULES.name, "--batch", "1152")["differences"]
    assert next(item for item in at_1152 if item["rule"] == "grpo.max_steps")["before"] == "free"
    assert said(capsys, "diff", DRAFT, DRAFT).endswith(": 0 differences\n")


@pytest.mark.parametrize(("arguments", "says"), [
    (["show", "mlperf"], f"there are no rules 'mlperf'\n  hint: there is: {RULES.name}, {DRAFT}"),
    (["diff", RULES.name, "other"], "there are no rules 'other'")])
def test_an_unknown_name_lists_what_there_is(capsys: pytest.CaptureFixture[str], arguments: list[str],
                                             says: str) -> None:
    assert main(["rules", *arguments]) == 2
    found = capsys.readouterr()
    assert found.out == "" and says in found.err


@pytest.mark.parametrize("arguments", [["--batch", "0"], ["--batch", "many"], ["--division", "none"]])
def test_wrong_arguments_are_one_message(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["rules", "show", RULES.name, *arguments])
    assert caught.value.code == 2
    assert f"argument {arguments[0]}: " in capsys.readouterr().err
