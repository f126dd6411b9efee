"""Placement on one machine.

Trainer, generator and rollout workers take turns on the same cores, so each role may have a worker on every core. Its
GPUs are shared out between trainer and generator as those of a cluster of one node are, where there are enough for all
that they ask for; where there are fewer, everybody uses all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from grpo_bench.contract import LaunchForm, Need, Placement, PluginContext
from grpo_bench_hw_cluster import GENERATOR, TRAINER, Cluster, Domain, lay_out, reproducible

from ._plugin import LocalConfig
from .machine import available_cores, facts

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
        gpus = self._gpus({role: replace(need, workers=counts[role]) for role, need in needs.items()})
        return {role: Placement(workers=count, threads=config.threads, gpus=gpus.get(role, 0), env=env)
                for role, count in counts.items()}

    def _gpus(self, needs: Mapping[str, Need]) -> Mapping[str, int]:
        """GPUs of each worker of those who ask for some and have them for themselves."""
        asking = {role: needs[role] for role in (TRAINER, GENERATOR) if role in needs and needs[role].gpus}
        there = self._machine.get("gpus", 0)
        if not asking or sum(need.workers * need.gpus for need in asking.values()) > there:
            return {}
        layout = lay_out(asking, Cluster((Domain("here", ("here",)),), there))
        return {role: len(workers[0]) for role, workers in layout.places.items()}

    def form(self) -> LaunchForm:
        return LaunchForm(gpus=self._machine.get("gpus", 0), env=self._kernels)


def create(context: PluginContext) -> LocalHardware:
    """The factory."""
    return LocalHardware(context.config, deterministic=context.deterministic)
