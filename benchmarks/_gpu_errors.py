"""The loss and the log-probabilities against float64 on the same inputs, on one device.

Inputs are drawn and rounded to a precision, then computed with in that precision, or in float32 after widening. The
reference widens the same rounded inputs to float64, so an error is the computation's own. Bounds are wide: they catch a
wrong computation, not another rounding. The loss in bfloat16 throughout has none, since its sums over a row need more
digits than that has; the figures say how far off it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from grpo_bench.contract import KLSettings, LossSettings, TruncationSettings
from grpo_bench.steps.update import policy_loss
from grpo_bench_model_qwen3 import Qwen3, Qwen3Config, token_log_probabilities
from torch import Tensor

_VOCABULARIES = (32_000, 151_936, 248_320)
_LOGIT_ROWS = {"cuda": 2048, "cpu": 4}
_HIDDEN = {"cuda": 1024, "cpu": 64}
_ROWS = {"cuda": ((256, 1024), (8, 65_536)), "cpu": ((32, 64), (4, 2048))}
"""Rows and tokens of each."""
_TEMPERATURE = 0.7
_PRECISIONS = ((torch.float32, torch.float32), (torch.bfloat16, torch.float32), (torch.bfloat16, torch.bfloat16))
"""Of the inputs, and of the computation."""
_LOSSES = {
    "ppo with dual clip and k3": LossSettings(dual_clip=3.0, kl=KLSettings(penalty=0.01)),
    "gspo": LossSettings(ratio="gspo", reduction="sequence"),
    "cispo with tis": LossSettings(ratio="cispo", importance_correction=True,
                                   truncation=TruncationSettings(kind="tis", max=1.05)),
}


@dataclass(frozen=True, slots=True)
class Error:
    """Differences from float64: of values, absolute; of the gradient, its largest and mean component's relative to the
    reference's largest, and its norm's relative to the reference's norm. ``bounds`` are on ``value_max`` and
    ``gradient_norm``; None: there is none."""

    what: str
    size: str
    precision: str
    value_max: float
    value_mean: float
    gradient_max: float
    gradient_mean: float
    gradient_norm: float
    bounds: tuple[float, float] | None

    @property
    def fine(self) -> bool:
        """Within bounds; never where the error is no number."""
        return self.bounds is None or (self.value_max <= self.bounds[0] and self.gradient_norm <= self.bounds[1])

    def __str__(self) -> str:
        beyond = "" if self.fine else f"  BEYOND {self.bounds}"
        return (f"{self.what:<42}{self.size:<20}{self.precision:<24}value {self.value_max:.1e}  "
                f"gradient {self.gradient_norm:.1e}{beyond}")

    @staticmethod
    def header() -> tuple[str, str]:
        names = ("against float64", "size", "precision", "value max", "mean", "gradient max", "mean", "norm", "bounds")
        return f"| {' | '.join(names)} |", "|---" * len(names) + "|"

    def row(self) -> str:
        bounds = "none" if self.bounds is None else f"{self.bounds[0]:g}, {self.bounds[1]:g}"
        figures = (self.value_max, self.value_mean, self.gradient_max, self.gradient_mean, self.gradient_norm)
        cells = [self.what, self.size, self.precision, *(f"{figure:.1e}" for figure in figures),
                 bounds if self.fine else f"**beyond {bounds}**"]
        return f"| {' | '.join(cells)} |"


def compared(what: str, size: str, precision: str, found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor],
             bounds: tuple[float, float] | None) -> Error:
    """Of values and gradients, ``expected`` in float64."""
    value, gradient = ((a.detach().to(b.device).double() - b.detach()).abs() for a, b in zip(found, expected))
    scale, norm = expected[1].abs().max(), torch.linalg.vector_norm(expected[1])
    return Error(what, size, precision, float(value.max()), float(value.mean()), float(gradient.max() / scale),
                 float(gradient.mean() / scale), float(torch.linalg.vector_norm(gradient) / norm), bounds)


@contextmanager
def matrix_precision(name: str) -> Iterator[None]:
    """Products of float32 matrices on a GPU: "float32" as they are, "tf32" with ten bits of mantissa."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if name == "float32" else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def log_probability_errors(device: str) -> Iterator[Error]:
    """Of logits alone, and of hidden states through the output norm and matrix."""
    rows = _LOGIT_ROWS[device]
    for vocabulary in _VOCABULARIES:
        draw = torch.Generator(device).manual_seed(vocabulary)
        ids = torch.randint(vocabulary, (rows,), generator=draw, device=device)
        where, weight = torch.arange(rows, device=device), torch.randn(rows, generator=draw, device=device)
        logits = torch.randn(rows, vocabulary, generator=draw, device=device) * 3
        model = _output_layer(vocabulary, device)
        states = torch.randn(rows, model.config.hidden_size, generator=draw, device=device)

        def scores(logits: Tensor, where: Tensor = where, ids: Tensor = ids) -> Tensor:
            return token_log_probabilities(logits, where, ids, _TEMPERATURE)

        for given, computed in _PRECISIONS:
            of = f"{rows} x {vocabulary:,}", _name(given, computed)
            found = _graded(scores, logits.to(given), weight, computed)
            expected = _graded(scores, logits.to(given).double(), weight)
            bounds = (1e-4, 1e-2) if computed == torch.float32 else (0.25, 0.1)
            yield compared("log-probability of logits", *of, found, expected, bounds)
            _cast(model, given)
            found = _graded(scores, states.to(given), weight, computed, model.logits)
            _cast(model, torch.float64)
            expected = _graded(scores, states.to(given).double(), weight, first=model.logits)
            bounds = (1e-4, 1e-3) if given == torch.float32 else (0.25, 0.1)
            yield compared("log-probability of hidden states", *of, found, expected, bounds)


