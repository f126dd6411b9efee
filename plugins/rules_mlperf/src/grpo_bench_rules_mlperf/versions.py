"""All versions of the rules, the newest first. Only the newest can be submitted under; older ones say what an older log
is worth, and what has changed since."""

from __future__ import annotations

from . import training_6_1, training_6_1_draft
from .rules import Rules

VERSIONS: tuple[Rules, ...] = (training_6_1.RULES, training_6_1_draft.RULES)
