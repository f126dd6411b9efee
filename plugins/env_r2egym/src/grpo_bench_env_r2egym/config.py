"""Settings of the environment's section in a profile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from grpo_bench.contract import Settings
from grpo_bench_sandbox import Limits
from pydantic import AfterValidator, Field

Place = Annotated[Path, AfterValidator(lambda path: path.expanduser())]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


class Expected(Settings):
    bytes: Annotated[int, Field(ge=1, le=2**50, strict=True)]
    """Size of the file."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Hash of its content."""


class R2EGymConfig(Settings):
    train: Place
    """File of the tasks to train on: one JSON object a line, in the benchmark's form or R2E-Gym's own; its order is
    kept. ``~`` is the home folder."""
    validation: Place
    """File of the tasks to validate with. No task may be in both."""
    train_expected: Expected | None = None
    """What the file of training tasks must be; None: whatever it is."""
    validation_expected: Expected | None = None
    """What the file of validation tasks must be; None: whatever it is."""
    images: Place
    """Folder with an image for each task: a SIF file, or a folder that is named after the task and has an
    image.toml."""
    backend: Literal["auto", "apptainer", "bwrap", "process"] = "auto"
    """What isolates; auto: the best that this machine has. ``process`` isolates nothing and is for trusted code."""
    grading: Literal["hardened", "r2e_exact"] = "hardened"
    """Whose verdict is the reward: that of a test run which the patch cannot steer, or R2E-Gym's own rule."""
    cross_check: bool = True
    """Grade in the other mode as well and count a disagreement as ``tampering``; doubles the cost of grading."""
    test_timeout_s: Seconds = 60.0
    """Seconds for the hidden tests; a patch with which they take longer has reward 0."""
    command_timeout_s: Seconds = 60.0
    """Seconds for each command of an agent that names no limit, and for what the environment itself runs around the
    tests, such as applying the patch."""
    parallel: Annotated[int, Field(ge=1, le=4096, strict=True)] = 64
    """Agents' sandboxes open at once per rollout worker; those beyond wait, and their wait counts as sandbox start.
    As many gradings at once as the machine has cores, and no more than this."""
    start_retries: Annotated[int, Field(ge=0, le=20, strict=True)] = 2
    """How often a sandbox that does not start is tried again before that is a failure of the environment."""
    limits: Limits = Limits()
    """What one sandbox may use."""
