"""Settings of the environment's section in a profile."""

from __future__ import annotations

from typing import Annotated, Literal

from grpo_bench.contract import Settings
from pydantic import Field

Tasks = Annotated[int, Field(ge=1, le=100_000, strict=True)]
Seconds = Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)]


class MiniRepairConfig(Settings):
    train_tasks: Tasks = 512
    """Tasks of the split ``train``."""
    heldout_tasks: Tasks = 128
    """Tasks of the split ``heldout``, for validation; their structure never occurs in training."""
    final_tasks: Tasks = 128
    """Tasks of the split ``final``, to be reported once; nothing is tuned on them."""
    isolation: Literal["auto", "namespaces", "bubblewrap", "process"] = "auto"
    """How candidate code is shut in; auto: the first of the three that this machine permits."""
    parallel: Annotated[int, Field(ge=1, le=256, strict=True)] = 2
    """Fork servers per rollout worker, each with one run at a time."""
    cpu_s: Seconds = 0.1
    """CPU seconds of one run, the limit that decides: CPU time does not depend on the machine's load."""
    wall_s: Seconds = 30.0
    """Wall seconds of one run, for code that waits instead of computing; far above what a busy machine needs."""
    memory_mb: Annotated[int, Field(ge=64, le=65536, strict=True)] = 256
    """Address space of one run in MiB, the interpreter's own 20 included."""
    output_bytes: Annotated[int, Field(ge=1024, le=2**24, strict=True)] = 65536
    """Output of one run, per stream; more of it ends the run."""
