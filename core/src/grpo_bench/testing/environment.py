"""What an environment owes: tasks that stay the same and keep their secrets, sandboxes that share nothing, grading that
always answers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ..contract import Environment, ExecResult, Role, Sandbox, Score, Task
from ..contract.codec import pack, unpack
from .suite import Rig, Suite, demand, raised
from .world import World

LOOKED_AT = 16
"""Tasks of each split that are looked at closely."""
COMPARED = 2000
"""Tasks of each split whose ids are compared."""
SECRET = 32
"""Characters of JSON from which on a part of the payload is too long to be in the prompt by chance."""
HASHES = ("md5", "sha1", "sha224", "sha256", "sha384", "sha512", "sha3_256", "blake2b", "blake2s")
NOTE = "conformance_note.txt"
JUNK = (
    "this is no patch",
    "--- a/x\n+++ b/x\n@@ -1 +1 @@\n",
    "--- a/nowhere.txt\n+++ b/nowhere.txt\n@@ -1,3 +1,3 @@\n-one\n+two\n three\n",
    "--- a/../../outside\n+++ b/../../outside\n@@ -0,0 +1 @@\n+x\n",
    "--- a/x\n+++ b/x\n@@ -99999999,9 +99999999,9 @@\n+\0\ud800\n",
    "diff --git a/x b/x\nGIT binary patch\nliteral 9\nQcmZ?wbhEHb\n",
    "\r\n" * 50,
)
"""What an agent may leave behind that is no patch to these files."""


@dataclass
class EnvironmentRig(Rig):
    """``lister`` as the engine makes it, ``environment`` as a rollout worker does, started."""

    lister: Environment
    environment: Environment

    @property
    def splits(self) -> list[str]:
        return sorted(self.descriptor.capabilities.splits)

    def some(self, split: str) -> list[Task]:
        return list(islice(self.lister.tasks(split), LOOKED_AT))

    @property
    def task(self) -> Task:
        return self.lister.tasks(self.splits[0])[0]

    async def sandbox(self) -> Sandbox:
        return await self.environment.open(self.task, mounts={}, sockets={})

    def can(self, ability: str) -> None:
        self.needs(ability in self.descriptor.capabilities.sandbox, f"its sandboxes do not offer {ability!r}")


class EnvironmentSuite(Suite):
    """Demands on environments."""

    role = Role.ENVIRONMENT

    @asynccontextmanager
    async def open(self, world: World, rig: Rig) -> AsyncIterator[EnvironmentRig]:
        lister: Environment = world.make_to_ask(rig.descriptor, rig.config, {"limits": world.limits})
        environment: Environment = world.make_in_worker(rig.descriptor, rig.config)
        await environment.start()
        try:
            yield EnvironmentRig(**vars(rig), lister=lister, environment=environment)
        finally:
            await environment.close()

    @demand
    async def test_splits_are_those_declared(self, rig: EnvironmentRig) -> None:
        """Plans check split names against the capabilities, so each of these has tasks, and no other exists."""
        assert rig.splits, "capabilities.splits is empty"
        for split in rig.splits:
            assert len(rig.lister.tasks(split)), f"split {split!r} has no tasks"
            assert {task.split for task in rig.some(split)} == {split}

        async def undeclared() -> int:
            return len(rig.lister.tasks("no-such-split"))

        await raised(undeclared())

    @demand
    async def test_tasks_are_the_same_every_time(self, rig: EnvironmentRig) -> None:
        """Runs are compared by their tasks' fingerprints, and a resumed run goes on in the same list."""
        again: Environment = rig.world.make_to_ask(rig.descriptor, rig.config, {"limits": rig.world.limits})
        for split in rig.splits:
            first, second = rig.lister.tasks(split), again.tasks(split)
            assert len(first) == len(second)
            assert list(islice(first, LOOKED_AT)) == list(islice(second, LOOKED_AT))

    @demand
    async def test_tasks_are_told_apart(self, rig: EnvironmentRig) -> None:
        """No id occurs twice, in one split or in two; different tasks have different fingerprints."""
        tasks = [task for split in rig.splits for task in islice(rig.lister.tasks(split), COMPARED)]
        assert len({task.id for task in tasks}) == len(tasks)
        assert all(task.fingerprint for task in tasks)
        assert len({task.fingerprint for task in tasks}) == len(tasks)

    @demand
    async def test_fingerprints_are_of_the_content(self, rig: EnvironmentRig) -> None:
        """A fingerprint is a hash over prompt and payload. One over the id alone would call tasks the same after their
        content changed."""
        for task in (task for split in rig.splits for task in rig.some(split)):
            hashes = {hashlib.new(name, task.id.encode()).hexdigest() for name in HASHES}
            found = task.fingerprint.rpartition(":")[2].lower()
            assert not any(known.startswith(found) for known in {task.id.lower(), *hashes}), (
                f"{task.id}: the fingerprint {task.fingerprint} says nothing but the id")

    @demand
    async def test_prompts_hold_what_is_declared(self, rig: EnvironmentRig) -> None:
        """``statement`` and every key of ``capabilities.prompt`` are in each prompt, as plain JSON data."""
        declared = rig.descriptor.capabilities.prompt | {"statement"}
        for task in (task for split in rig.splits for task in rig.some(split)):
            assert declared <= task.prompt.keys(), f"{task.id} lacks {sorted(declared - task.prompt.keys())}"
            assert isinstance(task.prompt["statement"], str) and task.prompt["statement"].strip()
            assert json.loads(json.dumps(dict(task.prompt))) == dict(task.prompt)

    @demand
    async def test_tasks_cross_to_workers(self, rig: EnvironmentRig) -> None:
        """Tasks are listed in one process and opened in another."""
        for task in (task for split in rig.splits for task in rig.some(split)):
            assert unpack(pack(task)) == task

    @demand
    async def test_hidden_parts_stay_out_of_the_prompt(self, rig: EnvironmentRig) -> None:
        """Hidden tests and reference solutions are in the payload, and nothing long of it is in the prompt too."""
        for task in (task for split in rig.splits for task in rig.some(split)):
            seen = "\n".join(_texts(task.prompt))
            for secret in _texts(task.payload):
                assert len(secret) < SECRET or secret not in seen, f"{task.id}: the prompt contains {secret!r:.200}"

    @demand
    async def test_files_are_read_as_they_were_written(self, rig: EnvironmentRig) -> None:
        """``write`` then ``read`` gives the same text, whatever letters it has; a file that is not there raises."""
        rig.can("files")
        sandbox, text = await rig.sandbox(), "first line\n\n  zweite Zeile: äöü €\n"
        await sandbox.write(NOTE, text)
        assert await sandbox.read(NOTE) == text
        await raised(sandbox.read("no/such/file"))
        await sandbox.close()

    @demand
    async def test_sandboxes_share_nothing(self, rig: EnvironmentRig) -> None:
        """Rollouts of one task run side by side; none may see what another does."""
        rig.can("files")
        first, second = await asyncio.gather(rig.sandbox(), rig.sandbox())
        await first.write(NOTE, "a secret of the first\n")
        await raised(second.read(NOTE))
        assert (await second.diff()).strip() == ""
        await asyncio.gather(first.close(), second.close())

    @demand
    async def test_an_untouched_sandbox_has_no_diff(self, rig: EnvironmentRig) -> None:
        """The diff runs from the task's initial state, whatever the sandbox itself put there."""
        sandbox = await rig.sandbox()
        assert (await sandbox.diff()).strip() == ""
        await sandbox.close()

    @demand
    async def test_the_diff_shows_an_edit(self, rig: EnvironmentRig) -> None:
        """An edit of the task's own file, or of a new one where the prompt names none, comes out as a patch."""
        rig.can("files")
        added = [line for line in (await _edited(rig)).splitlines() if line.startswith("+")]
        assert "+# a line more" in added

    @demand
    async def test_its_own_diffs_are_graded(self, rig: EnvironmentRig) -> None:
        """What ``diff`` says after an edit, ``score`` can apply and grade: nearly every rollout hands in such a
        patch."""
        rig.can("files")
        score = await rig.environment.score(rig.task, await _edited(rig))
        assert score.reward is not None and math.isfinite(score.reward), f"not graded: {score.detail}"

    @demand
    async def test_a_command_that_is_too_slow_is_killed(self, rig: EnvironmentRig) -> None:
        """At its limit the whole tree is killed: exit code 124 and ``timed_out``, and the sandbox stays usable."""
        rig.can("exec")
        sandbox = await rig.sandbox()
        quick = await _python(sandbox, "print('conformance')", 20.0)
        rig.needs(quick.exit_code == 0 and quick.stdout.strip() == "conformance", "its sandboxes do not run Python")
        slow = await _python(sandbox, "import time; time.sleep(600)", 0.5)
        assert (slow.exit_code, slow.timed_out) == (124, True)
        assert (await _python(sandbox, "print('conformance')", 20.0)).stdout.strip() == "conformance"
        await sandbox.close()

    @demand
    async def test_a_command_that_does_not_exist_is_an_answer(self, rig: EnvironmentRig) -> None:
        """An agent tries commands that are not there; that is no failure of the environment."""
        rig.can("exec")
        sandbox = await rig.sandbox()
        for argv in (["no-such-command-anywhere"], ["/"], ["python", "no_such_file.py"]):
            result = await sandbox.exec(argv, timeout_s=20.0)
            assert isinstance(result, ExecResult) and isinstance(result.stdout + result.stderr, str)
        await sandbox.close()

    @demand
    async def test_an_empty_patch_is_graded(self, rig: EnvironmentRig) -> None:
        """An agent that did nothing gets a reward like any other, and the same one twice."""
        first, second = await rig.environment.score(rig.task, ""), await rig.environment.score(rig.task, "")
        assert first.reward is not None and math.isfinite(first.reward), first.detail
        assert first.reward == second.reward

    @demand
    async def test_junk_is_graded_too(self, rig: EnvironmentRig) -> None:
        """Whatever an agent hands in, grading ends with a reward or with None; an exception would count as a failure
        of the environment, and enough of those end the run."""
        for patch in JUNK:
            _well_formed(await rig.environment.score(rig.task, patch))

    @demand
    async def test_grading_ignores_the_agents_sandbox(self, rig: EnvironmentRig) -> None:
        """Only the patch counts: what else an agent did to its copy, such as shadowing the test runner, must not."""
        rig.can("files")
        before = await rig.environment.score(rig.task, "")
        sandbox = await rig.sandbox()
        for path in ("conftest.py", "pytest.py", "sitecustomize.py", str(rig.task.prompt.get("path", NOTE))):
            await sandbox.write(path, "raise SystemExit(0)\n")
        during = await rig.environment.score(rig.task, "")
        await sandbox.close()
        assert before.reward == during.reward == (await rig.environment.score(rig.task, "")).reward

    @demand
    async def test_grading_that_is_cancelled_leaves_no_trace(self, rig: EnvironmentRig) -> None:
        """Deadlines cancel; what comes after must find the environment in order."""
        whole = await rig.environment.score(rig.task, "")
        cancelled = [asyncio.ensure_future(rig.environment.score(rig.task, "")) for _ in range(4)]
        await asyncio.sleep(0.01)
        for task in cancelled:
            task.cancel()
        await asyncio.gather(*cancelled, return_exceptions=True)
        assert (await rig.environment.score(rig.task, "")).reward == whole.reward

    @demand
    async def test_many_sandboxes_at_once(self, rig: EnvironmentRig) -> None:
        """A step's rollouts are in flight together; those that do not fit at once wait for each other."""
        async def rollout() -> float | None:
            sandbox = await rig.sandbox()
            patch = await sandbox.diff()
            await sandbox.close()
            return (await rig.environment.score(rig.task, patch)).reward

        assert len(set(await asyncio.gather(*(rollout() for _ in range(16))))) == 1

    @demand
    async def test_closing_twice_is_fine(self, rig: EnvironmentRig) -> None:
        """A sandbox is closed by whoever is done with it, the environment by the worker and again at its end."""
        sandbox = await rig.sandbox()
        await sandbox.close()
        await sandbox.close()
        await rig.environment.close()
        await rig.environment.close()
        await rig.lister.close()


async def _edited(rig: EnvironmentRig) -> str:
    """The diff of a sandbox in which a line was added to the task's file, or to a new one where it names none."""
    sandbox, path = await rig.sandbox(), str(rig.task.prompt.get("path", NOTE))
    before = await sandbox.read(path) if "path" in rig.task.prompt else ""
    await sandbox.write(path, f"{before}# a line more\n")
    patch = await sandbox.diff()
    await sandbox.close()
    return patch


def _texts(value: Any) -> Iterator[str]:
    """Every text inside JSON data, and the JSON of every container but the outermost."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    for item in items:
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict | list | tuple):
            yield json.dumps(item)
            yield from _texts(item)


async def _python(sandbox: Sandbox, source: str, timeout_s: float) -> ExecResult:
    await sandbox.write("conformance_program.py", source + "\n")
    return await sandbox.exec(["python", "conformance_program.py"], timeout_s=timeout_s)


def _well_formed(score: Score) -> None:
    assert isinstance(score, Score)
    assert score.reward is None or math.isfinite(score.reward)
