"""What a plan says of the agent: templates, tools, and what of them is not the benchmark's."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from grpo_bench.contract import LossSettings, Missing, PlanError, Placement, Site
from grpo_bench_agent_openhands import OpenHandsConfig, plugin, prompts
from grpo_bench_agent_openhands.benchmark import SYSTEM_PROMPT, TOOLS, differences
from grpo_bench_agent_openhands.plan import describe
from pydantic import ValidationError

PROMPT = {"statement": "It is broken & odd.", "workdir": "/work/tree", "repo": "o/n"}


def site(**changes: Any) -> Site:
    inventory = {"versions": {"openhands-ai": "0.62.0"}, "base_prefix": "/home/me/.pyenv/versions/3.12.1",
                 "tools": dict(TOOLS), "system_prompt": {"sha256": SYSTEM_PROMPT, "characters": 12842}, **changes}
    return Site(policy=None, placement=Placement(), interpreter="/env/bin/python",  # type: ignore[arg-type]
                inventory=inventory, sampling={}, loss=LossSettings(), deterministic=False)


def config(**settings: Any) -> OpenHandsConfig:
    return OpenHandsConfig.model_validate(settings)


def test_the_benchmarks_agent_is_known() -> None:
    facts = describe(config(tools="benchmark-exact"), site())
    assert facts["benchmark_agent"] == "the same tools and system prompt"
    assert (facts["openhands"], facts["max_turns"], facts["agent_timeout_s"]) == ("0.62.0", 30, 1800.0)


def test_facts_hold_the_hashes_of_the_templates(tmp_path: Path) -> None:
    own = describe(config(), site())["templates_sha256"]
    assert own["system"] is None and len(own["user"]) == 64
    template = tmp_path / "t.j2"
    template.write_bytes(b"Repair it.\r\n")
    given = describe(config(system_template=template, user_template=template), site())["templates_sha256"]
    assert given == dict.fromkeys(["system", "user"], hashlib.sha256(b"Repair it.\r\n").hexdigest())


@pytest.mark.parametrize(("changes", "settings", "words"), [
    ({"tools": {**TOOLS, "think": "0" * 64}}, {}, "tool think has digest 000000000000, the benchmark's 6366dd459e63"),
    ({"tools": {name: TOOLS[name] for name in list(TOOLS)[1:]}}, {}, "tool execute_bash is missing"),
    ({"tools": {**TOOLS, "browse": "0" * 64}}, {}, "tool browse is not one of the benchmark's"),
    ({"tools": {name: TOOLS[name] for name in reversed(list(TOOLS))}}, {}, "the tools come as str_replace_editor, "),
    ({"system_prompt": {"sha256": "1" * 64, "characters": 3}}, {}, "the system prompt has digest 111111111111"),
    ({}, {"command_timeout_s": 30}, "execute_bash says 30 seconds"),
])
def test_a_difference_is_an_error_or_a_remark(changes: Any, settings: Any, words: str) -> None:
    with pytest.raises(PlanError, match="not the benchmark's") as error:
        describe(config(tools="benchmark-exact", **settings), site(**changes))
    assert words in error.value.message
    assert isinstance(error.value, Missing) == bool(changes)
    assert words in describe(config(**settings), site(**changes))["benchmark_agent"]


def test_a_prompt_that_is_not_known_is_no_difference() -> None:
    assert differences(TOOLS, None) == []


def test_the_python_of_the_system_is_none_for_a_sandbox() -> None:
    with pytest.raises(PlanError, match="Python in /usr"):
        describe(config(), site(base_prefix="/usr"))


def test_all_missing_templates_are_listed(tmp_path: Path) -> None:
    gone = config(system_template=tmp_path / "s.j2", user_template=tmp_path / "u.j2")
    with pytest.raises(Missing) as error:
        describe(gone, site())
    assert error.value.items == (f"system_template: there is no file {tmp_path}/s.j2",
                                 f"user_template: there is no file {tmp_path}/u.j2")


def test_a_template_is_the_one_it_should_be(tmp_path: Path) -> None:
    path = tmp_path / "user.j2"
    path.write_text("Mend {{ workspace_path }}: {{ instance.problem_statement }}")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    facts = describe(config(user_template=path, user_template_sha256=digest), site())
    assert facts["user_template"] == f"{path} ({digest[:12]})"
    with pytest.raises(Missing, match=f"its SHA-256 is {digest}, not {'0' * 64}"):
        describe(config(user_template=path, user_template_sha256="0" * 64), site())


@pytest.mark.parametrize("text", ["{{ nobody }}", "{{ instance.", "{% include 'x' %}"])
def test_a_user_template_that_does_not_render(tmp_path: Path, text: str) -> None:
    (tmp_path / "user.j2").write_text(text)
    with pytest.raises(PlanError, match="does not render"):
        describe(config(user_template=tmp_path / "user.j2"), site())


def test_a_digest_without_a_template_is_refused() -> None:
    with pytest.raises(ValidationError, match="there is no system_template"):
        config(system_template_sha256="0" * 64)


def test_the_first_message_has_statement_and_folder(tmp_path: Path) -> None:
    said = prompts.first_message(prompts.user_template(config()), PROMPT)
    assert PROMPT["statement"] in said and "/work/tree" in said and "{" not in said
    template = "{{ workspace_dir_name }} {{ instance.repo }} {{ instance.instance_id }}|{{ test_instructions }}"
    assert prompts.first_message(template, PROMPT) == "tree o/n |"


def test_the_descriptor() -> None:
    assert plugin.capabilities.form == "program"
    assert plugin.capabilities.sandbox == {"spawn"}
    assert plugin.env is not None
    assert plugin.env.name == "openhands"


