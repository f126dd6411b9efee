"""What a plugin of each role promises.

A role object is made by its plugin's factory in the engine's process. One that needs other processes starts worker
groups through ``context.fabric``; it never forks by itself. Methods raise plain exceptions; the core attributes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from .fabric import Address, FabricHandle, LaunchForm, Need, Placement
from .values import (
    End, Event, Floats, Ids, Sample, Sampling, Task, TensorSpec, TrainBatch, Transfer, UpdateStats, ValidationReport,
)

if TYPE_CHECKING:
    import asyncio


class Role(StrEnum):
    """The places a plugin can take; the entry-point group of each is ``grpo_bench.<role>``."""

    TRAINER = "trainer"
    GENERATOR = "generator"
    ENVIRONMENT = "environment"
    AGENT = "agent"
    HARDWARE = "hardware"
    FABRIC = "fabric"
    RULESET = "ruleset"
    OBSERVER = "observer"

    @property
    def entry_point_group(self) -> str:
        return f"grpo_bench.{self.value}"


class Clock(Protocol):
    """The only source of time. ``asyncio`` sleeps and time-outs follow it because its loop does."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary point."""
        ...

    def now_utc(self) -> str:
        """UTC, ISO 8601 with microseconds and ``+00:00``."""
        ...


@dataclass(frozen=True)
class PluginContext:
    """What a factory gets. ``config`` is an instance of the plugin's own model; ``policy`` the profile's policy section
    with the checkpoint resolved to a folder; ``seed`` this plugin's branch of the run's seed tree.

    An object that only answers questions must do without ``fabric`` and ``clock``, which may be None: hardware, a
    ruleset, the environment that lists tasks, and an observer that judges a run which is over."""

    config: Any
    fabric: FabricHandle
    placement: Placement
    run_folder: Path
    policy: PolicyFacts
    seed: int
    deterministic: bool
    clock: Clock
    logger: Any
    interpreter: str | None = None
    """The python of the role's environment, for ``GroupSpec.interpreter``; None: the engine's own."""
    shared: Mapping[str, Any] = field(default_factory=dict)
    """Sections of the profile that the role is entitled to read: ``loss``, ``sampling`` (both profiles, as
    :class:`Sampling`), ``limits`` and ``transport`` (the one that carries its weights) for a trainer, ``sampling``,
    ``limits`` and ``transport`` for a generator, ``limits`` for the environment that lists tasks, ``grpo`` for a
    ruleset."""
    note: Callable[[str, str], None] = lambda name, message: None
    """Tell the user something while the part works, as an alarm of the run: its name and one line."""


@dataclass(frozen=True)
class PolicyFacts:
    """The policy being trained: the HF folder it starts from and the longest sequence it may see, in tokens. A
    vocabulary of 0 stands for a checkpoint that is not there, which only plans come across; then ``config`` has what
    its config.json should say and ``tensors`` the shape of each of its weights, as far as the profile knows them."""

    checkpoint: Path
    max_context: int
    vocab_size: int
    config: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


class Trainer(Protocol):
    """Owns the weights that learn."""

    async def start(self) -> None: ...

    async def log_probabilities(self, batch: TrainBatch, weights: Literal["current", "reference"]) -> Floats:
        """Log-probability [N] of every token given those before it in its row, temperature applied; 0 at row starts."""
        ...

    async def update(self, batch: TrainBatch) -> UpdateStats:
        """One optimizer step with the contract's loss on the whole batch."""
        ...

    def tensors(self) -> tuple[TensorSpec, ...]:
        """The weights a transfer carries, in sending order."""
        ...

    async def send(self, transfer: Transfer) -> int:
        """Send the current weights; returns the bytes sent."""
        ...

    async def save(self, folder: Path, what: Literal["full", "weights"]) -> None:
        """Write into an existing empty folder: ``weights`` is an HF folder, ``full`` adds all that ``load`` needs."""
        ...

    async def load(self, folder: Path) -> None: ...

    async def weights_sha256(self) -> str:
        """Hash over names and bytes of all weights, the same for equal weights whatever the layout."""
        ...

    async def close(self) -> None: ...


