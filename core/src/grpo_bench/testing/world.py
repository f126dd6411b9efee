"""What a role object is made with outside a run: a policy, a fabric, settings, and a context that holds them.

Every demand gets a world of its own, in a fresh folder and on a fresh event loop. Role objects made in it are closed
with it, and so are the fabrics under them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import structlog

from ..contract import (
    FabricHandle, LimitSettings, LossSettings, Placement, Plugin, PluginContext, PolicyFacts, Purpose, Role, Sampling,
    SamplingSettings, Site, WorkerContext, load_object,
)
from ..engine.clock import RealClock
from ..registry import Installed, installed_plugins, load_plugin
from ..registry.envs import locate
from ..registry.layers import Merged, Origin
from ..registry.validate import validate
from . import tiny

MAX_CONTEXT = 256
MAX_TOKENS = 64
SEED = 7
_LET_GO_S = 5.0

T = TypeVar("T")


class World:
    """``fabric`` names the fabric plugin that workers run on, ``env`` an environment for them instead of the plugin's
    own; ``timeout_s`` bounds every demand."""

    def __init__(self, folder: Path, fabric: str, timeout_s: float, checkpoint: Path | None = None,
                 env: str | None = None) -> None:
        self.folder = folder
        self.clock = RealClock()
        self.logger = structlog.get_logger()
        self.loss = LossSettings()
        self.limits = LimitSettings()
        self.policy = PolicyFacts(checkpoint or tiny.make_policy(folder / "policy"), MAX_CONTEXT, tiny.VOCABULARY)
        self.own_policy = checkpoint is None
        self._fabric = fabric
        self._env = env
        self._timeout_s = timeout_s
        self._folders = 0

    def new_folder(self) -> Path:
        """An empty folder."""
        self._folders += 1
        made = self.folder / f"folder-{self._folders}"
        made.mkdir()
        return made

    @asynccontextmanager
    async def fabric(self) -> AsyncIterator[FabricHandle]:
        """A fabric with no group on it."""
        descriptor, _ = descriptor_of(Role.FABRIC, self._fabric)
        config = descriptor.config(**({"serialise": True} if self._fabric == "inline" else {}))
        made: FabricHandle = self.make(descriptor, config, None)
        try:
            await made.open({})
            yield made
        finally:
            await made.close()

    def make(self, descriptor: Plugin, config: Any, fabric: FabricHandle | None,
             shared: Mapping[str, Any] | None = None, checkpoint: Path | None = None,
             run_folder: Path | None = None) -> Any:
        """The role object that the descriptor's factory makes for a run; ``checkpoint``: another policy than the
        kit's."""
        return self._made(descriptor, config, fabric, self.clock, shared, checkpoint, run_folder)

    def make_to_ask(self, descriptor: Plugin, config: Any, shared: Mapping[str, Any] | None = None,
                    run_folder: Path | None = None) -> Any:
        """The role object that the factory makes where it only answers questions: without fabric and clock."""
        return self._made(descriptor, config, None, None, shared, None, run_folder)

    def _made(self, descriptor: Plugin, config: Any, fabric: Any, clock: Any, shared: Mapping[str, Any] | None,
              checkpoint: Path | None, run_folder: Path | None) -> Any:
        policy = replace(self.policy, checkpoint=checkpoint or self.policy.checkpoint)
        return load_object(descriptor.factory)(PluginContext(
            config=config, fabric=fabric, placement=Placement(), run_folder=run_folder or self.new_folder(),
            policy=policy, seed=SEED, deterministic=descriptor.capabilities.deterministic, clock=clock,
            logger=self.logger, interpreter=self.housing(descriptor)[0], shared=shared or {}))

    def housing(self, descriptor: Plugin) -> tuple[str | None, Mapping[str, Any]]:
        """Interpreter and inventory of the environment that the plugin's workers have to themselves, if any."""
        return locate(descriptor.env, self._env) if descriptor.env is not None else (None, {})

    def site(self, descriptor: Plugin) -> Site:
        """What a plan would know when the plugin describes itself."""
        interpreter, inventory = self.housing(descriptor)
        training = SamplingSettings(max_tokens=MAX_TOKENS)
        return Site(policy=self.policy, placement=Placement(), interpreter=interpreter, inventory=inventory,
                    sampling={Purpose.TRAIN: training, Purpose.VALIDATION: training}, loss=self.loss,
                    deterministic=descriptor.capabilities.deterministic)

    def make_in_worker(self, descriptor: Plugin, config: Any) -> Any:
        """The role object that a rollout worker would make."""
        return load_object(descriptor.worker_factory or "")(config, self.worker_context(config))

    def worker_context(self, config: Any) -> WorkerContext:
        """What a worker factory gets besides its config."""
        async def connect(address: Any) -> Any:
            raise RuntimeError(f"there is no worker {address} in this world")

        return WorkerContext("rollout", 0, 1, config, str(self.new_folder()), connect, self.clock, self.logger)

    def sampling(self, honoured: frozenset[str]) -> dict[Purpose, Sampling]:
        """Both sampling profiles; that of validation uses what a generator says it honours."""
        wanted = {"temperature": 0.7, "top_p": 0.9, "top_k": 40}
        own = {name: value for name, value in wanted.items() if name in honoured}
        settings = {Purpose.TRAIN: SamplingSettings(max_tokens=MAX_TOKENS),
                    Purpose.VALIDATION: SamplingSettings(max_tokens=MAX_TOKENS, **own)}
        return {purpose: found.stamp(purpose, stop_token_ids=(tiny.END,), max_context=MAX_CONTEXT, seed=SEED)
                for purpose, found in settings.items()}

    async def within(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``; an AssertionError where it hangs, even if it does not respond to cancellation."""
        task = asyncio.ensure_future(work)
        await asyncio.wait([task], timeout=self._timeout_s)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait([task], timeout=_LET_GO_S)
        raise AssertionError(f"hangs: not over after {self._timeout_s:g} s")


def configured(descriptor: Plugin, options: Mapping[str, Any]) -> Any:
    """The plugin's settings, checked as those given with ``--set`` are."""
    merged = Merged(descriptor.name, (), dict(options), {(): Origin("--set")}, ())
    return validate(descriptor.config, options, merged)


def descriptor_of(role: Role, name: str) -> tuple[Plugin, Installed]:
    """The plugin's descriptor, and where it came from."""
    return load_plugin(role, name, _installed(tuple(sys.path)))


@lru_cache(maxsize=1)
def _installed(path: tuple[str, ...]) -> tuple[Installed, ...]:
    """All plugins; every demand asks, and looking through all packages takes longer than most demands."""
    return installed_plugins()
