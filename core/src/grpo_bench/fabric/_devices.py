"""GPUs of this machine as CUDA names them, handed out to worker processes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Sequence

from grpo_bench.contract import PlanError

_VARIABLE = "CUDA_VISIBLE_DEVICES"


def free_devices(count: int, taken: Collection[str]) -> Sequence[str]:
    """The first ``count`` GPUs that nobody has, of those that this process may use."""
    allowed = os.environ.get(_VARIABLE)
    names = map(str, itertools.count()) if allowed is None else filter(None, map(str.strip, allowed.split(",")))
    found = list(itertools.islice((name for name in names if name not in taken), count))
    if len(found) < count:
        raise PlanError(f"a worker needs {count} GPUs, and {len(found)} of those in {_VARIABLE}={allowed} are left")
    return found


def devices_variable(devices: Sequence[str]) -> dict[str, str]:
    """What confines a process to these GPUs; nothing where it shares all."""
    return {_VARIABLE: ",".join(devices)} if devices else {}
