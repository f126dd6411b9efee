"""Divergence of the current policy from a reference policy, per token, from log-probabilities of sampled tokens.

With rho = ref - cur: k1 = -rho, k2 = rho^2 / 2, k3 = exp(rho) - 1 - rho. rho is clamped first, the weighted estimate
last. Where the first clamp bites, no gradient flows: neither through the estimate nor through its weight.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_bench.contract import KLSettings


def kl_estimate(cur: Tensor, ref: Tensor, settings: KLSettings, weight: Tensor | None = None) -> Tensor:
    """The clamped, weighted estimate, of the shape of ``cur``; the penalty is not multiplied in."""
    rho = ref - cur
    if (bound := settings.input_clamp) is not None:
        clamped = rho.clamp(-bound, bound)
        if weight is not None:
            weight = torch.where(rho == clamped, weight, weight.detach())
        rho = clamped
    estimate = _estimators[settings.kind](rho)
    if weight is not None:
        estimate = weight * estimate
    if (bound := settings.output_clamp) is not None:
        estimate = estimate.clamp(-bound, bound)
    return estimate


_estimators = {
    "k1": lambda rho: -rho,
    "k2": lambda rho: rho.square() / 2,
    "k3": lambda rho: torch.exp(rho) - 1 - rho,
}
