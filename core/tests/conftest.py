"""A workshop: an empty folder to work in, with throw-away plugin distributions on the path."""

from __future__ import annotations

import importlib
import itertools
import json
import string
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

_numbers = itertools.count()

PARTS = '''
from typing import Annotated, Literal
from pydantic import Field
from grpo_bench.contract import Capabilities, Finding, LaunchForm, Placement, Plugin, Role, Settings, Task

ALL_SAMPLING = frozenset({"temperature", "top_p"})

class Empty(Settings):
    pass

class TrainerConfig(Settings):
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Step size."""
    warmup: int = 0
    workers: int = 0
    names: tuple[str, ...] = ()
    bound: Annotated[float, Field(gt=0)] | None = 1.0
    mode: Literal["on", "off"] | None = None

class Machine:
    def __init__(self, context):
        self.context = context
    def describe(self):
        return {"cores": 3}
    def form(self):
        return LaunchForm()

    def place(self, needs):
        return {role: Placement(workers=need.workers or 2) for role, need in needs.items()}

class Rules:
    def __init__(self, context):
        pass
    def should_validate(self, step, max_steps):
        return step % 4 == 0
    def check(self, profile):
        return [Finding("steps", profile["grpo"]["max_steps"] >= 5, "at least 5 steps")]

class World:
    def __init__(self, context):
        pass
    def tasks(self, split):
        return [Task(f"{split}-{number}", split, {"statement": "Mend it."}, {}, "0") for number in range(6)]

def facts(config, site):
    return {"isolation": "none"}

def make(role, name, config=Empty, factory="none:none", **capabilities):
    optional = {key: capabilities.pop(key) for key in ("describe", "narrow", "env") if key in capabilities}
    return Plugin(name=name, role=role, summary="for tests", config=config, factory=factory, **optional,
                  capabilities=Capabilities(**capabilities))

trainer = make(Role.TRAINER, "steady", TrainerConfig, sends=frozenset({"safetensors", "shared"}), deterministic=True)
deaf = make(Role.GENERATOR, "deaf", receives=frozenset({"pigeon"}), sampling=ALL_SAMPLING, deterministic=True)
generator = make(Role.GENERATOR, "steady", receives=frozenset({"safetensors", "shared", "other"}),
                 sampling=ALL_SAMPLING, refit=frozenset({"drain"}))
canned = make(Role.GENERATOR, "canned", receives=frozenset({"shared"}), sampling=ALL_SAMPLING, computes="nothing")
OFFERED = {"splits": frozenset({"train", "validation"}), "prompt": frozenset({"path"}), "sandbox": frozenset({"exec"})}
environment = make(Role.ENVIRONMENT, "steady", **OFFERED, describe=__name__ + ":facts", factory=__name__ + ":World")
agent = make(Role.AGENT, "steady", prompt=frozenset({"statement", "path"}), sandbox=frozenset({"exec"}))
picky = make(Role.AGENT, "picky", sandbox=frozenset({"spawn"}))
program = make(Role.AGENT, "program", form="program")
hardware = make(Role.HARDWARE, "steady", factory=__name__ + ":Machine")
ruleset = make(Role.RULESET, "strict", factory=__name__ + ":Rules")
broken_facts = make(Role.ENVIRONMENT, "broken", **OFFERED, describe=__name__ + ":nowhere", factory=__name__ + ":World")
'''

POINTS = {"trainer": {"steady": "trainer"}, "generator": {"steady": "generator", "deaf": "deaf", "canned": "canned"},
          "environment": {"steady": "environment", "broken": "broken_facts"},
          "agent": {"steady": "agent", "picky": "picky", "program": "program"}, "hardware": {"steady": "hardware"},
          "ruleset": {"strict": "ruleset"}}

REGISTRY = """
[profiles.base]
description = "for tests"
[profiles.base.policy]
checkpoint = "policy"
max_context = 128
[profiles.base.grpo]
prompts_per_step = 2
generations_per_prompt = 4
max_steps = 10
[profiles.base.sampling]
max_tokens = 16
[profiles.base.trainer]
use = "steady"
learning_rate = 0.5
[profiles.base.generator]
use = "steady"
[profiles.base.environment]
use = "steady"
[profiles.base.agent]
use = "steady"
[profiles.base.hardware]
use = "steady"
[profiles.base.fabric]
use = "inline"
"""


TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@cache
def _tokenizer() -> str:
    """One token for each letter, digit, blank and line end, and one that ends a reply."""
    letters = sorted(f"{string.ascii_letters}{string.digits}\u0120\u010a")
    made = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|end|>"])
    return made.to_str()


class Workshop:
    """Makes what a test needs inside one folder, which is the working directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = folder / "site"
        self.modules: list[str] = []

    def distribution(self, name: str, points: Mapping[str, Mapping[str, str]], source: str) -> str:
        """Install a distribution of one module; returns the module's name."""
        module = f"workshop_{next(_numbers)}"
        (self.site / module).mkdir(parents=True)
        (self.site / module / "__init__.py").write_text(source)
        info = self.site / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nSummary: of a test\n"
                                       "Requires-Dist: grpo-bench\n")
        lines = [line for role, names in points.items()
                 for line in (f"[grpo_bench.{role}]", *(f"{key} = {module}:{item}" for key, item in names.items()))]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        (info / "RECORD").write_text("")
        self.modules.append(module)
        self.forget()
        return module

    def forget(self) -> None:
        """Make importlib look again; in a real process nothing is installed half way."""
        importlib.invalidate_caches()

    def write(self, text: str, file: str = "registry.toml") -> Path:
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def policy(self) -> Path:
        folder = self.folder / "policy"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"vocab_size": 77, "max_position_embeddings": 256}))
        (folder / "tokenizer.json").write_text(_tokenizer())
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", "chat_template": TEMPLATE}))
        (folder / "model.safetensors").write_bytes(b"weights")
        return folder

    def line(self, text: str, file: str = "registry.toml") -> int:
        """The line of a file that starts with ``text``."""
        lines = (self.folder / file).read_text().splitlines()
        return next(number for number, line in enumerate(lines, 1) if line.startswith(text))


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    """An empty working directory without a user's registry."""
    made = Workshop(tmp_path)
    made.site.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.syspath_prepend(str(made.site))
    yield made
    for module in made.modules:
        sys.modules.pop(module, None)


@pytest.fixture
def bench(workshop: Workshop) -> Workshop:
    """A workshop with a whole set of parts, a policy and the profile ``base`` that runs them."""
    workshop.distribution("test-parts", POINTS, PARTS)
    workshop.policy()
    workshop.write(REGISTRY)
    return workshop
