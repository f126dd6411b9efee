"""The values that travel through a run.

All are frozen, picklable and pass a worker boundary through :mod:`grpo_bench.contract.codec`. Token arrays are
one-dimensional ``numpy`` arrays (``int32`` ids, ``float32`` log-probabilities); everything ragged stays ragged until a
trainer pads or packs it. Times are seconds as floats, wall clock stamps are UTC ISO 8601 strings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


class Purpose(StrEnum):
    """Which of the two sampling profiles a request belongs to."""

    TRAIN = "train"
    VALIDATION = "validation"


class End(StrEnum):
    """How a rollout ended. ``TIMEOUT`` and ``FAILED`` are not samples: they never carry a reward."""

    COMPLETED = "completed"
    MAX_TURNS = "max_turns"
    TRUNCATED = "truncated"
    TIMEOUT = "timeout"
    FAILED = "failed"

    @property
    def is_sample(self) -> bool:
        return self not in (End.TIMEOUT, End.FAILED)


class Cause(StrEnum):
    """Which hop a rollout that is not a sample failed at."""

    QUEUE = "queue"
    SANDBOX_START = "sandbox_start"
    GENERATOR = "generator"
    AGENT = "agent"
    ENVIRONMENT = "environment"
    SCORE = "score"
    WORKER = "worker"
    DEADLINE = "deadline"


class Metric(StrEnum):
    """What a validation can report; of one rollout a task, k = 1, it is accuracy alone."""

    ACCURACY = "accuracy"
    PASS_K = "pass_k"
    PASS_HAT_K = "pass_hat_k"
    PASS_1 = "pass_1"

    @classmethod
    def usual(cls, k: int) -> Metric:
        """The one to show where none ends the run."""
        return cls.PASS_K if k > 1 else cls.ACCURACY


class FinishReason(StrEnum):
    """Why a generator stopped sampling."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Task:
    """One software-repair task.

    ``prompt`` is all an agent may see (``statement`` is always there; an environment names the other keys in its
    capabilities). ``payload`` is opaque to everyone but the environment that made the task; hidden tests live there.
    ``fingerprint`` is a hash over both, so that two runs can tell whether they ran the same task.
    """

    id: str
    split: str
    prompt: Mapping[str, Any]
    payload: Mapping[str, Any]
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """Every sampling parameter, explicit. ``top_k`` -1, ``top_p`` 1, ``min_p`` 0 and neutral penalties mean off.

    ``max_tokens`` bounds one reply, ``max_context`` the whole sequence (prompt and reply), both in tokens. ``seed``
    is the root of the run's sampling streams: a token depends on (seed, rollout id, turn, position) only.
    """

    purpose: Purpose
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    stop_token_ids: tuple[int, ...]
    max_tokens: int
    max_context: int
    seed: int


