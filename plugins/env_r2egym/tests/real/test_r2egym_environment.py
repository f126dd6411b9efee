"""Whole gradings in real sandboxes."""

import asyncio
import os
import shutil
import sys

import pytest
from grpo_bench.contract import Score
from grpo_bench_env_r2egym import R2EGymConfig
from grpo_bench_env_r2egym import environment as r2egym
from grpo_bench_env_r2egym.environment import R2EGym, SandboxStartError
from grpo_bench_env_r2egym.images import HIDDEN, TaskImage
from grpo_bench_sandbox import Image, SandboxError, backend

from ..toy import GOOD, NAMES, row, write_rows

pytestmark = pytest.mark.real("bwrap")
FAKE = "\\n".join(["=== short test summary info ===", *(f"PASSED t::{name.replace('.', '::')}" for name in NAMES), ""])
REPORTS = """
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.when == "call":
        report.outcome, report.longrepr = "passed", None
"""
RUNNER = """
import _pytest.reports
made = _pytest.reports.TestReport.from_item_and_call.__func__
def always(cls, item, call):
    report = made(cls, item, call)
    report.outcome, report.longrepr = "passed", None
    return report
_pytest.reports.TestReport.from_item_and_call = classmethod(always)
"""
LEAVES = "\nimport os\nos._exit(0)\n"
BAD = GOOD.replace("return sum(values)", "return sum(values) + 1")


def grade(toy, patches, name="total", **options):
    """The score of each patch, by one environment."""
    async def run() -> list[Score]:
        environment = R2EGym(R2EGymConfig.model_validate(toy.options | options))
        await environment.start()
        task = next(task for split in ("train", "validation") for task in environment.tasks(split)
                    if task.id == toy.ids[name])
        return [await environment.score(task, patch) for patch in patches]

    return asyncio.run(run())


@pytest.mark.parametrize("grading", ["hardened", "r2e_exact"])
def test_the_fix_is_worth_1_and_nothing_is_worth_0(toy, grading):
    scores = grade(toy, [toy.fix("mean"), "", toy.patch("mean", {"notes.txt": "x\n"})], "mean", grading=grading)
    assert [score.reward for score in scores] == [1.0, 0.0, 0.0]
    assert [score.counters for score in scores] == [{}, {}, {}]
    assert scores[0].detail == "5 tests are as expected"
    assert "TestMean.test_of_none FAILED instead of PASSED" in scores[1].detail


@pytest.mark.parametrize("files", [
    pytest.param({"conftest.py": REPORTS}, id="a conftest of the root"),
    pytest.param({"tally.py": BAD.replace("return sum(values) + 1", f"print('{FAKE}')")}, id="a summary printed first"),
    pytest.param({"pytest.py": f"print('{FAKE}')\n"}, id="a pytest in the way"),
    pytest.param({"tally.py": BAD + f"""
import os
for number in range(3, 64):
    try:
        os.write(number, b'{FAKE}')
    except OSError:
        pass
os._exit(0)
"""}, id="a summary on every stream and a quick end"),
])
def test_cheats_that_deceive_the_original_rule_are_tampering(toy, files):
    score = grade(toy, [toy.patch("total", files)])[0]
    assert score.reward == 0.0
    assert "r2e_exact says 1" in score.detail
    assert score.counters == {"tampering": 1}


@pytest.mark.parametrize("source", [RUNNER, LEAVES, "\nraise SystemExit(0)\n"])
def test_a_library_that_reaches_for_pytest_gets_nothing(toy, source):
    assert grade(toy, [toy.patch("total", {"tally.py": BAD + source})])[0].reward == 0.0


def test_a_library_that_makes_everything_pass_is_found(toy):
    assert grade(toy, [toy.patch("total", {"tally.py": BAD + RUNNER})])[0].counters == {"tampering": 1}


def test_files_that_steer_the_tests_are_left_out_of_a_right_patch(toy):
    patch = toy.patch("total", {"tally.py": GOOD, "conftest.py": "raise SystemExit(0)\n", "pytest.ini": "[pytest]\n"})
    score = grade(toy, [patch])[0]
    assert score.reward == 1.0
    assert "left out of the patch: conftest.py, pytest.ini" in score.detail


def test_hidden_tests_are_not_the_patchs_to_change(toy):
    mine = toy.patch("total", {"r2e_tests/test_tally.py": "def test_most(): pass\n"})
    fixed = toy.patch("total", {"tally.py": GOOD, "r2e_tests/test_tally.py": "def test_most(): assert False\n"})
    for grading in ("hardened", "r2e_exact"):
        assert [score.reward for score in grade(toy, [mine, fixed], grading=grading)] == [0.0, 1.0]


