"""The kinds of events and what their ``data`` holds.

``events.jsonl`` is the only truth about a run; every other view is derived from it. Durations are seconds. The
``phase`` events partition the wall clock of the engine's process: each names the phase that starts at its
``elapsed_s``, and lasts until the next one.
"""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """What the engine's critical path is busy with; exactly one at any time."""

    STARTUP = "startup"
    ROLLOUT = "rollout"
    LOG_PROBABILITIES = "log_probabilities"
    ADVANTAGES = "advantages"
    UPDATE = "update"
    DRAIN = "drain"
    REFIT = "refit"
    VALIDATION = "validation"
    CHECKPOINT = "checkpoint"
    JOURNAL = "journal"
    SHUTDOWN = "shutdown"


class Kind(StrEnum):
    """Event kinds. Keys of ``data`` stand in parentheses."""

    RUN_STARTED = "run_started"
    """The first (run, profile, seed, target, metric, max_steps, prompts_per_step, generations_per_prompt, scored,
    unscored, settings: the resolved profile, parts by role, observers, placements, layout: the hosts that these
    name, to be drawn, tasks, provenance_sha256: of the statement beside the journal; of a simulation, and of nothing
    else, modelled: where its times are from, and passes_at: the first step whose weights are taken to meet the
    target, or None. Rewards, losses and log-probabilities mean nothing there)"""
    PHASE = "phase"
    """The critical path goes over to another phase (phase)"""
    ROLLOUT = "rollout"
    """A rollout ended (rollout_id, group_id, task_id, purpose, end, cause, message, reward, turns, sampled_tokens,
    versions, durations, counters, attempt, worker: which it ran on)"""
    GROUP = "group"
    """All rollouts of a training prompt ended (group_id, task_id, epoch, index, target, rewards, oldest_version)"""
    BATCH = "batch"
    """A step's batch is built (rows, rollouts, tokens, n_tokens, n_sequences, reward_mean, not_samples by end,
    advantage_zero_groups, masked by reason, ages, metrics)"""
    UPDATE = "update"
    """An optimizer step (loss, grad_norm, learning_rate, tokens, ended_at, metrics)"""
    REFIT = "refit"
    """Weights reached the generator (version, bytes, seconds, probe_difference or None, transport; with
    ``refit.probe_growth`` probe_distance, and probe_followed or None)"""
    VALIDATION = "validation"
    """A validation (version, k, tasks, passed, metrics, standard_error, seconds, ends, target_met)"""
    CHECKPOINT = "checkpoint"
    """A checkpoint was written (folder, what, seconds, bytes: of the trainer's part; for weights that are to be
    evaluated updated_at: when the update behind them ended, UTC, and seal: of their ``weights.json``)"""
    ALARM = "alarm"
    """Something a person should know (name, message; for ``engine_lost`` engine, cause, seconds; for ``worker_lost``
    worker, cause, and seconds where it was started again)"""
    STALL = "stall"
    """Nothing moved for ``limits.stall_report_s`` (message, waiting, seconds, stacks)"""
    STEP = "step"
    """A step is over (version, seconds, reward_mean, rollouts, sampled_tokens)"""
    RESUMED = "resumed"
    """An interrupted run goes on in another process, whose ``elapsed_s`` starts at 0 (from_step: of the checkpoint, 0
    for none; from_seq: the first event that is not in it; attempt: 2 or more; forced: what differs from the attempt
    before, as text; settings: the resolved profile, where forced; layout, where there are hosts to draw;
    provenance_sha256)"""
    EVALUATION_STARTED = "evaluation_started"
    """The first of a deferred evaluation, in a journal of its own that follows the training's (run, training_sha256: of
    its journal, checkpoints: step, folder and updated_at of each, in order, metric, target, k, scored, unscored,
    forced: what differs from the training, as text, settings, parts, observers, placements, layout, tasks,
    provenance_sha256)"""
    ERROR = "error"
    """The run failed (type, message, hint, plugin, role, task, traceback)"""
    RUN_ENDED = "run_ended"
    """The last (status, metric, value, target, steps, time_to_target_s, wall_s, cpu_s, weights_sha256, ledger)"""
