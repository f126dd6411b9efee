"""What a submission says and how it is asked for; whole submissions are made in tests/test_package_runs.py."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from grpo_bench_rules_mlperf.config import MllogConfig
from grpo_bench_rules_mlperf.mllog import lines
from grpo_bench_rules_mlperf.package import revisions
from grpo_bench_rules_mlperf.package_words import implementation_readme, setup
from grpo_bench_rules_mlperf.reading import read
from grpo_bench_rules_mlperf.summary import Row, cells, markdown, plain, row, score, to_json
from grpo_bench_rules_mlperf.system import FIELDS

from grpo_bench.cli import main

PAGE = Path(__file__).parents[3] / "docs/package.md"
ROW = Row("result_0.txt", "run-a", 7, 256, 2, 4864, 180 / 251, 100.0)
COMMIT = "ab" * 20
STATEMENT: dict[str, Any] = {
    "distributions": {"grpo-bench": {"version": "1.0", "sha256": "0" * 64},
                      "grpo-bench-near": {"version": "1.1", "sha256": "1" * 64},
                      "grpo-bench-far": {"version": "1.2", "sha256": "2" * 64},
                      "grpo-bench-wheel": {"version": "1.3", "sha256": "3" * 64}},
    "sources": {"/src/my tree": {"commit": COMMIT, "dirty": False}},
    "installs": {"grpo-bench": {"kind": "editable", "url": "file:///src/my%20tree/core"},
                 "grpo-bench-near": {"kind": "editable", "url": "file:///src/my%20tree/plugins/near"},
                 "grpo-bench-far": {"kind": "vcs", "url": "https://x.test/far.git", "commit": "cd" * 20},
                 "grpo-bench-wheel": {"kind": "index"}},
    "locks": {"trainer": {"build": "megatron-0123456789ab-cp311", "lock_sha256": "4" * 64, "interpreter": "/a"},
              "generator": {"build": None, "lock_sha256": None, "interpreter": "/opt/python"}},
    "container": {"digest": None, "image": {"revision": "ef" * 20}},
}


@pytest.mark.parametrize(("minutes", "median"), [((3, 1, 2), 2), ((1, 1, 9), 1), ((161.5, 170.25, 99), 161.5)])
def test_the_score_is_the_median(minutes: tuple[float, ...], median: float) -> None:
    rows = [replace(ROW, minutes=value) for value in minutes]
    clocks = [{"seconds": value} for value in minutes]
    found = to_json(rows, {"submitter": "ACME"}, clocks)
    assert score(rows) == found["score_minutes"] == median
    assert [run["clock"] for run in found["runs"]] == clocks and found["submitter"] == "ACME"
    assert cells(rows)[-1] == ("median", "", "", "", "", "", "", f"{median:.3f}")


def test_a_row_is_what_the_log_says(make_benchmark) -> None:
    recording = make_benchmark([160, 180])
    log = read("\n".join(lines(recording.events, MllogConfig())))
    found = row("result_2.txt", "run-b", log)
    started, stopped = (next(line.time_ms for line in log if line.key == key) for key in ("run_start", "run_stop"))
    assert found == Row("result_2.txt", "run-b", 7, 256, 2, 19 * 256, 180 / 251, (stopped - started) / 60_000)


def test_the_table_has_a_row_for_each_run() -> None:
    rows = [ROW, replace(ROW, result="result_1.txt", seed=4_000_000_000, minutes=9.5), replace(ROW, run="run-c")]
    text = plain(rows).splitlines()
    assert [line.split()[0] for line in text[1:]] == ["result_0.txt", "result_1.txt", "result_0.txt", "median"]
    assert text[2].split() == ["result_1.txt", "run-a", "4000000000", "256", "2", "4864", "0.7171", "9.500"]
    page = markdown(rows, {"benchmark": "b", "submitter": "ACME"})
    assert page.startswith("# b: 100.000 minutes") and "- submitter: ACME\n" in page
    assert "| result_1.txt | run-a | 4000000000 | 256 | 2 | 4864 | 0.7171 | 9.500 |\n" in page


def test_set_up_installs_each_distribution_the_way_it_came() -> None:
    text = setup(STATEMENT)
    assert ('pip" install "$GRPO_BENCH_SOURCE"/core "$GRPO_BENCH_SOURCE"/plugins/near '
            f"'grpo-bench-far @ git+https://x.test/far.git@{'cd' * 20}' grpo-bench-wheel==1.3\n") in text
    assert f'rev-parse HEAD)" = {COMMIT} ]' in text
    assert text.endswith('env build megatron\n')
    subprocess.run(["sh", "-n"], input=text, text=True, check=True)
    bare = setup({**STATEMENT, "sources": {}, "installs": {}, "locks": {}})
    assert "GRPO_BENCH_SOURCE" not in bare and "env build" not in bare
    assert "install grpo-bench==1.0 grpo-bench-near==1.1" in bare


def test_the_commits_are_all_that_somebody_knows() -> None:
    assert revisions(STATEMENT) == sorted([COMMIT, "cd" * 20, "ef" * 20])
    assert revisions({"sources": {"/x": {"commit": None, "dirty": None}}}) == []
    text = implementation_readme(STATEMENT, ["grpo-bench-far"])
    assert f"| grpo-bench-far | 1.2 | {'2' * 64} | no |" in text and f"| grpo-bench | 1.0 | {'0' * 64} | yes |" in text


def test_the_page_explains_every_field_and_every_key_of_the_statement() -> None:
    page = PAGE.read_text("utf-8")
    rows = dict(re.findall(r"^\| `([^`|]+)` \| (.*) \|$", page, re.MULTILINE))
    assert {name: rows[name] for name in FIELDS} == {name: text.rstrip(".") for name, text in FIELDS.items()}
    assert [name for name in re.findall(r"^\| `([^`|]+)` \|", page, re.MULTILINE) if name in FIELDS] == list(FIELDS)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    file = tmp_path / "site.toml"
    file.write_text('[system]\nsubmitter = "ACME"\nstatus = "cloud"\nnumber_of_nodes = 64\ncooling = "air"\n'
                    'framework_short_name = "gb"\n"accelerator_on-chip_memories" = "L2: 126 MB"\n')
    return file


def test_a_description_is_filled_in_from_site_and_host(tmp_path: Path, site: Path, capsys) -> None:
    file = tmp_path / "system.json"
    file.write_text('{"cooling": "liquid", "hw_notes": ""}')
    command = ["package", "--from-host", "--system", str(file), "--site", str(site), "--division", "open", "--json"]
    assert main(command) == 0
    found, said = json.loads(file.read_text()), json.loads(capsys.readouterr().out)
    assert list(found) == list(FIELDS)
    wanted = {"submitter": "ACME", "status": "Available cloud", "number_of_nodes": "64", "cooling": "liquid",
              "accelerator_on-chip_memories": "L2: 126 MB", "division": "open"}
    assert {name: found[name] for name in wanted} == wanted
    assert found["host_memory_capacity"].endswith("GiB")
    assert "system_name" in said["lacking"] and not set(said["lacking"]) & wanted.keys()
    assert all(found[name] == "" for name in said["lacking"])
    assert main(command[:-1]) == 0
    assert f"    system_name: {FIELDS['system_name']}\n" in capsys.readouterr().out
    assert json.loads(file.read_text()) == found


def test_a_whole_description_lacks_nothing(tmp_path: Path, system: dict[str, str], capsys) -> None:
    file = tmp_path / "system.json"
    file.write_text(json.dumps(system))
    assert main(["package", "--from-host", "--system", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: 33 of 33 fields are as they must be\n"
    assert json.loads(file.read_text()) == system


@pytest.mark.parametrize(("words", "says"), [
    (["--system", "system.json"], "there is nothing to package"),
    (["run", "--system", "system.json"], "--out is missing"),
    (["run", "--system", "none.json", "--out", "out"], "none.json: cannot be read"),
    (["run", "--out", "out"], "--system"),
    (["--from-host", "--system", "odd.json"], "odd.json: no field of a system description: colour"),
    (["--from-host", "--system", "no/such/system.json"], "cannot write no/such/system.json"),
    (["--from-host", "--system", "system.json", "--site", "none.toml"], "none.toml"),
])
def test_wrong_words_are_one_message(tmp_path: Path, system: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys,
                                     words: list[str], says: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("system.json").write_text(json.dumps(system))
    Path("odd.json").write_text('{"colour": "red"}')
    before = sorted(tmp_path.iterdir())
    try:
        code = main(["package", *words])
    except SystemExit as stop:
        code = stop.code
    assert code == 2 and says in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before