class Generator(Protocol):
    """The engine's half of a generator: lifecycle, refit, probe."""

    async def start(self) -> None: ...

    def addresses(self) -> tuple[Address, ...]:
        """One per engine, for the clients in rollout workers."""
        ...

    async def pause(self, mode: Literal["drain", "keep"]) -> None:
        """Admit no request; ``drain`` waits for running ones, ``keep`` preempts them."""
        ...

    async def receive(self, transfer: Transfer) -> None:
        """Take the weights, set the version, reset every cache; raises if any of it fails on any engine."""
        ...

    async def resume(self) -> None: ...

    async def probe(self, sequences: Sequence[Ids]) -> list[Floats]:
        """Log-probability of each token given those before it [T] per sequence, 0 at index 0, at the training
        temperature, by the same computation that sampling uses, from an empty cache."""
        ...

    async def health(self) -> Mapping[str, Any]: ...

    async def lost(self) -> Sequence[int]:
        """Engines that have ended or broken down and serve nothing until ``restart``; answers at once."""
        ...

    async def restart(self, engine: int) -> None:
        """Bring one engine back after a failure; it has no weights until the next ``receive``."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class GeneratorClient(Protocol):
    """The rollout worker's half, made in any process by the descriptor's ``client`` factory."""

    async def generate(self, request_id: str, ids: Ids, sampling: Sampling, *, stream: str, affinity: str,
                       deadline_s: float) -> Sample:
        """Sample one reply to the prompt ``ids``.

        ``stream`` names the random stream (``<rollout id>/<turn>``), ``affinity`` groups requests that share prefixes.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """Stop a request and free its slot; unknown ids are fine."""
        ...

    async def release(self, rollout_id: str) -> None:
        """The rollout asks no more: what was kept for its next turn may go; unknown ids are fine."""
        ...


@dataclass(frozen=True, slots=True)
class ExecResult:
    """``exit_code`` 124 with ``timed_out`` where the whole process tree was killed at its limit."""

    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool = False


class Sandbox(Protocol):
    """One task's isolated working copy, as an agent sees it."""

    async def exec(self, argv: Sequence[str], *, timeout_s: float, stdin: str = "") -> ExecResult: ...

    async def read(self, path: str) -> str: ...

    async def write(self, path: str, text: str) -> None: ...

    async def diff(self) -> str:
        """Unified diff from the task's initial state to now."""
        ...

    async def close(self) -> None:
        """Kill the whole tree and drop the copy. Closing twice is fine."""
        ...


class Program(Protocol):
    """A program that runs in a sandbox. What it writes is untrusted."""

    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    async def wait(self) -> int:
        """Its exit code, once it has ended; negative: the signal that ended it."""
        ...

    async def kill(self) -> None:
        """End its whole tree, SIGTERM first, SIGKILL after a grace time; returns when nothing of it is left."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """How a process of this host moves into a sandbox, as one forked from a program that was loaded beforehand does.

    It writes itself into the ``cgroups`` (paths of cgroup.procs), joins the ``namespaces`` (``user``, ``mnt``, ``pid``,
    ``net``, ``ipc``, ``uts``) of process ``pid`` in that order, and takes ``uid``, ``gid``, ``limits`` (soft and hard,
    by the names of RLIMIT_...), ``env`` and ``cwd``, the last as it is inside."""

    pid: int
    namespaces: tuple[str, ...]
    uid: int
    gid: int
    cwd: str
    env: Mapping[str, str]
    limits: Mapping[str, int]
    cgroups: tuple[str, ...]


class ProgramSandbox(Sandbox, Protocol):
    """A sandbox that programs can live in: what environments with the ability ``spawn`` open."""

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], stdin: bytes = b"") -> Program:
        """Start a program with nothing but ``env`` for its environment."""
        ...

    async def entry(self) -> Entry | None:
        """The way in for a process of this host, good until ``diff`` or ``close``, which kill what came in; None: there
        is none here."""
        ...


@dataclass(frozen=True, slots=True)
class Score:
    """What grading says. ``reward`` None: it could not be graded. ``masked`` keeps the rollout out of the loss.
    ``counters`` join those of the trajectory, such as ``tampering``."""

    reward: float | None
    masked: bool = False
    detail: str = ""
    counters: Mapping[str, int] = field(default_factory=dict)


class Environment(Protocol):
    """Tasks, sandboxes and grading. The engine's process makes one for ``tasks``, each rollout worker its own."""

    def tasks(self, split: str) -> Sequence[Task]: ...

    async def start(self) -> None: ...

    async def open(self, task: Task, *, mounts: Mapping[str, str], sockets: Mapping[str, str]) -> Sandbox:
        """A fresh sandbox. Both map a path inside to one of this host: ``mounts`` are read-only, ``sockets`` are Unix
        sockets, the only ways out."""
        ...

    async def score(self, task: Task, patch: str) -> Score:
        """Grade a patch (a unified diff) in a fresh sandbox."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the policy made; ``arguments`` are strings as sampled, keyed by parameter name."""

    id: str
    name: str
    arguments: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Reply:
    """One model reply as an agent sees it. ``truncated``: the context or the reply's limit ended it.
    ``message`` is the reply as a chat message, to be appended to the history unchanged."""

    text: str
    tool_calls: tuple[ToolCall, ...]
    truncated: bool
    message: Mapping[str, Any]


