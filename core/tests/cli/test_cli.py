"""The command line as a user meets it: output, exit codes, messages, and what gets imported."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_bench.cli import main
from grpo_bench.cli.plan_page import validated_when
from grpo_bench.contract import ValidationSettings


def everything(folder: Path) -> set[str]:
    return {str(file) for file in folder.rglob("*") if "__pycache__" not in file.parts and "cache" not in file.parts}


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["plugins", "list"],
                                       ["plugins", "list", "--json"]])
def test_quick_verbs_import_nothing_heavy(arguments: list[str]) -> None:
    heavy = ("pydantic", "numpy", "torch", "rich", "aiohttp", "grpo_bench.contract", "grpo_bench_mock",
             "grpo_bench_trainer_torch")
    code = (f"import sys; from grpo_bench.cli import main\ntry: main({arguments!r})\nexcept SystemExit: pass\n"
            f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)")
    result = python("-c", code)
    assert (result.returncode, result.stderr.strip()) == (0, "[]")
    assert result.stdout


def test_module_and_version() -> None:
    result = python("-m", "grpo_bench", "--version")
    assert (result.returncode, result.stdout.split()[0]) == (0, "grpo-bench")


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m grpo_bench profiles show laptop | true"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=True)
    assert result.stderr == ""


def test_plan_as_text_names_parts_target_and_why_it_is_unscored(bench, capsys: pytest.CaptureFixture[str]) -> None:
    sets = ["--set", "ruleset.use=strict", "--set", "grpo.max_steps=4"]
    assert main(["plan", "--profile", "base", "--seed", "3", *sets]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in ("test-parts 1.0", "2 x 1 threads", "isolation none", "2 prompts x 4 rollouts", "by shared",
                 "77 tokens", "none: all steps run", "FAIL steps: at least 5 steps", "scored: no", "seed"):
        assert part in text


@pytest.mark.parametrize("width", [60, 80, 160])
def test_plan_keeps_to_the_terminal(bench, width: int, monkeypatch: pytest.MonkeyPatch,
                                    capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["plan", "--profile", "base"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    assert [line for line in lines if len(line) > width and " " in line.strip()] == []
    trainer = lines.index(next(line for line in lines if line.startswith("trainer ")))
    assert lines[trainer].split(None, 1) == ["trainer", "steady, test-parts 1.0, 2 x 1 threads"]
    assert lines[trainer + 1].startswith(" " * 13)


@pytest.mark.parametrize(("settings", "words"), [
    ({"period": 4}, "after steps 4, 8, 12, ..., 20"),
    ({"period": 5, "start_at": 6, "at_start": True}, "before the first step and after steps 10, 15, 20"),
    ({}, "after every step"), ({"start_at": 2}, "after steps 2, 3, 4, ..., 20"),
    ({"period": 12, "at_end": True}, "after steps 12, 20"), ({"period": 12}, "after step 12"),
    ({"period": 3, "at_end": True}, "after steps 3, 6, 9, ..., 20"), ({"period": 40}, "never"),
    ({"period": 40, "at_start": True}, "before the first step"),
])
def test_when_the_policy_is_validated(settings: dict[str, Any], words: str) -> None:
    made = ValidationSettings(**settings)
    assert validated_when([step for step in range(21) if made.is_due(step, 20)], 20) == words


def test_plan_says_the_target_in_the_fields_words(bench, capsys: pytest.CaptureFixture[str]) -> None:
    goal = ["--set", "validation.metric=pass_k", "--set", "validation.target=0.69", "--set", "validation.k=4"]
    assert main(["plan", "--profile", "base", *goal]) == 0
    assert "target       pass@4 >= 0.69\n" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["plan", "run", "resume", "report", "compare", "check", "profiles list",
                                  "profiles show", "plugins list", "plugins show", "plugins check"])
def test_help_is_plain_and_says_what_json_gives(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*verb.split(), "--help"])
    text = capsys.readouterr().out
    assert "``" not in text
    assert re.search(r"--json +\w+", text)


def test_plan_as_json_is_one_object(bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--profile", "base", "--json", "--explain"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["parts"]["trainer"]["name"] == "steady"
    assert plan["explain"]["trainer.learning_rate"].endswith(f"registry.toml:{bench.line('learning_rate')}")
    assert plan["explain"]["trainer.warmup"] == "default"


def test_explain_says_where_values_come_from_and_what_was_dropped(bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--profile", "base", "--explain", "--set", "generator.use=steady", "--set", "seed=9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("seed ") and line.endswith("= 9  # --set") for line in lines)
    assert main(["profiles", "show", "base", "--set", "trainer.use=other"]) == 0
    text = capsys.readouterr().out
    assert "dropped: trainer.{learning_rate}, meant for 'steady', since trainer.use = 'other'" in text


def test_profiles_list_and_show(bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "list", "--json"]) == 0
    names = [item["name"] for item in json.loads(capsys.readouterr().out)]
    assert ("laptop" in names, names[-1]) == (True, "base")
    assert main(["profiles", "list"]) == 0
    assert "for tests" in capsys.readouterr().out
    assert main(["profiles", "show", "base", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["grpo.max_steps"]["value"] == 10


def test_profiles_are_listed_below_what_they_extend(bench, capsys: pytest.CaptureFixture[str]) -> None:
    file = bench.folder / "registry.toml"
    file.write_text(file.read_text() + """
