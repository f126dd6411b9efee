"""What a plan should know: isolation, tasks, and everything that is missing here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo_bench.contract import Missing, PlanError, Site
from grpo_bench_sandbox import Backend, backend

from . import files, rows
from .config import R2EGymConfig
from .images import find_image
from .rows import Index

_NAMED = 3
"""Missing images that are named; the others are counted."""


def describe(config: R2EGymConfig, site: Site) -> Mapping[str, Any]:
    """Facts for the plan. PlanError where a file of tasks is wrong or time limits cannot hold, Missing with all that
    this machine lacks."""
    modes = 2 if config.cross_check else 1
    if config.test_timeout_s * modes > site.limits.score_s:
        raise PlanError(f"limits.score_s is {site.limits.score_s:g} s, and {modes} runs of the tests may take "
                        f"{config.test_timeout_s:g} s each", hint="raise limits.score_s or lower test_timeout_s")
    missing = files.absent(config)
    indices = {split: files.index(config, split) for split in files.SPLITS if getattr(config, split).is_file()}
    if not missing:
        rows.check_overlap(indices["train"], indices["validation"])
    images = _images(config, indices, missing)
    chosen = _backend(config, missing)
    if missing:
        raise Missing("the environment r2egym lacks something on this machine", items=missing)
    assert chosen is not None
    return {
        "backend": chosen.name, **chosen.facts(config.limits), "grading": config.grading,
        "cross_check": config.cross_check, "images": images, "sandboxes at once": config.parallel,
        "tasks": {split: {"file": str(index.path), "tasks": len(index.places), "bytes": index.size,
                          "sha256": index.sha256} for split, index in indices.items()},
    }


def _images(config: R2EGymConfig, indices: Mapping[str, Index], missing: list[str]) -> dict[str, int]:
    """How many tasks have an image of which kind."""
    if not config.images.is_dir():
        missing.append(f"images: no folder {config.images}")
        return {}
    kinds: dict[str, int] = {}
    without: list[str] = []
    for index in indices.values():
        for place in index.places:
            try:
                image = find_image(config.images, place.instance_id, place.dataset)
            except PlanError as error:
                missing.append(f"image of {place.instance_id}: {error}")
                continue
            if image is None:
                without.append(place.instance_id)
            else:
                kinds[image.image.root] = kinds.get(image.image.root, 0) + 1
    if without:
        more = f" and {len(without) - _NAMED} more" if len(without) > _NAMED else ""
        missing.append(f"images: {config.images} has none for {', '.join(without[:_NAMED])}{more} "
                       "(`grpo-bench tasks images build` makes them)")
    return kinds


def _backend(config: R2EGymConfig, missing: list[str]) -> Backend | None:
    try:
        return backend(config.backend)
    except Missing as error:
        missing += [str(error)] if error.items == (error.message,) else error.items
        return None
