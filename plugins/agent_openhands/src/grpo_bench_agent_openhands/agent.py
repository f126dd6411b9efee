"""The agent: a program per rollout, inside the task's sandbox, and what its end means.

Where the sandbox lets a process in, the program is a fork of one that has imported OpenHands; elsewhere it is started
in the sandbox and imports OpenHands itself. Either way it gets one job on its standard input and may write one line,
of which no more is believed than :mod:`~grpo_bench_agent_openhands.ends` says.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from grpo_bench.contract import AgentEnd, PolicyAccess, Program, ProgramSandbox, Task, WorkerContext

from . import ends, prompts
from .config import OpenHandsConfig
from .forking import PROGRAMS, Forked, ForkServer
from .keeping import Keeper

INSIDE = "/opt/grpo-bench-openhands"
"""Where the programs are in the sandbox."""
_START_S = 300.0
_LAST_S = 5.0
_LONGEST = 2**16
_WORDS = 400
_COSTS = 1024


class OpenHandsAgent:
    """Drives rollouts, any number at once. ``costs`` are what the latest programs said of themselves, with what the
    system says of those that were forked."""

    def __init__(self, config: OpenHandsConfig, context: WorkerContext) -> None:
        if context.interpreter is None:
            raise ValueError("the agent needs the python of its environment")
        self.max_turns = config.max_turns
        self.costs: deque[Mapping[str, float]] = deque(maxlen=_COSTS)
        self._config = config
        self._context = context
        self._interpreter = context.interpreter
        self._server: ForkServer | None = None
        self._starting = asyncio.Lock()
        self._user_template = prompts.user_template(config)
        self._system_template = prompts.system_template(config)
        self._keeper = Keeper(config, context.run_folder, context.logger)

    def mounts(self) -> Mapping[str, str]:
        prefix, base = prefixes(self._interpreter)
        return {INSIDE: str(PROGRAMS), prefix: prefix, base: base}

    async def start(self) -> None:
        """Start the fork server, where the settings ask for one; that it cannot work here is told, and no error."""
        if self._config.fork == "never":
            return
        try:
            self._server = await ForkServer.start(self._interpreter, _enter(), self._environment("/"), _START_S)
        except (OSError, RuntimeError, TimeoutError) as error:
            self._server = None
            self._context.logger.warning("OpenHands is imported anew for each rollout: no fork server: %s", error)
            return
        self._context.logger.info("OpenHands is imported once: %.1f CPU seconds, %.0f MiB", self._server.cost["cpu_s"],
                                  self._server.cost["peak_mb"])

    async def run(self, task: Task, sandbox: ProgramSandbox, access: PolicyAccess) -> AgentEnd:
        job = self._job(task, access)
        program = await self._program(sandbox, task.prompt["workdir"], job)
        limit_s = self._config.agent_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                data, words = await _heard(program)
        except TimeoutError:
            raise TimeoutError(f"the agent took longer than {limit_s:g} s") from None
        finally:
            await program.kill()
        if isinstance(program, Forked) and program.lost:
            raise RuntimeError("the fork server of the agent ended; the next rollout starts another")
        if (asked := access.asked()) is not None:
            self._keeper.keep(asked)
        result = ends.read(data)
        if result is not None:
            self._note(result, program)
        return ends.ended(result, access, self.max_turns, words)

    def _note(self, result: ends.Result, program: Program) -> None:
        if not self.costs and not isinstance(program, Forked):
            self._context.logger.info("each rollout imports OpenHands for itself, which takes %.1f s",
                                      result.cost.get("import_s", 0.0))
        self.costs.append({**result.cost, **(program.usage if isinstance(program, Forked) else {})})

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()

    async def _program(self, sandbox: ProgramSandbox, workdir: str, job: bytes) -> Program:
        server = await self._serving()
        if server is not None and (entry := await sandbox.entry()) is not None:
            return await server.fork(entry, job)
        argv = [self._interpreter, "-E", "-s", "-B", "-W", "ignore", f"{INSIDE}/agent_main.py"]
        return await sandbox.spawn(argv, env=self._environment(workdir), stdin=job)

    async def _serving(self) -> ForkServer | None:
        """The fork server; one that has ended is replaced, once for all rollouts that miss it."""
        async with self._starting:
            if self._server is not None and not self._server.alive:
                self._context.logger.warning("the fork server of the agent ended and is started again")
                await self._server.close()
                await self.start()
            return self._server

    def _job(self, task: Task, access: PolicyAccess) -> bytes:
        sampling, workdir = access.sampling, task.prompt["workdir"]
        return json.dumps({
            "workdir": workdir, "message": prompts.first_message(self._user_template, task.prompt),
            "system_template": self._system_template, "max_turns": self.max_turns, "socket": access.socket,
            "command_timeout_s": self._config.command_timeout_s, "env": self._environment(workdir),
            "model": {"name": access.model, "token": access.token, "temperature": sampling.temperature,
                      "top_p": sampling.top_p, "max_tokens": sampling.max_tokens},
        }).encode()

    def _environment(self, workdir: str) -> dict[str, str]:
        """Variables of the agent, and so of the commands that it runs."""
        places = [os.path.join(workdir, ".venv/bin"), "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin",
                  "/sbin", "/bin"]
        return {"PATH": ":".join(places), "HOME": "/tmp", "LANG": "C.UTF-8", "TERM": "xterm-256color",
                "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def make_in_worker(config: OpenHandsConfig, context: WorkerContext) -> OpenHandsAgent:
    """The descriptor's worker factory."""
    return OpenHandsAgent(config, context)


def prefixes(interpreter: str) -> tuple[str, str]:
    """The folder of an environment, and that of the Python beneath it; they are one where it is none."""
    folder = Path(interpreter).parent.parent
    with suppress(FileNotFoundError):
        for line in (folder / "pyvenv.cfg").read_text().splitlines():
            name, _, value = line.partition("=")
            if name.strip() == "home":
                return str(folder), str(Path(value.strip()).resolve().parent)
    return str(folder), str(folder)


async def _heard(program: Program) -> tuple[bytes, str]:
    """What a program has written when it has ended: its result, within bounds, and its last words."""
    readers = [asyncio.ensure_future(_head(program.stdout)), asyncio.ensure_future(_tail(program.stderr))]
    try:
        await program.wait()
        await asyncio.wait(readers, timeout=_LAST_S)  # what it left behind may hold its streams open
    finally:
        for reader in readers:
            reader.cancel()
    data, words = (reader.result() if reader.done() and not reader.cancelled() else b"" for reader in readers)
    return data, words.decode(errors="replace").strip()[-_WORDS:]


async def _head(stream: asyncio.StreamReader) -> bytes:
    """The first bytes of a stream, read to its end."""
    kept = b""
    while data := await stream.read(_LONGEST):
        kept = (kept + data)[:_LONGEST]
    return kept


async def _tail(stream: asyncio.StreamReader) -> bytes:
    kept = b""
    while data := await stream.read(_LONGEST):
        kept = (kept + data)[-_LONGEST:]
    return kept


def _enter() -> Path:
    """The file by which a process enters a sandbox, for another interpreter."""
    spec = importlib.util.find_spec("grpo_bench_sandbox")
    if spec is None or spec.origin is None:
        raise RuntimeError("grpo_bench_sandbox is not installed")
    return Path(spec.origin).parent / "inside" / "enter.py"
