from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from grpo_bench.contract import Kind, Phase, Status
from grpo_bench.observers import write_report

from .browser import NAMES, executable, open_tab
from .test_placement import LAYOUT, layout_of

pytestmark = pytest.mark.skipif(executable() is None,
                                reason=f"there is no browser: none of {', '.join(NAMES)} is on the path")

WIDTHS = (360, 800, 1400)
LONG = "organisation-with-a-long-name__project-with-a-longer-one-12345-Ünï-任务-\U0001f9ea-" * 3

SEEN = """(() => {
  document.querySelectorAll("details").forEach(more => { more.open = true; });
  const visible = element => element.getClientRects().length > 0;
  const channels = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = colour => channels(colour).slice(0, 3).map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, index) => sum + c * [0.2126, 0.7152, 0.0722][index], 0);
  const paper = getComputedStyle(document.body).backgroundColor;
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if ((channels(colour)[3] ?? 1) === 1) return colour;
    }
    return paper;
  };
  const faint = [...document.querySelectorAll("main *")].filter(element => visible(element)
      && [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim()) && element.tagName !== "title")
    .map(element => {
      const style = getComputedStyle(element), svg = element instanceof SVGElement;
      const pair = [light(svg ? style.fill : style.color), light(behind(element))].sort((a, b) => b - a);
      return [(pair[0] + 0.05) / (pair[1] + 0.05), element.outerHTML.slice(0, 80)];
    }).filter(([contrast]) => contrast < 4.5);
  const outside = [...document.querySelectorAll("main > *, svg text")].filter(visible).filter(element => {
    const box = element.getBoundingClientRect();
    return box.left < -1 || box.right > document.documentElement.clientWidth + 1;
  }).map(element => element.outerHTML.slice(0, 80));
  const texts = [...document.querySelectorAll("svg text")].filter(visible);
  return JSON.stringify({
    paper, faint, outside, overflow: document.documentElement.scrollWidth - innerWidth,
    headings: [...document.querySelectorAll("h2")].map(heading => heading.textContent),
    smallest: Math.min(...texts.map(text => text.getBoundingClientRect().height), 99),
    pictures: [...document.querySelectorAll("figure")].map(f => [...f.querySelectorAll("svg")].filter(visible).length),
  });
})()"""


def look(folder: Path) -> dict[tuple[int, str], Any]:
    """What a reader sees of a report at each width, light and dark; no complaint, and no request but the page's own."""
    page = write_report(folder).resolve().as_uri()

    async def views() -> dict[tuple[int, str], Any]:
        found = {}
        async with open_tab() as tab:
            for width in WIDTHS:
                for scheme in ("light", "dark"):
                    await tab.show(page, width=width, scheme=scheme)
                    found[width, scheme] = json.loads(await tab.evaluate(SEEN))
            assert tab.complaints == []
            assert set(tab.requests) == {page}
        return found

    return asyncio.run(views())


def check(found: dict[tuple[int, str], Any]) -> None:
    for view, seen in found.items():
        assert seen["overflow"] <= 0, view
        assert seen["outside"] == [], view
        assert seen["faint"] == [], view
        assert seen["smallest"] >= 11, view
        assert all(count == 1 for count in seen["pictures"]), view
        assert {"Where the time went", "Time inside rollouts", "Whose time it was"} <= set(seen["headings"]), view
    assert {seen["paper"] for (_, scheme), seen in found.items() if scheme == "light"} == {"rgb(255, 255, 255)"}
    assert {seen["paper"] for (_, scheme), seen in found.items() if scheme == "dark"} == {"rgb(20, 23, 27)"}


def test_a_run_of_many_steps(tmp_path: Path, history: Any) -> None:
    history.start(max_steps=40, layout=layout_of(LAYOUT))
    for step in range(1, 41):
        history.one_step(step, step % 4)
    history.end(Status.TARGET_MET)
    (tmp_path / "profile.json").write_text(json.dumps({"long": "x" * 400}))
    check(look(history.save(tmp_path)))


def test_a_resumed_run_that_failed_with_long_names_and_without_validation(tmp_path: Path, resumed: Any) -> None:
    history = resumed
    history.events = [event for event in history.events if event.kind != Kind.VALIDATION]
    history.events = [type(event)(seq, *(getattr(event, name) for name in ("at", "elapsed_s", "kind", "step", "data")))
                      for seq, event in enumerate(history.events)]
    history.events.pop()
    history.phase(Phase.ROLLOUT)
    for index in range(3):
        history.rollout(f"t4.{index}", task_id=LONG, end="failed", cause="sandbox_start", message=LONG, reward=None,
                        turns=index * 50_000, sampled_tokens=10_000_000 * index, durations={"queue": 36_000.0})
    history.emit(Kind.ERROR, message=LONG, hint=LONG, plugin=LONG, role="environment", task=LONG)
    history.end(Status.FAILED)
    check(look(history.save(tmp_path)))
