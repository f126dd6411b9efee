"""The settings of a profile that belong to the contract rather than to a plugin.

Frozen pydantic models; unknown keys are errors. Plugins bring their own models for their own sections. The names and
meanings follow the field's; formulas are in :mod:`grpo_bench.steps`.

Whatever decides how much is made, kept or waited for has an upper bound, far above what any machine can use: a slip of
the keyboard should be a message and not a full memory.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .values import Metric, Purpose, Sampling

Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1, strict=True)]
Index = Annotated[int, Field(ge=0, le=2**31 - 1, strict=True)]
Several = Annotated[int, Field(ge=1, le=65_536, strict=True)]
Tokens = Annotated[int, Field(ge=1, le=2**24, strict=True)]
Seconds = Annotated[float, Field(gt=0, le=30 * 86_400, allow_inf_nan=False)]
Penalty = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]


class Settings(BaseModel):
    """Base of all settings: frozen, unknown keys refused, field docstrings are the documentation."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class AdvantageSettings(Settings):
    leave_one_out: bool = True
    """Baseline and spread of a rollout come from the other rollouts of its group."""
    normalize: bool = True
    """Divide by the (leave-one-out) standard deviation where it is above 0."""
    clamp: tuple[Finite, Finite] | None = None
    """Lowest and highest advantage, applied last; None: unbounded."""
    voters: Literal["exclude_masked", "reference"] = "exclude_masked"
    """Who counts in baseline and spread: rollouts that train, or every rollout with a reward."""

    @model_validator(mode="after")
    def _fits(self) -> AdvantageSettings:
        if self.clamp is not None and self.clamp[0] > self.clamp[1]:
            raise ValueError(f"clamp goes from the lowest to the highest advantage, not {list(self.clamp)}")
        return self


class MaskSettings(Settings):
    overlong_filter: bool = True
    """Rollouts cut off by the context limit do not train."""
    sequence_error_max: Positive | None = 2.0
    """Rows whose mean exp|gen - prev| is above this do not train; None: no check."""


class TruncationSettings(Settings):
    kind: Literal["tis", "icepop", "seq-mask-tis"]
    """How importance weights exp(prev - gen) are truncated."""
    min: Finite | None = None
    """Lower bound; None: none (0 for tis)."""
    max: Positive
    """Upper bound."""

    @model_validator(mode="after")
    def _fits(self) -> TruncationSettings:
        if self.min is not None and self.min > self.max:
            raise ValueError(f"min = {self.min:g} is above max = {self.max:g}")
        return self


class KLSettings(Settings):
    penalty: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Weight of the divergence from the reference policy; 0: no reference pass."""
    kind: Literal["k1", "k2", "k3"] = "k3"
    """Which estimator."""
    input_clamp: Positive | None = 20.0
    """Bound of |reference - current| before the estimator; None: unbounded."""
    output_clamp: Positive | None = 10.0
    """Bound of the estimate; None: unbounded."""
    in_reward: bool = False
    """The divergence is part of the reward, so it stays out of the loss."""
    on_policy_approximation: bool = False
    """Weigh the divergence by exp(current - gen) instead of exp(current - stop_gradient(current))."""


class LossSettings(Settings):
    reduction: Literal["token", "sequence"] = "token"
    """Mean over all tokens of the global batch, or over sequences of their token means."""
    ratio: Literal["ppo", "gspo", "reinforce", "cispo"] = "ppo"
    """ppo: per token, clipped. gspo: one per sequence, clipped (needs sequence reduction). reinforce: current itself.
    cispo: the clipped ratio as a constant weight of current."""
    clip_min: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.2
    """The ratio is clipped below at 1 - clip_min."""
    clip_max: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.28
    """The ratio is clipped above at 1 + clip_max."""
    dual_clip: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    """Bound c of the loss where the advantage is negative: at most -A c; None: none."""
    force_on_policy_ratio: bool = False
    """Take the current policy as the previous one: the ratio is 1, with the gradient. Needs one update a rollout."""
    importance_correction: bool = False
    """Weigh tokens by exp(prev - gen)."""
    truncation: TruncationSettings | None = None
    """How those weights are truncated; None: not."""
    kl: KLSettings = KLSettings()
    positive_nll_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Weight of the mean negative log-likelihood of rows with a positive reward."""

    @model_validator(mode="after")
    def _fits(self) -> LossSettings:
        if self.ratio == "gspo" and self.reduction != "sequence":
            raise ValueError("ratio 'gspo' needs reduction 'sequence'")
        if self.truncation is not None and not self.importance_correction:
            raise ValueError("truncation does nothing without importance_correction = true")
        return self


