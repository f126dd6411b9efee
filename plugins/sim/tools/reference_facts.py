"""What the packaged model of the reference says about itself: settings, words, and what is assumed."""

from __future__ import annotations

from collections.abc import Mapping

from grpo_bench_sim.model import Assumptions, Quantity, Shares

SHARES = Shares(generate=0.6, environment=0.4)
ASSUMPTIONS = Assumptions(load_requests=32, scaling=1, bytes_per_s=5e9, weights_bytes=741e9, full_bytes=5.6e12)
PASSES_AFTER = {"256": 4608, "512": 5120, "1024": 7168}
READS = {"ranks": "trainer.workers", "engines": "generator.workers", "engine_gpus": "generator.tensor_parallel",
         "policy_nodes": "hardware.policy_nodes", "timeout_s": "agent.agent_timeout_s"}
LIKE = (
    "policy.config", "policy.max_context", "grpo.generations_per_prompt", "schedule.mode", "schedule.max_age",
    "schedule.in_flight", "limits.concurrency", "rollout.workers",
    "limits.rollout_retries", "agent.max_turns", "agent.agent_timeout_s", "agent.command_timeout_s",
    "sampling.max_tokens", "trainer.workers", "trainer.tensor_parallel", "trainer.pipeline_parallel",
    "trainer.expert_parallel", "generator.workers", "generator.tensor_parallel", "generator.expert_parallel",
    "hardware.gpu", "hardware.policy_nodes", "validation.k",
)
ENGINE = ("policy.config", "generator.tensor_parallel", "generator.expert_parallel", "hardware.gpu")
TRAINER = ("policy.config", "trainer.workers", "trainer.tensor_parallel", "trainer.pipeline_parallel",
           "trainer.expert_parallel", "hardware.gpu", "grpo.prompts_per_step", "grpo.generations_per_prompt")
ROLLING = (*ENGINE, "generator.workers", "agent.max_turns", "sampling.max_tokens", "limits.concurrency",
           "rollout.workers", "policy.max_context")
NEEDS: Mapping[Quantity, tuple[str, ...]] = {
    Quantity.START: ("policy.config", "trainer.workers", "generator.workers", "hardware.gpu"),
    Quantity.ROLLOUT: (*ROLLING, "grpo.prompts_per_step", "grpo.generations_per_prompt", "schedule.mode",
                       "schedule.max_age", "schedule.in_flight"),
    Quantity.STALLS: (*ROLLING, "grpo.prompts_per_step", "grpo.generations_per_prompt", "schedule.mode",
                      "schedule.max_age", "schedule.in_flight", "agent.agent_timeout_s", "agent.command_timeout_s"),
    Quantity.LOG_PROBABILITIES: TRAINER,
    Quantity.DRIVER: ("grpo.prompts_per_step", "grpo.generations_per_prompt"),
    Quantity.UPDATE: TRAINER,
    Quantity.FIRST_STEP: TRAINER,
    Quantity.REFIT: (*ENGINE, "trainer.workers", "generator.workers"),
    Quantity.VALIDATION: (*ROLLING, "validation.k"),
}

SOURCE = "12 public logs of MLPerf Training 6.1's reference for qwen35_397b_grpo, 6 at batch 256 and 6 at batch 512"
METHOD = (
    "Replicas 1 to 3 of each batch are fitted, 4 to 6 are held out. Updates, log-probabilities and the driver's work: "
    "least squares in rollouts and tokens over the steps from the second on of both batches. Start-up, refits and what "
    "the first step takes longer: medians, and the spread of logarithms. The logs do not say what rollouts take, but "
    "each step waits before its refit until the next step's prompts are finished: that is its exposed generation. "
    "Rollouts, and the stall of one in the last prompt of each block, are found by simulating both batches with the "
    "engine, as one set, until each step's exposed generation, the last step, validations and the time before the "
    "first step have the logs' medians; at batch 512 the slower of two blocks decides, and where the batches are 100 s "
    "apart, the shorter wait. Sudden stalls are taken from waits 100 s above their step's median. Tokens grow by about "
    "a sixth in a run; the model has their mean."
)
ASSUMED = {
    "train.shares": "the logs do not divide a rollout's time; six tenths are taken as decoding, the rest as waiting",
    "train.turns": "the logs do not count turns; taken as one, which matters to pauses only",
    "train.tokens": "the spread between single rollouts follows from that between steps, taken as independent",
    "validation.seconds": "taken as those of training, which the logs' validations bear out at 256 rollouts at once",
    "stalls.order": "which prompt of a block is slow, and how many of its rollouts: the logs have a step's wait",
    "stalls.sudden_share": "only stalls that held a step up by 100 s or more can be seen",
    "assumptions.load_requests": "all logs have the same load on their engines",
    "assumptions.scaling": "all logs have the same number of GPUs",
    "checkpoint": "the logs' runs wrote none; weights of 741 GB as in a public run with deferred evaluation, at 5 GB/s",
    "passes_after": "the step at which the target is met is the logs', in all of them, and no prediction",
}
