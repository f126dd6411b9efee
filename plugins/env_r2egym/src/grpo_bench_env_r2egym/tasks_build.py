"""Makes tasks of pairs of releases, and keeps only those whose grading says what it must.

Each task is made in a folder of its own, measured (the newer release's tests on both releases), graded in both modes
(no change: 0; the fix: 1) and then moved into place, so it is there whole or not at all. The folder of a task also
keeps its row, and a task that was made from the same recipe is not made again. Code of releases runs in sandboxes only.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_bench.contract import GrpoBenchError
from grpo_bench_sandbox import Limits, SandboxError, SandboxSpec, backend

from . import rows, tasks_row, tasks_script, tasks_sources
from .config import R2EGymConfig
from .environment import LOG_BYTES, R2EGym
from .grading import summary
from .images import find_image
from .tasks import TaskList
from .tasks_commit import parse_diff, patch_of
from .tasks_recipes import Recipe
from .tasks_sources import INTERPRETER, VENV, VERSION, Git, Refused

SCRIPT = ("PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' .venv/bin/python -W ignore -m pytest -rA "
          "r2e_tests\n")
RECORD = "task.json"
_FORM = 1
"""Raised where a task from the same recipe comes out another."""
_TESTS_S = 60.0


@dataclass(frozen=True, slots=True)
class Made:
    """A task that is in place: its row, its entry of script.json, facts for the manifest."""

    recipe: Recipe
    row: dict[str, Any]
    script: dict[str, Any]
    facts: dict[str, Any]
    old: bool = False

    @property
    def instance_id(self) -> str:
        return self.row["responses_create_params"]["metadata"]["instance_id"]


class Builder:
    def __init__(self, out: Path, pins: Sequence[str]) -> None:
        self._out, self._pins = out, tuple(pins)
        self._known: dict[str, dict[str, Any]] = {}
        for path in sorted((out / "images").glob(f"*/{RECORD}")):
            record = json.loads(path.read_text())
            self._known[record["inputs"]] = record

    async def build(self, recipe: Recipe) -> Made:
        """The task of a recipe; Refused where it makes none."""
        inputs = self._inputs(recipe)
        venv = await asyncio.to_thread(tasks_sources.make_venv, (*self._pins, *recipe.pins), self._out / "venvs")
        if (known := self._known.get(inputs)) is not None:
            return Made(recipe, known["row"], known["script"], known["facts"], old=True)
        with tempfile.TemporaryDirectory(dir=self._out, prefix=".part-") as temporary:
            os.chmod(temporary, 0o755)
            part = Path(temporary)
            (part / "venvs").symlink_to(self._out / "venvs")
            made, image = await self._made(recipe, part, venv)
            (image / RECORD).write_text(json.dumps(
                {"inputs": inputs, "row": made.row, "script": made.script, "facts": made.facts}, sort_keys=True))
            place = self._out / "images" / image.name
            place.parent.mkdir(exist_ok=True)
            if place.exists():
                shutil.rmtree(place)
            image.rename(place)
        return made

    def _inputs(self, recipe: Recipe) -> str:
        text = json.dumps([_FORM, recipe.model_dump(), self._pins, SCRIPT, str(INTERPRETER), sys.version],
                          sort_keys=True, default=list)
        return hashlib.sha256(text.encode()).hexdigest()

    async def _made(self, recipe: Recipe, part: Path, venv: Path) -> tuple[Made, Path]:
        draft = await asyncio.to_thread(_drafted, recipe, part, self._out / "downloads", venv.name)
        image = find_image(draft.folder.parent, draft.folder.name, tasks_row.DATASET)
        assert image is not None
        results = [await self._measured(image, source) for source in (draft.folder / "testbed", draft.after)]
        before, after = results
        _compared(before, after)
        row = tasks_row.row(recipe, draft.statement, draft.commits, draft.fix, draft.tests, after)
        columns = json.loads(row["responses_create_params"]["metadata"]["instance_dict"])
        commit = columns["parsed_commit_content"]
        script = tasks_script.of(draft.statement, draft.folder.name, commit)
        fixes = {"the fix": patch_of(commit), "the code of the fix": patch_of(commit, tasks_script.is_code)}
        await self._graded(part, row, fixes)
        failing = sorted(name for name, status in after.items() if status == "PASSED" and before.get(name) != "PASSED")
        facts = {"package": recipe.package, "old": recipe.old, "new": recipe.new, "tests": len(after),
                 "fail_to_pass": failing, "pass_to_fail": 0, "venv": venv.name,
                 "verdicts": {"no change": 0, "fix": 1, "modes": ["hardened", "r2e_exact"]}}
        return Made(recipe, row, script, facts), draft.folder

    async def _measured(self, image: Any, source: Path) -> Mapping[str, str]:
        """What the tests say about one release, as R2E-Gym reads it."""
        tests = {f"{image.workdir}/r2e_tests": str(image.tests), "/run_tests.sh": str(image.script)}
        spec = SandboxSpec(image=image.for_grading, source=source, workdir=image.workdir, mounts=tests)
        box = await backend("auto").open(spec, Limits(output_bytes=LOG_BYTES))
        try:
            done = await box.exec(["bash", "-c", "exec 2>&1; exec bash /run_tests.sh"], timeout_s=_TESTS_S)
        finally:
            await asyncio.shield(box.close())
        if done.timed_out:
            raise Refused(f"the tests take longer than {_TESTS_S:g} s")
        found = summary.results(done.stdout)
        if not found:
            last = done.stdout.strip().splitlines()[-1:] or ["nothing"]
            raise Refused(f"the tests give no results: pytest says {last[0]}")
        return found

    async def _graded(self, part: Path, row: Mapping[str, Any], fixes: Mapping[str, str]) -> None:
        """The environment's own grading of this task must say what it must, in both modes."""
        file = part / "task.jsonl"
        file.write_text(json.dumps(row) + "\n")
        for name, patch, wanted in (("no change", "", 0.0), *((name, patch, 1.0) for name, patch in fixes.items())):
            score, detail = await grade(file, 0, part / "images", patch)
            if score != wanted:
                raise Refused(f"{name} is graded {score} where it must be {wanted:g}: {detail}")