class GrpoSettings(Settings):
    prompts_per_step: Several
    """Prompts one update consumes."""
    generations_per_prompt: Several
    """Rollouts of each prompt (the group size G)."""
    split: str = "train"
    """Which of the environment's task lists the prompts come from, in its order."""
    max_steps: Count
    """Updates after which the run ends without having met the target."""
    advantage: AdvantageSettings = AdvantageSettings()
    masks: MaskSettings = MaskSettings()
    loss: LossSettings = LossSettings()

    @model_validator(mode="after")
    def _fits(self) -> GrpoSettings:
        if self.generations_per_prompt == 1 and self.advantage.leave_one_out:
            raise ValueError("generations_per_prompt = 1 leaves no others to compare with: every advantage would be 0; "
                             "take at least 2")
        if self.loss.kl.in_reward and self.loss.kl.penalty:
            raise ValueError("loss.kl.in_reward takes the divergence out of the loss, and no environment here puts it "
                             "into the reward; set loss.kl.penalty = 0 or in_reward = false")
        return self


class ScheduleSettings(Settings):
    mode: Literal["sync", "async"] = "sync"
    """sync: rollouts and updates alternate. async: rollouts for later steps run during updates."""
    max_age: Annotated[int, Field(ge=0, le=1000, strict=True)] = 0
    """Weight versions by which a token may be older than the update that consumes it; 0 in sync mode."""
    in_flight: Literal["drain", "keep"] = "drain"
    """What a refit does with rollouts that are under way: wait until their prompts are finished, or preempt them and go
    on under the new weights."""
    prompts_in_flight: Several | None = None
    """Prompts of training whose rollouts are under way at once; None: all that may be, so that those of a later step
    use what an earlier step's leave idle."""

    @model_validator(mode="after")
    def _fits(self) -> ScheduleSettings:
        if self.mode == "sync" and self.max_age:
            raise ValueError("max_age > 0 needs mode = 'async'")
        if self.mode == "async" and not self.max_age:
            raise ValueError("mode = 'async' needs max_age >= 1")
        return self


class SamplingSettings(Settings):
    temperature: Annotated[float, Field(ge=1e-6, le=100, allow_inf_nan=False)] = 1.0
    """Divides the logits before everything else."""
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0
    """Smallest set of most likely tokens with at least this probability; 1: off."""
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1, strict=True)] = -1
    """Number of most likely tokens sampled from; -1: off."""
    min_p: Share = 0.0
    """Tokens below this share of the most likely token's probability are dropped; 0: off."""
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)] = 1.0
    """Divides the positive logits of tokens that are there already and multiplies their negative ones; 1: off."""
    presence_penalty: Penalty = 0.0
    """Taken from the logits of tokens that the reply has already; 0: off."""
    frequency_penalty: Penalty = 0.0
    """Taken from a token's logit for each time that the reply has it already; 0: off."""
    max_tokens: Tokens = 512
    """Tokens of one reply at most."""

    @model_validator(mode="after")
    def _fits(self) -> SamplingSettings:
        if self.top_k == 0:
            raise ValueError("top_k = 0 is ambiguous; -1 means off")
        return self

    def stamp(self, purpose: Purpose, *, stop_token_ids: tuple[int, ...], max_context: int, seed: int) -> Sampling:
        """The explicit value that accompanies every request of ``purpose``."""
        return Sampling(purpose=purpose, stop_token_ids=stop_token_ids, max_context=max_context, seed=seed,
                        **self.model_dump())


