"""The rules that the checker of mlperf-logging 4.1.59 knew, under which the published reference runs were made.

256 validation tasks, of which 177 are needed, evaluated while training waits; training data of 685 tasks; longer limits
for tests; logs that may leave out precision, parallelism and the name of the configuration. All else is as in
``training_6_1``. Nothing can be submitted under them any more: they say what an older log is worth.
"""

from __future__ import annotations

from dataclasses import replace

from . import training_6_1 as later
from .rules import amended

RULES = replace(
    later.RULES, name="mlperf-training-6.1-draft", checker="4.1.59", training_tasks=685, validation_tasks=256,
    summary="MLPerf Training 6.1 before validation tasks were taken out and evaluation was deferred",
    max_steps={256: 30, 512: 20, 1024: 10}, logged=frozenset(),
    requirements=amended(
        later.RULES.requirements, {
            "environment.train_expected.bytes": {"wanted": 444_421_669},
            "environment.train_expected.sha256":
                {"wanted": "c07bcd64ed1c558e28d091239104e38295a5e696c1d21bb0b61f0346c7eaa0f7"},
            "environment.validation_expected.bytes": {"wanted": 173_801_096},
            "environment.validation_expected.sha256":
                {"wanted": "452d0e6b3c1973669334062dc24931355de51749df1ab51fc9bb71a129f7bb5c"},
            "environment.test_timeout_s": {
                "wanted": 300.0, "why": "the reference gave tests of training 300 s and those of validation 180 s, and "
                                        "one limit serves both here"},
        }, without=("validation.deferred",)))