@dataclass(frozen=True, slots=True)
class Sample:
    """What a generator answers to one request: the sampled ids [n], the log-probability of each [n] under the
    distribution it was drawn from, and the weight version of each, run-length coded as ``((count, version), ...)``."""

    ids: Ids
    log_probabilities: Floats
    finish: FinishReason
    versions: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """One model reply. ``context_ids`` are the tokens that joined the sequence since the previous reply (the whole
    prompt for the first turn), ``sampled_ids`` [n] the reply with its log-probabilities [n] and versions.

    ``generate_s`` is the time the generator took, ``environment_s`` the time from this reply to the next request.
    """

    context_ids: Ids
    sampled_ids: Ids
    log_probabilities: Floats
    versions: tuple[tuple[int, int], ...]
    finish: FinishReason
    generate_s: float = 0.0
    environment_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """One training sequence: turns whose contexts extend each other. A rollout has more than one only where an
    agent's prompt stopped extending the recorded ids."""

    turns: tuple[Turn, ...]

    @property
    def ids(self) -> Ids:
        """All token ids [T] in order."""
        parts = [part for turn in self.turns for part in (turn.context_ids, turn.sampled_ids)]
        return np.concatenate(parts).astype(np.int32, copy=False) if parts else np.zeros(0, np.int32)

    @property
    def token_mask(self) -> npt.NDArray[np.bool_]:
        """True on sampled tokens [T]."""
        parts = [np.full(n, sampled) for turn in self.turns
                 for n, sampled in ((len(turn.context_ids), False), (len(turn.sampled_ids), True))]
        return np.concatenate(parts) if parts else np.zeros(0, np.bool_)

    @property
    def log_probabilities(self) -> Floats:
        """The generator's log-probabilities [T], 0 where the token was not sampled."""
        parts = [part for turn in self.turns
                 for part in (np.zeros(len(turn.context_ids), np.float32), turn.log_probabilities)]
        return np.concatenate(parts).astype(np.float32, copy=False) if parts else np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a rollout is not a sample: the hop, one line for people, and the traceback where there was an exception."""

    cause: Cause
    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One rollout as it ended.

    ``reward`` is None where there is none; it is never 0.0 in place of a missing one. ``masked`` is the environment's
    own wish to keep the rollout out of the loss. ``durations`` maps queue, sandbox_start, generate, environment and
    score to seconds. ``counters`` counts notable happenings such as ``split_sequences`` or ``malformed_calls``.
    ``verdict`` is what grading said, for people.
    """

    rollout_id: str
    group_id: int
    task_id: str
    purpose: Purpose
    sequences: tuple[TokenSequence, ...]
    end: End
    reward: float | None
    failure: Failure | None = None
    masked: bool = False
    durations: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    verdict: str = ""

    @property
    def turns(self) -> int:
        return sum(len(sequence.turns) for sequence in self.sequences)

    @property
    def sampled_tokens(self) -> int:
        return sum(len(turn.sampled_ids) for sequence in self.sequences for turn in sequence.turns)

    @property
    def versions(self) -> tuple[int, ...]:
        """The weight versions that sampled any token of this rollout, ascending."""
        return tuple(sorted({version for sequence in self.sequences for turn in sequence.turns
                             for _, version in turn.versions}))


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Where a prompt stands in the training order: ``index`` of the task list, in its ``epoch``-th pass."""

    epoch: int
    index: int


@dataclass(frozen=True, slots=True)
class Group:
    """The finished rollouts of one prompt, meant for the step that consumes weight version ``target``."""

    group_id: int
    task_id: str
    position: Position
    target: int
    trajectories: tuple[Trajectory, ...]

    @property
    def oldest_version(self) -> int:
        """The oldest weight version behind any token; ``target`` where nothing was sampled."""
        return min((v for trajectory in self.trajectories for v in trajectory.versions), default=self.target)


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """All training sequences of one step, ragged. R rows, N tokens; row r covers ``offsets[r]:offsets[r + 1]``.

    ids [N], ``token_mask`` [N] (True on sampled tokens), ``gen_log_probabilities`` [N] (0 where not sampled),
    ``sample_mask`` [R], ``advantages`` [R], ``rewards`` [R], ``rollout`` [R] (index of the rollout a row belongs to),
    ``prev_log_probabilities`` [N] and ``reference_log_probabilities`` [N], None where no one needs them. ``n_tokens``
    and ``n_sequences`` are the counts N_t and N_s of the contract over the WHOLE global batch; a trainer that splits
    the batch keeps them.
    """

    step: int
    ids: Ids
    offsets: npt.NDArray[np.int64]
    rollout: npt.NDArray[np.int32]
    token_mask: npt.NDArray[np.bool_]
    gen_log_probabilities: Floats
    sample_mask: Floats
    advantages: Floats
    rewards: Floats
    prev_log_probabilities: Floats | None
    n_tokens: float
    n_sequences: float
    reference_log_probabilities: Floats | None = None

    @property
    def rows(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """What one optimizer step did. ``ended_at`` is UTC, stamped by the last rank; ``metrics`` are global values."""

    loss: float
    grad_norm: float
    learning_rate: float
    tokens: int
    ended_at: str
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One weight that a transfer carries: its HF parameter name, shape, and dtype (``float32``, ``bfloat16``...)."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Transfer:
    """One passing of weights from a sender to every engine of a generator.

    ``rendezvous`` is transport-specific (for ``safetensors`` a folder both sides see). The sender moves ``tensors`` in
    order, in chunks of at most ``chunk_bytes``; both sides give up after ``deadline_s`` seconds. ``receivers`` is the
    number of engines that take them; each counts as the rank of its address.
    """

    version: int
    transport: str
    rendezvous: str
    tensors: tuple[TensorSpec, ...]
    chunk_bytes: int
    deadline_s: float
    receivers: int = 1


@dataclass(frozen=True, slots=True)
class RefitStats:
    """What a refit moved, and the largest absolute difference of the probe's log-probabilities, trainer against
    generator, afterwards; None where the two do not compute the same thing, so that nothing can be compared. With
    ``refit.probe_growth``, ``probe_distance`` is the mean absolute difference on the run's kept sequences and
    ``probe_followed`` the share of the trainer's change that the generator shows, None where noise hides it."""

    version: int
    bytes: int
    seconds: float
    probe_difference: float | None
    probe_distance: float | None = None
    probe_followed: float | None = None


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """Validation of one weight version: tasks x k rollouts, contiguous per task.

    ``metrics`` holds accuracy and, for k > 1, pass_k, pass_hat_k and pass_1. ``passed`` counts the tasks with at least
    one reward above 0 (the integer that a pass_k target is decided on). ``standard_error`` is that of pass_k (of
    accuracy where k = 1) over tasks.
    """

    step: int
    version: int
    k: int
    tasks: int
    passed: int
    metrics: Mapping[str, float]
    standard_error: float
    seconds: float
    ends: Mapping[str, int] = field(default_factory=dict)


class Status(StrEnum):
    """How a run ended."""

    TARGET_MET = "target_met"
    TARGET_MISSED = "target_missed"
    COMPLETED = "completed"
    TRAINED = "trained"
    """All steps ran, and the weights that they left behind are still to be evaluated."""
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Event:
    """One line of ``events.jsonl``. ``seq`` counts from 0 without gaps, ``at`` is UTC, ``elapsed_s`` the run clock."""

    seq: int
    at: str
    elapsed_s: float
    kind: str
    step: int | None
    data: Mapping[str, Any]
