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
_NARROW = 58
"""Below this many columns the display has one column beside the labels, not two."""

Row = tuple[str, Text, Text | ProgressBar]


def panel(state: RunState, elapsed_s: float, width: int, curves: bool) -> Group:
    """What to show at ``elapsed_s`` of the run on ``width`` columns; ``curves`` where the terminal can draw them."""
    width = min(width, _WIDEST)
    room = max(8, width - 44) if curves else 0
    left = state.left_s()
    unit, last = ("each", "the last") if state.weights else ("a step", f"step {state.max_steps}")
    cells = [
        _how_far(state, room or 20),
        ("now", Text(name(state.phase), style="cyan"), Text(_rollouts(state))),
        *([] if state.modelled else [_metric(state, room)]),
        *([] if state.weights or state.modelled else [_reward(state, room)]),
        ("speed", Text(f"{number(state.rate, 0)} tokens/s"),
         Text(f"{duration(state.step_seconds)} {unit}" if state.step_seconds is not None else "")),
        ("time", Text(stopwatch(elapsed_s)), Text(f"~{stopwatch(left)} to {last}" if left else "")),
    ]
    evaluation = ", evaluation" if state.weights else ""
    what = "simulation of " if state.modelled else ""
    title = Text.assemble(("grpo-bench", "bold"), f" {what}{state.profile}, seed {state.seed}{evaluation}")
    rule = Rule(title, align="left", style="dim", characters="─" if curves else "-")
    return Group(rule, _two_columns(cells) if width >= _NARROW else _one_column(cells))


def _how_far(state: RunState, room: int) -> Row:
    if not state.weights:
        return ("step", Text(f"{state.step} of {state.max_steps}"),
                ProgressBar(total=max(1, state.max_steps), completed=state.step, width=room))
    place, step = state.place
    return ("checkpoint", Text(f"{place} of {len(state.weights)}, step {step}"),
            ProgressBar(total=len(state.weights), completed=state.evaluated, width=room))


def _metric(state: RunState, room: int) -> Row:
    return (state.metric_name or "pass@k", _value(state),
            Text(_curve(state.values, room, state.target), style="green"))


def _reward(state: RunState, room: int) -> Row:
    return ("reward", Text(number(state.rewards[-1] if state.rewards else None)),
            Text(_curve(state.rewards, room, None), style="blue"))


def _two_columns(cells: list[Row]) -> Table:
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", width=_LABEL, no_wrap=True)
    rows.add_column(no_wrap=True)
    rows.add_column(no_wrap=True)
    for row in cells:
        rows.add_row(*row)
    return rows


def _one_column(cells: list[Row]) -> Table:
    """What stands beside a value follows it, as far as it is text; curves only where the line has room for them."""
    rows = Table.grid(padding=(0, 1))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    for label, value, beside in cells:
        if isinstance(beside, Text) and beside.plain and not beside.style:
            value = Text.assemble(value, ", ", beside)
        rows.add_row(label, value)
    return rows


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
