"""One agent per way of starting its programs, for all tests: OpenHands takes ten CPU seconds to import."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from grpo_bench_agent_openhands import OpenHandsConfig
from grpo_bench_agent_openhands.agent import OpenHandsAgent

from .playing import MAX_CONTEXT, Opener, Played, context_of, converse, sandboxed

TURNS, COMMAND_S, AGENT_S = 8, 4, 300
SYSTEM = "You mend things.\n{% include 'security_risk_assessment.j2' %}"


@dataclass
class Work:
    """An agent that has started, and the loop that it lives in."""

    runner: asyncio.Runner
    agent: OpenHandsAgent

    def play(self, *replies: str | Exception, max_context: int = MAX_CONTEXT, opener: Opener = sandboxed) -> Played:
        return self.run(converse(self.agent, opener, replies, max_context))

    def together(self, scripts: Sequence[Sequence[str]]) -> list[Played]:
        async def run() -> list[Played]:
            return await asyncio.gather(*(converse(self.agent, sandboxed, script) for script in scripts))

        return self.run(run())

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(coroutine)


Starter = Callable[..., Work]


@pytest.fixture(scope="session")
def start(environment_python: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starter]:
    """``start(run_folder="", **config)``: an agent, until the session ends."""
    with asyncio.Runner() as runner:
        agents: list[OpenHandsAgent] = []

        def make(run_folder: str = "", **config: Any) -> Work:
            settings = {"max_turns": TURNS, "command_timeout_s": COMMAND_S, "agent_timeout_s": AGENT_S, **config}
            agent = OpenHandsAgent(OpenHandsConfig.model_validate(settings),
                                   context_of(environment_python("openhands"), run_folder))
            runner.run(agent.start())
            agents.append(agent)
            return Work(runner, agent)

        yield make
        for agent in agents:
            runner.run(agent.close())


@pytest.fixture(scope="session")
def forked(start: Starter) -> Work:
    """Its programs are forked into the sandboxes."""
    return start()


@pytest.fixture(scope="session")
def spawned(start: Starter, tmp_path_factory: pytest.TempPathFactory) -> Work:
    """Its programs start in the sandboxes, and its system prompt is a template of ours."""
    path: Path = tmp_path_factory.mktemp("templates") / "system.j2"
    path.write_text(SYSTEM)
    return start(fork="never", system_template=path)
