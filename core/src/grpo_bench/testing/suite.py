"""What all suites share: how a demand becomes a test, which plugin it is about, and what every descriptor owes.

A demand is an ``async def test_...(self, rig)`` marked ``@demand``. Its docstring says what is demanded and why. The
rig is the plugin, made anew for each demand inside a :class:`~grpo_bench.testing.world.World`; a suite says with
``open`` what it consists of. A demand that does not apply skips itself and says why.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from ..contract import Plugin, Role, load_object
from ..registry.loading import check_requirements
from .world import World, configured, descriptor_of

HEAVY = ("jax", "megatron", "ray", "tensorflow", "torch", "transformers", "vllm")
"""What the module of a descriptor must not import: every plan and every ``plugins show`` would pay for it."""

Body = Callable[[Any, Any], Coroutine[Any, Any, None]]


def demand(body: Body) -> Callable[[Any, Any], None]:
    """Make a test of a demand: it runs on its rig's event loop, within its time."""
    @functools.wraps(body)
    def test(self: Any, rig: Any) -> None:
        rig.play(body(self, rig))

    return test


async def raised(work: Awaitable[Any]) -> Exception:
    """The exception that ``work`` ends with; which one is the plugin's choice, but there must be one."""
    try:
        result = await work
    except Exception as error:
        return error
    raise AssertionError(f"nothing was raised; the result is {result!r:.200}")


@dataclass
class Rig:
    """A plugin in its world. Suites add what their demands need."""

    world: World
    descriptor: Plugin
    config: Any
    runner: asyncio.Runner

    def play(self, work: Coroutine[Any, Any, None]) -> None:
        self.runner.run(self.world.within(work))

    def needs(self, promised: object, otherwise: str) -> None:
        """Skip the demand unless the plugin promised what it is about."""
        if not promised:
            pytest.skip(otherwise)

    def needs_determinism(self) -> None:
        self.needs(self.descriptor.capabilities.deterministic, "its capabilities do not promise determinism")


