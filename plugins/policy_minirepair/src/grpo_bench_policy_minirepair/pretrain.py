"""Makes a base checkpoint: ``python -m grpo_bench_policy_minirepair.pretrain --family FAMILY --out DIR --seed 0``.

Every worker is one process with one thread. Worker w of W draws problems w, w + W... of the ``pretrain`` split, turns
them into documents and trains on them; gradients are averaged. Nothing is read from disk, so the same seed, number of
workers and library versions give the same checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tokenizers import Tokenizer

from grpo_bench_env_minirepair.tasks import FAMILIES, draw
from grpo_bench_model_qwen3 import Qwen3Config

from . import corpus, tokenizer
from .learner import Learner, Qwen3Learner, load_qwen3
from .lifeline import end_with_parent
from .muon import Optimizer
from .qwen35 import Qwen35, load_qwen35
from .qwen35_config import Qwen35Config
from .template import Template

MAX_CONTEXT = 512
TOKENIZER_PROBLEMS = 2600
WARM_UP, DECAY_FROM = 30, 0.6

Family = Literal["qwen3", "qwen35"]


@dataclass(frozen=True)
class Run:
    """Settings of a pretraining run. ``problems`` per worker and step; ``steps`` optimizer steps; ``right`` is the
    share of demonstrated edits that are the fix on purpose; with ``agent_only`` demonstrations are the only documents;
    with ``flat`` the learning rates do not fall towards the end; ``start`` has the weights to begin with, drawn at
    random where it is None."""

    out: Path
    seed: int
    workers: int
    steps: int
    problems: int
    experts: int
    width: int
    right: float = corpus.P_RIGHT
    agent_only: bool = False
    flat: bool = False
    start: Path | None = None
    family: Family = "qwen3"
    muon_rate: float = 0.02
    adam_rate: float = 3e-3
    vocabulary: int = 768
    report_every: int = 100
    port: int = 29511


@dataclass(frozen=True)
class Row:
    """One document as tokens: ids [T] and their weights [T] in the loss."""

    ids: list[int]
    weights: list[float]


def encode(tokens: Tokenizer, document: list[corpus.Segment]) -> Row:
    ids, weights = [], []
    for segment in document:
        piece = tokens.encode(segment.text).ids
        ids += piece
        weights += [segment.weight] * len(piece)
    return Row(ids, weights)


def make_tokenizer(vocabulary: int) -> Tokenizer:
    template, r = Template(), random.Random(0)
    problems = (draw("pretrain", index) for index in range(TOKENIZER_PROBLEMS))
    texts = ("".join(s.text for s in document) for p in problems for document in corpus.documents(p, template, r))
    return tokenizer.train(texts, vocabulary)


def batches(run: Run, rank: int, tokens: Tokenizer) -> Iterator[list[Row]]:
    """Batches of one worker, without end; families are spread evenly by shuffling within a stretch."""
    template, r = Template(), random.Random((run.seed << 8) + rank)
    stretch = 16 * len(FAMILIES)
    index = run.seed * 10_000_000
    pending: list[int] = []
    while True:
        if not pending:
            pending = list(range(index + rank, index + stretch * run.workers, run.workers))
            index += stretch * run.workers
            r.shuffle(pending)
        taken, pending = pending[: run.problems], pending[run.problems :]
        problems = [draw("pretrain", i) for i in taken]
        if run.agent_only:
            yield [encode(tokens, corpus.demonstration(p, template, r, run.right)) for p in problems]
        else:
            yield [encode(tokens, text) for p in problems for text in corpus.documents(p, template, r, run.right)]


def new_model(run: Run, tokens: Tokenizer) -> Learner:
    """The model that ``run`` begins with."""
    if run.start is not None:
        return load_qwen3(run.start) if run.family == "qwen3" else load_qwen35(run.start)
    eos, pad = (tokens.token_to_id(text) for text in (tokenizer.TURN_END, tokenizer.END_OF_TEXT))
    if run.family == "qwen3":
        model = Qwen3Learner(Qwen3Config(
            vocab_size=tokens.get_vocab_size(), num_experts=run.experts, moe_intermediate_size=run.width,
            intermediate_size=run.width, max_position_embeddings=MAX_CONTEXT, eos_token_id=eos, pad_token_id=pad,
        ))
    else:
        model = Qwen35(Qwen35Config(
            vocab_size=tokens.get_vocab_size(), num_experts=run.experts, moe_intermediate_size=run.width,
            max_position_embeddings=MAX_CONTEXT, eos_token_id=eos, pad_token_id=pad,
        ))
    model.initialize(torch.Generator().manual_seed(run.seed))
    return model


def loss_of(model: Learner, rows: list[Row]) -> torch.Tensor:
    """Weighted mean negative log-probability of all tokens but the first of each row."""
    ids = np.array([i for row in rows for i in row.ids], np.int32)
    offsets = np.cumsum([0, *(len(row.ids) for row in rows)])
    weights = torch.tensor([w for row in rows for w in row.weights[1:]])
    at = np.setdiff1d(np.arange(len(ids)), offsets[:-1])
    logp = model.log_probabilities(ids, offsets, at)
    return -(logp * weights).sum() / weights.sum()


class Probe:
    """How probable the model finds the right answer on held-out problems: the fix as the first edit in the agent; in a
    review, the wrong line and the text that line should have."""

    def __init__(self, tokens: Tokenizer, count: int) -> None:
        template = Template()
        self._rows: list[tuple[list[int], list[int]]] = []
        for index in range(count):
            problem = draw("heldout", index)
            question, answer = (tokens.encode(segment.text).ids for segment in corpus.review(problem, template))
            opening = tokens.encode(corpus.opening(problem, template)).ids
            self._rows += [(opening, tokens.encode(corpus.fix_call(problem.fix)).ids),
                           (question, answer[:1]), (question + answer[:1], answer[1:])]

    @torch.no_grad()
    def measure(self, model: Learner) -> dict[str, float]:
        ids = np.array([i for a, b in self._rows for i in (*a, *b)], np.int32)
        offsets = np.cumsum([0, *(len(a) + len(b) for a, b in self._rows)])
        starts = offsets[:-1] + [len(a) for a, _ in self._rows]
        at = np.concatenate([np.arange(s, e) for s, e in zip(starts, offsets[1:], strict=True)])
        logp = model.log_probabilities(ids, offsets, at)
        p = torch.stack([part.sum() for part in logp.split([len(b) for _, b in self._rows])]).exp()
        return {name: float(p[index::3].mean()) for index, name in enumerate(("p_edit", "p_line", "p_text"))}


def rate(run: Run, step: int) -> float:
    """What the learning rates are multiplied with at a step (from 1)."""
    left = 1.0 if run.flat else 1.0 - step / run.steps
    return min(1.0, step / WARM_UP) * min(1.0, max(0.02, left / (1 - DECAY_FROM)))


def work(rank: int, run: Run, tokenizer_json: str) -> None:
    end_with_parent()
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(run.port)}
    dist.init_process_group("gloo", rank=rank, world_size=run.workers)
    torch.set_num_threads(1)
    tokens = Tokenizer.from_str(tokenizer_json)
    model = new_model(run, tokens)
    optimizer = Optimizer(model, run.muon_rate, run.adam_rate, rank, run.workers)
    parameters = list(model.parameters())
    probe = Probe(tokens, 4 * len(FAMILIES)) if rank == 0 else None
    seen, source = 0, batches(run, rank, tokens)
    for step in range(1, run.steps + 1):
        rows = next(source)
        seen += sum(len(row.ids) for row in rows)
        loss = loss_of(model, rows)
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
        dist.all_reduce(flat)
        flat /= run.workers
        for p, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            p.grad = part.view_as(p)
        optimizer.step(rate(run, step))
        model.zero_grad(set_to_none=True)
        if probe and (step % run.report_every == 0 or step == run.steps):
            facts = {"step": step, "loss": float(loss.detach()), "tokens": seen * run.workers,
                     "cpu_s": time.process_time(), **probe.measure(model)}
            print(json.dumps({k: round(v, 4) for k, v in facts.items()}), flush=True)
            model.save(run.out)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description="Pretrain a base policy.")
    parser.add_argument("--family", choices=get_args(Family), default="qwen3")
    parser.add_argument("--out", type=Path, required=True, help="folder to write, in Hugging Face form")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each; part of the recipe")
    parser.add_argument("--steps", type=int, default=1400)
    parser.add_argument("--problems", type=int, default=16, help="problems of each worker in a step")
    parser.add_argument("--experts", type=int, default=8, help="0: dense (qwen3 only)")
    parser.add_argument("--width", type=int, default=128, help="width of an expert, or of the dense MLP")
    parser.add_argument("--right", type=float, default=corpus.P_RIGHT,
                        help="share of demonstrated edits that are the fix on purpose")
    parser.add_argument("--agent-only", action="store_true", help="no reviews and listings, only demonstrations")
    parser.add_argument("--flat", action="store_true", help="do not lower the learning rates towards the end")
    parser.add_argument("--start", type=Path, help="folder with the weights to begin with; default: random ones")
    parser.add_argument("--report-every", type=int, default=100, help="steps between reports and saves")
    parser.add_argument("--port", type=int, default=29511)
    run = Run(**vars(parser.parse_args()))
    tokens = make_tokenizer(run.vocabulary)
    tokenizer.save(tokens, run.out, MAX_CONTEXT)
    mp.spawn(work, (run, tokens.to_str()), run.workers)  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
