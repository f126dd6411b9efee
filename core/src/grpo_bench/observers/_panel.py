"""The panel of the live display, drawn from the run's state."""

from __future__ import annotations

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ..contract import Phase
from ._state import RunState
from ._text import duration, name, number, sparkline, stopwatch

_WIDEST = 100
_LABEL = 10


def panel(state: RunState, elapsed_s: float, width: int, curves: bool) -> Group:
    """What to show at ``elapsed_s`` of the run on ``width`` columns; ``curves`` where the terminal can draw them."""
    width = min(width, _WIDEST)
    room = max(8, width - 44) if curves else 0
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", width=_LABEL, no_wrap=True)
    rows.add_column(no_wrap=True)
    rows.add_column(no_wrap=True)
    rows.add_row("step", f"{state.step} of {state.max_steps}",
                 ProgressBar(total=max(1, state.max_steps), completed=state.step, width=room or 20))
    rows.add_row("now", Text(name(state.phase), style="cyan"), _rollouts(state))
    rows.add_row(state.metric_name or "pass@k", _value(state),
                 Text(_curve(state.values, room, state.target), style="green"))
    rows.add_row("reward", number(state.rewards[-1] if state.rewards else None),
                 Text(_curve(state.rewards, room, None), style="blue"))
    left = state.left_s()
    rows.add_row("speed", f"{number(state.rate, 0)} tokens/s",
                 f"{duration(state.step_seconds)} a step" if state.step_seconds is not None else "")
    rows.add_row("time", stopwatch(elapsed_s), f"~{stopwatch(left)} to step {state.max_steps}" if left else "")
    title = Text.assemble(("grpo-bench", "bold"), f" {state.profile}, seed {state.seed}")
    return Group(Rule(title, align="left", style="dim", characters="─" if curves else "-"), rows)


def _rollouts(state: RunState) -> str:
    """How far they are; nothing while none is under way."""
    done, total = state.under_way
    if not done and state.phase not in (Phase.ROLLOUT, Phase.VALIDATION):
        return ""
    return f"{done} of {total} rollouts" if total is not None else f"{done} rollouts"


def _value(state: RunState) -> Text:
    text = Text(number(state.value))
    if state.standard_error is not None:
        text.append(f" ± {state.standard_error:.3f}", style="dim")
    if state.target is not None:
        met = state.value is not None and state.value >= state.target
        text.append(f"  target {state.target:g}", style="green" if met else "dim")
    return text


def _curve(values: list[float], room: int, target: float | None) -> str:
    return sparkline(values, room, high=max([*values, target or 0.0])) if room and values else ""