class Suite:
    """Base of all suites. A class that names a ``plugin`` is a test class; pytest wants its own name to begin with
    ``Test``."""

    role: ClassVar[Role]
    plugin: ClassVar[str] = ""
    """The name that the plugin's entry point has."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Its section of the profile: small numbers make demands quick."""
    fabric: ClassVar[str] = "inline"
    """The fabric that workers run on; ``local`` where they need processes of their own."""
    known_failures: ClassVar[Mapping[str, str]] = {}
    """Demands that the plugin is known not to meet, each with the reason, besides those that its descriptor names. One
    that is met after all fails, so that nobody forgets to take it off."""
    timeout_s: ClassVar[float] = 60.0
    """Seconds after which a demand is taken to hang."""
    checkpoint: ClassVar[Path | None] = None
    """A policy in HF form with the kit's vocabulary, for plugins that cannot use the kit's own."""
    env: ClassVar[str | None] = None
    """Where the plugin's workers run, as a profile would say it; None: in the environment that its descriptor names."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if unknown := sorted(set(cls.known_failures) - set(cls.demands())):
            raise TypeError(f"{cls.__name__}.known_failures: no demand {', '.join(unknown)}; there are "
                            f"{', '.join(cls.demands())}")

    @classmethod
    def demands(cls) -> tuple[str, ...]:
        """The names of all demands."""
        return tuple(name for name in dir(cls) if name.startswith("test_"))

    def open(self, world: World, rig: Rig) -> AbstractAsyncContextManager[Any]:
        """The rig that demands get, made from the plain one."""
        return _as_it_is(rig)

    @pytest.fixture
    def rig(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
        descriptor, _ = descriptor_of(self.role, self.plugin)
        known = {**descriptor.known_failures, **self.known_failures}
        if reason := known.get(request.function.__name__):
            request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
        with self.prepared(tmp_path) as rig:
            yield rig

    @contextmanager
    def prepared(self, folder: Path) -> Iterator[Any]:
        """The rig of one demand, with ``folder`` to work in."""
        descriptor, _ = descriptor_of(self.role, self.plugin)
        world = World(folder, self.fabric, self.timeout_s, self.checkpoint, self.env)
        with asyncio.Runner() as runner:
            opened = self.open(world, Rig(world, descriptor, configured(descriptor, self.options), runner))
            made = runner.run(world.within(_entered(opened)))
            try:
                yield made
            finally:
                runner.run(world.within(_left(opened)))

    @demand
    async def test_descriptor_tells_what_the_plugin_is(self, rig: Rig) -> None:
        """A summary of one line for listings, and ``module:function`` strings that lead to something callable: what
        they name is looked up only in the middle of a run otherwise."""
        descriptor = rig.descriptor
        assert descriptor.summary.strip() and "\n" not in descriptor.summary
        assert issubclass(descriptor.config, object) and hasattr(descriptor.config, "model_validate")
        named = {"factory": descriptor.factory, "client": descriptor.client, "describe": descriptor.describe,
                 "narrow": descriptor.narrow, "worker_factory": descriptor.worker_factory, "policy": descriptor.policy}
        owed = {Role.GENERATOR: {"factory", "client"}, Role.ENVIRONMENT: {"factory", "worker_factory"},
                Role.AGENT: {"worker_factory"}}
        assert descriptor.known_failures.keys() <= set(self.demands()), "known_failures names demands that do not exist"
        for name in owed.get(descriptor.role, {"factory"}):
            assert named[name], f"a {descriptor.role.value} needs a {name}"
        for name, spec in named.items():
            if spec:
                assert callable(load_object(spec)), f"{name} names {spec}, which cannot be called"

    @demand
    async def test_descriptor_names_what_it_needs(self, rig: Rig) -> None:
        """``requires`` and ``supports`` are requirements that can be read, and met here."""
        check_requirements(rig.descriptor)

    @demand
    async def test_descriptor_is_light(self, rig: Rig) -> None:
        """Importing the descriptor imports no heavy library, and prints nothing: every plan does it."""
        module = descriptor_of(rig.descriptor.role, rig.descriptor.name)[1].module
        code, printed, error = await asyncio.to_thread(_imported_alone, module)
        assert code == 0, error
        assert printed == "[]\n", f"importing {module} brings in or prints {printed}"

    @demand
    async def test_settings_survive_json(self, rig: Rig) -> None:
        """A worker gets the settings as JSON data and validates them again; nothing may be lost on the way."""
        plain = json.loads(json.dumps(rig.config.model_dump(mode="json")))
        assert type(rig.config).model_validate(plain) == rig.config

    @demand
    async def test_settings_refuse_unknown_keys(self, rig: Rig) -> None:
        """A key that nobody reads is a typing error that would otherwise go unnoticed."""
        with pytest.raises(ValidationError):
            type(rig.config).model_validate({**rig.config.model_dump(mode="json"), "no_such_key_": 1})

    @demand
    async def test_facts_for_the_plan_are_json(self, rig: Rig) -> None:
        """What ``describe`` returns is shown by ``plan`` and kept with the run."""
        rig.needs(rig.descriptor.describe, "its descriptor has no describe")
        facts = load_object(rig.descriptor.describe or "")(rig.config, rig.world.site(rig.descriptor))
        assert json.loads(json.dumps(dict(facts))) is not None


async def _entered(opened: AbstractAsyncContextManager[Any]) -> Any:
    return await opened.__aenter__()


async def _left(opened: AbstractAsyncContextManager[Any]) -> None:
    await opened.__aexit__(None, None, None)


@asynccontextmanager
async def _as_it_is(rig: Rig) -> AsyncIterator[Rig]:
    yield rig


@functools.cache
def _imported_alone(module: str) -> tuple[int, str, str]:
    """Exit code and output of a process that imports ``module`` and lists what came with it."""
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    path = os.pathsep.join(item for item in sys.path if item)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": path})
    return done.returncode, done.stdout, done.stderr
