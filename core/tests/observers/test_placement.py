"""The picture of a placement as SVG: in a file of its own, and in the report of a run on several hosts."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from grpo_bench.contract import Need, Placement, RunFolderError, Status
from grpo_bench.contract.hosts import Layout
from grpo_bench.contract.picture import Picture
from grpo_bench.observers import placement_svg, read_run, write_report
from hypothesis import given
from hypothesis import strategies as st

from .test_report import Page

SVG = "{http://www.w3.org/2000/svg}"
DOMAINS = {"rack <0>": ["a", "b", "c"], "rack1": ["d", "e", "f & g"]}
LAYOUT = Layout(
    {"trainer": Placement(workers=4, nodes=("a", "a", "b", "b"), gpus=1, spares={"a": ("c",)}),
     "generator": Placement(workers=1, nodes=("d", "e"), gpus=4), "rollout": Placement(workers=1, nodes=("d",))},
    {"trainer": Need(4, 1, {"expert": ((0, 1, 2, 3),)}), "generator": Need(1, 4)}, DOMAINS)


def nodes(drawn: ElementTree.Element) -> dict[str, tuple[str, list[str]]]:
    """By what a cell's tool tip says its label and the classes of its boxes."""
    found = {}
    for group in drawn.iter(f"{SVG}g"):
        title, label = group.find(f"{SVG}title"), group.find(f"{SVG}text")
        assert title is not None and label is not None and title.text and label.text
        found[title.text] = label.text, [box.get("class", "") for box in group.iter(f"{SVG}rect")]
    return found


def test_each_host_is_a_cell_that_says_who_is_there() -> None:
    drawn = ElementTree.fromstring(placement_svg(LAYOUT.picture()))
    assert nodes(drawn) == {
        "a, rack <0>: trainer ranks 0, 1": ("T0", ["at-trainer"]),
        "b, rack <0>: trainer ranks 2, 3": ("T0", ["at-trainer"]), "c, rack <0>: spare": ("s", ["spare"]),
        "d, rack1: generator rank 0; rollout rank 0": ("G0r", ["at-generator", "at-other"]),
        "e, rack1: generator rank 0": ("G0", ["at-generator"]), "f & g, rack1: idle": ("-", ["idle"])}
    assert len([box for box in drawn.iter(f"{SVG}rect") if box.get("class") == "unit"]) == 2


def test_a_reader_who_sees_nothing_is_told_the_same() -> None:
    drawn = ElementTree.fromstring(placement_svg(LAYOUT.picture()))
    assert drawn.get("role") == "img"
    assert drawn.findtext(f"{SVG}title") == "Who sits where: 6 hosts in 2 domains"
    assert drawn.findtext(f"{SVG}desc") == (
        "rack <0>: 2 hosts with trainer, then 1 host spare. rack1: 1 host with generator and rollout, "
        "then 1 host with generator, then 1 host idle.")
    apart = Layout({"trainer": Placement(workers=2, nodes=("a", "d"))}, {"trainer": Need(2, 1, {"data": ((0, 1),)})},
                   DOMAINS)
    assert "Across domains: trainer data group 0 between rack <0> and rack1." in placement_svg(apart.picture()).replace(
        "&lt;", "<").replace("&gt;", ">")


def test_a_file_of_its_own_follows_the_readers_scheme_and_asks_for_nothing() -> None:
    text = placement_svg(LAYOUT.picture())
    assert "prefers-color-scheme: dark" in text and "rect.at-trainer" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6), used=st.integers(1, 30))
def test_every_host_is_drawn_once(sizes: list[int], used: int) -> None:
    domains = {f"d{number}": [f"d{number}n{place}" for place in range(size)] for number, size in enumerate(sizes)}
    names = [name for some in domains.values() for name in some]
    workers = min(used, len(names))
    layout = Layout({"generator": Placement(workers=workers, nodes=tuple(names[:workers]))}, {}, domains)
    drawn = ElementTree.fromstring(placement_svg(layout.picture()))
    titles = Counter(title.split(",")[0] for title in nodes(drawn))
    assert titles == Counter(names)
    boxes = [box for group in drawn.iter(f"{SVG}g") for box in group.iter(f"{SVG}rect")]
    assert len({(box.get("x"), box.get("y")) for box in boxes}) == len(names)
    left, top, width, height = map(float, drawn.get("viewBox", "").split())
    for box in drawn.iter(f"{SVG}rect"):
        x, y, wide, high = (float(box.get(key, "nan")) for key in ("x", "y", "width", "height"))
        assert left <= x and x + wide <= left + width + 0.1 and top <= y and y + high <= top + height


def layout_of(layout: Layout) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(layout.picture())))


def test_the_report_of_a_run_on_several_hosts_shows_them(tmp_path: Path, history: Any) -> None:
    history.start(layout=layout_of(LAYOUT))
    history.one_step(1, 3)
    history.end(Status.TARGET_MET)
    page = Page(write_report(history.save(tmp_path)).read_text("utf-8"))
    assert ("Placement Hosts by network domain, as the latest attempt was placed. Groups that reach beyond one: none."
            in page.text)
    pictures = [svg for svg in page.all("svg") if (svg.get("class") or "").startswith("placement")]
    assert [svg["class"] for svg in pictures] == ["placement wide", "placement middle", "placement narrow"]
    assert "f &amp; g" not in page.text and "f & g rack1" in page.text


def test_a_run_that_went_on_elsewhere_shows_where_it_is_now(tmp_path: Path, history: Any) -> None:
    moved = Layout({"trainer": Placement(workers=2, nodes=("x", "y"))})
    history.start(layout=layout_of(LAYOUT))
    history.one_step(1, 1)
    begun = history.checkpoint()
    history.resume(2, 1, begun, layout=layout_of(moved))
    history.one_step(2, 3)
    history.end(Status.TARGET_MET)
    page = Page(write_report(history.save(tmp_path)).read_text("utf-8"))
    assert "T0 to T1: trainer's workers" in page.text and "rack1" not in page.text


@pytest.mark.parametrize("layout", [
    None, asdict(Picture()), layout_of(Layout({"trainer": Placement(workers=2, nodes=("a", "a"))}, {}, DOMAINS))])
def test_the_report_of_a_run_on_one_host_does_not(tmp_path: Path, history: Any, layout: Any) -> None:
    history.start(**({} if layout is None else {"layout": layout}))
    history.one_step(1, 3)
    history.end(Status.TARGET_MET)
    assert "Placement" not in Page(write_report(history.save(tmp_path)).read_text("utf-8")).text


def test_a_layout_that_cannot_be_drawn_is_named_by_line(tmp_path: Path, history: Any) -> None:
    wrong = layout_of(LAYOUT)
    wrong["hosts"][0]["units"] = {"trainer": ["first"]}
    history.start(layout=wrong)
    history.end(Status.FAILED)
    with pytest.raises(RunFolderError, match="line 1: layout of a run_started event should have under hosts"):
        list(read_run(history.save(tmp_path)))
