"""Modules of Megatron that import, unguarded, packages which an installation may lack.

Each gets a stand-in for the length of its own import only, so that every other module still finds the package missing
and takes its path without it. Where the package is there, nothing changes.
"""

from __future__ import annotations

import importlib.util
import sys
import types
import typing
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

import torch
import typing_extensions


class _Nothing(torch.nn.Module):
    """Named in annotations and by isinstance() only."""


def _transformer_engine() -> dict[str, types.ModuleType]:
    names = ("transformer_engine", "transformer_engine.pytorch", "transformer_engine.pytorch.ops")
    package, pytorch, operations = modules = [types.ModuleType(name) for name in names]
    package.__path__ = []
    vars(package)["pytorch"], vars(pytorch)["ops"] = pytorch, operations
    for module in modules[1:]:
        vars(module)["__getattr__"] = lambda name: _Nothing
    return {module.__name__: module for module in (package, pytorch)}


def _triton() -> dict[str, types.ModuleType]:
    package, language = types.ModuleType("triton"), types.ModuleType("triton.language")
    package.__path__ = []
    vars(package).update(language=language, jit=lambda kernel=None, **options: kernel or (lambda later: later))
    vars(language)["constexpr"] = object
    return {module.__name__: module for module in (package, language)}


_LACKING: dict[str, tuple[str, Callable[[], dict[str, types.ModuleType]]]] = {
    "megatron.core.transformer.moe.ops.paged_stash": ("triton", _triton),
    "megatron.bridge.peft.lora_layers": ("transformer_engine", _transformer_engine),
}


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname not in _LACKING:
            return None
        package, stand_ins = _LACKING[fullname]
        spec = PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None or importlib.util.find_spec(package) is not None:
            return spec
        execute = spec.loader.exec_module

        def among_stand_ins(module: types.ModuleType) -> None:
            lent = stand_ins()
            sys.modules.update(lent)
            try:
                execute(module)
            finally:
                for name in lent:
                    del sys.modules[name]

        spec.loader.exec_module = among_stand_ins  # type: ignore[method-assign]
        return spec


def install() -> None:
    sys.meta_path.insert(0, _Finder())
    if not hasattr(typing, "override"):  # Megatron's hybrid models import it from typing, which has it since 3.12
        setattr(typing, "override", typing_extensions.override)  # noqa: B010
