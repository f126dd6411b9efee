# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
"""The other side of the comparison: the same job in TRL's GRPOTrainer, run by the interpreter of TRL's environment.

Tasks, sandboxes, grading and what each tool does are ours, so that both sides do the same beside the policy. The
trainer parses tool calls with a response template: values keep their indentation, and ``submit`` is no call to it, so
that it ends the episode. It has no limit per reply of its own; generation gets one.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import torch
import transformers
import trl.trainer.grpo_trainer
from datasets import Dataset
from grpo_bench.contract import Score, ToolCall
from grpo_bench_agent_toolcall.agent import Episode, numbered
from grpo_bench_agent_toolcall import ToolCallConfig
from grpo_bench_env_minirepair.config import MiniRepairConfig
from grpo_bench_env_minirepair.environment import MiniRepair
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from ._job import (
    GENERATIONS, LEARNING_RATE, MAX_CONTEXT, MAX_TOKENS, MAX_TURNS, PROMPTS, TOOLS, Turnstile,
)

_RANK, _RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
_ROWS = 32
"""Sequences of one forward pass."""
_RESPONSE = {
    "defaults": {"role": "assistant"}, "start_anchor": "<|im_start|>assistant\n", "fields": {
        "tool_calls": {
            "open_pattern": r"<tool_call>\n<function=(?P<name>(?!submit)[^\n>]+)>", "close_pattern": r"</tool_call>",
            "repeats": True, "content": "xml-inline", "content_args": {
                "tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\n(?P<value>.*?)\n</parameter>",
                "value_parser": {"name": "text", "args": {"strip": False}}},
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}},
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"}}}


class _World:
    """Our environment on an event loop of its own, for callers that are not asynchronous."""

    def __init__(self, tasks: int) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.environment = MiniRepair(MiniRepairConfig(train_tasks=tasks))
        self.tasks = self.environment.tasks("train")
        self.wait(self.environment.start())

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def score_all(self, repairs: list[Repair]) -> list[Score]:
        async def score(repair: Repair) -> Score:
            return await self.environment.score(repair._task, await repair._sandbox.diff())

        return await asyncio.gather(*map(score, repairs))


class Repair:
    """One episode, in the form of TRL's environments."""

    def reset(self, index: int, **_: Any) -> None:
        self._task = WORLD.tasks[index]
        self._sandbox = WORLD.wait(WORLD.environment.open(self._task, mounts={}, sockets={}))
        source = WORLD.wait(self._sandbox.read(self._task.prompt["path"]))
        self._episode = Episode(ToolCallConfig(), self._task, self._sandbox, source)

    def view(self) -> str:
        """Show the file with line numbers."""
        return self._act("view")

    def edit(self, line: str, text: str) -> str:
        """Replace one line of the file.

        Args:
            line: The line number.
            text: The new text of the line.
        """
        return self._act("edit", line=str(line), text=str(text))

    def test(self) -> str:
        """Run the visible tests."""
        return self._act("test")

    def _act(self, name: str, **arguments: str) -> str:
        return WORLD.wait(self._episode.act(ToolCall("call", name, arguments)))


class _Steps(TrainerCallback):
    """Lets a step begin when it may, and reports it."""

    def __init__(self) -> None:
        self._turnstile = Turnstile() if _RANK == 0 else None
        self._asked = False

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        if self._turnstile is not None:
            if not self._asked:
                self._turnstile.ready()
            self._turnstile.go()
        self._asked = True
        torch.distributed.barrier()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        found = torch.tensor([COUNTS["turns"], COUNTS["reward"]], dtype=torch.float64)
        torch.distributed.all_reduce(found)
        turns, reward = found.tolist()
        rollouts = PROMPTS * GENERATIONS
        COUNTS.clear()
        if self._turnstile is not None:
            self._turnstile.over(turns=turns, trained=rollouts, reward=reward / rollouts)


COUNTS: dict[str, float] = defaultdict(float)


def _reward(completions: list[Any], environments: list[Repair], **_: Any) -> list[float]:
    rewards = [score.reward or 0.0 for score in WORLD.wait(WORLD.score_all(environments))]
    COUNTS["turns"] += sum(message["role"] == "assistant" for talk in completions for message in talk)
    COUNTS["reward"] += sum(rewards)
    return rewards


def main(checkpoint: Path, steps: int) -> None:
    transformers.logging.set_verbosity_error()
    # Our tokenizer joins the newline after a reply to the next header. TRL checks prefixes up to that newline, and
    # then cuts at the end of the reply, which is where ours agree.
    trl.trainer.grpo_trainer.is_chat_template_prefix_preserving = lambda _: True
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    template = (checkpoint / "chat_template.jinja").read_text()
    tokenizer.chat_template = template.replace("{%- if tools -%}", "{%- if false -%}")
    tokenizer.response_template = _RESPONSE
    head = {"role": "system", "content": f"Tools: {', '.join(TOOLS)}"}
    prompts = [f"{task.prompt['statement']}\n{numbered(task.prompt['files'][task.prompt['path']])}"
               for task in WORLD.tasks]
    data = Dataset.from_list([{"prompt": [head, {"role": "user", "content": prompt}], "index": index}
                              for index, prompt in enumerate(prompts)])
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, use_cpu=True, bf16=False, fp16=False, gradient_checkpointing=False,
            per_device_train_batch_size=_ROWS, gradient_accumulation_steps=PROMPTS * GENERATIONS // (_ROWS * _RANKS),
            num_generations=GENERATIONS, max_completion_length=MAX_CONTEXT,
            generation_kwargs={"max_new_tokens": MAX_TOKENS}, max_tool_calling_iterations=MAX_TURNS - 1,
            temperature=1.0, learning_rate=LEARNING_RATE, lr_scheduler_type="constant", beta=0.0, loss_type="dapo",
            epsilon_high=0.28, max_steps=steps, shuffle_dataset=False, logging_strategy="no", save_strategy="no",
            report_to="none", disable_tqdm=True, seed=0, ddp_backend="gloo")
        model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="sdpa")
        GRPOTrainer(model=model, reward_funcs=_reward, args=config, train_dataset=data, processing_class=tokenizer,
                    environment_factory=Repair, callbacks=[_Steps()]).train()
    WORLD.wait(WORLD.environment.close())


if __name__ == "__main__":
    torch.set_num_threads(1)
    WORLD = _World(PROMPTS * int(sys.argv[2]))
    main(Path(sys.argv[1]), int(sys.argv[2]))