class ValidationSettings(Settings):
    split: str = "validation"
    """Which of the environment's task lists."""
    max_tasks: Count | None = None
    """Tasks (prompts, not rollouts) taken from its start; None: all."""
    k: Annotated[int, Field(ge=1, le=4096, strict=True)] = 4
    """Rollouts of each task."""
    start_at: Index = 0
    """First step after which validation may run; does not shift the cadence."""
    period: Count = 1
    """Validate after steps that are multiples of this."""
    at_start: bool = False
    """Also before the first step (the base's value)."""
    at_end: bool = False
    """Also after the last step, where the cadence would skip it."""
    deferred: bool = False
    """Save the weights after each step that is due, and validate them when training is over, in order, until the target
    is met; the time that counts is that of the update behind the weights that met it."""
    metric: str | None = None
    """The metric that ends the run: accuracy or, for k > 1, pass_k, pass_hat_k, pass_1. None: no early stop."""
    target: Share | None = None
    """The run ends when the metric is at least this."""
    sampling: SamplingSettings | None = None
    """None, or a value left out: as in training."""

    def is_due(self, step: int, max_steps: int) -> bool:
        """Whether to validate after ``step`` (0: before the first) of ``max_steps``."""
        if step == 0:
            return self.at_start
        if step == max_steps and self.at_end:
            return True
        return step >= self.start_at and step % self.period == 0

    @model_validator(mode="after")
    def _fits(self) -> ValidationSettings:
        known = [*Metric] if self.k > 1 else [Metric.ACCURACY]
        if self.metric is not None and self.metric not in known:
            raise ValueError(f"metric {self.metric!r} is not reported with k = {self.k}; available: {', '.join(known)}")
        if (self.metric is None) != (self.target is None):
            raise ValueError("metric and target belong together: give both or neither")
        if self.deferred and self.at_start:
            raise ValueError("at_start asks for a validation before the first step, and a deferred one has only "
                             "weights that an update left behind")
        return self


class LimitSettings(Settings):
    start_s: Seconds = 1800.0
    """Seconds until the trainer has started, the generator, and the rollout workers after it."""
    queue_s: Seconds = 600.0
    """Seconds a rollout that was sent to a worker may wait for a place there."""
    sandbox_start_s: Seconds = 60.0
    """Seconds until a task's sandbox is open."""
    request_s: Seconds = 300.0
    """Seconds for one model reply."""
    rollout_s: Seconds = 1800.0
    """Seconds for a whole rollout, grading left out."""
    score_s: Seconds = 120.0
    """Seconds for grading."""
    rollout_retries: Annotated[int, Field(ge=0, le=100, strict=True)] = 2
    """How often a rollout that is not a sample is started again."""
    engine_restarts: Annotated[int, Field(ge=0, le=10_000, strict=True)] = 3
    """How many engines of the generator that broke down a run may start again."""
    trainer_restarts: Annotated[int, Field(ge=0, le=1000, strict=True)] = 0
    """How often a run goes on by itself, from its last full checkpoint, after the trainer lost a process; counted in
    one process of the engine. 0: it fails, and can be resumed."""
    max_failed_share: Share = 0.1
    """Share of a step's or a validation's rollouts that may end without a sample after their retries."""
    concurrency: Several = 256
    """Rollouts in flight per rollout worker."""
    update_s: Seconds = 3600.0
    """Seconds for one optimizer step, and for each pass of log-probabilities before it."""
    refit_s: Seconds = 600.0
    """Seconds for one refit, both sides; and for pausing and resuming the generator around it."""
    checkpoint_s: Seconds = 3600.0
    """Seconds for writing or loading one checkpoint, or hashing the weights; and for a refit from a checkpoint, where
    refit_s is less."""
    stall_report_s: Seconds = 120.0
    """Seconds without any progress after which the watchdog reports what everybody waits for."""


class RefitSettings(Settings):
    transport: str | None = None
    """How weights travel; None: the first that both sides know."""
    chunk_bytes: Annotated[int, Field(ge=1024, le=2**32, strict=True)] = 64 * 2**20
    """Bytes moved at a time."""
    probe_bound: Positive | None = 1e-4
    """Largest difference of the probe's log-probabilities, trainer against generator; above it the run stops.
    None: measured only."""
    probe_growth: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    """How many times the distance of the first refit's probe that of a later one may be; above it, or where the
    generator did not follow the trainer, the run stops. For generators whose arithmetic allows no absolute bound."""


class RolloutSettings(Settings):
    workers: Annotated[int, Field(ge=0, le=4096, strict=True)] = 0
    """Rollout workers; 0: one beside each generator engine."""


class CheckpointSettings(Settings):
    period: Index = 0
    """Write a checkpoint after steps that are multiples of this; 0: never."""
    keep: Count = 2
    """How many to keep; older ones are removed."""
    final: bool = True
    """Write the weights when the run ends."""


class PolicySettings(Settings):
    checkpoint: str
    """Folder in HF form, or ``package:MODULE/FOLDER`` for one that an installed distribution ships."""
    config: str | None = None
    """File that says what the checkpoint's config.json and weights are like, or ``package:MODULE/FILE``: a plan goes
    by it where the checkpoint is not there. None: such a plan knows nothing of the policy."""
    max_context: Tokens
    """Longest sequence in tokens."""
    tool_parser: Literal["qwen3_xml"] = "qwen3_xml"
    """How tool calls are written in replies."""
    enable_thinking: bool = False
    """The chat template's thinking switch."""
