"""The CodeActAgent of OpenHands 0.62 as the benchmark has it: plan mode, native tool calls, commands in one tmux
session and edits in this very process, with the benchmark's two changes to the tools.

Importing this module imports OpenHands, which takes seconds; everything that differs between rollouts is an argument of
:func:`play`. It reads nothing but its arguments, and writes in ``scratch`` and in the working copy only.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import copy
import os
import time
from dataclasses import dataclass
from typing import Any

os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LOG_LEVEL="CRITICAL", SKIP_DEPENDENCY_CHECK="1",
                  OPENHANDS_SUPPRESS_BANNER="1", ANONYMIZED_TELEMETRY="false", DO_NOT_TRACK="1",
                  OTEL_SDK_DISABLED="true", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", PYTHONWARNINGS="ignore")

from jinja2 import ChoiceLoader, DictLoader, Environment
from openhands.agenthub.codeact_agent import codeact_agent
from openhands.core.config import (
    AgentConfig, LLMConfig, OpenHandsConfig, SandboxConfig,
)
from openhands.core.config.condenser_config import NoOpCondenserConfig
from openhands.core.exceptions import LLMContextWindowExceedError
from openhands.core.main import run_controller
from openhands.core.setup import generate_sid
from openhands.events import EventStream
from openhands.events.action import CmdRunAction, MessageAction
from openhands.events.observation import CmdOutputMetadata, ErrorObservation
from openhands.llm.llm_registry import LLMRegistry
from openhands.runtime.impl.cli.cli_runtime import CLIRuntime
from openhands.runtime.runtime_status import RuntimeStatus
from openhands.runtime.utils.bash import BashSession
from openhands.storage import get_file_store

EDITOR_EXAMPLE = "/openhands_setup/OpenHands"
"""The folder that the benchmark's editor has in the example of its description."""
QUIET_S = 10
"""Seconds without output after which a command is reported as running on, as its description says."""
SHOWN_S = 5
"""Seconds for the shell to show what it is sent; some of it it never shows, such as a password."""
GO_ON = ("Please go on with the approach that you think is best. If the task is solved, call the finish tool. "
         "Nobody will answer questions.")
"""What a reply without a tool call is answered with."""

_cmd_run_tool, _editor_tool = codeact_agent.create_cmd_run_tool, codeact_agent.create_str_replace_editor_tool
_Agent = codeact_agent.CodeActAgent
_response_to_actions = _Agent.response_to_actions


@dataclass(frozen=True)
class Ended:
    """How OpenHands ended: its state, its error, its steps, and seconds for set-up and for the conversation."""

    state: str
    error: str
    steps: int
    setup_s: float
    run_s: float


def tailor(command_timeout_s: int, system_template: str | None) -> None:
    """Make the tools, and the system prompt where a template is given, those of the benchmark's agent."""
    def cmd_run_tool(**options: Any) -> Any:
        tool = copy.deepcopy(_cmd_run_tool(**options))
        timeout = tool["function"]["parameters"]["properties"]["timeout"]
        timeout["description"] += f" Max timeout allowed is {command_timeout_s} seconds."
        return tool

    def editor_tool(**options: Any) -> Any:
        return _editor_tool(**options, workspace_mount_path_in_sandbox=EDITOR_EXAMPLE)

    codeact_agent.create_cmd_run_tool, codeact_agent.create_str_replace_editor_tool = cmd_run_tool, editor_tool
    _Agent.sandbox_plugins = []
    _Agent.response_to_actions = _actions_of
    if system_template is not None:
        manager = _Agent.prompt_manager.fget

        def prompt_manager(agent: Any) -> Any:
            found = manager(agent)
            loader = ChoiceLoader([DictLoader({"": system_template}), found.env.loader])
            found.system_template = Environment(loader=loader).get_template("")
            return found

        _Agent.prompt_manager = property(prompt_manager)


def _actions_of(agent: Any, response: Any) -> Any:
    """What a reply asks for; an empty reply that was cut off is the gateway's word for a context that is full."""
    if response.choices[0].finish_reason == "length" and not response.usage.completion_tokens:
        raise LLMContextWindowExceedError
    return _response_to_actions(agent, response)


