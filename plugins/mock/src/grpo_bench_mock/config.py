"""What can be set. All durations are seconds of the event loop's time and 0 by default."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from grpo_bench.contract import Settings, Site

Seconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1, strict=True)]
Tasks = Annotated[int, Field(ge=1, le=100_000, strict=True)]


class Fault(Settings):
    """A failure that is meant to happen. All conditions given must hold."""

    at: str
    """The point: a method of the role object, such as ``update``, ``receive``, ``open`` or ``run``."""
    kind: Literal["raise", "hang", "late", "die", "break", "nan", "wrong"]
    """raise an error; wait for ever; go on after ``seconds``; end the process; break the engine, which then serves
    nothing until it is started again (``generate`` only); NaN in place of each number; wrong results (shifted
    log-probabilities, an update that changes nothing, other weights sent, none received, an inverted reward)."""
    step: Annotated[int, Field(ge=0, le=2**31 - 1, strict=True)] | None = None
    """Only at this step (trainer) or weight version (generator)."""
    call: Count | None = None
    """Only at the n-th call of the point, counted from 1 in each process, and anew in an engine that was restarted."""
    task: str | None = None
    """Only at this task's id (environment and agent)."""
    share: Share = 1.0
    """Only for this share of calls, drawn by hashing what the call is about."""
    seconds: Seconds = 0.0
    """How late."""


class WithFaults(Settings):
    """Base of the configs of roles that can fail."""

    points: ClassVar[frozenset[str]]
    results: ClassVar[frozenset[str]]
    """The points whose result can be spoilt."""
    stepped: ClassVar[bool] = True
    faults: tuple[Fault, ...] = ()
    """Failures that are meant to happen."""

    @model_validator(mode="after")
    def _known(self) -> WithFaults:
        for fault in self.faults:
            if fault.at not in self.points:
                raise ValueError(f"no point {fault.at!r} here; points: {', '.join(sorted(self.points))}")
            if fault.kind in ("nan", "wrong") and fault.at not in self.results:
                raise ValueError(f"{fault.at!r} has no result to spoil; these have: {', '.join(sorted(self.results))}")
            if fault.kind == "break" and fault.at != "generate":
                raise ValueError(f"nothing breaks at {fault.at!r}; engines do at 'generate'")
            if (fault.task if self.stepped else fault.step) is not None:
                raise ValueError(f"a fault at {fault.at!r} knows no {'task' if self.stepped else 'step'}")
        return self


class TrainerConfig(WithFaults):
    points = frozenset({"start", "log_probabilities", "update", "send", "save", "load"})
    results = frozenset({"log_probabilities", "update", "send"})
    learning_rate: Positive = 0.08
    """How far one update moves the weights."""
    skill_per_update: Positive | None = None
    """How much one update adds to the policy's skill, see GeneratorConfig; None: the learning rate."""
    clip_norm: Positive = 1.0
    """What it says it clips gradients to, as part of the Adam that it says it is."""
    update_s: Seconds = 0.0
    """Seconds for one update."""
    log_probabilities_s: Seconds = 0.0
    """Seconds for one pass of log-probabilities."""
    send_s: Seconds = 0.0
    """Seconds for sending the weights."""
    save_s: Seconds = 0.0
    """Seconds for writing a checkpoint."""


class ServingConfig(WithFaults):
    """Base of the configs of generators."""

    points = frozenset({"start", "generate", "pause", "receive", "resume", "probe"})
    results = frozenset({"generate", "receive", "probe"})
    token_s: Seconds = 0.0
    """Seconds for one token of a reply."""
    receive_s: Seconds = 0.0
    """Seconds for taking in new weights."""
    start_s: Seconds = 0.0
    """Seconds for starting."""


class GeneratorConfig(ServingConfig):
    base_skill: Annotated[float, Field(allow_inf_nan=False)] = -1.0
    """Log-odds of a right answer to a task of average difficulty before any update; beside a trainer that is no mock,
    for ever."""
    spread: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.5
    """How much harder than average the hardest task is, and easier the easiest, in log-odds."""
    look_share: Share = 0.4
    """Share of replies that look around instead of editing and handing in."""


class ScriptedConfig(ServingConfig):
    script: Annotated[Path, AfterValidator(lambda path: path.expanduser())]
    """File that says what is replied to which task, see the plugin's README. ``~`` is the home folder."""


class EnvironmentConfig(WithFaults):
    points = frozenset({"start", "open", "exec", "diff", "score"})
    results = frozenset({"score"})
    stepped = False
    train_tasks: Tasks = 64
    """Tasks of the split train."""
    heldout_tasks: Tasks = 16
    """Tasks of the split heldout."""
    final_tasks: Tasks = 16
    """Tasks of the split final."""
    open_s: Seconds = 0.0
    """Seconds for opening a sandbox."""
    exec_s: Seconds = 0.0
    """Seconds for one command in a sandbox."""
    score_s: Seconds = 0.0
    """Seconds for grading."""


class AgentConfig(WithFaults):
    points = frozenset({"run"})
    results = frozenset()
    stepped = False
    max_turns: Annotated[int, Field(ge=1, le=1000, strict=True)] = 4
    """Turns after which a rollout ends without an answer."""


class HardwareConfig(Settings):
    workers: Annotated[int, Field(ge=1, le=1024, strict=True)] = 1
    """Workers of a role that leaves the number open."""


class RulesetConfig(Settings):
    period: Count = 5
    """Validate after steps that are multiples of this."""
    metric: str = "pass_k"
    """The metric that ends the run."""
    target: Share = 0.95
    """What that metric has to reach."""


def describe(config: TrainerConfig, site: Site) -> Mapping[str, Any]:
    """What the trainer says it computes, in MLLOG's words: the width of its numbers is true, Adam is pretended."""
    return {
        "opt_name": "adamw", "opt_base_learning_rate": config.learning_rate,
        "opt_end_learning_rate": config.learning_rate, "opt_adamw_beta_1": 0.9, "opt_adamw_beta_2": 0.999,
        "opt_adamw_epsilon": 1e-8, "opt_adamw_weight_decay": 0.0, "opt_gradient_clip_norm": config.clip_norm,
        "opt_learning_rate_warmup_steps": 0, "opt_learning_rate_decay_schedule": "constant", "micro_batch_size": 1,
        "tensor_parallelism": 1, "pipeline_parallelism": 1, "context_parallelism": 1, "expert_parallelism": 1,
        "lowest_numerical_precision_in_linear": "fp64", "lowest_numerical_precision_in_attn": "fp64",
        "lowest_numerical_precision_in_comm": "fp64",
    }