@pytest.mark.parametrize("patch", [
    "diff --git a/../x b/../x\nnew file mode 100644\n--- /dev/null\n+++ b/../x\n@@ -0,0 +1 @@\n+x\n",
    "--- /dev/null\n+++ b/.git/hooks/x\n@@ -0,0 +1 @@\n+x\n",
    "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/tmp\n"
    "\\ No newline at end of file\n"
    "diff --git a/l/x b/l/x\nnew file mode 100644\n--- /dev/null\n+++ b/l/x\n@@ -0,0 +1 @@\n+x\n",
    "no patch\n", "\ud800",
])
def test_what_is_no_patch_of_the_folder_does_not_apply(toy, patch):
    score = grade(toy, [patch], cross_check=False)[0]
    assert score.reward == 0.0
    assert "the patch does not apply" in score.detail


def test_binary_files_renames_modes_and_links_apply(toy):
    async def run():
        environment = R2EGym(R2EGymConfig.model_validate(toy.options))
        await environment.start()
        task = environment.tasks("train")[0]
        sandbox = await environment.open(task, mounts={}, sockets={})
        script = ("mkdir d && head -c 3000 /dev/urandom > d/b.bin && ln -s tally.py link && git mv tally.py counting.py"
                  " && sed -i 's/ + 1$//' counting.py && printf 'from counting import *\\n' > tally.py"
                  " && printf x > 'd/a b [c]*' && chmod +x counting.py")
        done = await sandbox.exec(["sh", "-c", script], timeout_s=30)
        patch = await sandbox.diff()
        await sandbox.close()
        return done, patch, await environment.score(task, patch)

    done, patch, score = asyncio.run(run())
    assert done.exit_code == 0, done.stderr
    assert "GIT binary patch" in patch
    assert "mode 120000" in patch
    assert score.reward == 1.0, score.detail


def test_tests_that_take_too_long_are_worth_0(toy):
    patch = toy.patch("total", {"tally.py": GOOD + "\nimport time\ntime.sleep(600)\n"})
    score = grade(toy, [patch], test_timeout_s=2)[0]
    assert (score.reward, score.detail) == (0.0, "the tests took longer than 2 s")


def test_an_agent_sees_one_commit_and_nothing_hidden(toy):
    async def run():
        environment = R2EGym(R2EGymConfig.model_validate(toy.options))
        await environment.start()
        sandbox = await environment.open(environment.tasks("train")[0], mounts={}, sockets={})
        script = ("git log --oneline | wc -l; git remote; git status --porcelain; ls -A; "
                  "grep -rl test_of_none --exclude-dir=proc / 2>&-")
        done = await sandbox.exec(["sh", "-c", script], timeout_s=60)
        python = await sandbox.exec(["python", "-c", "import tally; print(tally.__file__)"], timeout_s=60)
        await sandbox.close()
        return done.stdout.split(), python.stdout.strip()

    said, place = asyncio.run(run())
    assert said == ["1", ".git", ".venv", "conftest.py", "tally.py"]
    assert place == "/testbed/tally.py"


def test_a_script_that_is_not_pytest_can_be_graded_exactly_only(toy):
    script = toy.image("most") / "run_tests.sh"
    before = script.read_text()
    try:
        script.write_text(before.replace(".venv/bin/python", "exec .venv/bin/python"))
        hardened = grade(toy, [toy.fix("most")], "most")[0]
        exact = grade(toy, [toy.fix("most")], "most", grading="r2e_exact")[0]
    finally:
        script.write_text(before)
    assert hardened.reward is None
    assert "use grading" in hardened.detail
    assert exact.reward == 1.0


def test_at_most_so_many_sandboxes_are_open(toy):
    async def run():
        environment = R2EGym(R2EGymConfig.model_validate(toy.options | {"parallel": 2}))
        await environment.start()
        task = environment.tasks("train")[0]
        first, second = [await environment.open(task, mounts={}, sockets={}) for _ in range(2)]
        third = asyncio.ensure_future(environment.open(task, mounts={}, sockets={}))
        done, _ = await asyncio.wait([third], timeout=0.5)
        waited = not done
        await first.close()
        await first.close()
        fourth = asyncio.ensure_future(environment.open(task, mounts={}, sockets={}))
        await third
        still = not fourth.done()
        await second.close()
        for sandbox in (await third, await fourth):
            await sandbox.close()
        return waited, still

    assert asyncio.run(run()) == (True, True)


class Fails:
    """A backend whose first sandboxes do not start."""

    def __init__(self, inner, times):
        self.inner, self.left, self.tries = inner, times, 0

    async def open(self, spec, limits):
        self.tries += 1
        if self.left:
            self.left -= 1
            raise SandboxError("no room")
        return await self.inner.open(spec, limits)