class PolicyClient(Protocol):
    """The policy as an in-process agent sees it: chat in, chat out. Tokens are recorded behind it."""

    async def chat(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Reply:
        """``messages`` and ``tools`` in OpenAI's chat form (role, content, tool_calls, tool_call_id)."""
        ...


class Agent(Protocol):
    """Drives one task to its end. ``run`` returns COMPLETED, MAX_TURNS or TRUNCATED; anything else is an exception.
    A rollout counts as TRUNCATED where the record of the policy says so; without that, as COMPLETED."""

    async def run(self, task: Task, sandbox: Sandbox, policy: PolicyClient) -> End: ...


@dataclass(frozen=True, slots=True)
class AgentEnd:
    """How a program's rollout came to its normal end: COMPLETED, MAX_TURNS or TRUNCATED. ``reason`` is counted as
    ``agent_<reason>``; ``masked`` keeps the rollout out of the loss."""

    end: End
    reason: str
    masked: bool = False


class PolicyAccess(Protocol):
    """The policy as an agent that is a program reaches it: OpenAI's chat completions, without streaming, on a Unix
    socket in the sandbox. What the program did there is told by this record and never by the program."""

    @property
    def socket(self) -> str:
        """Path of the socket inside the sandbox."""
        ...

    @property
    def token(self) -> str:
        """Bearer token of this rollout."""
        ...

    @property
    def model(self) -> str:
        """The only model there is."""
        ...

    @property
    def sampling(self) -> Sampling:
        """What is stamped on each request; one may leave a field out, or send this value."""
        ...

    def replies(self) -> int:
        """Replies granted so far, at most the agent's ``max_turns``; a request beyond is refused as ``max_turns``."""
        ...

    def truncated(self) -> bool:
        """Whether the context limit ended the rollout."""
        ...

    def asked(self) -> Mapping[str, Any] | None:
        """``messages`` and ``tools`` of the first request; None before it."""
        ...


class ProgramAgent(Protocol):
    """An agent that is a program of its own and runs wholly inside the task's sandbox, where it is not trusted: turns
    and tokens come from the policy's record, the patch from the sandbox's diff."""

    @property
    def max_turns(self) -> int:
        """Replies that one rollout may have."""
        ...

    def mounts(self) -> Mapping[str, str]:
        """What its sandboxes need, read-only: paths inside to paths of this host."""
        ...

    async def start(self) -> None: ...

    async def run(self, task: Task, sandbox: ProgramSandbox, access: PolicyAccess) -> AgentEnd:
        """Drive one task to its end; one that is not normal is an exception, TimeoutError where it took too long."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Finding:
    """One verdict: which rule, whether it holds, on which value.

    ``key`` is the value of the profile that it is about, dotted. ``why`` is the rule's reason in words, or what depends
    on it; ``fix`` what to do where it does not hold. ``unknown`` says that it cannot be judged here, since what it asks
    about is missing; it is not ``ok`` then."""

    rule: str
    ok: bool
    message: str
    key: str = ""
    why: str = ""
    fix: str = ""
    unknown: bool = False


class Ruleset(Protocol):
    """What must hold for a result to count, and when to validate and stop."""

    def check(self, profile: Any) -> Sequence[Finding]:
        """Judge a profile before it runs: the resolved profile as JSON data and, under ``facts``, what each part said
        about itself, by role. Where this machine lacks something, ``missing`` lists it, and facts may be absent: what
        depends on them is unknown."""
        ...

    def should_validate(self, step: int, max_steps: int) -> bool: ...

    def met(self, report: ValidationReport) -> bool: ...

    def check_run(self, folder: Path, events: Sequence[Event]) -> Sequence[Finding]:
        """Judge a run that is over, from its folder and the events of all its attempts, on any machine."""
        ...


class Hardware(Protocol):
    """Knows the machine: how many processes and threads each role gets, and where."""

    def describe(self) -> Mapping[str, Any]:
        """Facts for plan and provenance (cores, memory, accelerators). Those of one host: ``gpus`` (how many),
        ``gpu_memory_bytes`` (of each); ``domains`` has the hosts of each network domain by name, where there are
        several. Missing, with these facts, where this host is none of the machine's."""
        ...

    def place(self, needs: Mapping[str, Need]) -> Mapping[str, Placement]:
        """Placement of each worker group from what it needs; PlanError where the machine cannot hold them."""
        ...

    def form(self) -> LaunchForm:
        """What a scheduler has to give for it."""
        ...