def loss_errors(device: str) -> Iterator[Error]:
    """Of the loss and its gradient by the current log-probabilities, for rows of ordinary length and long ones."""
    draw = torch.Generator(device).manual_seed(1)
    for rows, length in _ROWS[device]:
        row = torch.arange(rows, device=device).repeat_interleave(length)
        moved = torch.tensor((0.0, 0.1, -0.4, 0.4), device=device).repeat(rows // 4)[row]  # rows clear of the clip
        cur = -torch.rand(len(row), generator=draw, device=device) * 2
        noise = [torch.randn(len(row), generator=draw, device=device) * 0.05 for _ in range(3)]
        others = {"prev": cur - moved + noise[0], "gen": cur - moved + noise[0] + noise[1], "ref": cur + noise[2]}
        advantages = torch.randn(rows, generator=draw, device=device)
        one = torch.ones((), device=device)
        for name, settings in _LOSSES.items():
            for given, computed in _PRECISIONS:
                rounded = {key: value.to(given) for key, value in others.items()}

                loss = partial(_loss, row, rounded, advantages, settings)
                found = _graded(loss, cur.to(given), one, computed)
                expected = _graded(loss, cur.to(given).double(), one)
                yield compared(f"loss, {name}", f"{rows} rows of {length:,}", _name(given, computed), found, expected,
                               None if computed == torch.bfloat16 else (1e-4, 1e-2))


def _loss(row: Tensor, others: dict[str, Tensor], advantages: Tensor, settings: LossSettings, cur: Tensor) -> Tensor:
    widened = {key: value.to(cur.dtype) for key, value in others.items()}
    return policy_loss(cur, row, **widened, advantages=advantages, sample_mask=torch.ones_like(advantages),
                       rewards=advantages, n_tokens=float(len(row)), n_sequences=float(len(advantages)),
                       n_positive_tokens=1.0, settings=settings).loss


def _output_layer(vocabulary: int, device: str) -> Qwen3:
    """A model of which only the output norm and matrix are used."""
    config = Qwen3Config(vocab_size=vocabulary, hidden_size=_HIDDEN[device], num_hidden_layers=1, num_attention_heads=1,
                         head_dim=2, intermediate_size=1, max_position_embeddings=1, initializer_range=0.1)
    torch.manual_seed(0)
    with torch.device(device):
        return Qwen3(config).requires_grad_(False)


def _cast(model: Qwen3, dtype: torch.dtype) -> None:
    """The weights only: rotations are complex."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def _graded(function: Callable[[Tensor], Tensor], values: Tensor, weight: Tensor, computed: torch.dtype | None = None,
            first: Callable[[Tensor], Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """What ``function`` gives, and the gradient of its weighted sum by ``values``; these go through ``first``, in their
    own precision, and are then brought to ``computed``."""
    leaf = values.detach().clone().requires_grad_()
    entered = leaf if first is None else first(leaf)
    result = function(entered if computed is None else entered.to(computed))
    (gradient,) = torch.autograd.grad((result.double() * weight.double()).sum(), leaf)
    return result.detach(), gradient


def _name(given: torch.dtype, computed: torch.dtype) -> str:
    names = [str(dtype).removeprefix("torch.") for dtype in (given, computed)]
    return names[0] if given == computed else f"{names[0]}, then {names[1]}"
