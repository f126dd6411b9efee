"""The plan: everything that is decided before anything starts.

A plan is made by :func:`grpo_bench.registry.make_plan` out of a resolved profile. The engine runs it, the CLI shows it,
the run folder keeps its JSON form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..contract import Finding, LaunchForm, Need, Placement, Plugin, PolicyFacts, Role, Task
from ..contract.hosts import Layout
from .estimate import Estimate
from .profile import Profile
from .resolved import Explained


@dataclass(frozen=True)
class Part:
    """A plugin in its role: ``descriptor``, its validated ``config``, the distribution it came from, and ``facts`` that
    it told about itself. The descriptor's capabilities are what config and environment leave of them. ``env`` is the
    environment of its workers, by name or path, with its ``interpreter`` and ``inventory``; empty for the engine's."""

    role: Role
    descriptor: Plugin
    config: Any
    distribution: str
    version: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    env: str = ""
    interpreter: str | None = None
    inventory: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.descriptor.name

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "summary": self.descriptor.summary, "distribution": self.distribution,
                "version": self.version, "stand_in": self.descriptor.stand_in, "facts": dict(self.facts),
                "env": self.env, "interpreter": self.interpreter,
                "lacking": dict(self.descriptor.capabilities.lacking)}


@dataclass(frozen=True)
class Plan:
    """What will run.

    ``parts`` has one part per role; a missing ruleset is simply absent. ``checkpoint`` is the policy with its folder
    found. ``transport`` carries weights from trainer to generator; ``incomparable`` says why their log-probabilities
    cannot be compared, and is empty where they can. ``varying`` says why a run that would be deterministic where its
    parts allow is not, and is empty otherwise. ``tasks`` maps the splits that train and validate to the environment's
    lists of them, as long as the environment has them. ``needs`` and ``placements`` map trainer, generator and rollout
    to what their workers ask for and where they sit, ``form`` what a scheduler has to give. ``resolved`` is the whole
    profile as JSON data, defaults of the core and of every plugin written out. ``unscored`` lists why the run cannot
    count as a result; it is scored where that list is empty. ``estimate`` is how long it may take, None where nobody
    knows how fast such a run is.

    ``modelled`` says where the times of a simulation are from, and is empty for what runs. Nothing but times means
    anything in one: its rollouts are not kept, and its reports leave out rewards, losses and accuracy. ``passes_at`` is
    the first step whose weights it takes to meet the target.

    ``missing`` says what this machine lacks for it and is empty in all that :func:`make_plan` returns. Where it is not,
    tasks, placements and facts are those that could be had, and a checkpoint that is not here has a vocabulary of 0.
    """

    name: str
    profile: Profile
    seed: int
    parts: Mapping[Role, Part]
    observers: tuple[Part, ...]
    checkpoint: PolicyFacts
    transport: str
    incomparable: str
    varying: str
    tasks: Mapping[str, Sequence[Task]]
    needs: Mapping[str, Need]
    placements: Mapping[str, Placement]
    hardware: Mapping[str, Any]
    form: LaunchForm
    resolved: Mapping[str, Any]
    explained: tuple[Explained, ...]
    provenance: Mapping[str, Any]
    findings: tuple[Finding, ...]
    unscored: tuple[str, ...]
    estimate: Estimate | None = None
    modelled: str = ""
    passes_at: int | None = None
    missing: tuple[str, ...] = ()

    @property
    def layout(self) -> Layout:
        """Who sits where, as far as placements name hosts."""
        return Layout(self.placements, self.needs, self.hardware.get("domains", {}))

    def source(self, key: str) -> Explained | None:
        """Where the value at a dotted ``key`` comes from: its own entry, else the first inside it, else the one
        around it; None where the profile has no such place."""
        around = [key.rsplit(".", cut)[0] for cut in range(key.count(".") + 1)] if key else []
        for place in around:
            inside = (item for item in self.explained if item.key == place or item.key.startswith((f"{place}.",
                                                                                                   f"{place}[")))
            if found := next(inside, None):
                return found
        return None

    @property
    def scored(self) -> bool:
        return not self.unscored

    @property
    def deterministic(self) -> bool:
        """Whether equal seeds give equal runs."""
        return self.profile.deterministic is True

    @property
    def rollouts_beside_engines(self) -> bool:
        """Whether rollout workers share the processes of the generator's engines. Those of an environment of its own
        cannot be shared; there each engine gets a rollout worker in a process of its own."""
        return self.profile.rollout.workers == 0 and self.parts[Role.GENERATOR].interpreter is None

    @property
    def training_tasks(self) -> Sequence[Task]:
        return self.tasks[self.profile.grpo.split]

    @property
    def validation_tasks(self) -> Sequence[Task]:
        """The first ``validation.max_tasks`` of its split."""
        return self.tasks[self.profile.validation.split][:self.profile.validation.max_tasks]

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON data."""
        layout = self.layout
        return {
            "name": self.name,
            "seed": self.seed,
            "scored": self.scored,
            "unscored": list(self.unscored),
            "missing": list(self.missing),
            "profile": dict(self.resolved),
            "parts": {role.value: part.to_json() for role, part in self.parts.items()},
            "observers": [part.to_json() for part in self.observers],
            "policy": {"checkpoint": str(self.checkpoint.checkpoint), "max_context": self.checkpoint.max_context,
                       "vocab_size": self.checkpoint.vocab_size},
            "transport": self.transport,
            "incomparable": self.incomparable,
            "varying": self.varying,
            "tasks": dict(self.provenance["tasks"]),
            "needs": {name: asdict(need) for name, need in self.needs.items()},
            "placements": {name: asdict(placement) for name, placement in self.placements.items()},
            "hardware": dict(self.hardware),
            "form": asdict(self.form),
            "layout": asdict(layout.picture()),
            "ranks": [asdict(seat) for seat in layout.seats()],
            "spans": [asdict(span) for span in layout.spans()],
            "findings": [{**asdict(finding), "origin": str(found.origin) if (found := self.source(finding.key)) else
                          None} for finding in self.findings],
            "estimate": self.estimate.to_json() if self.estimate else None,
            "provenance": dict(self.provenance),
        }