async def grade(file: Path, number: int, images: Path, patch: str) -> tuple[float | None, str]:
    """What both modes say about a patch for the task ``number`` of a file; None where they do not agree on it."""
    config = R2EGymConfig(train=file, validation=file, images=images, test_timeout_s=_TESTS_S, grading="hardened",
                          cross_check=True)
    environment = R2EGym(config)
    await environment.start()
    try:
        score = await environment.score(TaskList("train", rows.index(file))[number], patch)
    finally:
        await environment.close()
    return (None if score.counters.get("tampering") else score.reward), score.detail


@dataclass(frozen=True, slots=True)
class _Draft:
    """A task's folder, the repaired release beside it, and what its row needs."""

    folder: Path
    after: Path
    commits: tuple[str, str]
    fix: list[dict[str, Any]]
    tests: Mapping[str, str]
    statement: str


def _drafted(recipe: Recipe, part: Path, downloads: Path, venv: str) -> _Draft:
    old, new = (tasks_sources.unpack(tasks_sources.fetch(recipe.package, version, downloads), part / version)
                for version in (recipe.old, recipe.new))
    statement = recipe.statement.strip() or tasks_row.from_changelog(new, recipe)
    if not statement:
        raise Refused("its changelog has no section on the newer release", hint="give a statement (--statement FILE)")
    before, after, hidden = part / "before", part / "after", part / "tests"
    tasks_sources.take_code(old, before)
    tasks_sources.take_code(new, after)
    tasks_sources.take_tests(new, hidden)
    git = Git(before / ".git", before)
    git("init", "-q", "-b", "main")
    shutil.rmtree(before / ".git" / "hooks", ignore_errors=True)
    (before / ".git" / "info").mkdir(exist_ok=True)
    (before / ".git" / "info" / "exclude").write_text(".venv/\n__pycache__/\n.pytest_cache/\n")
    first = git.commit(f"{recipe.package} {recipe.old}")
    shutil.copytree(before / ".git", part / "both")
    both = Git(part / "both", after)
    second = both.commit(f"{recipe.package} {recipe.new}")
    diff = both("diff", "--no-color", "--no-ext-diff", "--no-renames", "--full-index", first, second)
    fix = parse_diff(diff, lambda path: _text(before / path), lambda path: _text(after / path))
    folder = part / "images" / tasks_row.instance_id(recipe, second)
    folder.mkdir(parents=True)
    before.rename(folder / "testbed")
    hidden.rename(folder / "r2e_tests")
    for tree in (folder / "testbed", after):
        (tree / ".venv").mkdir()
        (tree / "r2e_tests").mkdir() if tree == after else None
    (folder / "run_tests.sh").write_text(SCRIPT)
    (folder / "image.toml").write_text(_image_toml(venv))
    tests = {str(path.relative_to(folder / "r2e_tests")): path.read_text(errors="replace")
             for path in sorted((folder / "r2e_tests").rglob("*.py"))}
    return _Draft(folder, after, (first, second), fix, tests, statement)


