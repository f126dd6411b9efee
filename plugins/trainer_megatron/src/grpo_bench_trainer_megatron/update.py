"""What the ranks compute together: log-probabilities of a batch, and one optimizer step on it.

Megatron's schedules run the micro-batches through the pipeline. Every result is divided by the counts of the whole
batch, so that gradients and metrics of micro-batches and ranks add up; nothing is averaged.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grpo_bench.contract import BatchError, Floats, LossSettings, TrainBatch
from grpo_bench.steps import positive_tokens
from grpo_bench.steps.update import combine_metrics, policy_loss

from .batches import Indices, Layout, Micro, share
from .config import MegatronTrainerConfig
from .forward import log_probabilities
from .policy import Policy
from .ranks import Place, from_all

_Judged = Callable[[Micro, Tensor], tuple[Tensor, Any]]
"""From a micro-batch and its log-probabilities [M]: a loss, and what is kept of it."""


class Computation:
    """Batches through policies, on this rank's share of them."""

    def __init__(self, config: MegatronTrainerConfig, loss: LossSettings, temperature: float, place: Place) -> None:
        self._config, self._loss, self._temperature, self._place = config, loss, temperature, place
        whole = config.tensor_parallel if config.sequence_parallel_on else 1
        pieces = 2 * config.context_parallel if config.context_parallel > 1 else 1
        self._layout = Layout(config.batch_tokens, config.packing, multiple=whole * pieces, row_multiple=pieces,
                              count_multiple=config.pipeline_parallel if config.virtual_pipeline > 1 else 1)

    @torch.no_grad()
    def log_probabilities(self, policy: Policy, batch: TrainBatch) -> tuple[Indices, Floats]:
        """Flat indices [m] of the sampled tokens in this replica's rows, and their log-probabilities [m]; none from
        ranks that do not report."""
        kept = self._run(policy, batch, _values, forward_only=True)
        at, values = [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
        if self._place.reports:
            for micro, found in kept:
                if len(micro.rows):
                    at.append(micro.at)
                    values.append(found.float().cpu().numpy())
        return np.concatenate(at), np.concatenate(values)

    def update(self, policy: Policy, batch: TrainBatch) -> Mapping[str, Any]:
        """One step of the optimizer. BatchError, with the weights as they were, where the gradient is not finite."""
        for chunk in policy.chunks:
            chunk.zero_grad_buffer()
        optimizer = policy.optimizer
        optimizer.zero_grad()
        judged = partial(_judged, batch=batch, positive=positive_tokens(batch), settings=self._loss)
        metrics = self._run(policy, batch, judged, forward_only=False)
        optimizer.prepare_grads()
        norm = float(optimizer.get_grad_norm())
        if not math.isfinite(norm):
            raise BatchError(f"the gradient's norm is {norm}", hint="the weights were left as they are")
        done, *_ = optimizer.step()
        if not done:
            raise BatchError(f"Megatron's optimizer refused the step; the gradient's norm is {norm}",
                             hint="the weights were left as they are")
        policy.settle()
        mine = combine_metrics(metrics) if self._place.reports else {}
        return {"grad_norm": norm, "learning_rate": self._config.learning_rate,
                "metrics": combine_metrics(from_all(mine))}

    def _run(self, policy: Policy, batch: TrainBatch, judged: _Judged, *, forward_only: bool) -> list[Any]:
        """What ``judged`` kept of each micro-batch, where this is the last pipeline stage."""
        from megatron.core.pipeline_parallel import get_forward_backward_func

        micros = share(batch, self._layout, rank=self._place.data, ranks=self._place.data_ranks)
        for chunk in policy.chunks:
            chunk.train(not forward_only)

        def step(coming: Iterator[Micro], chunk: Any) -> tuple[Tensor, Callable[[Tensor], Any]]:
            micro = next(coming)
            output = log_probabilities(chunk, micro, self._place, temperature=self._temperature,
                                       vocabulary=policy.vocabulary)
            return output, partial(_told, micro, judged)

        return get_forward_backward_func()(
            forward_step_func=step, data_iterator=[iter(micros) for _ in policy.chunks], model=policy.chunks,
            num_microbatches=len(micros), seq_length=self._layout.tokens, micro_batch_size=1, forward_only=forward_only)


def _told(micro: Micro, judged: _Judged, output: Tensor) -> tuple[Tensor, Tensor, Any]:
    """What Megatron's schedules take: a loss, the tokens to divide by (there are none), and what is to be kept."""
    loss, kept = judged(micro, output)
    return loss, torch.zeros([], dtype=torch.int, device=output.device), kept


def _values(micro: Micro, values: Tensor) -> tuple[Tensor, Any]:
    return values.sum(), (micro, values.detach())


def _judged(micro: Micro, values: Tensor, *, batch: TrainBatch, positive: float,
            settings: LossSettings) -> tuple[Tensor, Any]:
    def tokens(known: Floats | None) -> Tensor | None:
        return None if known is None else _on(values, known[micro.at] if len(micro.rows) else np.zeros(1, np.float32))

    def rows(known: npt.NDArray[Any]) -> Tensor:
        return _on(values, known[micro.rows] if len(micro.rows) else np.zeros(1, np.float32))

    gen = tokens(batch.gen_log_probabilities)
    assert gen is not None
    result = policy_loss(
        values, torch.from_numpy(micro.row).to(values.device), gen=gen, prev=tokens(batch.prev_log_probabilities),
        ref=tokens(batch.reference_log_probabilities), advantages=rows(batch.advantages), rewards=rows(batch.rewards),
        sample_mask=rows(batch.sample_mask), n_tokens=batch.n_tokens, n_sequences=batch.n_sequences,
        n_positive_tokens=positive, settings=settings)
    return result.loss, result.metrics


def _on(values: Tensor, known: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(known).to(values.device)
