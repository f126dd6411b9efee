"""The page of the benchmark's plan: who sits where, how long it may take, and what becomes of other layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from grpo_bench.cli import main

PLACEMENT = """
  rack0  T0r  T0   T0   T0   T0r  T0   T0   T0   T1r  T1   T1   T1   T1r  T1   T1   T1
  rack1  G0r  G0   G1   G1   G2r  G2   G3   G3   G4r  G4   G5   G5   G6r  G6   G7   G7
  rack2  G8r  G8   G9   G9   G10r G10  G11  G11  G12r G12  G13  G13  G14r G14  G15  G15
  rack3  G16r G16  G17  G17  G18r G18  G19  G19  G20r G20  G21  G21  G22r G22  G23  G23
         T0 to T1: trainer's expert groups of 32
         G0 to G23: generator's workers
         r: rollout worker

  role       ranks     hosts                                    domain  GPUs
  trainer    0 to 63   rack0-node00 to rack0-node15, 4 on each  rack0   0-3, 1 each
  generator  0 to 7    rack1-node00 to rack1-node15, each on 2  rack1   0-3
  generator  8 to 15   rack2-node00 to rack2-node15, each on 2  rack2   0-3
  generator  16 to 23  rack3-node00 to rack3-node15, each on 2  rack3   0-3
  rollout    0 to 3    rack0-node00 to rack0-node12, 4 of them  rack0
  rollout    4 to 7    rack1-node00 to rack1-node12, 4 of them  rack1
  rollout    8 to 11   rack2-node00 to rack2-node12, 4 of them  rack2
  rollout    12 to 15  rack3-node00 to rack3-node12, 4 of them  rack3

  trainer: 16 tensor groups of 4, each on 1 host, in 1 domain
  trainer: 8 data groups of 8, each on 8 hosts, in 1 domain
  trainer: 32 pipeline groups of 2, each on 2 hosts, in 1 domain
  trainer: 2 expert groups of 32, each on 8 hosts, in 1 domain
  generator: 24 workers, each on 2 hosts, in 1 domain
  rollout: 16 workers on 16 hosts
"""


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, a cache without environments, and a PATH without programs."""
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "PATH"):
        monkeypatch.setenv(name, str(tmp_path / name))
    for name in ("GRPO_BENCH_SITE", "GRPO_BENCH_TOPOLOGY", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def page(capsys: pytest.CaptureFixture[str], *sets: str) -> str:
    assert main(["plan", "--profile", "gb300-256", *(f"--set={item}" for item in sets)]) == 1  # this is no such machine
    return capsys.readouterr().out


def section(text: str, title: str, following: str) -> str:
    return text.partition(f"\n{title}:\n")[2].partition(f"\n{following}")[0].rstrip("\n")


def test_who_sits_where(capsys: pytest.CaptureFixture[str]) -> None:
    text = page(capsys)
    assert section(text, "placement", "memory:") == PLACEMENT.strip("\n")
    assert max(map(len, section(text, "placement", "memory:").splitlines())) <= 100


def test_how_long_it_may_take(capsys: pytest.CaptureFixture[str]) -> None:
    assert section(page(capsys), "time", "rules of") == """
  start               402 to 448 s
  training            219 to 256 min  to step 30
  checkpoints         7 to 69 min     13 of them
  evaluation          23 to 338 min   1 to 13 validations, after a start of its own; at best the
      first meets the target
  in all              255 to 671 min  does not fit the 240 minutes
  without evaluation  232 to 333 min  may not fit the 240 minutes
  from 12 public logs of MLPerf Training 6.1's reference for qwen35_397b_grpo, 6 at batch 256 and 6
      at batch 512, read 2026-11-30; a checkpoint is 793 GB, assumed to be written and read at 2.5
      to 25 GB/s""".strip("\n")


def test_smaller_domains_make_pipelines_cross_them(capsys: pytest.CaptureFixture[str]) -> None:
    text = section(page(capsys, "hardware.nodes_per_domain=8"), "placement", "memory:")
    assert "  rack1  T1r  T1   T1   T1   T1r  T1   T1   T1\n" in text
    assert "32 pipeline groups of 2, each on 2 hosts, in 2 domains; 32 of them leave a domain\n" in text
    assert "    across domains: trainer pipeline groups 0-31 between rack0 and rack1\n" in text


def test_another_split_is_another_page_and_has_no_known_pace(capsys: pytest.CaptureFixture[str]) -> None:
    text = page(capsys, "hardware.nodes=72", "hardware.policy_nodes=8", "trainer.workers=32",
                "trainer.expert_parallel=16", "generator.workers=32")
    assert "  trainer    0 to 31   rack0-node00 to rack0-node07, 4 on each  rack0   0-3, 1 each\n" in text
    assert "T0 to T1: trainer's expert groups of 16\n" in text and "G0 to G31: generator's workers\n" in text
    assert "\ntime:\n" not in text


def test_nodes_that_nobody_needs_are_spare_or_idle(capsys: pytest.CaptureFixture[str]) -> None:
    text = page(capsys, "hardware.nodes=72", "hardware.segment=18")
    assert "  rack0  T0r  T0   T0   T0   T0r  T0   T0   T0   T1r  T1   T1   T1   T1r  T1   T1   T1   s    s\n" in text
    assert "  spare                rack3-node16 to rack3-node17             rack3\n" in text


@pytest.mark.parametrize(("sets", "words"), [
    (["hardware.nodes=72", "hardware.policy_nodes=8"], "64 ranks take 16 nodes of 4 GPUs, and 8 of 72 are for them"),
    (["hardware.nodes=60"], "24 engines of 8 GPUs take 48 nodes of 4 GPUs, and 44 of 60 are for them"),
    (["hardware.nodes_per_domain=4", "hardware.segment=4"],
     "a group of 32 ranks takes 8 nodes, and the largest domain has 4: it has to stay inside one domain"),
])
def test_a_layout_that_cannot_be_is_refused_with_what_it_breaks(sets: list[str], words: str,
                                                                capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--profile", "gb300-256", *(f"--set={item}" for item in sets)]) == 2
    said = capsys.readouterr()
    assert (said.out, words in said.err, "hint: see hardware." in said.err) == ("", True, True)


def test_ranks_json_and_drawing_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "--profile", "gb300-256"]
    assert main([*arguments, "--json", "--svg", "placement.svg"]) == 1
    plan: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert main([*arguments, "--ranks"]) == 1
    listed = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert listed[0] == ["trainer", "0", "rack0-node00", "rack0", "0"]
    assert [line[:4] for line in listed] == [[seat["role"], str(seat["rank"]), seat["host"], seat["domain"]]
                                             for seat in plan["ranks"]]
    assert plan["estimate"]["fit"] == {"until_trained": "may not fit", "whole": "does not fit"}
    drawn = ElementTree.parse(tmp_path / "placement.svg").getroot()
    labels = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text") if text.get("class") == "host"]
    assert labels == [part for line in PLACEMENT.strip("\n").splitlines()[:4] for part in line.split()[1:]]
    assert len(labels) == len(plan["layout"]["hosts"]) == 64
