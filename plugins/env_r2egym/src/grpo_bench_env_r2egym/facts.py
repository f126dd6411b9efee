"""What a plan should know: isolation, tasks, and everything that is missing here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo_bench.contract import Missing, PlanError, Site
from grpo_bench_sandbox import Backend, backend

from . import files, rows
from .config import R2EGymConfig
from .images_survey import survey
from .rows import Index


def describe(config: R2EGymConfig, site: Site) -> Mapping[str, Any]:
    """Facts for the plan. PlanError where a file of tasks is wrong or time limits cannot hold, Missing with all that
    this machine lacks and the facts that are known all the same."""
    modes = 2 if config.cross_check else 1
    if config.test_timeout_s * modes > site.limits.score_s:
        raise PlanError(f"limits.score_s is {site.limits.score_s:g} s, and {modes} runs of the tests may take "
                        f"{config.test_timeout_s:g} s each", hint="raise limits.score_s or lower test_timeout_s")
    missing = files.absent(config)
    indices = _indices(config, missing)
    if len(indices) == len(files.SPLITS):
        rows.check_overlap(indices["train"], indices["validation"])
    images = survey(config.images, (place for index in indices.values() for place in index.places))
    missing += images.lines()
    chosen = _backend(config, missing)
    facts = {
        **({"backend": chosen.name, **chosen.facts(config.limits)} if chosen else {}), "grading": config.grading,
        "cross_check": config.cross_check, "images": images.kinds, "sandboxes at once": config.parallel,
        "tasks": {split: {"file": str(index.path), "tasks": len(index.places), "bytes": index.size,
                          "sha256": index.sha256} for split, index in indices.items()},
    }
    if missing:
        raise Missing("the environment r2egym lacks something on this machine", items=missing, facts=facts)
    return facts


def _indices(config: R2EGymConfig, missing: list[str]) -> dict[str, Index]:
    """The files that are here, and are the ones they should be."""
    found: dict[str, Index] = {}
    for split in files.SPLITS:
        if getattr(config, split).is_file():
            try:
                found[split] = files.index(config, split)
            except Missing as error:
                missing += error.items
    return found


def _backend(config: R2EGymConfig, missing: list[str]) -> Backend | None:
    try:
        return backend(config.backend)
    except Missing as error:
        missing += [str(error)] if error.items == (error.message,) else error.items
        return None
