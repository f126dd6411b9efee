"""What a system description can take from the machine that this process runs on.

Counts and sizes come from ``lscpu``, the kernel and, where there is one, NVIDIA's driver. What none of them tells is
not in the answer; nothing is guessed. The machine that is asked should be one of those that did the work.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

Ask = Callable[[Sequence[str]], str]
"""Runs a command and returns what it wrote; nothing where it is not there or fails."""
_ANSWER_S = 30.0
_LSCPU = {"host_processors_per_node": "Socket(s)", "host_processor_model_name": "Model name",
          "host_processor_core_count": "Core(s) per socket", "host_processor_vcpu_count": "CPU(s)"}
_CACHES = ("L1d", "L1i", "L2", "L3")
_GPU = "--query-gpu=name,memory.total,clocks.max.sm,driver_version"


def asked(command: Sequence[str]) -> str:
    """The answer of a command of this machine."""
    try:
        done = subprocess.run([*command], capture_output=True, text=True, errors="replace", timeout=_ANSWER_S,
                              check=False, stdin=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C"})
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def from_host(root: Path = Path("/"), ask: Ask = asked) -> dict[str, str]:
    """Field -> text, of what is known. A machine is one node; a site file says how many of them there are."""
    gpus = _gpus(ask)
    return {"number_of_nodes": "1", **_processors(ask), **_memory(root), **_accelerators(gpus),
            **_software(root, gpus)}


def _processors(ask: Ask) -> dict[str, str]:
    said = dict(_entries(ask(["lscpu", "-J"])))
    found = {field: said.get(name, "") for field, name in _LSCPU.items()}
    if (highest := said.get("CPU max MHz", "")).replace(".", "", 1).isdigit():
        found["host_processor_frequency"] = f"{float(highest) / 1000:.2f} GHz"
    found["host_processor_caches"] = ", ".join(f"{name}: {size}" for name in _CACHES if (size := said.get(name, "")))
    return {name: text for name, text in found.items() if text not in ("", "-")}


def _entries(answer: str) -> Iterator[tuple[str, str]]:
    """``lscpu -J`` nests its entries in some versions, under other names."""
    def walk(items: Any) -> Iterator[tuple[str, str]]:
        for item in items:
            yield item["field"].removesuffix(":").removesuffix(" cache"), item.get("data") or ""
            yield from walk(item.get("children", ()))

    yield from walk(json.loads(answer)["lscpu"] if answer else ())


def _memory(root: Path) -> dict[str, str]:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return {"host_memory_capacity": f"{int(line.split()[1]) / 2**20:.0f} GiB"}
    return {}


def _gpus(ask: Ask) -> list[list[str]]:
    answer = ask(["nvidia-smi", _GPU, "--format=csv,noheader,nounits"])
    return [[cell.strip() for cell in line.split(",")] for line in answer.splitlines() if line.count(",") == 3]


def _accelerators(gpus: Sequence[Sequence[str]]) -> dict[str, str]:
    if not gpus:
        return {}
    names, memories, clocks, _ = (list(dict.fromkeys(column)) for column in zip(*gpus, strict=True))
    found = {"accelerators_per_node": str(len(gpus)), "accelerator_model_name": ", ".join(names)}
    if all(text.isdigit() for text in memories):
        found["accelerator_memory_capacity"] = ", ".join(f"{int(text) / 1024:.0f} GiB" for text in memories)
    if all(text.isdigit() for text in clocks):
        found["accelerator_frequency"] = ", ".join(f"{text} MHz" for text in clocks)
    return found


def _software(root: Path, gpus: Sequence[Sequence[str]]) -> dict[str, str]:
    stack = [f"Python {platform.python_version()}", f"grpo-bench {version('grpo-bench')}"]
    stack += [f"NVIDIA driver {driver}" for driver in dict.fromkeys(row[3] for row in gpus)]
    found = {"other_software_stack": ", ".join(stack)}
    for line in _text(root / "etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            name = line.partition("=")[2].strip('"')
            found["operating_system"] = f"{name}, {platform.system()} {platform.release()}"
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""
