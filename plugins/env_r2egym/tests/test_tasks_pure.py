"""Recipes, commits in R2E-Gym's form, scripts, changelogs, checks and conversion: all that needs no sandbox."""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet
from grpo_bench.contract import InputError

from grpo_bench_env_r2egym import cli, rows, tasks_recipes, tasks_row, tasks_script
from grpo_bench_env_r2egym.tasks_commit import parse_diff, patch_of

BEFORE = {"pkg/a.py": "".join(f"line {number}\n" for number in range(30)), "gone.py": "x = 1\n", "end.py": "no newline"}
AFTER = {"pkg/a.py": BEFORE["pkg/a.py"].replace("line 3\n", "line three\n").replace("line 25\n", "-- 25\n\n"),
         "new.py": "y = 2\n", "end.py": "no newline here"}


def run(*arguments: str | Path) -> int:
    parser = argparse.ArgumentParser()
    cli.tasks(parser)
    parsed = parser.parse_args([str(argument) for argument in arguments])
    return parsed.verb(parsed)


def lay(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def git(folder: Path, *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments], cwd=folder, input=stdin,
                          capture_output=True, text=True, check=True)
    return done.stdout


def commit(tmp_path: Path) -> str:
    folder = lay(tmp_path / "repository", BEFORE)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "before")
    for name in BEFORE:
        (folder / name).unlink()
    lay(folder, AFTER)
    git(folder, "add", "-A")
    diff = git(folder, "diff", "--cached", "--no-renames", "--full-index")
    git(folder, "reset", "-q", "--hard")
    fix = parse_diff(diff, lambda path: BEFORE.get(path, ""), lambda path: AFTER.get(path, ""))
    return json.dumps({"file_diffs": fix})


def own_row(number: int, tmp_path: Path | None = None) -> dict[str, Any]:
    return {"commit_hash": f"{number:040x}", "repo_name": "numpy", "problem_statement": f"Problem {number}",
            "expected_output_json": json.dumps({"test_a": "PASSED"}), "docker_image": ""}


def write_rows(path: Path, *numbers: int) -> Path:
    path.write_text("".join(json.dumps(own_row(number)) + "\n" for number in numbers))
    return path


def ids(path: Path, *numbers: int) -> Path:
    path.write_text("".join(f"numpy__numpy-{number:040x}\n" for number in numbers))
    return path


def test_a_commit_gives_back_a_patch_that_makes_the_change(tmp_path: Path) -> None:
    text = commit(tmp_path)
    git(tmp_path / "repository", "apply", "-", stdin=patch_of(text))
    found = {str(path.relative_to(tmp_path / "repository")): path.read_text()
             for path in (tmp_path / "repository").rglob("*") if path.is_file() and ".git" not in path.parts}
    assert found == AFTER


def test_a_patch_can_be_of_some_files(tmp_path: Path) -> None:
    assert patch_of(commit(tmp_path), lambda path: path == "new.py").count("diff --git") == 1


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"file_diffs": [{}]}', '{"file_diffs": 3}'])
def test_what_is_no_commit_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="no commit in R2E-Gym's form"):
        patch_of(text)


def test_small_fixes_are_played_with_the_editor_and_others_as_a_patch(tmp_path: Path) -> None:
    data = json.loads(commit(tmp_path))
    small = {"file_diffs": [item for item in data["file_diffs"] if item["header"]["file"]["path"] == "pkg/a.py"]}
    entry = tasks_script.of("It breaks.\nSee.", "a__b-1", json.dumps(small))
    fix, nothing, wrong = entry["variants"]
    text = BEFORE["pkg/a.py"]
    for reply in fix["replies"][:-1]:
        arguments = reply["calls"][0]["arguments"]
        assert reply["calls"][0]["name"] == "str_replace_editor" and text.count(arguments["old_str"]) == 1
        text = text.replace(arguments["old_str"], arguments["new_str"])
    assert text == AFTER["pkg/a.py"]
    assert entry["when"] == "It breaks." and (fix["reward"], nothing["reward"], wrong["reward"]) == (1, 0, 0)
    whole = tasks_script.of("It breaks.", "a__b-1", json.dumps(data))["variants"][0]["replies"]
    assert [reply["calls"][0]["name"] for reply in whole] == ["execute_bash", "finish"]
    assert "git apply" in whole[0]["calls"][0]["arguments"]["command"]


def test_the_packaged_set_is_whole() -> None:
    found = tasks_recipes.load("swe")
    splits = [recipe.split for recipe in found.task]
    firsts = [recipe.statement.strip().splitlines()[0] for recipe in found.task]
    assert splits.count("train") >= 6 and splits.count("validation") >= 2
    assert not [first for first in firsts if sum(first in recipe.statement for recipe in found.task) != 1]
    pinned = {pin.partition("==")[0] for recipe in found.task for pin in (*found.pins, *recipe.pins)}
    assert not pinned & {recipe.package for recipe in found.task}


