"""What the environment of the engines has: called under its interpreter, returns JSON data, starts no engine.

``arguments`` describes every argument of vLLM's engine by ``types`` (``bool``, ``int``, ``float``, ``str``, ``list``,
``table``, ``none``), ``choices`` (None: any value of the types) and ``default`` (None also where it is made at run
time). That is read from annotations, so a plan can refuse an argument without importing vLLM.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import dataclasses
import enum
import platform
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

_PLAIN = {bool: "bool", int: "int", float: "float", str: "str", type(None): "none"}
_PACKAGES = ("vllm", "torch", "transformers", "triton", "safetensors", "numpy")


def take() -> dict[str, Any]:
    """Versions, device, engine arguments, weight transports, architectures, head sizes."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.model_executor.models.registry import ModelRegistry

    device = _device()
    return {
        "versions": _versions(),
        "device": device,
        "arguments": {field.name: describe_field(field) for field in dataclasses.fields(AsyncEngineArgs)},
        "weight_transfer": sorted(WeightTransferEngineFactory._registry),
        "architectures": sorted(ModelRegistry.get_supported_archs()),
        "head_sizes": _head_sizes() if device["type"] == "cpu" else None,
    }


def describe_field(field: dataclasses.Field[Any]) -> dict[str, Any]:
    """One engine argument as data."""
    kinds, choices = _read(field.type)
    default = field.default if isinstance(field.default, bool | int | float | str) else None
    return {"types": sorted(kinds), "choices": choices, "default": default.value if isinstance(default, enum.Enum)
            else default}


def _read(annotation: Any) -> tuple[set[str], list[Any] | None]:
    """Types and choices of an annotation. Choices end where plain text or another kind of value is fine as well."""
    if annotation in _PLAIN:
        return {_PLAIN[annotation]}, None
    origin = get_origin(annotation)
    if origin is Literal:
        values = list(get_args(annotation))
        return {_PLAIN[type(value)] for value in values}, values
    if origin in (Union, types.UnionType):
        return _union([_read(part) for part in get_args(annotation)])
    if origin in (list, set, tuple):
        return {"list"}, None
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _enumeration(annotation)
    if origin in (dict, Mapping) or annotation is dict or dataclasses.is_dataclass(annotation):
        return {"table"}, None
    return {"other"}, None


def _union(parts: list[tuple[set[str], list[Any] | None]]) -> tuple[set[str], list[Any] | None]:
    kinds = set[str]().union(*(kinds for kinds, _ in parts))
    chosen = [choice for _, choices in parts for choice in choices or ()]
    listed = set[str]().union(*(kinds for kinds, choices in parts if choices is not None))
    open_ended = set[str]().union(*(kinds for kinds, choices in parts if choices is None))
    return kinds, chosen if chosen and not listed & open_ended else None


def _enumeration(kind: type[enum.Enum]) -> tuple[set[str], list[Any] | None]:
    """By value where values are plain, else by name."""
    values = [member.value for member in kind]
    if all(type(value) in (int, str) for value in values) and len({type(value) for value in values}) == 1:
        names = [member.name for member in kind]
        choices = values if isinstance(values[0], int) else sorted({*values, *names})
        return {_PLAIN[type(values[0])]}, choices
    return {"str"}, [member.name for member in kind]


def _versions() -> dict[str, str]:
    """Of Python and of what matters to numbers; a package that is not there is left out."""
    from importlib import metadata

    found = {distribution.metadata["Name"].lower(): distribution.version for distribution in metadata.distributions()}
    import vllm

    return {"python": platform.python_version(), **{name: found[name] for name in _PACKAGES if name in found},
            "vllm": vllm.__version__}


def _device() -> dict[str, Any]:
    """``type`` (``cuda``, ``cpu``, or ``none`` where what vLLM was built for is not there), ``names``, and ``memory``
    in bytes: of each GPU, or of the whole machine."""
    import torch
    from vllm.platforms import current_platform

    if current_platform.is_cuda_alike() and (count := torch.cuda.device_count()):
        return {"type": "cuda", "names": [torch.cuda.get_device_name(index) for index in range(count)],
                "memory": [torch.cuda.get_device_properties(index).total_memory for index in range(count)]}
    return {"type": "cpu" if current_platform.is_cpu() else "none", "avx512": bool(torch.cpu._is_avx512_supported()),
            "names": [platform.processor() or platform.machine()], "memory": [_machine_memory()]}


def _machine_memory() -> int:
    import os

    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _head_sizes() -> list[int]:
    """Of attention heads that the CPU kernels know."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    return sorted(CPUAttentionBackend.get_supported_head_sizes())
