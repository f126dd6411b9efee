"""The two templates: where they are, that they are what they should be, and the first message for a task."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any

from grpo_bench.contract import Missing, PlanError
from jinja2 import DictLoader, StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .config import OpenHandsConfig

_JINJA = ImmutableSandboxedEnvironment(loader=DictLoader({}), undefined=StrictUndefined)
_OWN = files("grpo_bench_agent_openhands").joinpath("user_prompt.j2")
TEMPLATES = ("system_template", "user_template")
_EXAMPLE = {"statement": "It is broken.", "workdir": "/testbed", "repo": "owner/name", "instance_id": "owner__name-0"}


def check(config: OpenHandsConfig) -> None:
    """Missing where the templates are not there or not what they should be, PlanError where they do not render."""
    if lines := [f"{name}: {said}" for name in TEMPLATES if (said := fault(config, name))]:
        raise Missing(f"templates of the agent are missing: {'; '.join(lines)}", items=lines,
                      hint="they come with the benchmark's reference implementation")
    try:
        first_message(user_template(config), _EXAMPLE)
    except Exception as error:  # a template is a program, and may fail in any way
        raise PlanError(f"user_template: {config.user_template} does not render: {error}",
                        hint="it has instance, workspace_path and workspace_dir_name to work with") from error


def fault(config: OpenHandsConfig, name: str) -> str:
    """What is wrong with the file of a template; empty where it is as it should be, or none is named."""
    path, wanted = getattr(config, name), getattr(config, f"{name}_sha256")
    if path is None:
        return ""
    if not path.expanduser().is_file():
        return f"there is no file {path}"
    found = hashlib.sha256(path.expanduser().read_bytes()).hexdigest()
    return "" if wanted in (None, found) else f"{path} is another file: its SHA-256 is {found}, not {wanted}"


def system_template(config: OpenHandsConfig) -> str | None:
    """The text of the template; None: OpenHands' own."""
    return _text(config.system_template) if config.system_template else None


def user_template(config: OpenHandsConfig) -> str:
    if config.user_template:
        return _text(config.user_template)
    return _OWN.read_text("utf-8")


def digests(config: OpenHandsConfig) -> dict[str, str | None]:
    """SHA-256 of each template's bytes; None: OpenHands' own."""
    system, user = config.system_template, config.user_template
    return {"system": hashlib.sha256(system.expanduser().read_bytes()).hexdigest() if system else None,
            "user": hashlib.sha256((user.expanduser() if user else _OWN).read_bytes()).hexdigest()}


def first_message(template: str, prompt: Mapping[str, Any]) -> str:
    """What the agent is told of a task, in the variables that OpenHands' templates for repairs use."""
    workdir = prompt["workdir"]
    instance = {"problem_statement": prompt["statement"], "repo": prompt.get("repo", ""),
                "instance_id": prompt.get("instance_id", "")}
    return _JINJA.from_string(template).render(
        instance=instance, workspace_path=workdir, workspace_dir_name=PurePosixPath(workdir).name, test_instructions="",
        metadata={})


def _text(path: Path) -> str:
    return path.expanduser().read_text("utf-8")