@pytest.mark.parametrize("pair", ["parse", "parse==1", "parse==1..", "../x==1..2", "a==1..2 b", "-r==1..2"])
def test_what_is_no_pair_is_told(pair: str) -> None:
    with pytest.raises(InputError, match="no pair of releases"):
        tasks_recipes.parse(pair)


def test_the_last_tasks_are_for_validation() -> None:
    recipes = [tasks_recipes.parse(f"p{number}==1..2") for number in range(3)]
    assert [recipe.split for recipe in tasks_recipes.split_up(recipes, 1)] == ["train", "train", "validation"]
    with pytest.raises(InputError):
        tasks_recipes.split_up(recipes, 4)


def test_a_statement_comes_from_the_changelog(tmp_path: Path) -> None:
    (tmp_path / "CHANGES.md").write_text("# Changes\n\n## 1.2.1\n\n- no crash in 3.11\n\n## 1.2.0\n\n- other\n")
    text = tasks_row.from_changelog(tmp_path, tasks_recipes.parse("p==1.2.0..1.2.1"))
    assert "no crash in 3.11" in text and "other" not in text
    assert tasks_row.from_changelog(tmp_path, tasks_recipes.parse("p==1.2.1..1.3")) == ""


def test_conversion_keeps_the_order_and_gives_the_same_bytes(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    data = write_rows(tmp_path / "rows.jsonl", 1, 2, 3, 4)
    lists = ids(tmp_path / "a.txt", 3, 1), ids(tmp_path / "b.txt", 4)
    written = []
    for name in ("one", "two"):
        assert run("convert", "--dataset", data, "--ids", *lists, "--out", tmp_path / name) == 0
        written.append((tmp_path / name / "train.jsonl").read_bytes())
    found = rows.index(tmp_path / "one" / "train.jsonl")
    assert written[0] == written[1] and found.sha256 in capsys.readouterr().out
    assert [int(place.instance_id[-40:], 16) for place in found.places] == [3, 1]
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["train.jsonl", "validation.jsonl"]


def test_rows_in_parquet_are_converted_to_the_same_bytes_and_kept(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "rows.jsonl", 1, 2, 3)
    (tmp_path / "columns").mkdir()
    table = pyarrow.Table.from_pylist([json.loads(line) for line in data.read_text().splitlines()])
    parquet.write_table(table, tmp_path / "columns" / "part.parquet")
    lists = ids(tmp_path / "a.txt", 3, 1), ids(tmp_path / "b.txt", 2)
    for name, dataset in (("lines", data), ("columns", tmp_path / "columns"), ("again", tmp_path / "columns")):
        assert run("convert", "--dataset", dataset, "--ids", *lists, "--out", tmp_path / "out" / name,
                   "--cache-dir", tmp_path / "cache") == 0
    written = [(tmp_path / "out" / name / "train.jsonl").read_bytes() for name in ("lines", "columns", "again")]
    assert written[0] == written[1] == written[2]
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.parametrize("content", [b"", b"no columns", b"PAR1PAR1"])
def test_a_damaged_parquet_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "part.parquet").write_bytes(content)
    lists = ids(tmp_path / "a.txt", 1), ids(tmp_path / "b.txt", 2)
    with pytest.raises(InputError, match=r"part\.parquet cannot be read as parquet"):
        run("convert", "--dataset", tmp_path, "--ids", *lists, "--out", tmp_path / "out")


@pytest.mark.parametrize(("train", "validation", "said"), [
    ((1, 2), (2,), "share 1 ids"), ((1, 9), (2,), "no row for 1"), ((1, 1), (2,), "more than once"),
    ((), (2,), "no ids")])
def test_conversion_refuses_wrong_lists(tmp_path: Path, train: tuple[int], validation: tuple[int], said: str) -> None:
    data = write_rows(tmp_path / "rows.jsonl", 1, 2, 3)
    lists = ids(tmp_path / "a.txt", *train), ids(tmp_path / "b.txt", *validation)
    with pytest.raises(InputError, match=said):
        run("convert", "--dataset", data, "--ids", *lists, "--out", tmp_path / "out")
    assert not list(tmp_path.glob("out/*"))


def test_a_broken_line_is_named_by_its_number(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = write_rows(tmp_path / "rows.jsonl", 1, 2)
    assert run("verify", path) == 0
    with path.open("a") as file:
        file.write("{broken\n" + json.dumps(own_row(1)) + "\n")
    assert run("verify", path) == 1
    said = capsys.readouterr().err
    assert "line 3" in said and "line 4" in said and "on line 1 already" in said


def test_overlap_hash_and_missing_images_are_findings(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path, other = write_rows(tmp_path / "a.jsonl", 1, 2), write_rows(tmp_path / "b.jsonl", 2)
    (tmp_path / "images").mkdir()
    assert run("verify", path, "--against", other, "--sha256", "0" * 64, "--images", tmp_path / "images") == 1
    said = capsys.readouterr().err
    assert "SHA-256 is" in said and f"line 1 of {other} too" in said and said.count("has no image") == 2


def test_verify_tells_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        run("verify", tmp_path / "none.jsonl")
    with pytest.raises(InputError):
        run("verify", write_rows(tmp_path / "a.jsonl", 1), "--grade")
