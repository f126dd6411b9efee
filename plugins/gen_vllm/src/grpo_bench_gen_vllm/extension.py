# pyright: reportMissingImports=false
"""What vLLM's own processes load of ours: a worker extension, named by ``worker_extension_cls``.

Importing this module registers the weight-transfer backend, before vLLM makes it, and mends the CPU's generators: the
extension is looked up when a worker process is set up, the backend when its model is loaded. Methods are reached by
``collective_rpc``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from . import cpu_faults
from .process import BACKEND


class Extension:
    """Mixed into vLLM's worker class; names must not meet vLLM's."""

    model_runner: Any
    weight_transfer_engine: Any
    _weight_update_active: bool

    def grpo_bench_score_prompts_at(self, temperature: float) -> None:
        """From now on, log-probabilities of prompt tokens are those at ``temperature``: vLLM takes the logits as they
        are. Only the probe asks for them."""
        runner = self.model_runner
        worker = getattr(runner, "prompt_logprobs_worker", None)
        if worker is not None:
            scored = worker.compute_prompt_logprobs
            worker.compute_prompt_logprobs = lambda logits, *rest: scored(_cooled(logits, temperature), *rest)
            return
        scored, model = runner._get_prompt_logprobs_dict, runner.model
        runner._get_prompt_logprobs_dict = lambda *given: _with_logits(model, temperature, lambda: scored(*given))

    def grpo_bench_abandon_update(self) -> None:
        """Forget a change of weights that came to no end, so that the next one can begin."""
        self._weight_update_active = False
        self.weight_transfer_engine.abandon()


def _cooled(logits: Callable[..., Any], temperature: float) -> Callable[..., Any]:
    return lambda *given: logits(*given).float() / temperature


def _with_logits(model: Any, temperature: float, score: Callable[[], Any]) -> Any:
    """``score()`` while the model's logits are those at ``temperature``."""
    model.compute_logits = _cooled(model.compute_logits, temperature)
    try:
        return score()
    finally:
        del model.compute_logits


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, "grpo_bench_gen_vllm.backend", "TransferBackend")
cpu_faults.let_generators_be_rewound()
