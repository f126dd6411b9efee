"""What the official check of convergence will make of a run.

It compares the samples that three runs needed, the median of them, with those of the reference's runs at the same batch
or interpolated between two of its batches, and refuses what is faster. Since all reference runs of a batch converged at
the same validation, there is no tolerance. A single run cannot be refused for it, so what is said here is a note.
"""

from __future__ import annotations

from grpo_bench.contract import Finding

from .rules import Rules

_RULE = "reference convergence"
_WHY = "runs that converge faster than the reference are refused, for they may not have done the same"


def expectation(rules: Rules, batch: int) -> Finding:
    """Before a run: whether it may converge at the first validation."""
    first = rules.first_validation(batch) * batch
    wanted = rules.samples_to_converge(batch)
    if wanted is None:
        return _note(_beyond(rules, batch))
    if first >= wanted:
        return _note(f"{first} samples at the first validation; the reference needs {float(wanted):.10g}")
    return _note(f"{first} samples at the first validation are fewer than the {float(wanted):.10g} that the reference "
                 f"needs at batch {batch}: runs that converge there will be refused", "take another batch")


def outcome(rules: Rules, batch: int, step: int) -> Finding:
    """After a run that met its target at ``step``."""
    samples, wanted = step * batch, rules.samples_to_converge(batch)
    if wanted is None:
        return _note(f"converged after {samples} samples; {_beyond(rules, batch)}")
    faster = "" if samples >= wanted else "; where the median of three runs is as fast, they will be refused"
    return _note(f"converged after {samples} samples; the reference needs {float(wanted):.10g}{faster}")


def _beyond(rules: Rules, batch: int) -> str:
    return (f"checker {rules.checker} knows no run of the reference above batch {max(rules.reference_samples)}: it "
            f"will refuse every run at batch {batch}")


def _note(message: str, fix: str = "") -> Finding:
    return Finding(_RULE, True, message, "grpo.prompts_per_step", _WHY, fix)
