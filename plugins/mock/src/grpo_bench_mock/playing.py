"""The generator that plays a script: it knows each task by its prompt, and says what the script says to it.

A rollout plays one variant from beginning to end: variant i mod n for the rollout with index i in its group, at turn t
reply t, after the last one a call of ``finish``. All else, from weights to aborts, is the mock generator's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_bench.contract import InputError, PluginContext, Sampling, Site, WorkerContext
from grpo_bench.contract.values import Ids
from grpo_bench.policy import ChatFormat

from .config import ScriptedConfig
from .sampler import MockEngine, MockGenerator
from .script import FINISH, Script, ScriptedTask, check, read, text_of

_INDEX = re.compile(r"(\d+)(?:r\d+)?$")
"""The index of a rollout, at the end of its id but for the mark of a repetition."""


class Played:
    """The replies of a script."""

    def __init__(self, script: Script, path: Path, chat_format: ChatFormat) -> None:
        self._script = script
        self._path = path
        self._format = chat_format
        self._tasks: dict[str, ScriptedTask] = {}

    def reply(self, ids: Ids, sampling: Sampling, stream: str, skill: float) -> Ids:
        rollout, _, turn = stream.rpartition("/")
        variants = self._task(rollout, ids).variants
        index = _INDEX.search(rollout)
        replies = variants[int(index[1]) % len(variants) if index else 0].replies
        return self._format.encode(text_of(replies[int(turn)] if int(turn) < len(replies) else FINISH))

    def _task(self, rollout: str, ids: Ids) -> ScriptedTask:
        """The task that a rollout is about, looked for once."""
        if rollout not in self._tasks:
            prompt = self._format.decode(ids)
            found = [task for task in self._script.tasks if task.when in prompt]
            if len(found) != 1:
                which = f"tasks {' and '.join(task.instance_id for task in found)}" if found else "no task"
                raise InputError(f"the prompt of rollout {rollout} is that of {which} of script {self._path}",
                                 hint="exactly one text under `when` has to occur in it; use the script that was made "
                                 "with these tasks")
            self._tasks[rollout] = found[0]
        return self._tasks[rollout]


def describe(config: ScriptedConfig, site: Site) -> Mapping[str, Any]:
    """Which script is played; an error where it cannot be."""
    script = read(config.script)
    check(script, config.script, ChatFormat(site.policy.checkpoint))
    return {"script": str(config.script), "script_sha256": hashlib.sha256(config.script.read_bytes()).hexdigest(),
            "scripted_tasks": len(script.tasks)}


def create(context: PluginContext) -> MockGenerator:
    """The factory."""
    return MockGenerator(context, "grpo_bench_mock.playing:make_engine")


def make_engine(context: WorkerContext) -> MockEngine:
    """The worker target."""
    config = ScriptedConfig.model_validate(context.config["settings"])
    chat_format = ChatFormat(context.config["checkpoint"])
    script = read(config.script)
    check(script, config.script, chat_format)
    return MockEngine(context, config, chat_format, Played(script, config.script, chat_format))
