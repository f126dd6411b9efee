"""What this process may use: cores, CPU quota, memory, as the kernel says it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

UNLIMITED_V1 = 2**60
"""cgroup v1 writes a number near 2**63 for a memory limit that is none."""


def facts(root: Path = Path("/")) -> dict[str, Any]:
    """The machine for plan and provenance; None where the kernel does not tell."""
    memory, limit, gpus = _total_memory(root), memory_limit(root), gpu_count(root)
    return {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu": _cpu_model(root),
        "cores": os.cpu_count() or 1,
        "usable_cores": _affinity(),
        "cpu_quota": cpu_quota(root),
        "memory_bytes": min((value for value in (memory, limit) if value is not None), default=None),
        **({"gpus": gpus} if gpus else {}),
    }


def available_cores(machine: Mapping[str, Any]) -> int:
    """Whole cores that can be busy at once: affinity, and below it a container's quota."""
    quota = machine["cpu_quota"]
    return max(1, machine["usable_cores"] if quota is None else min(machine["usable_cores"], int(quota)))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """CPUs that the tightest control group around this process grants; None: no limit."""
    limits: list[float] = []
    for group in _groups(root, ""):
        quota, _, period = _text(group / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit():
            limits.append(int(quota) / int(period))
    for group in _groups(root, "cpu"):
        quota, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def gpu_count(root: Path = Path("/")) -> int:
    """NVIDIA GPUs that the driver has made devices for, used or not."""
    return sum(device.name.removeprefix("nvidia").isdigit() for device in root.glob("dev/nvidia*"))


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that the tightest control group grants; None: no limit."""
    files = [group / "memory.max" for group in _groups(root, "")]
    files += [group / "memory.limit_in_bytes" for group in _groups(root, "memory")]
    limits = [int(text) for file in files if (text := _text(file)).isdigit()]
    return min((limit for limit in limits if limit < UNLIMITED_V1), default=None)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """This process's control group and those around it; ``controller`` is empty for the unified hierarchy (v2)."""
    mount = root / "sys/fs/cgroup" / controller
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            group = mount / path.lstrip("/")
            yield group
            yield from (around for around in group.parents if around.is_relative_to(mount))


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _total_memory(root: Path) -> int | None:
    found = [line.split()[1] for line in _text(root / "proc/meminfo").splitlines() if line.startswith("MemTotal:")]
    return int(found[0]) * 1024 if found else None


def _cpu_model(root: Path) -> str:
    lines = _text(root / "proc/cpuinfo").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8").strip()
    except OSError:
        return ""
