"""The token record of one rollout: which ids the policy saw and which it sampled, exactly.

The record is a list of threads; each becomes one training sequence. A thread knows the text of its ids. A new prompt
whose text starts with a thread's text extends it: the recorded ids stand and only what follows is tokenised. Any other
prompt starts a new thread, which still takes over the recorded ids as far as its text agrees with a place where a
prompt or a reply ended. Several threads may grow side by side, as when an agent condenses its history in between.

A prompt equal to that of the latest turn is that turn asked again, by a client that never got the reply; the turn is
taken back.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ..contract import FinishReason, Sample, TokenSequence, Turn
from ..contract.values import Ids
from .chat_format import ChatFormat


@dataclass(frozen=True, slots=True)
class _Mark:
    """A place in a thread, in characters of its text and in tokens."""

    chars: int
    tokens: int


@dataclass(slots=True)
class _Thread:
    text: str = ""
    ids: Ids = field(default_factory=lambda: np.zeros(0, np.int32))
    turns: list[Turn] = field(default_factory=list)
    marks: list[_Mark] = field(default_factory=list)
    """End of the prompt and end of the reply of each turn, alternating."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a request puts before the policy: ``ids`` [T], the last of which, ``context_ids``, are new to its thread."""

    text: str
    ids: Ids
    context_ids: Ids
    thread: _Thread


class Record:
    """Grows by :meth:`commit` only."""

    def __init__(self, chat_format: ChatFormat) -> None:
        self._format = chat_format
        self._threads: list[_Thread] = []
        self._latest: _Thread | None = None
        self._ended_at = 0.0
        self.turns = 0
        self.retried = 0

    @property
    def splits(self) -> int:
        """How often a prompt did not extend what was recorded."""
        return max(0, len(self._threads) - 1)

    def prompt(self, text: str) -> Prompt:
        """Find the thread that ``text`` extends and tokenise the rest."""
        latest = self._latest
        if latest is not None and len(text) == latest.marks[-2].chars and latest.text.startswith(text):
            self.retract()
            self.retried += 1
        extended = max((thread for thread in self._threads if text.startswith(thread.text)),
                       key=lambda thread: len(thread.text), default=None)
        if extended is not None:
            context = self._format.encode(text[len(extended.text):])
            return Prompt(text, np.concatenate((extended.ids, context)), context, extended)
        known, chars = self._shared(text)
        ids = np.concatenate((known, self._format.encode(text[chars:])))
        return Prompt(text, ids, ids, _Thread())

    def commit(self, prompt: Prompt, sample: Sample, *, started_at: float, ended_at: float) -> str:
        """Add a finished turn; returns the text of the sampled ids."""
        thread, text = prompt.thread, self._format.decode(sample.ids)
        self.note_request(started_at)
        if not thread.turns:
            self._threads.append(thread)
        thread.turns.append(Turn(
            context_ids=prompt.context_ids, sampled_ids=sample.ids, log_probabilities=sample.log_probabilities,
            versions=sample.versions, finish=sample.finish, generate_s=ended_at - started_at))
        thread.text = prompt.text + text
        thread.ids = np.concatenate((prompt.ids, sample.ids))
        thread.marks += (_Mark(len(prompt.text), len(prompt.ids)), _Mark(len(thread.text), len(thread.ids)))
        self._latest, self._ended_at = thread, ended_at
        self.turns += 1
        return text

    def note_request(self, at: float) -> None:
        """The next request came (or the rollout ended): the time since the latest reply was the environment's."""
        if self._latest is not None:
            turns = self._latest.turns
            turns[-1] = replace(turns[-1], environment_s=at - self._ended_at)

    def retract(self) -> None:
        """Take the latest turn back, as if it had never been sampled."""
        thread = self._latest
        if thread is None:
            return
        self._latest = None
        self.turns -= 1
        del thread.turns[-1], thread.marks[-2:]
        if thread.turns:
            end = thread.marks[-1]
            thread.text, thread.ids = thread.text[:end.chars], thread.ids[:end.tokens]
        else:
            self._threads.remove(thread)

    def sequences(self) -> tuple[TokenSequence, ...]:
        return tuple(TokenSequence(tuple(thread.turns)) for thread in self._threads)

    def _shared(self, text: str) -> tuple[Ids, int]:
        """The longest recorded beginning of ``text``: its ids and its length in characters."""
        known, chars = np.zeros(0, np.int32), 0
        for thread in self._threads:
            for mark in reversed(thread.marks):
                if mark.chars <= chars:
                    break
                if text.startswith(thread.text[:mark.chars]):
                    known, chars = thread.ids[:mark.tokens], mark.chars
                    break
        return known, chars


def checked(sample: Sample, max_tokens: int) -> Sample:
    """The sample with the contract's dtypes; ValueError where its parts do not belong together."""
    if sample.finish is FinishReason.ABORT:
        raise ValueError("the generator aborted a request that nobody asked it to abort")
    ids = np.asarray(sample.ids, dtype=np.int32)
    log_probabilities = np.asarray(sample.log_probabilities, dtype=np.float32)
    counted = sum(count for count, _ in sample.versions)
    if ids.ndim != 1 or log_probabilities.shape != ids.shape or counted != len(ids):
        raise ValueError(f"a sample of {ids.shape} ids came with {log_probabilities.shape} log-probabilities and "
                         f"weight versions for {counted} tokens")
    if len(ids) > max_tokens:
        raise ValueError(f"a sample of {len(ids)} tokens where at most {max_tokens} were asked for")
    return Sample(ids, log_probabilities, sample.finish, sample.versions)
