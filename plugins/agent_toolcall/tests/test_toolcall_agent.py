import asyncio

import pytest
from grpo_bench.contract import End, ExecResult, Reply, Role, Task, ToolCall, WorkerContext
from grpo_bench_agent_toolcall import ToolCallConfig, plugin
from grpo_bench_agent_toolcall.agent import TOOLS, ToolCallAgent, make_in_worker
from pydantic import ValidationError

SOURCE = "def f(x):\n    return x - 1\n"
TASK = Task(
    id="t", split="train", payload={}, fingerprint="",
    prompt={"statement": "f should add 1.", "path": "solution.py", "test_command": ["python", "visible_test.py"]},
)
CONTEXT = WorkerContext("rollout", 0, 1, None, "", None, None, None)


class Sandbox:
    """One file; the test passes when it holds ``x + 1``."""

    def __init__(self, timed_out=False):
        self.files = {"solution.py": SOURCE}
        self.commands = []
        self.timed_out = timed_out

    async def exec(self, argv, *, timeout_s, stdin=""):
        self.commands.append((list(argv), timeout_s))
        if self.timed_out:
            return ExecResult(124, "", "", timed_out=True)
        if "x + 1" in self.files["solution.py"]:
            return ExecResult(0, "", "")
        return ExecResult(1, "noise\n", "Traceback\ngot 1, expected 3\n")

    async def read(self, path):
        return self.files[path]

    async def write(self, path, text):
        self.files[path] = text

    async def diff(self):
        return ""

    async def close(self):
        return None


class Policy:
    """Says what it is told to and keeps the last conversation."""

    def __init__(self, *replies):
        self.replies = list(replies)
        self.messages = []

    async def chat(self, messages, tools):
        assert tools is TOOLS
        self.messages = list(messages)
        return self.replies.pop(0)

    @property
    def results(self):
        return [m["content"] for m in self.messages if m["role"] == "tool"]


def call(name, **arguments):
    calls = (ToolCall("c", name, arguments),)
    return Reply("", calls, False, {"role": "assistant", "content": "", "tool_calls": []})


def run(policy, sandbox=None, **settings):
    sandbox = sandbox or Sandbox()
    end = asyncio.run(ToolCallAgent(ToolCallConfig(**settings)).run(TASK, sandbox, policy))
    return end, sandbox.files["solution.py"]


def test_first_message_holds_statement_and_numbered_file():
    policy = Policy(call("submit"))
    run(policy)
    assert policy.messages == [{"role": "user", "content": "f should add 1.\n1\tdef f(x):\n2\t    return x - 1"}]


def test_edit_test_submit_repairs_the_file():
    policy = Policy(call("edit", line="2", text="    return x + 1"), call("test"), call("submit"))
    sandbox = Sandbox()
    assert run(policy, sandbox) == (End.COMPLETED, "def f(x):\n    return x + 1\n")
    assert policy.results == ["ok", "PASS"]
    assert sandbox.commands == [(["python", "visible_test.py"], ToolCallConfig().test_timeout_s)]


def test_failed_test_undoes_all_edits_and_says_so():
    wrong = call("edit", line="2", text="    return x")
    policy = Policy(call("edit", line="1", text="def f(y):"), wrong, call("test"), call("view"), call("submit"))
    assert run(policy)[1] == SOURCE
    assert policy.results[2:] == ["FAIL got 1, expected 3; undone", "1\tdef f(x):\n2\t    return x - 1"]


def test_undo_can_be_switched_off():
    policy = Policy(call("edit", line="2", text="    return x"), call("test"), call("submit"))
    assert run(policy, undo_failed_test=False)[1] == "def f(x):\n    return x\n"
    assert policy.results[-1] == "FAIL got 1, expected 3"


def test_failed_test_of_the_untouched_file_undoes_nothing():
    policy = Policy(call("test"), call("submit"))
    run(policy)
    assert policy.results == ["FAIL got 1, expected 3"]


def test_long_result_is_cut_and_time_out_named():
    policy = Policy(call("test"), call("submit"))
    run(policy, result_chars=8)
    assert policy.results == ["FAIL got 1, e"]
    policy = Policy(call("test"), call("submit"))
    run(policy, Sandbox(timed_out=True))
    assert policy.results == ["FAIL timed out"]


@pytest.mark.parametrize("arguments", [{}, {"line": "2"}, {"line": "0", "text": "x"}, {"line": "3", "text": "x"},
                                       {"line": "two", "text": "x"}, {"line": "-1", "text": "x"},
                                       {"line": "9" * 5000, "text": "x"}])
def test_edit_that_cannot_be_made_is_an_error_and_changes_nothing(arguments):
    policy = Policy(call("edit", **arguments), call("submit"))
    assert run(policy)[1] == SOURCE
    assert policy.results == ["error: no such line"]


def test_unknown_tool_is_an_error():
    policy = Policy(call("delete"), call("submit"))
    run(policy)
    assert policy.results == ["error: no such tool"]


def test_one_edit_may_write_several_lines():
    policy = Policy(call("edit", line="2", text="    y = x\n    return y + 1"), call("view"), call("submit"))
    assert run(policy)[1] == "def f(x):\n    y = x\n    return y + 1\n"
    assert policy.results[-1].splitlines()[-1] == "3\t    return y + 1"


def test_reply_without_a_call_ends_the_rollout():
    assert run(Policy(Reply("done", (), False, {})))[0] is End.COMPLETED


def test_a_reply_cut_off_is_the_last_word():
    edit = call("edit", line="2", text="    return x + 1")
    cut = Reply(edit.text, edit.tool_calls, True, edit.message)
    assert run(Policy(cut)) == (End.COMPLETED, SOURCE)


def test_turn_limit_ends_as_max_turns_with_the_edit_in_place():
    policy = Policy(*[call("edit", line="2", text="    return x + 1")] * 3)
    assert run(policy, max_turns=3) == (End.MAX_TURNS, "def f(x):\n    return x + 1\n")
    assert not policy.replies


def test_submit_on_the_last_turn_completes():
    assert run(Policy(call("view"), call("submit")), max_turns=2)[0] is End.COMPLETED


def test_several_calls_in_one_reply_are_answered_in_order():
    edit, test = (ToolCall(str(i), name, arguments) for i, (name, arguments) in enumerate(
        [("edit", {"line": "2", "text": "    return x + 1"}), ("test", {})]))
    policy = Policy(Reply("", (edit, test), False, {"role": "assistant", "content": ""}), call("submit"))
    run(policy)
    assert [(m["tool_call_id"], m["content"]) for m in policy.messages if m["role"] == "tool"] == [
        ("0", "ok"), ("1", "PASS")]


def test_descriptor_says_what_the_agent_needs():
    assert (plugin.role, plugin.name, plugin.stand_in) == (Role.AGENT, "toolcall", False)
    assert plugin.capabilities.prompt == {"statement", "path", "test_command"}
    assert plugin.capabilities.sandbox == {"exec", "files"}
    assert plugin.worker_factory == "grpo_bench_agent_toolcall.agent:make_in_worker"
    assert isinstance(make_in_worker(ToolCallConfig(), CONTEXT), ToolCallAgent)


@pytest.mark.parametrize("settings", [{"max_turns": 0}, {"turns": 3}, {"test_timeout_s": 0.0}])
def test_bad_settings_are_refused(settings):
    with pytest.raises(ValidationError):
        ToolCallConfig(**settings)
