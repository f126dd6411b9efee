"""Puts the repository's registry.toml into the distribution.

It lives at the repository's root, outside this folder, and is the only copy: a source distribution carries it at its
own root, a wheel inside the package. An editable install reads it in place.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "registry.toml"


class RegistryHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the registry to whatever is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        places = [Path(self.root, NAME), Path(self.root).parent / NAME]
        registry = next(place for place in places if place.is_file())
        if self.target_name == "sdist":
            build_data["force_include"][str(registry)] = NAME
        elif version != "editable":
            build_data["force_include"][str(registry)] = f"grpo_bench/{NAME}"
