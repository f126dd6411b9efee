"""Continuous batching: requests in, samples out, one batch step at a time. No asyncio, no I/O.

A request waits in the queue until a slot is free, then runs: what of its sequence is not in the cache yet is the
next chunk; once all of it is, one more token is drawn. So prompts, sampling and recomputation after a change of
weights are the same thing. Every step runs one chunk of every running request, prompt tokens up to a limit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from grpo_bench.contract import FinishReason, Floats, Ids, Purpose, Sample, Sampling
from grpo_bench_model_qwen3 import Cache, Chunk, Qwen3, extend

from .sampler import draw, stream_key, uniforms
from .slots import Slot, SlotTable

_PROBE_SINGLES = 8


@dataclass(slots=True, eq=False)
class Request:
    """One reply in the making. ``ids`` is prompt and reply so far; ``finished`` is told the sample."""

    id: str
    prompt: Ids
    sampling: Sampling
    key: int
    affinity: str
    finished: Callable[[Sample], None]
    ids: list[int]
    log_probabilities: list[float] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)
    slot: Slot | None = None

    @property
    def sampled(self) -> int:
        return len(self.log_probabilities)


class Engine:
    """Weights, cache and requests of one generator engine."""

    def __init__(self, model: Qwen3, slots: int, capacity: int, prompt_tokens: int, temperature: float = 1.0) -> None:
        self.model = model
        self.version: int | None = None
        self._cache = Cache(model.config, slots, capacity)
        self._capacity = capacity
        self._table = SlotTable(slots)
        self._prompt_tokens = prompt_tokens
        self._temperature = temperature
        self._queue: list[Request] = []
        self._running: dict[str, Request] = {}
        self.counters = dict.fromkeys(("steps", "computed_tokens", "reused_tokens", "sampled_tokens"), 0)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def queued(self) -> int:
        return len(self._queue)

    def add(self, request_id: str, prompt: Ids, sampling: Sampling, stream: str, affinity: str,
            finished: Callable[[Sample], None]) -> None:
        """Queue a request."""
        room = min(sampling.max_context, self._capacity)
        if not 0 < len(prompt) < room:
            raise ValueError(f"a prompt of {len(prompt)} tokens leaves no room for a reply within {room}")
        prompt = np.array(prompt, np.int32)
        self._queue.append(Request(request_id, prompt, sampling, stream_key(sampling.seed, stream), affinity, finished,
                                   prompt.tolist()))

    def abort(self, request_id: str) -> None:
        """End a request with what it has; unknown ids are fine."""
        for request in [request for request in self._queue if request.id == request_id]:
            self._queue.remove(request)
            self._finish(request, FinishReason.ABORT)
        if request_id in self._running:
            self._finish(self._running[request_id], FinishReason.ABORT)

    def forget(self) -> None:
        """The weights changed: nothing in the cache is valid, running requests compute theirs again."""
        self._table.forget_all()

    def step(self, *, admit: bool = True) -> None:
        """Admit what fits, run one chunk of every running request, draw a token for each that is up to date."""
        if admit:
            self._admit()
        chunks, requests, room = [], [], self._prompt_tokens
        for request in self._running.values():
            assert request.slot is not None
            pending = request.ids[request.slot.written:]
            if len(pending) > 1:
                pending = pending[:room]
                room -= len(pending)
            if pending:
                chunks.append(Chunk(request.slot.index, request.slot.written, pending))
                requests.append(request)
        if not chunks:
            return
        hidden = extend(self.model, self._cache, chunks)
        ready, last = [], []
        for request, chunk, states in zip(requests, chunks, hidden, strict=True):
            assert request.slot is not None
            request.slot.written = chunk.end
            if chunk.end == len(request.ids):
                ready.append(request)
                last.append(states[-1])
        self.counters["steps"] += 1
        self.counters["computed_tokens"] += sum(len(chunk.ids) for chunk in chunks)
        if ready:
            self._draw(ready, torch.stack(last))

    def _admit(self) -> None:
        waiting = []
        for request in self._queue:
            place = self._table.place(request.prompt, request.affinity)
            if place is None:
                waiting.append(request)
                continue
            if place.donor is not None and place.shared:
                self._cache.copy(place.donor.index, place.slot.index, place.shared)
            request.slot = place.slot
            self._running[request.id] = request
            self.counters["reused_tokens"] += place.shared
        self._queue = waiting

    @torch.inference_mode()
    def _draw(self, requests: Sequence[Request], states: torch.Tensor) -> None:
        logits = self.model.logits(states)
        uniform = uniforms([request.key for request in requests], [request.sampled for request in requests])
        groups: dict[Purpose, list[int]] = defaultdict(list)
        for index, request in enumerate(requests):
            groups[request.sampling.purpose].append(index)
        for members in groups.values():
            part = logits if len(members) == len(requests) else logits[members]
            tokens, values = draw(part, requests[members[0]].sampling, uniform[members])
            for index, token, value in zip(members, tokens, values, strict=True):
                self._append(requests[index], token, value)
        self.counters["sampled_tokens"] += len(requests)

    def _append(self, request: Request, token: int, log_probability: float) -> None:
        assert self.version is not None
        request.ids.append(token)
        request.log_probabilities.append(log_probability)
        count, version = request.versions[-1] if request.versions else (0, self.version)
        if request.versions and version == self.version:
            request.versions[-1] = (count + 1, version)
        else:
            request.versions.append((1, self.version))
        sampling = request.sampling
        if token in sampling.stop_token_ids:
            self._finish(request, FinishReason.STOP)
        elif request.sampled >= sampling.max_tokens or len(request.ids) >= min(sampling.max_context, self._capacity):
            self._finish(request, FinishReason.LENGTH)

    def _finish(self, request: Request, reason: FinishReason) -> None:
        if request.slot is not None:
            del self._running[request.id]
            self._table.release(request.slot, np.array(request.ids, np.int32))
        reply = np.array(request.ids[len(request.prompt):], np.int32)
        values = np.array(request.log_probabilities, np.float32)
        request.finished(Sample(reply, values, reason, tuple(request.versions)))

    @torch.inference_mode()
    def probe(self, sequences: Sequence[Ids]) -> list[Floats]:
        """Log-probabilities as sampling computes them: a chunk, then the last tokens one by one, in an empty cache."""
        if not sequences:
            return []
        cache = Cache(self.model.config, len(sequences), max(len(sequence) for sequence in sequences))
        starts = [max(1, len(sequence) - _PROBE_SINGLES) for sequence in sequences]
        chunks = [Chunk(row, 0, sequence[:start].tolist())
                  for row, (sequence, start) in enumerate(zip(sequences, starts, strict=True))]
        states = [[part] for part in extend(self.model, cache, chunks)]
        for _ in range(_PROBE_SINGLES):
            chunks = [Chunk(chunk.slot, chunk.end, sequences[chunk.slot][chunk.end:chunk.end + 1].tolist())
                      for chunk in chunks if chunk.end < len(sequences[chunk.slot])]
            if not chunks:
                break
            for chunk, part in zip(chunks, extend(self.model, cache, chunks), strict=True):
                states[chunk.slot].append(part)
        return [self._given(sequence, torch.cat(parts)) for sequence, parts in zip(sequences, states, strict=True)]

    def _given(self, sequence: Ids, states: torch.Tensor) -> Floats:
        result = np.zeros(len(sequence), np.float32)
        if len(sequence) > 1:
            table = (self.model.logits(states[:-1]) / self._temperature).log_softmax(-1)
            index = torch.from_numpy(np.array(sequence[1:], np.int64)).unsqueeze(-1)
            result[1:] = table.gather(1, index).flatten().numpy()
        return result
