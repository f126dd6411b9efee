"""What one sandbox may use."""

from __future__ import annotations

from typing import Annotated

from grpo_bench.contract import Settings
from pydantic import Field

Megabytes = Annotated[int, Field(ge=1, le=2**20, strict=True)]


class Limits(Settings):
    """Bounds of one sandbox, each held by whatever this machine has for it; `grpo-bench sandbox check` shows which."""

    memory_mb: Megabytes = 4096
    """Memory of all its processes and of the files it writes, in MiB; where cgroups are not permitted, address space of
    each process."""
    pids: Annotated[int, Field(ge=8, le=2**20, strict=True)] = 512
    """Processes and threads at once."""
    cpu_s: Annotated[int, Field(ge=1, le=86_400, strict=True)] = 1800
    """CPU seconds of each process."""
    file_mb: Megabytes = 256
    """Size of each file, in MiB."""
    scratch_mb: Megabytes = 1024
    """All files it writes together, in MiB; they are held in memory."""
    shm_mb: Megabytes = 64
    """/dev/shm of each command, in MiB."""
    open_files: Annotated[int, Field(ge=32, le=2**20, strict=True)] = 1024
    """Open files of each process."""
    output_bytes: Annotated[int, Field(ge=1024, le=2**30, strict=True)] = 2**20
    """Output of one command that is kept, per stream; the rest is read and dropped."""
    grace_s: Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)] = 2.0
    """Seconds between SIGTERM and SIGKILL for a command that took too long."""
