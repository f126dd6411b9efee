"""Which plugins are installed, from package metadata alone.

Nothing is imported, not even the contract, so that listing is quick and a broken plugin cannot hurt it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import distributions

ROLES = ("trainer", "generator", "environment", "agent", "hardware", "fabric", "ruleset", "observer")
"""As in :class:`grpo_bench.contract.Role`."""
GROUP = "grpo_bench."
CORE = "grpo-bench"
"""The distribution that this package belongs to."""


@dataclass(frozen=True, order=True)
class Installed:
    """One entry point. ``value`` is the ``module:object`` that holds the plugin's descriptor."""

    role: str
    name: str
    distribution: str
    version: str
    summary: str
    value: str

    @property
    def module(self) -> str:
        return self.value.partition(":")[0].strip()


def installed_plugins() -> tuple[Installed, ...]:
    """All entry points of all roles, by role and name. One name may appear twice: see :func:`duplicates`."""
    found = entry_points({GROUP + role: role for role in ROLES})
    return tuple(sorted(found, key=lambda item: (ROLES.index(item.role), item.name, item.distribution)))


def entry_points(groups: Mapping[str, str]) -> list[Installed]:
    """All entry points of these groups, each with what its group stands for as its role. Of a distribution that is
    found twice, the first counts."""
    found: list[Installed] = []
    seen: set[str] = set()
    for distribution in distributions():
        try:
            brought = [Installed(groups[point.group], point.name, distribution.metadata["Name"], distribution.version,
                                 next(iter(distribution.metadata.get_all("Summary", [])), ""), point.value)
                       for point in distribution.entry_points if point.group in groups]
        except (TypeError, ValueError, AttributeError, OSError):
            continue  # metadata that cannot be read: whatever it is, it brings nothing
        if brought and brought[0].distribution not in seen:
            seen.add(brought[0].distribution)
            found += brought
    return found


def duplicates(plugins: Iterable[Installed]) -> dict[tuple[str, str], tuple[str, ...]]:
    """Role and name of every plugin that more than one distribution brings, with those distributions."""
    owners: dict[tuple[str, str], list[str]] = {}
    for plugin in plugins:
        owners.setdefault((plugin.role, plugin.name), []).append(plugin.distribution)
    return {key: tuple(names) for key, names in owners.items() if len(names) > 1}
