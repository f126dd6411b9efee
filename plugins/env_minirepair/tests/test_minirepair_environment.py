"""Working copies and grading, on the isolation that is in force here."""

from __future__ import annotations

import math

import pytest
from grpo_bench_env_minirepair import MiniRepairConfig, plugin
from grpo_bench_env_minirepair.environment import MiniRepair
from grpo_bench_env_minirepair.inside.canonical import NotPlain, encode
from grpo_bench_env_minirepair.tasks import draw
from hypothesis import given
from hypothesis import strategies as st

PLUS_ONE = [[[1], 2], [[5], 6]]
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.frozensets(st.integers(), max_size=3)
    | st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=8)


def typed(value):
    """The value with the type of everything in it, compared by Python's own equality."""
    if isinstance(value, list | tuple):
        return type(value), [typed(item) for item in value]
    if isinstance(value, dict):
        return dict, {key: typed(item) for key, item in value.items()}
    return type(value), value


@given(PLAIN, PLAIN)
def test_canonical_text_is_equal_where_type_and_value_are(a, b) -> None:
    assert (encode(a) == encode(b)) == (typed(a) == typed(b))
    assert "\n" not in encode(a)


def test_canonical_text_tells_types_apart() -> None:
    values = [1, True, 1.0, "1", b"1", [1], (1,), {1}, frozenset({1}), {1: 1}, None, 1j]
    assert len({encode(value) for value in values}) == len(values)
    assert encode(-0.0) == encode(0.0)
    assert encode(math.nan) == encode(float("nan"))
    assert encode({1: 2, 3: 4}) == encode({3: 4, 1: 2})


def test_what_is_not_plain_has_no_canonical_text() -> None:
    endless: list[object] = []
    endless.append(endless)
    for value in (object(), endless, [print], type("Own", (int,), {})(1), range(3)):
        with pytest.raises(NotPlain):
            encode(value)


@pytest.mark.parametrize(("source", "reward"), [
    ("def f(x):\n    return x + 1\n", 1.0),
    ("def f(x):\n    return x + 1 if x < 3 else 0\n", 0.0),
    ("def f(x):\n    return float(x + 1)\n", 0.0),
    ("def f(x):\n    raise ValueError\n", 0.0),
    ("def f(x):\n    raise SystemExit(0)\n", 0.0),
    ("def f(x):\n    return f(x)\n", 0.0),
    ("def f(x):\n    while True:\n        pass\n", 0.0),
    ("def f(x:\n", 0.0),
    ("raise SystemExit(0)\n", 0.0),
    ("import os\nos._exit(0)\n", 0.0),
    ("g = 1\n", 0.0),
    ("f = 1\n", 0.0),
    ("class Any(int):\n    def __eq__(self, other):\n        return True\n    __hash__ = int.__hash__\n"
     "def f(x):\n    return Any(x + 1)\n", 0.0),
    ("import os\nos.write(3, b'0x2\\n0x6')\ndef f(x):\n    return 0\n", 0.0),
    ("import os\ndef f(x):\n    os.write(3, b'0x2\\n0x7')\n    os._exit(0)\n", 0.0),
    ("import sys\nfor name in list(sys.modules):\n    if 'inside' in name:\n        sys.modules[name] = None\n"
     "def f(x):\n    return 0\n", 0.0),
    ("import builtins\nbuiltins.hex = lambda value: '0x2'\ndef f(x):\n    return 0\n", 0.0),
    ("def f(x):\n    print('2 of 2 hidden tests pass')\n    return 0\n", 0.0),
    ("def f(x):\n    return 10 ** 200000\n", 0.0),
])
def test_grading(any_lab, source: str, reward: float) -> None:
    assert any_lab.score(source, PLUS_ONE).reward == reward


def test_special_values_are_graded(any_lab) -> None:
    source = "def f(x):\n    return {'big': 10 ** 6000, 'nan': float('nan'), 'zero': 0.0}[x]\n"
    assert any_lab.score(source, [[["big"], 10**6000], [["nan"], math.nan], [["zero"], -0.0]]).reward == 1.0


def test_inputs_are_not_shared_between_tests(any_lab) -> None:
    shared = [1, 2]
    source = "def f(x):\n    x.append(3)\n    return len(x)\n"
    assert any_lab.score(source, [[[shared], 3], [[shared], 3]]).reward == 1.0


def test_a_task_without_tests_is_never_passed(any_lab) -> None:
    assert any_lab.score("def f(x):\n    return 1\n", []).reward == 0.0


def test_a_patch_that_does_not_apply_has_reward_0(any_lab) -> None:
    patch = "--- a/solution.py\n+++ b/solution.py\n@@ -1,1 +1,1 @@\n-nothing\n+x\n"
    score = any_lab.wait(any_lab.environment.score(any_lab.task(PLUS_ONE), patch))
    assert (score.reward, "does not apply" in score.detail) == (0.0, True)


