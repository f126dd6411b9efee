"""What the base policy learns from: documents about tasks of the ``pretrain`` split.

Every problem makes three. A *review* names the wrong line and how it should read, a *listing* is the correct program
for a statement: these are always right, and they are where knowledge comes from. A *demonstration* is an episode of the
real agent, driven by a script in an in-process sandbox: here an edit is right only with a small probability, else it is
any plausible one of a line not tried before. So the base knows more than it does, and reinforcement can bring it out.

A document is a list of segments of text, each with its weight in the loss.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_bench.contract.roles import ExecResult, Reply, ToolCall
from grpo_bench_agent_toolcall import ToolCallConfig
from grpo_bench_agent_toolcall.agent import TOOLS, ToolCallAgent, numbered
from grpo_bench_env_minirepair.tasks import Edit, Problem, as_task

from .template import Template

P_RIGHT = 0.12
"""Probability that a demonstrated edit is the fix on purpose, unless told otherwise; a random plausible edit may be it
too."""
P_VIEW, P_TEST, P_RETRY = 0.04, 0.7, 0.75
"""Probabilities of looking at the file first, of testing an edit, of trying again after a failed test."""
ATTEMPTS = 3
REVIEW, LISTING = "Which line is wrong?", "Write it."
NEWLINE = "\n"
CONTEXT_WEIGHT = 0.3
"""Text that the policy only reads weighs less; it teaches what statements and code look like."""
REVIEW_WEIGHT = 3.0
"""Reviews are short and matter most."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of text and the weight of its tokens in the loss."""

    text: str
    weight: float


class LocalSandbox:
    """Holds the one file and runs the visible tests of a family's program in this process."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._source = "\n".join(problem.buggy) + "\n"

    async def read(self, path: str) -> str:
        return self._source

    async def write(self, path: str, text: str) -> None:
        self._source = text

    async def exec(self, argv: Sequence[str], *, timeout_s: float, stdin: str = "") -> ExecResult:
        said = self._problem.visible_failure(self._source.splitlines())
        return ExecResult(1 if said else 0, "", said)

    async def diff(self) -> str:
        raise NotImplementedError("demonstrations are not graded")

    async def close(self) -> None:
        return None


class ScriptedPolicy:
    """A policy client that follows a poor plan and records the conversation as the gateway would."""

    def __init__(self, problem: Problem, template: Template, r: random.Random, right: float = P_RIGHT) -> None:
        self._problem, self._template, self._r, self._right = problem, template, r, right
        self._edits = problem.plausible_edits()
        self._attempts = 0
        self._text = ""
        self.document: list[Segment] = []

    async def chat(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Reply:
        prompt = self._template.render(messages, tools, add_generation_prompt=True)
        if not prompt.startswith(self._text):
            raise AssertionError("the template does not give back what was written")
        name, arguments = self._next(messages)
        written = written_call(name, arguments)
        self.document += [Segment(prompt[len(self._text):], CONTEXT_WEIGHT), Segment(written, 1.0)]
        self._text = prompt + written
        call = ToolCall(f"call-{len(messages)}", name, arguments)
        function = {"name": name, "arguments": arguments}
        message = {"role": "assistant", "content": "",
                   "tool_calls": [{"id": call.id, "type": "function", "function": function}]}
        return Reply(written, (call,), False, message)

    def _next(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, str]]:
        r, last = self._r, messages[-1]
        if last["role"] == "user" and r.random() < P_VIEW:
            return "view", {}
        if last["role"] == "tool" and last["content"] == "ok" and r.random() < P_TEST:
            return "test", {}
        failed = last["role"] == "tool" and last["content"].startswith("FAIL")
        again = failed and self._attempts < ATTEMPTS and r.random() < P_RETRY
        if again or not self._attempts:
            self._attempts += 1
            edit = self._problem.fix if r.random() < self._right else r.choice(self._edits)
            self._edits = [other for other in self._edits if other.line != edit.line] or self._edits
            return "edit", {"line": str(edit.line), "text": edit.text}
        return "submit", {}


def written_call(name: str, arguments: Mapping[str, str]) -> str:
    """A tool call as the policy writes it, its end included."""
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call><|im_end|>"


def demonstration(problem: Problem, template: Template, r: random.Random, right: float = P_RIGHT) -> list[Segment]:
    policy = ScriptedPolicy(problem, template, r, right)
    _finish(ToolCallAgent(ToolCallConfig()).run(as_task(problem), LocalSandbox(problem), policy))
    return policy.document


def review(problem: Problem, template: Template) -> list[Segment]:
    """The wrong line, named and put right. It starts as a demonstration does, so that the two share computation."""
    question = f"{problem.statement}\n{numbered(NEWLINE.join(problem.buggy))}\n{REVIEW}"
    return _exchange(template, question, f"{problem.fix.line}\t{problem.fix.text}", REVIEW_WEIGHT)


def listing(problem: Problem, template: Template) -> list[Segment]:
    """The correct program."""
    return _exchange(template, f"{problem.statement}\n{LISTING}", numbered(NEWLINE.join(problem.correct)), 1.0)


def documents(problem: Problem, template: Template, r: random.Random,
              right: float = P_RIGHT) -> list[list[Segment]]:
    return [demonstration(problem, template, r, right), review(problem, template), listing(problem, template)]


def opening(problem: Problem, template: Template) -> str:
    """What the policy reads before its first reply in the agent."""
    policy = ScriptedPolicy(problem, template, random.Random(0))
    _finish(ToolCallAgent(ToolCallConfig(max_turns=1)).run(as_task(problem), LocalSandbox(problem), policy))
    return policy.document[0].text


def fix_call(edit: Edit) -> str:
    return written_call("edit", {"line": str(edit.line), "text": edit.text})


def _exchange(template: Template, question: str, answer: str, weight: float) -> list[Segment]:
    prompt = template.render([{"role": "user", "content": question}], TOOLS, add_generation_prompt=True)
    return [Segment(prompt, CONTEXT_WEIGHT), Segment(f"{answer}<|im_end|>", weight)]


def _finish(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits, without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("the agent waits for something in a sandbox that answers at once")
