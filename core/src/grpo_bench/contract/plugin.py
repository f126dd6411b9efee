"""What an entry point names: a small descriptor, not the implementation.

The module that holds a descriptor imports pydantic and this package only; everything heavy is behind the
``module:function`` strings. ``capabilities`` are what negotiation at plan time reads.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from .fabric import Placement
from .roles import PolicyFacts, Role
from .settings import LimitSettings, LossSettings, SamplingSettings
from .values import Purpose

API_VERSION = 1


@dataclass(frozen=True)
class Capabilities:
    """What a plugin can do, as sets of names; which fields matter depends on the role.

    trainer: ``sends`` (transports), ``deterministic``. generator: ``receives`` (transports), ``sampling`` (parameters
    it honours away from their neutral value: ``temperature``, ``top_p``, ``top_k``, ``min_p``, penalties), ``refit``
    (``drain``, ``keep``), ``deterministic``. environment: ``splits`` (its task lists), ``prompt`` (keys of
    Task.prompt), ``sandbox`` (``exec``, ``spawn``, ``files``). agent: ``prompt`` and ``sandbox`` it needs, ``form``
    (``in_process`` or ``program``). fabric: ``hosts``, whether it starts workers on the hosts that a placement names.
    Any part with workers: ``one_host``, whether they have to share a host.

    ``computes`` says whose log-probabilities a trainer or generator gives: ``policy`` those of the profile's policy,
    any other name those of something else. Only where trainer and generator say the same are they compared.

    ``lacking`` says of what the plugin can do elsewhere why it cannot here, by name; see ``Plugin.narrow``.
    """

    sends: frozenset[str] = frozenset()
    receives: frozenset[str] = frozenset()
    sampling: frozenset[str] = frozenset()
    refit: frozenset[str] = frozenset()
    splits: frozenset[str] = frozenset()
    prompt: frozenset[str] = frozenset()
    sandbox: frozenset[str] = frozenset()
    form: str = "in_process"
    deterministic: bool = False
    hosts: bool = False
    one_host: bool = False
    computes: str = "policy"
    lacking: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkerEnv:
    """An environment of its own for a plugin's workers, whose libraries do not fit beside the engine's.

    ``lock`` (``package/file``) is a resource that says how it is built. ``inventory`` (``module:function``) is called
    without arguments under the environment's interpreter and returns JSON data: versions, devices, whatever a plan has
    to know about it. Of the plugin, workers and inventory find the package of that function only.
    """

    name: str
    lock: str
    inventory: str


@dataclass(frozen=True)
class Site:
    """Where and for what a plugin will work, when a plan asks it to describe itself. ``placement`` is the role's own,
    empty for roles that have none; ``interpreter`` is None where its workers run under the engine's; ``inventory`` is
    what its environment said of itself; ``machine`` is what the hardware did. Where something of these is missing, the
    plan asks all the same, to show what else is: then ``policy`` has a vocabulary of 0, or ``inventory`` is empty."""

    policy: PolicyFacts
    placement: Placement
    interpreter: str | None
    inventory: Mapping[str, Any]
    sampling: Mapping[Purpose, SamplingSettings]
    loss: LossSettings
    deterministic: bool
    limits: LimitSettings = field(default_factory=LimitSettings)
    machine: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast runs like one were elsewhere, in seconds: from the start to the first step (``start_s``), the first step
    and each later one, a checkpoint of weights, and a validation, each as least and most. ``wall_s`` is how long such
    runs were given in all, 0 where nobody says; ``source`` says where all this is from."""

    start_s: tuple[float, float]
    first_step_s: tuple[float, float]
    step_s: tuple[float, float]
    checkpoint_s: tuple[float, float]
    validation_s: tuple[float, float]
    wall_s: float
    source: str


class FileDigests(Protocol):
    """Hashes of files: many at once, with progress, and from a cache where path, size and time of change are known."""

    def __call__(self, files: Sequence[Path], algorithm: str = "sha256") -> Mapping[Path, str]:
        """Hex digest of each file; OSError where one cannot be read."""
        ...


@dataclass(frozen=True)
class PreflightContext:
    """What a plugin may look at before a run. ``site`` is what ``describe`` gets; ``settings`` the resolved profile as
    JSON data, ``facts`` what each part said about itself, by role; ``provenance`` what software a run would be made of;
    ``runs`` the folder that would hold its run folder; ``say`` shows one line of progress."""

    site: Site
    settings: Mapping[str, Any]
    facts: Mapping[str, Mapping[str, Any]]
    provenance: Mapping[str, Any]
    runs: Path
    digests: FileDigests
    say: Callable[[str], None]


@dataclass(frozen=True)
class Plugin:
    """A plugin's descriptor.

    ``factory`` (``module:function``) takes a PluginContext and returns the role object; every role but the agent's has
    one. ``client`` (generators only) takes a list of Remotes, one per engine, and returns a GeneratorClient inside a
    rollout worker. Environments and agents are made inside rollout workers by ``worker_factory`` from
    ``(config, WorkerContext)``; an environment's ``factory`` object only lists tasks. ``env`` is the environment
    of its workers; None: the engine's own. ``envs`` are others that they can run in, such as one for GPUs: ``env`` in
    the role's section names one. ``narrow`` (optional) takes config and inventory and returns what is left of
    ``capabilities`` then, with the reasons in ``lacking``. ``describe`` (optional) takes config and :class:`Site` and
    returns facts for the plan, such as the isolation in force, or raises PlanError where the plugin could not work
    there: Missing, with all of it, where only the machine lacks what the settings ask for. A trainer's facts say what
    it computes in MLLOG's words (``opt_name``, ``tensor_parallelism``, ``micro_batch_size``...; see docs/mllog.md).
    ``pace`` (rulesets, optional) takes the resolved profile as JSON data and returns the :class:`Pace` that was
    measured for such a run elsewhere, or None. ``needs`` (trainers and generators, optional) takes config and returns
    the Need of its workers; without it they need what ``config.workers`` says. ``preflight`` (optional) takes config
    and :class:`PreflightContext` and yields Findings about this machine, however long that takes. ``judge`` (rulesets,
    optional) takes the path of something that is no run folder, such as a log, and returns Findings about it, or None
    where it knows no such thing.
    ``policy`` (generators that are stand-ins, and no others; optional) makes what stands in the place of the core's
    policy in rollout workers, for replies that are no text: called with ``({"generator": config}, client, clock)``.
    ``stand_in`` is True for mocks and modelled parts. ``known_failures`` are demands of the conformance kit that it is
    known not to meet, each with the reason.
    """

    name: str
    role: Role
    summary: str
    config: type[Any]
    factory: str = ""
    api: int = API_VERSION
    capabilities: Capabilities = field(default_factory=Capabilities)
    client: str | None = None
    policy: str | None = None
    worker_factory: str | None = None
    env: WorkerEnv | None = None
    envs: tuple[WorkerEnv, ...] = ()
    narrow: str | None = None
    describe: str | None = None
    needs: str | None = None
    preflight: str | None = None
    judge: str | None = None
    pace: str | None = None
    requires: tuple[str, ...] = ()
    supports: Mapping[str, str] = field(default_factory=dict)
    stand_in: bool = False
    known_failures: Mapping[str, str] = field(default_factory=dict)


def load_object(spec: str) -> Any:
    """The object that ``module:name`` names."""
    module, _, name = spec.partition(":")
    if not name:
        raise ValueError(f"{spec!r} is not of the form module:name")
    return getattr(importlib.import_module(module), name)