@pytest.mark.parametrize(("times", "starts"), [(2, True), (3, False)])
def test_starts_are_tried_again_and_are_no_reward_when_that_does_not_help(toy, monkeypatch, times, starts):
    fails = Fails(backend("bwrap"), times)
    monkeypatch.setattr(r2egym, "backend", lambda name: fails)

    async def run():
        environment = R2EGym(R2EGymConfig.model_validate(toy.options | {"start_retries": 2, "cross_check": False}))
        await environment.start()
        task = environment.tasks("train")[0]
        try:
            await (await environment.open(task, mounts={}, sockets={})).close()
            opened = ""
        except SandboxStartError as error:
            opened = error.message
        fails.left = times
        return opened, fails.tries, await environment.score(task, "")

    opened, tries, score = asyncio.run(run())
    assert (opened, tries) == ("" if starts else "no sandbox started in 3 tries: SandboxError no room", 3)
    assert score.reward == (0.0 if starts else None)
    assert starts or "the environment could not grade" in score.detail


def test_what_is_expected_to_fail_must_fail(toy, tmp_path):
    expected = {"test_total[values0-0]": "FAILED", "test_total[values1-3]": "FAILED", "TestMean.test_of_some": "FAILED",
                "TestMean.test_of_none": "PASSED", "test_most": "PASSED"}
    train = write_rows(tmp_path / "train.jsonl", [row(toy.ids["total"], "total", expected)])
    for grading in ("hardened", "r2e_exact"):
        scores = grade(toy, ["", toy.fix("total")], train=str(train), grading=grading)
        assert [(score.reward, score.counters) for score in scores] == [(1.0, {}), (0.0, {})]


def test_an_image_with_everything_inside(toy, tmp_path, monkeypatch):
    """As a SIF image has it: repository, tests and script are in the root filesystem, and hidden from the agent."""
    root, task_folder = tmp_path / "root", toy.image("total")
    shutil.copytree(task_folder / "testbed", root / "testbed", symlinks=True)
    (root / "testbed" / ".venv").rmdir()
    (venv,) = (toy.folder / "venvs").iterdir()
    shutil.copytree(venv, root / "testbed" / ".venv", symlinks=True)
    shutil.copytree(task_folder / "r2e_tests", root / "root" / "r2e_tests")
    shutil.copy(task_folder / "run_tests.sh", root / "root")
    for name in ("usr", "etc", "tmp", "proc", "dev", "run", "home", "var"):
        (root / name).mkdir()
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    base = os.path.realpath(sys.base_prefix)
    image = Image("folder", root, {"/usr": "/usr"} | ({} if base == "/usr" else {base: base}), HIDDEN)
    monkeypatch.setattr(r2egym, "find_image", lambda *_: TaskImage(image, "/testbed"))

    async def run():
        environment = R2EGym(R2EGymConfig.model_validate(toy.options))
        await environment.start()
        task = environment.tasks("train")[0]
        sandbox = await environment.open(task, mounts={}, sockets={})
        said = await sandbox.exec(["sh", "-c", "ls -A /root /r2e_tests; git log --oneline | wc -l"], timeout_s=30)
        await sandbox.write("tally.py", GOOD)
        patch = await sandbox.diff()
        await sandbox.close()
        return said, patch, [await environment.score(task, text) for text in (patch, "")]

    said, patch, scores = asyncio.run(run())
    assert "test_tally" not in said.stdout + said.stderr
    assert said.stdout.split()[-1] == "1"
    assert ".venv" not in patch
    assert [(score.reward, score.counters) for score in scores] == [(1.0, {}), (0.0, {})], scores


def test_nothing_that_a_patch_does_keeps_it_from_being_graded(toy):
    long = "/".join(["d" * 200] * 5)
    names = [f"{long}/{number}/conftest.py" for number in range(900)]
    new = "new file mode 100644\n--- /dev/null\n"
    many = "".join(f"diff --git a/{name} b/{name}\n{new}+++ b/{name}\n@@ -0,0 +1 @@\n+x\n" for name in names)
    encoder = "import json\nold = json._default_encoder.encode\njson._default_encoder.encode = changed\n"
    garbled = toy.patch("total", {"tally.py": f"changed = lambda data: 'no'\n{encoder}{BAD}"})
    named = toy.patch("total", {"tally.py": f"""
def changed(data):
    data[1] |= {{"id": "t.py::\\ud800"}} if data[0] == "test" else {{}}
    return old(data)
{encoder}{BAD}"""})
    scores = grade(toy, [many, garbled, named, "no diff could be made of these files: 'x'\n"])
    assert [score.reward for score in scores] == [0.0] * 4
    assert all(score.detail.encode() for score in scores)
    assert "tampering" in scores[1].counters
    assert "tampering" in scores[2].counters