[profiles.two]
extends = "one"
description = "second"
[profiles.one]
extends = "base"
[profiles.ring]
extends = "ring"
[profiles.odd]
extends = ["base"]
""")
    assert main(["profiles", "list"]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    start = lines.index(next(line for line in lines if line.startswith("base ")))
    assert [line.split("  for")[0].rstrip() for line in lines[start:]] == [
        "base", "  one", "    two              second", "odd", "ring"]


def test_a_profile_that_others_complete_names_them(bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.write("[profiles.part]\n[profiles.whole]\nextends = 'part'\n")
    assert main(["plan", "--profile", "part"]) == 2
    said = capsys.readouterr().err
    assert "profiles.part.policy: required, but not set" in said
    assert said.endswith("hint: profiles that extend it: whole\n")


def test_plugins_show(bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "show", "steady", "--role", "trainer"]) == 0
    text = capsys.readouterr().out
    assert "sends: safetensors, shared" in text
    assert "learning_rate" in text
    assert "Step size." in text
    assert "    learning_rate = 0.001\n      number above 0\n      Step size.\n" in text
    assert '    bound = 1.0\n      number above 0 or "off"\n' in text
    assert '    mode = not set\n      "on" | "off"' in text
    assert main(["plugins", "show", "steady", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    roles = [item["role"] for item in found]
    assert [item["role"] for item in found if "computes" in item["capabilities"]] == ["trainer", "generator"]
    assert roles == ["trainer", "generator", "environment", "agent", "hardware"]
    assert main(["plugins", "show", "stedy"]) == 2
    assert "did you mean 'steady'?" in capsys.readouterr().err
    assert main(["plugins", "show", "steady", "--role", "traner"]) == 2
    assert "--role traner: no such role; did you mean 'trainer'?" in capsys.readouterr().err


def test_listing_marks_duplicates_and_survives_broken_plugins(bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.distribution("test-bomb", {"trainer": {"steady": "x", "bomb": "x"}}, "raise SystemExit(9)")
    assert main(["plugins", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("DUPLICATE" in line for line in lines) == 2
    assert any("bomb" in line and "test-bomb 1.0" in line for line in lines)


def test_run_hands_the_plan_to_the_engine(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def execute(plan, runs: Path, *, progress: bool, json_output: bool, evaluation: bool) -> int:
        calls.append((plan.name, plan.seed, runs, progress, json_output, evaluation))
        return 1

    monkeypatch.setitem(sys.modules, "grpo_bench.engine", SimpleNamespace(execute=execute))  # type: ignore[arg-type]
    assert main(["run", "--profile", "base", "--seed", "4", "--runs", "out", "--json"]) == 1
    assert calls == [("base", 4, Path("out"), False, True, True)]


@pytest.mark.parametrize("seed", ["-1", "4294967296", "1.5", "x", "", "1_0", " 1", "٣", "9" * 5000])
def test_bad_seeds(bench, seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["run", "--profile", "base", f"--seed={seed}"])
    assert caught.value.code == 2
    assert "argument --seed: should be an integer between 0 and 4294967295" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["walk"], ["run"], ["plan", "--prof", "base"], ["plugins"],
                                       ["run", "--profile"]])
def test_wrong_arguments_are_one_message(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


@pytest.mark.parametrize(("arguments", "message"), [
    (["--profile", "bse"], "grpo-bench: bse: no such profile; did you mean 'base'?"),
    (["--profile", "base", "--set", "grpo.max_steps=true"],
     "--set grpo.max_steps: input should be a valid integer, got true"),
    (["--profile", "base", "--set", "nonsense"], "--set nonsense: should have the form key=value"),
    (["--profile", "base", "--registry", "none.toml"], "none.toml: cannot be read: No such file or directory"),
    (["--profile", "base", "--set", "generator.use=deaf"], "weights cannot reach the generator"),
])
def test_wrong_input_is_one_message_exit_code_2_and_nothing_written(
        bench, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = everything(bench.folder)
    assert main(["run", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert everything(bench.folder) == before


def test_a_plugin_that_fails_while_planning_is_exit_code_1(bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--profile", "base", "--set", "environment.use=broken"]) == 1
    assert "[plugin broken, role environment]" in capsys.readouterr().err


def test_a_registry_link_to_nowhere_is_not_passed_over(bench, capsys: pytest.CaptureFixture[str]) -> None:
    (bench.folder / "registry.toml").unlink()
    (bench.folder / "registry.toml").symlink_to("nowhere")
    assert main(["profiles", "list"]) == 2
    assert "registry.toml: cannot be read: No such file or directory" in capsys.readouterr().err


def test_an_interrupt_before_a_run_is_one_line_and_exit_code_130(
        bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def execute(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "grpo_bench.engine", SimpleNamespace(execute=execute))  # type: ignore[arg-type]
    assert main(["run", "--profile", "base"]) == 130
    assert capsys.readouterr().err == "grpo-bench: interrupted\n"


def test_an_unexpected_error_is_loud(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpo_bench.engine", SimpleNamespace())  # type: ignore[arg-type]
    with pytest.raises(ImportError):
        main(["run", "--profile", "base"])


def test_report_of_what_is_no_run(workshop, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(workshop.folder)]) == 2
    assert "is no run folder" in capsys.readouterr().err
