"""MLPerf Training's benchmark of GRPO: what must hold, and a run's events in its log form.

A version of the rules is data in one module (``training_6_1``); ``judge`` holds a profile and a run against it.
``mllog`` turns events into lines, ``audit`` and ``official`` check a log, ``writer`` puts one into the run folder.
"""

from ._plugins import observer, ruleset
from .config import MllogConfig, RulesetConfig

__all__ = ["MllogConfig", "RulesetConfig", "observer", "ruleset"]
