"""What the environment of the ranks has: called under its interpreter, returns JSON data.

Fields of Megatron's configuration objects are read from its source files, not from the classes: importing Megatron
takes long, and without CUDA it takes more than an import. The same goes for the architectures that Bridge converts.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import ast
import os
import platform
import re
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_PACKAGES = ("megatron-core", "megatron-bridge", "torch", "transformers", "transformer-engine", "triton",
             "flash-attn", "flash-linear-attention")
_FEATURES = {"transformer_engine": "transformer_engine", "apex": "fused_weight_gradient_mlp_cuda", "deep_ep": "deep_ep",
             "flash_attention": "flash_attn", "flash_linear_attention": "fla"}
"""What a plan asks for, and the module that brings it."""
_CLASSES = {
    "model": (("core/model_parallel_config.py", "ModelParallelConfig"),
              ("core/transformer/transformer_config.py", "TransformerConfig"),
              ("bridge/models/gpt_provider.py", "GPTModelProvider")),
    "optimizer": (("core/optimizer/optimizer_config.py", "OptimizerConfig"),),
    "ddp": (("core/distributed/distributed_data_parallel_config.py", "DistributedDataParallelConfig"),),
}
_SOURCE = re.compile(r"register_bridge\(\s*source\s*=\s*[\"']?(\w+)")
_NAME = re.compile(r"^(_\w+)\s*=\s*[\"'](\w+)[\"']", re.MULTILINE)


def take() -> dict[str, Any]:
    """Versions, device, features, fields, architectures."""
    roots = _roots()
    return {
        "versions": _versions(roots),
        "device": _device(),
        "features": {name: find_spec(module) is not None for name, module in _FEATURES.items()},
        "fields": {kind: {name: field for file, of in classes for name, field in fields_of(_file(roots, file), of)}
                   for kind, classes in _CLASSES.items()},
        "architectures": sorted(architectures(roots)),
    }


def fields_of(file: Path, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Fields of a dataclass, from its source: type as written, default as data where it is plain, else as written."""
    module = ast.parse(file.read_text("utf-8"))
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    yield item.target.id, {"type": ast.unparse(item.annotation), "default": _default(item.value)}


def architectures(roots: Sequence[Path]) -> Iterator[str]:
    """Names of HF model classes that Bridge has a conversion for."""
    for root in roots:
        for file in (root / "bridge" / "models").rglob("*_bridge.py"):
            text = file.read_text("utf-8")
            names = dict(_NAME.findall(text))
            for source in _SOURCE.findall(text):
                yield names.get(source, source)


def _default(value: ast.expr | None) -> Any:
    if value is None:
        return None
    try:
        found = ast.literal_eval(value)
    except ValueError:
        return ast.unparse(value)
    return found if isinstance(found, bool | int | float | str | None) and found != float("inf") else str(found)


def _roots() -> list[Path]:
    """Folders of the namespace package ``megatron``, whose parts may be installed in several places."""
    spec = find_spec("megatron")
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError("there is no package megatron; Megatron Core and Megatron Bridge are needed")
    return [Path(place) for place in spec.submodule_search_locations]


def _file(roots: Sequence[Path], name: str) -> Path:
    found = next((root / name for root in roots if (root / name).is_file()), None)
    if found is None:
        raise FileNotFoundError(f"megatron/{name} is not there; Megatron Core and Megatron Bridge are needed")
    return found


def _versions(roots: Sequence[Path]) -> dict[str, str]:
    """Of Python and of what matters to numbers; a package that is not there is left out."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            if name.startswith("megatron-"):  # a source tree on the path
                found[name] = _version_in(_file(roots, f"{name.removeprefix('megatron-')}/package_info.py"))
    return found


def _version_in(file: Path) -> str:
    numbers = dict(re.findall(r"^(MAJOR|MINOR|PATCH)\s*=\s*(\d+)", file.read_text("utf-8"), re.MULTILINE))
    return ".".join(numbers.get(part, "?") for part in ("MAJOR", "MINOR", "PATCH"))


def _device() -> dict[str, Any]:
    """``type``, ``names`` and ``memory`` in bytes: of each GPU, or of the whole machine for a CPU."""
    import torch

    if torch.cuda.is_available():
        devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        return {"type": "cuda", "names": [device.name for device in devices],
                "memory": [device.total_memory for device in devices]}
    return {"type": "cpu", "names": [platform.machine()],
            "memory": [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]}
