"""What the packaged model of the reference says about itself: settings, words, and what is assumed."""

from __future__ import annotations

from collections.abc import Mapping

from grpo_bench_sim.model import Assumptions, Quantity, Shares

SHARES = Shares(generate=0.6, environment=0.4)
ASSUMPTIONS = Assumptions(load_requests=32, scaling=1, bytes_per_s=5e9, weights_bytes=741e9, full_bytes=5.6e12)
PASSES_AFTER = {"256": 4608, "512": 5120, "1024": 7168, "1152": 6912}
READS = {"ranks": "trainer.workers", "engines": "generator.workers", "engine_gpus": "generator.tensor_parallel",
         "policy_nodes": "hardware.policy_nodes", "timeout_s": "agent.agent_timeout_s"}
_BATCH = ("grpo.prompts_per_step", "grpo.generations_per_prompt")
_MACHINE = ("policy.config", "policy.max_context", "hardware.gpu", "hardware.gpus_per_node", "hardware.segment",
            "fabric.use", "deterministic")
_PARALLEL = ("trainer.use", "trainer.workers", "trainer.tensor_parallel", "trainer.pipeline_parallel",
             "trainer.virtual_pipeline", "trainer.context_parallel", "trainer.expert_parallel",
             "trainer.expert_tensor_parallel", "trainer.precision")
_TRAINING = (*_MACHINE, *_BATCH, "trainer.", "grpo.loss.")
_SERVING = (
    *_MACHINE, "generator.", "rollout.", "limits.concurrency", "limits.rollout_retries", "limits.rollout_s",
    "limits.request_s", "limits.sandbox_start_s", "limits.score_s", "agent.use", "agent.max_turns",
    "agent.agent_timeout_s", "agent.command_timeout_s", "agent.tools", "agent.system_template_sha256",
    "agent.user_template_sha256", "environment.use", "environment.backend", "environment.grading",
    "environment.cross_check", "environment.test_timeout_s", "environment.command_timeout_s", "environment.parallel",
    "environment.start_retries", "environment.limits.")
_ROLLING = (*_SERVING, *_BATCH, "sampling.", "grpo.split", "environment.train_expected.sha256", "schedule.")
NEEDS: Mapping[Quantity, tuple[str, ...]] = {
    Quantity.START: (*_MACHINE, "trainer.", "generator.", "environment.use", "environment.backend", "agent.use"),
    Quantity.ROLLOUT: _ROLLING,
    Quantity.STALLS: _ROLLING,
    Quantity.LOG_PROBABILITIES: _TRAINING,
    Quantity.DRIVER: (*_BATCH, "fabric.use", "deterministic", "schedule."),
    Quantity.UPDATE: _TRAINING,
    Quantity.FIRST_STEP: (*_TRAINING, "generator.", "refit."),
    Quantity.REFIT: (*_MACHINE, *_PARALLEL, "generator.", "refit.", "schedule.in_flight"),
    Quantity.VALIDATION: (*_SERVING, "validation.split", "validation.max_tasks", "validation.k", "validation.sampling.",
                          "environment.validation_expected.sha256"),
}
"""What each quantity depends on: settings, and sections by the beginning of their settings' names."""
UNTIMED = frozenset({
    "trainer.env", "trainer.learning_rate", "trainer.betas", "trainer.eps", "trainer.weight_decay",
    "trainer.clip_norm", "trainer.collective_s", "generator.env"})
"""Settings of these sections that change no time."""

SOURCE = "12 public logs of MLPerf Training 6.1's reference for qwen35_397b_grpo, 6 at batch 256 and 6 at batch 512"
METHOD = (
    "Replicas 1 to 3 of each batch are fitted, 4 to 6 are held out. Updates, log-probabilities and the driver's work: "
    "least squares in rollouts and tokens over the steps from the second on of both batches. No statistic of the logs "
    "has log-probabilities: what a step takes beyond its update, its refit and its waits is taken to be theirs. "
    "Start-up, refits and what the first step takes longer: medians, and the spread of logarithms. The logs do not "
    "say what rollouts take, but each step waits before its refit until the next step's prompts are finished: that is "
    "its exposed generation. Rollouts, and the stall of one in the last prompt of each block, are found by simulating "
    "both batches with the engine, as one set, until each step's exposed generation, the last step, validations and "
    "the time before the first step have the logs' medians; at batch 512 the slower of two blocks decides, and where "
    "the batches are 100 s apart, the shorter wait. The last three blocks are in logs of batch 512 only: of two, the "
    "first is taken to be the slower one, and the other not to stall. Rollouts of validations are so long that "
    "simulated validations have the mean of the six that are fitted. Sudden stalls are taken from waits 100 s above "
    "their step's median. Tokens grow by about a sixth in a run; the model has their mean."
)
ASSUMED = {
    "train.shares": "the logs do not divide a rollout's time; six tenths are taken as decoding, the rest as waiting",
    "train.turns": "the logs do not count turns; taken as one, which matters to pauses only",
    "train.tokens": "the spread between single rollouts follows from that between steps, taken as independent",
    "validation.seconds": "the logs have whole validations and their mean is met; that rollouts differ, and stall of a "
                          "sudden, as in training is taken from there",
    "validation.shares": "those of a rollout in training",
    "validation.tokens": "those of a rollout in training",
    "stalls.order": "which prompt of a block is slow, and how many of its rollouts: the logs have a step's wait; that "
                    "the prompts of the first two steps do not stall, whose waits the first step hides; that a rollout "
                    "which is tried again does not stall as it did",
    "stalls.sudden_share": "only stalls that held a step up by 100 s or more can be seen",
    "log_probabilities": "no statistic of the logs has them: taken as what a step takes beyond its update, its refit "
                         "and its waits",
    "first.log_probabilities": "likewise, of a first step",
    "like": "settings that neither the logs nor the benchmark's description give, as recomputation, micro-batches and "
            "limits, are taken to have been those of profile gb300-256",
    "like.limits.rollout_retries": "some 5 of 256 samples of a step are not valid in the logs, and are taken not to "
                                   "have been tried again",
    "shutdown": "the logs end before it: taken to need no time",
    "assumptions.load_requests": "all logs have the same load on their engines",
    "assumptions.scaling": "all logs have the same number of GPUs",
    "checkpoint": "the logs' runs wrote none; weights of 741 GB as in a public run with deferred evaluation, at 5 GB/s",
    "passes_after": "the step at which the target is met is that of all public logs of its batch, and no prediction; "
                    "logs of batch 1024 and 1152 are in no other figure of this model",
}