def _image_toml(venv: str) -> str:
    binds = {str(INTERPRETER): str(INTERPRETER), VENV: f"../../venvs/{venv}"}
    masks = [str(INTERPRETER / "lib" / VERSION / "site-packages")]
    if str(INTERPRETER) == "/usr":
        del binds["/usr"]
        masks = []
    lines = ["schema = 1", 'root = "host"', f"masks = {json.dumps(masks)}",
             f"workdir = {json.dumps(tasks_script.WORKDIR)}", "", "[binds]",
             *(f"{json.dumps(inside)} = {json.dumps(host)}" for inside, host in binds.items())]
    return "\n".join(lines) + "\n"


def _compared(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    if set(before) != set(after):
        raise Refused(f"the newer release's tests are not the same on the older one: {len(after)} there, {len(before)} "
                      "here (they may import what is not there yet)")
    broken = [name for name in before if before[name] == "PASSED" and after[name] != "PASSED"]
    if broken:
        raise Refused(f"{len(broken)} tests pass before the fix and fail after it, such as {broken[0]}")
    if all(before[name] == "PASSED" for name in after if after[name] == "PASSED"):
        raise Refused("no test fails before the fix and passes after it")


def _text(path: Path) -> str:
    return path.read_bytes().decode() if path.is_file() else ""


async def build_all(builder: Builder, recipes: Sequence[Recipe], jobs: int) -> list[Made | Refused]:
    """Each recipe's task or why there is none, in the order of the recipes."""
    places = asyncio.Semaphore(jobs)

    async def one(recipe: Recipe) -> Made | Refused:
        async with places:
            try:
                made = await builder.build(recipe)
                print(f"{'kept' if made.old else 'made'} {recipe.name}: {made.instance_id}", flush=True)
                return made
            except Refused as error:
                print(f"refused {recipe.name}: {error}", flush=True)
                return error
            except (SandboxError, GrpoBenchError) as error:
                print(f"failed {recipe.name}: {error}", flush=True)
                return Refused(str(error))

    return await asyncio.gather(*(one(recipe) for recipe in recipes))


def write(out: Path, made: Sequence[Made]) -> dict[str, str]:
    """The files around the tasks; the same for the same tasks. Returns SHA-256 by name."""
    files = {f"{split}.jsonl": "".join(json.dumps(item.row, sort_keys=True) + "\n" for item in made
                                       if item.recipe.split == split)
             for split in ("train", "validation")}
    script = {"schema": 1, "tasks": [item.script for item in made]}
    files["script.json"] = json.dumps(script, indent=1, sort_keys=True) + "\n"
    hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
    tasks = [{"instance_id": item.instance_id, "split": item.recipe.split, **item.facts} for item in made]
    manifest = {"schema": 1, "sha256": hashes, "tasks": tasks}
    files["manifest.json"] = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
    for name, text in files.items():
        part = out / f".{name}.part"
        part.write_text(text)
        part.replace(out / name)
    return hashes