def configured(workdir: str, scratch: str, model: dict[str, Any], max_turns: int, command_timeout_s: int) -> Any:
    """OpenHands' own configuration. ``model`` has ``name``, ``url``, ``token`` and what is sampled with."""
    config = OpenHandsConfig(
        default_agent="CodeActAgent", runtime="cli", max_iterations=max_turns, enable_browser=False,
        run_as_openhands=False, workspace_base=workdir, workspace_mount_path_in_sandbox=workdir, file_store="memory",
        file_store_path=os.path.join(scratch, "store"), cache_dir=os.path.join(scratch, "cache"),
        save_trajectory_path=None,
        sandbox=SandboxConfig(timeout=command_timeout_s, initialize_plugins=False, enable_auto_lint=False))
    config.set_llm_config(LLMConfig(
        model=f"openai/{model['name']}", custom_llm_provider="openai", base_url=model["url"], api_key=model["token"],
        native_tool_calling=True, temperature=model["temperature"], top_p=model["top_p"],
        max_output_tokens=model["max_tokens"], num_retries=0, timeout=None, caching_prompt=False, disable_vision=True,
        modify_params=False, drop_params=False, log_completions=False))
    config.set_agent_config(AgentConfig(
        enable_jupyter=False, enable_browsing=False, enable_llm_editor=False, enable_mcp=False,
        enable_prompt_extensions=False, enable_plan_mode=True, enable_history_truncation=False,
        condenser=NoOpCondenserConfig(), runtime="cli"))
    return config


class Session(BashSession):
    """A session that looks whether a command has ended only once the shell has shown it. The prompt before it would be
    taken for the one after it, and all output be lost, on a machine too busy for the shell to answer at once."""

    def initialize(self) -> None:
        super().initialize()
        send = self.pane.send_keys

        def send_and_see(keys: str, *arguments: Any, **options: Any) -> None:
            before = self._get_pane_content()
            send(keys, *arguments, **options)
            alone = keys == "C-l" and len(CmdOutputMetadata.matches_ps1_metadata(before)) < 2  # nothing to clear
            until = time.monotonic() + SHOWN_S
            while not alone and self._get_pane_content() == before and time.monotonic() < until:
                time.sleep(0.01)

        self.pane.send_keys = send_and_see


class InProcess(CLIRuntime):
    """Commands in a tmux session, which keeps its folder and variables, and edits in this process."""

    bash: Any = None

    async def connect(self) -> None:
        self.bash = Session(work_dir=self._workspace_path, no_change_timeout_seconds=min(
            QUIET_S, self.config.sandbox.timeout))
        self.bash.initialize()
        self._runtime_initialized = True
        self.set_runtime_status(RuntimeStatus.READY)

    def _sanitize_filename(self, filename: str) -> str:
        return filename  # the sandbox is the wall

    def run(self, action: CmdRunAction) -> Any:
        limit = self.config.sandbox.timeout
        if action.timeout is None:
            action.set_hard_timeout(limit, blocking=False)
        elif action.timeout > limit:
            action.set_hard_timeout(limit, blocking=action.blocking)
        try:
            return self.bash.execute(action)
        except Exception as error:
            return ErrorObservation(str(error))

    def close(self) -> None:
        if self.bash is not None:
            self.bash.close()
        super().close()


def play(job: dict[str, Any], url: str, scratch: str) -> Ended:
    """Play one conversation to its end."""
    started = time.monotonic()
    tailor(job["command_timeout_s"], job["system_template"])
    model = {**job["model"], "url": url}
    config = configured(job["workdir"], scratch, model, job["max_turns"], job["command_timeout_s"])
    os.chdir(job["workdir"])
    session = generate_sid(config)
    events = EventStream(session, get_file_store("memory", ""))
    runtime = InProcess(config, events, LLMRegistry(config), sid=session)
    asyncio.run(runtime.connect())
    ready = time.monotonic()
    try:
        state = asyncio.run(run_controller(
            config, MessageAction(content=job["message"]), sid=session, runtime=runtime,
            fake_user_response_fn=lambda *_: GO_ON))
    finally:
        runtime.close()
    if state is None:
        raise RuntimeError("OpenHands gave no state")
    return Ended(state.agent_state.value, state.last_error or "", state.iteration_flag.current_value, ready - started,
                 time.monotonic() - ready)


def offered(command_timeout_s: int) -> tuple[list[Any], str]:
    """Tools and system prompt as the agent sends them, without a conversation."""
    tailor(command_timeout_s, None)
    model = {"name": "policy", "url": "http://127.0.0.1:9", "token": "none", "temperature": 1.0, "top_p": 1.0,
             "max_tokens": 1}
    config = configured("/", "/nonexistent", model, 1, command_timeout_s)
    agent = _Agent(config.get_agent_config("CodeActAgent"), LLMRegistry(config))
    return agent.tools, agent.get_system_message().content
