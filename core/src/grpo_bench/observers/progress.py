"""A run as people watch it.

On a terminal: a small panel that renews itself twice a second from the event loop, without a thread. Elsewhere: one
plain line per step and per validation. A deferred evaluation is shown checkpoint by checkpoint. Both end with a
summary. Where the last line of stdout belongs to ``--json``, all of this goes to stderr.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..contract import Event, Kind, RunFacts, Status, hookimpl
from ._layout import wrapped
from ._panel import panel
from ._state import RunState
from ._text import assumed, counted, duration, metric_label, name, number, shares, simulated, stopwatch
from .report import FILE as REPORT

_REFRESH_S = 0.5
_LABEL = 15
_ENDS = {
    "target_met": ("target met", "bold green"), "target_missed": ("target missed", "bold yellow"),
    "completed": ("completed", "bold green"), "trained": ("trained", "bold green"), "failed": ("failed", "bold red"),
    "interrupted": ("interrupted", "bold yellow"),
}
_NOTICES = {Kind.ALARM: "note", Kind.STALL: "stalled", Kind.ERROR: "error"}


class Progress:
    """The observer that shows the run. ``stream`` None: stdout, or stderr under ``json_output``."""

    def __init__(self, *, json_output: bool = False, stream: TextIO | None = None) -> None:
        self._console = Console(file=stream or (sys.stderr if json_output else sys.stdout), highlight=False)
        self._state = RunState()
        self._facts: RunFacts | None = None
        self._live: Live | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._heard_at = 0.0

    @hookimpl
    def run_started(self, run: RunFacts) -> None:
        self._facts = run
        self._state.expect(run)
        for event in run.history:
            self._state.add(event)
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(console=self._console, get_renderable=self._render, auto_refresh=False, transient=True)
            self._live.start()
            self._refresh()
        else:
            self._console.print(f"run {run.folder}", soft_wrap=True)

    @hookimpl
    def event(self, event: Event) -> None:
        self._state.add(event)
        self._heard_at = self._console.get_time()
        if event.kind == Kind.RUN_STARTED and self._state.modelled:
            self._say(Text(simulated(self._state.modelled)))
        elif event.kind in _NOTICES:
            self._notice(event)
        elif self._live is None:
            self._line(event)

    @hookimpl
    def run_ended(self, summary: dict[str, Any]) -> None:
        self.close()
        for line in self._summary(summary):
            self._say(line)
        if self._facts is not None:
            path = str(self._facts.folder / REPORT)
            self._console.print(Text.assemble((f"{'report':<{_LABEL}}", "dim"), path), soft_wrap=True)

    def close(self) -> None:
        """Give the terminal back; closing twice is fine."""
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _say(self, text: Text) -> None:
        """Lines that break between words on a terminal; elsewhere none breaks."""
        self._console.print(text, soft_wrap=not self._console.is_terminal)

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.refresh()
            self._tick = asyncio.get_running_loop().call_later(_REFRESH_S, self._refresh)

    def _render(self) -> Any:
        waited = self._console.get_time() - self._heard_at if self._heard_at else 0.0
        return panel(self._state, self._state.elapsed_s + waited, self._console.width, _can_draw(self._console))

    def _notice(self, event: Event) -> None:
        style = "yellow" if event.kind == Kind.ALARM else "bold red"
        text = event.data.get("message") or f"nothing has moved for {duration(event.data.get('seconds'))}"
        self._say(Text(f"{_NOTICES[Kind(event.kind)]}: {text}", style=style))

    def _line(self, event: Event) -> None:
        state = self._state
        if event.kind == Kind.VALIDATION:
            when = (f"step {event.step}, checkpoint {state.place[0]} of {len(state.weights)}" if state.weights else
                    f"after step {event.step}" if event.step else "before the first step")
            parts = ["validated" if state.modelled else _value(state), when, f"elapsed {stopwatch(state.elapsed_s)}"]
            if state.weights and not event.data["target_met"] and (left := state.left_s()):
                parts.append(f"~{stopwatch(left)} to the last")
            self._print(*parts)
        elif event.kind == Kind.EVALUATION_STARTED:
            self._print(f"evaluates {_steps(state.weights)}")
        elif event.kind == Kind.RESUMED:
            which, step = (" of the evaluation", event.data["from_step"]) if state.weights else ("", state.step)
            self._print(f"attempt {event.data['attempt']}{which} "
                        + (f"goes on after step {step}" if step else "begins again"))
        elif event.kind == Kind.STEP:
            parts = [f"step {state.step}/{state.max_steps}"]
            parts += [] if state.modelled else _learning(state, event)
            parts += [f"{duration(event.data['seconds'])}"]
            parts += [f"{number(state.rate, 0)} tokens/s"] if state.rate else []
            parts += [f"elapsed {stopwatch(state.elapsed_s)}"]
            parts += [f"~{stopwatch(left)} to step {state.max_steps}"] if (left := state.left_s()) else []
            self._print(*parts)

    def _print(self, *parts: str) -> None:
        self._console.print("  ".join(parts), soft_wrap=True)

    def _summary(self, summary: dict[str, Any]) -> list[Text]:
        words, style = _ENDS.get(summary["status"], (summary["status"], "bold"))
        evaluation, modelled = summary["evaluation"], self._state.modelled
        head = Text(f"simulation: {assumed(words)}" if modelled else words, style=style)
        if summary["value"] is not None:
            label = metric_label(summary["metric"], self._state.k)
            error = f" ± {self._state.standard_error:.3f}" if self._state.standard_error is not None else ""
            target = f" (target {summary['target']:g})" if summary["target"] is not None else ""
            head.append(f": {label} {summary['value']:.3f}{error}{target}", style="not bold")
        head.append(f" after {counted(summary['steps'], 'step')}", style="not bold")
        to_target = summary["time_to_target_s"]
        rows = [("time to target", duration(to_target) + (", assumed" if modelled else ""))] if (
            to_target is not None) else []
        if evaluation is not None:
            rows += [("training", duration(summary["wall_s"])), ("evaluation", _took(evaluation) + (
                f", {evaluation['evaluated']} of {counted(evaluation['checkpoints'], 'checkpoint')}"))]
        else:
            rows.append(("time in all", _took(summary)))
        spent = shares((evaluation or summary)["ledger"])
        went = ", ".join(f"{name(phase)} {share:.0%}" for phase, share in spent)
        rows += [("of which", went)] if went else []
        if summary["status"] == Status.TRAINED and not modelled:
            rows.append(("to evaluate", _steps(self._state.saved)))
        return [head, *(self._row(key, value) for key, value in rows)]

    def _row(self, key: str, value: str) -> Text:
        """A labelled line; what does not fit on a terminal goes on below its beginning."""
        width = self._console.width if self._console.is_terminal else len(value) + _LABEL
        lines = wrapped(value, max(20, width - _LABEL))
        return Text.assemble((f"{key:<{_LABEL}}", "dim"), f"\n{'':<{_LABEL}}".join(lines))


def _learning(state: RunState, event: Event) -> list[str]:
    """What a step came to."""
    loss = [f"loss {number(state.loss)}"] if state.loss is not None else []
    return [f"reward {number(event.data['reward_mean'])}", *loss]


def _value(state: RunState) -> str:
    error = f" ± {state.standard_error:.3f}" if state.standard_error is not None else ""
    target = f" (target {state.target:g})" if state.target is not None else ""
    return f"{state.metric_name} {number(state.value)}{error}{target}"


def _took(times: Mapping[str, Any]) -> str:
    cpu = f", {duration(times['cpu_s'])} of CPU" if times["cpu_s"] is not None else ""
    return duration(times["wall_s"]) + cpu


def _steps(weights: Sequence[int]) -> str:
    """``4 checkpoints, steps 5 to 8``."""
    which = f", step {weights[0]}" if len(weights) == 1 else f", steps {weights[0]} to {weights[-1]}" if weights else ""
    return counted(len(weights), "checkpoint") + which


def _can_draw(console: Console) -> bool:
    return console.encoding.startswith("utf")