def test_the_correct_program_passes_and_the_faulty_one_does_not(any_lab) -> None:
    tasks = any_lab.environment.tasks("train")
    for index in range(20):
        task = tasks[index]

        async def go(task=task, index=index):
            sandbox = await any_lab.environment.open(task, mounts={}, sockets={})
            before = await sandbox.exec(task.prompt["test_command"], timeout_s=10)
            await sandbox.write(task.prompt["path"], "\n".join(draw("train", index).correct) + "\n")
            after = await sandbox.exec(task.prompt["test_command"], timeout_s=10)
            patch = await sandbox.diff()
            await sandbox.close()
            scores = [await any_lab.environment.score(task, text) for text in ("", patch)]
            return before.exit_code, after.exit_code, [score.reward for score in scores]

        assert any_lab.wait(go()) == (1, 0, [0.0, 1.0])


def test_the_agents_tests_do_not_reach_the_grading(any_lab) -> None:
    """Files beside the solution change what the agent sees, and nothing else."""

    async def go():
        task = any_lab.task(PLUS_ONE)
        sandbox = await any_lab.environment.open(task, mounts={}, sockets={})
        await sandbox.write("visible_test.py", "print('fine')\n")
        await sandbox.write("math.py", "raise ValueError\n")
        result = await sandbox.exec(["python", "visible_test.py"], timeout_s=10)
        return result, await any_lab.environment.score(task, await sandbox.diff())

    result, score = any_lab.wait(go())
    assert (result.stdout, score.reward) == ("fine\n", 0.0)


def test_files_are_read_written_and_compared(any_lab) -> None:
    async def go():
        sandbox = await any_lab.environment.open(any_lab.task([]), mounts={}, sockets={})
        assert await sandbox.read("./solution.py") == "def f(x):\n    return x - 1\n"
        await sandbox.write("solution.py", "def f(x):\n    return x + 1")
        await sandbox.write("notes/new.txt", "a\n")
        with pytest.raises(FileNotFoundError, match=r"solution\.py"):
            await sandbox.read("missing.py")
        for path in ("/etc/x", "../x", "."):
            with pytest.raises(PermissionError):
                await sandbox.write(path, "")
        with pytest.raises(OSError, match="at most"):
            await sandbox.write("big", "x" * 2**21)
        diff = await sandbox.diff()
        await sandbox.close()
        await sandbox.close()
        return diff

    assert any_lab.wait(go()) == (
        "--- /dev/null\n+++ b/notes/new.txt\n@@ -0,0 +1 @@\n+a\n"
        "--- a/solution.py\n+++ b/solution.py\n@@ -1,2 +1,2 @@\n def f(x):\n-    return x - 1\n+    return x + 1\n"
        "\\ No newline at end of file\n")


def test_programs_behave_as_programs(any_lab) -> None:
    result = any_lab.exec("import sys\nprint(sys.argv, input(), __name__)\nsys.exit('bye')", "a", "b", stdin="typed\n")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "['attack.py', 'a', 'b'] typed __main__\n", "bye\n")
    failed = any_lab.exec("from solution import f\ndef g():\n    return f(None)\ng()")
    assert failed.exit_code == 1
    assert failed.stderr == (
        'Traceback (most recent call last):\n  File "attack.py", line 4, in <module>\n    g()\n'
        '  File "attack.py", line 3, in g\n    return f(None)\n  File "solution.py", line 2, in f\n    return x - 1\n'
        "TypeError: unsupported operand type(s) for -: 'NoneType' and 'int'\n")
    assert any_lab.exec("print(object())").stdout == "<object object at 0x...>\n"
    assert any_lab.exec("raise SystemExit(7)").exit_code == 7
    assert any_lab.exec("import atexit\natexit.register(print, 'late')").stdout == "late\n"


def test_only_python_files_can_be_run(any_lab) -> None:
    async def go(*argv):
        sandbox = await any_lab.environment.open(any_lab.task([]), mounts={}, sockets={})
        return await sandbox.exec(argv, timeout_s=10)

    for argv in (("ls",), ("python",), ("python", "-c", "print(1)"), ("sh", "-c", "true"), ()):
        result = any_lab.wait(go(*argv))
        assert (result.exit_code, "python FILE" in result.stderr) == (127, True)
    assert any_lab.wait(go("python", "missing.py")).exit_code == 2


def test_mounts_and_sockets_are_refused(any_lab) -> None:
    with pytest.raises(ValueError, match="neither mounts nor sockets"):
        any_lab.wait(any_lab.environment.open(any_lab.task([]), mounts={"a": "b"}, sockets={}))


def test_splits_have_the_configured_sizes() -> None:
    environment = MiniRepair(MiniRepairConfig(train_tasks=5, heldout_tasks=3, final_tasks=2))
    assert [len(environment.tasks(split)) for split in ("train", "heldout", "final")] == [5, 3, 2]
    tasks = environment.tasks("train")
    assert [task.id for task in tasks] == [task.id for task in tasks[0:5]]
    assert tasks[-1] == tasks[4]
    with pytest.raises(IndexError):
        tasks[5]
    with pytest.raises(ValueError, match="heldout"):
        environment.tasks("nonsense")


def test_the_descriptor_names_what_exists() -> None:
    task = MiniRepair(MiniRepairConfig()).tasks("train")[0]
    assert plugin.capabilities.prompt == set(task.prompt)
    assert plugin.config is MiniRepairConfig
