# pyright: reportMissingImports=false
"""Our weight-transfer backend, in each of an engine's processes.

vLLM's life cycle of a change of weights is start, any number of updates, finish. Each update brings some tensors under
their HF names; vLLM's loaders take this process's share of each, layer by layer, into the storage that is there. So
beside the weights there is never more than one update, one tensor that arrives in ranges, and one layer in the making.

An update is one of

- ``chunk``: a chunk file of the transport ``safetensors`` and the pieces in it,
- ``file``: a file in HF form,
- ``broadcast``: tensors that the sender broadcasts, see :mod:`.broadcast`.

A layer that was begun and not completed is an error at ``finish``; so is one that got nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload.layerwise import (
    _place_kernel_tensors, finalize_layerwise_reload, get_layerwise_info, initialize_layerwise_reload,
)

from . import cpu_faults
from .broadcast import Listener, received

Piece = tuple[str, str, tuple[int, ...], int, int]
"""Name, dtype and shape of a tensor, and the range of its bytes."""


@dataclass
class Init(WeightTransferInitInfo):
    """Nothing has to be agreed on beforehand."""


@dataclass
class Update(WeightTransferUpdateInfo):
    """Exactly one of the fields is set; plain data, since it travels through vLLM's own channel."""

    chunk: dict[str, Any] | None = None
    file: str | None = None
    broadcast: dict[str, Any] | None = None


class TransferBackend(WeightTransferEngine[Init, Update]):
    """What vLLM's worker makes and calls."""

    init_info_cls = Init
    update_info_cls = Update

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._parts: torch.Tensor | None = None
        self._listener: Listener | None = None

    def init_transfer_engine(self, init_info: Init) -> None:
        pass

    def start_weight_update(self) -> None:
        self.abandon()
        cpu_faults.before_update(self.model)
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As vLLM's own, which waits for an accelerator also where there is none."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: Update) -> None:
        if update_info.chunk is not None:
            self.model.load_weights(self._of_chunk(update_info.chunk["path"], update_info.chunk["pieces"]))
        elif update_info.file is not None:
            self.model.load_weights(_of_file(update_info.file))
        elif update_info.broadcast is not None:
            self._listen(update_info.broadcast)

    def finish_weight_update(self) -> None:
        if missing := _incomplete(self.model):
            raise ValueError(f"no or not all weights came for {', '.join(missing[:5])}"
                             f"{f' and {len(missing) - 5} more layers' if len(missing) > 5 else ''}")
        finalize_layerwise_reload(self.model, self.model_config)
        cpu_faults.after_update(self.model)

    def abandon(self) -> None:
        """Put every layer that was prepared for new weights back as it was."""
        self._parts = None
        self._leave()
        for layer in self.model.modules():
            info = get_layerwise_info(layer)
            if info.can_load():
                if info.kernel_tensors is not None:
                    _place_kernel_tensors(layer, info)
                info.reset()

    def shutdown(self) -> None:
        self._leave()

    def _of_chunk(self, path: str, pieces: list[Piece]) -> Iterator[tuple[str, torch.Tensor]]:
        with safe_open(path, framework="pt", device="cpu") as file:
            for name, dtype, shape, start, stop in pieces:
                kind = getattr(torch, dtype)
                size = math.prod(shape) * kind.itemsize
                if stop - start == size:
                    yield name, file.get_tensor(name).view(kind)
                    continue
                if self._parts is None:
                    self._parts = torch.empty(size, dtype=torch.uint8)
                self._parts[start:stop] = file.get_tensor(f"{name}[{start}:{stop}]")
                if stop == size:
                    whole, self._parts = self._parts.view(kind).view(shape), None
                    yield name, whole

    def _listen(self, told: dict[str, Any]) -> None:
        rank = told["first"] + self.vllm_config.parallel_config.rank
        self._listener = Listener(told["store"], told["world"], rank, self.device, told["timeout_s"])
        try:
            self.model.load_weights(received(self._listener, told["tensors"]))
        finally:
            self._leave()

    def _leave(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()


def _of_file(path: str) -> Iterator[tuple[str, torch.Tensor]]:
    with safe_open(path, framework="pt", device="cpu") as file:
        for name in file.keys():  # noqa: SIM118  (no mapping)
            yield name, file.get_tensor(name)


def _incomplete(model: torch.nn.Module) -> list[str]:
    """Layers that still wait for weights. Those that only hold another's tensors, as a tied ``lm_head`` does, get
    theirs there; attention layers have none of their own; rows that pad a vocabulary are never sent."""
    loaded: set[int] = set()
    waiting: dict[str, list[torch.Tensor]] = {}
    for name, layer in model.named_modules():
        info = get_layerwise_info(layer)
        held = [] if info.kernel_tensors is None else list(info.kernel_tensors[0].values())
        if not info.can_load() or is_deferred_attention_layer(layer):
            loaded.update(map(id, layer.parameters(recurse=False)))
        elif held and info.load_numel < _expected(layer, info):
            waiting[name or type(layer).__name__] = held
        else:
            loaded.update(map(id, held))
    return [name for name, held in waiting.items() if not all(id(tensor) in loaded for tensor in held)]


def _expected(layer: Any, info: Any) -> int:
    if isinstance(layer, VocabParallelEmbedding):
        indices = layer.shard_indices
        padded = info.restore_metadata[0]["weight"]
        return padded.numel() // padded.shape[0] * (indices.num_org_elements + indices.num_added_elements)
    return info.load_numel_total or 0
