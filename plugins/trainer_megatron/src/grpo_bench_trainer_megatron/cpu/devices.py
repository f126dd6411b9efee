"""CUDA's names, answered by the CPU.

Megatron asks for devices by ``torch.cuda.current_device()`` and ``device="cuda"``, orders work by streams and events,
and tells float32 gradients by the name of their type. Each answer is a function object of its own, since torch's
compiler refuses one object under two names.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _device

_FACTORIES = (
    "arange", "as_tensor", "empty", "empty_like", "empty_strided", "eye", "full", "full_like", "linspace", "ones",
    "ones_like", "rand", "rand_like", "randint", "randn", "randn_like", "tensor", "zeros", "zeros_like",
)


class _Order:
    """A stream or an event: all work here is done in the order it is called, so there is nothing to wait for."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.device = torch.device("cpu")
        self.cuda_stream = 0

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments, **options: None

    def record_event(self, event: Any = None) -> Any:
        return event or type(self)()

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Any) -> float:
        return 0.0


def _answers(value: Any = None) -> Callable[..., Any]:
    return lambda *arguments, **options: value


def _here(device: Any) -> Any:
    """The CPU for any CUDA device, by name, number or object; other devices as they are."""
    if type(device) is int or (isinstance(device, str) and device.startswith("cuda")):
        return torch.device("cpu")
    return torch.device("cpu") if isinstance(device, torch.device) and device.type == "cuda" else device


def _on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def made(*arguments: Any, **options: Any) -> Any:
        if "device" in options:
            options["device"] = _here(options["device"])
        return function(*arguments, **options)

    return made


def install() -> None:
    _cuda(torch.cuda)
    _factories()
    _tensors(torch.Tensor)
    torch.compile = _uncompiled  # jit_fuser: compiling would take longer than what there is to compute


def _uncompiled(model: Any = None, **options: Any) -> Any:
    return _uncompiled if model is None else model


def _cuda(cuda: Any) -> None:
    cuda.current_device = _answers(torch.device("cpu"))  # device=torch.cuda.current_device() in router, DDP, optimizer
    for name in ("set_device", "synchronize", "empty_cache", "manual_seed_all"):  # schedules, random, timers
        setattr(cuda, name, _answers())
    cuda.manual_seed = lambda seed: torch.manual_seed(seed)  # model_parallel_cuda_manual_seed
    for module in (cuda, cuda.random):  # the tracker of random states
        module.get_rng_state = lambda device=None: torch.get_rng_state()
        module.set_rng_state = lambda state, device=None: torch.set_rng_state(state)
    cuda.Stream = type("Stream", (_Order,), {"priority_range": staticmethod(_answers((0, 0)))})  # token dispatcher
    cuda.Event = type("Event", (_Order,), {})  # token dispatcher's copy of its split sizes
    stream = cuda.Stream()
    cuda.current_stream, cuda.default_stream = _answers(stream), _answers(stream)  # gradient buffers, dispatcher
    cuda.stream = lambda stream: contextlib.nullcontext()  # gradient buffers, dispatcher
    cuda.is_current_stream_capturing = _answers(False)  # schedules, MoE layers
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):  # logs
        setattr(cuda, name, _answers(0))
    cuda.nvtx.range_push, cuda.nvtx.range_pop = _answers(), _answers()  # marks for profilers


def _factories() -> None:
    """device="cuda" in schedules, clip_grads, optimizers, buffers and pipeline communication."""
    _device._device_constructors()  # remembers the functions that torch.device("meta") redirects: the original ones
    for name in _FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))


def _tensors(tensor: Any) -> None:
    tensor.cuda = lambda self, *arguments, **options: self  # batches, buffers
    torch.nn.Module.cuda = lambda self, *arguments, **options: self  # type: ignore[method-assign]  # Bridge's get_model
    tensor.record_stream = _answers()  # token dispatcher
    move, name_of = tensor.to, tensor.type

    def to(self: Any, *arguments: Any, **options: Any) -> Any:
        if arguments:
            arguments = (_here(arguments[0]), *arguments[1:])
        if "device" in options:
            options["device"] = _here(options["device"])
        return move(self, *arguments, **options)

    def type_(self: Any, *arguments: Any, **options: Any) -> Any:
        found = name_of(self, *arguments, **options)
        return found.replace("torch.", "torch.cuda.", 1) if isinstance(found, str) and "cuda" not in found else found

    tensor.to = to  # .to("cuda") and .to(current_device()) everywhere
    tensor.type = type_  # == "torch.cuda.FloatTensor" in clip_grads, optimizer, distrib_optimizer
