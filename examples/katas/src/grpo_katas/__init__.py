"""The descriptor of the environment ``katas`` and its settings. It imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from grpo_bench.contract import Capabilities, Plugin, Role, Settings

Count = Annotated[int, Field(ge=1, strict=True)]
SAMPLE = Path(__file__).parent / "sample.jsonl"


class Config(Settings):
    tasks: Annotated[Path, AfterValidator(Path.absolute)] = SAMPLE
    """A file with one task per line; a relative path starts at the working directory."""
    cpu_s: Count = 1
    """CPU seconds of one child process, the limit that decides: it does not depend on the machine's load."""
    wall_s: Count = 30
    """Seconds of one child process, for code that waits instead of computing."""
    parallel: Count = 2
    """Child processes at once in one rollout worker; others wait."""


plugin = Plugin(
    name="katas",
    role=Role.ENVIRONMENT,
    summary="one expression to get right, graded by evaluating it",
    config=Config,
    factory="grpo_katas.environment:make",
    worker_factory="grpo_katas.environment:make_in_worker",
    describe="grpo_katas.environment:describe",
    capabilities=Capabilities(splits=frozenset({"train", "heldout"}),
                              prompt=frozenset({"statement", "path", "test_command"}),
                              sandbox=frozenset({"exec", "files"}), deterministic=True),
)

__all__ = ["Config", "plugin"]
