"""Placement on one machine.

Trainer, generator and rollout workers take turns on the same cores, so each role may have a worker on every core.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo_bench.contract import LaunchForm, Need, Placement, PluginContext

from ._plugin import LocalConfig
from .machine import available_cores, facts, reproducible

MOST_WORKERS = 4
"""Workers that are started unasked; tiny policies gain little from more."""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class LocalHardware:
    """This machine."""

    def __init__(self, config: LocalConfig, *, deterministic: bool) -> None:
        self._config = config
        self._kernels = reproducible() if deterministic else {}
        self._machine = facts()

    def describe(self) -> Mapping[str, Any]:
        return {**self._machine, "available_cores": available_cores(self._machine)}

    def place(self, needs: Mapping[str, Need]) -> Mapping[str, Placement]:
        """What a plugin wants comes first, then this section's number, then what suits the machine."""
        config = self._config
        suits = max(1, min(available_cores(self._machine) // config.threads, MOST_WORKERS))
        counts = {role: need.workers or {"trainer": config.trainer, "generator": config.generator}.get(role, 0) or suits
                  for role, need in needs.items()}
        if "generator" in needs and needs.get("rollout", Need(1)).workers == 0:
            counts["rollout"] = counts["generator"]
        env = {**dict.fromkeys(_THREAD_VARIABLES, str(config.threads)), "TOKENIZERS_PARALLELISM": "false",
               **self._kernels}
        return {role: Placement(workers=count, threads=config.threads, env=env) for role, count in counts.items()}

    def form(self) -> LaunchForm:
        return LaunchForm(gpus=self._machine.get("gpus", 0), env=self._kernels)


def create(context: PluginContext) -> LocalHardware:
    """The factory."""
    return LocalHardware(context.config, deterministic=context.deterministic)
