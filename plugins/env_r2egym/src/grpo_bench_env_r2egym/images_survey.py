"""Which tasks have an image here, and of which kind. Nothing of an image is read but image.toml."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from grpo_bench.contract import PlanError

from .images import TaskImage, find_image
from .rows import Place

_NAMED = 3
"""Missing images that are named; the others are counted."""


@dataclass(frozen=True)
class Survey:
    """The images of some tasks, by instance id; of those without one, ``broken`` says why, where there is half of
    one."""

    folder: Path
    found: dict[str, TaskImage] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    without: list[str] = field(default_factory=list)

    @property
    def kinds(self) -> dict[str, int]:
        """How many there are of each kind."""
        roots = [image.image.root for image in self.found.values()]
        return {root: roots.count(root) for root in dict.fromkeys(roots)}

    def lines(self) -> Iterator[str]:
        """What is missing."""
        if not self.folder.is_dir():
            yield f"images: no folder {self.folder}"
            return
        for instance_id, why in self.broken.items():
            yield f"image of {instance_id}: {why}"
        if self.without:
            yield (f"images: {self.folder} has none for {named(self.without)} "
                   "(`grpo-bench tasks images build` makes them)")


def survey(folder: Path, places: Iterable[Place]) -> Survey:
    """Look for the image of each task."""
    found = Survey(folder)
    if not folder.is_dir():
        return found
    for place in places:
        try:
            image = find_image(folder, place.instance_id, place.dataset)
        except PlanError as error:
            found.broken[place.instance_id] = str(error)
            continue
        if image is None:
            found.without.append(place.instance_id)
        else:
            found.found[place.instance_id] = image
    return found


def named(items: list[str]) -> str:
    """The first of many names, and how many more there are."""
    more = f" and {len(items) - _NAMED} more" if len(items) > _NAMED else ""
    return f"{', '.join(items[:_NAMED])}{more}"
