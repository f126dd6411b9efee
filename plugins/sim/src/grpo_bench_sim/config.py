"""What the parts of a simulation are told: the model, and what the simulated profile makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from pydantic import BaseModel, ConfigDict

from .model import Model, Quantity


class PartConfig(BaseModel):
    """The same for all parts. ``speed`` is that of updates, and ``engine_speed`` that of decoding at equal load,
    relative to calibration; ``engines`` is how many times the engines that are there share the load; ``scales``
    multiplies what a quantity takes. ``timeout_s`` is the agent's own limit; None: it has none. The rollouts of
    validations pass from weight version ``passes_at`` on: that is assumed, never found out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Model
    seed: int = 0
    prompts: int = 1
    passes_at: int = 0
    speed: float = 1.0
    engine_speed: float = 1.0
    engines: float = 1.0
    timeout_s: float | None = None
    scales: Mapping[Quantity, float] = {}

    def scale(self, quantity: Quantity) -> float:
        return self.scales.get(quantity, 1.0)

    def stream(self, *names: object) -> Random:
        """A random stream of its own for every name."""
        return Random(f"{self.seed}/{'/'.join(map(str, names))}")
