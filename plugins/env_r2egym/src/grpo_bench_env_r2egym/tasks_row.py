"""A task as a row of the benchmark, and what a changelog says about a release."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .tasks_recipes import Recipe

DATASET = "grpo-bench/releases"
DATE = "2000-01-01T00:00:00"
_CHANGELOG = re.compile(r"(change(s|log)|history|news|release[-_ ]?notes|readme)(\.(md|rst|txt))?", re.I)
_VERSION = re.compile(r"\d+(\.\d+)+\S*")
_HEADING_CHARACTERS = 60


def row(recipe: Recipe, statement: str, commits: tuple[str, str], fix: list[dict[str, Any]], tests: Mapping[str, str],
        expected: Mapping[str, str]) -> dict[str, Any]:
    """The row. ``commits`` are those before and after the fix, ``tests`` the hidden files by name."""
    before, after = commits
    commit = {"file_diffs": fix, "old_commit_hash": before, "new_commit_hash": after,
              "commit_message": f"{recipe.package} {recipe.new}", "commit_date": DATE, "metadata": {}}
    execution = {"repo_name": recipe.package, "new_commit_hash": after, "test_file_codes": list(tests.values()),
                 "test_file_names": list(tests), "setup_res_code": 0, "setup_res_stdout": "", "setup_res_stderr": "",
                 "new_commit_res_code": 0, "new_commit_res_stdout": "", "new_commit_res_stderr": "",
                 "old_commit_res_code": 1, "old_commit_res_stdout": "", "old_commit_res_stderr": ""}
    name = instance_id(recipe, after)
    columns = {
        "repo_name": recipe.package, "docker_image": "", "commit_hash": after, "base_commit": before,
        "instance_id": name, "problem_statement": statement,
        "parsed_commit_content": json.dumps(commit), "execution_result_content": json.dumps(execution),
        "expected_output_json": json.dumps(dict(sorted(expected.items()))),
        "modified_files": [item["header"]["file"]["path"] for item in fix],
        "FAIL_TO_PASS": [], "PASS_TO_PASS": [], "container_formatter": ""}
    metadata = {
        "instance_id": name, "base_commit": before, "dataset_name": DATASET, "split": recipe.split,
        "problem_statement": statement, "hints_text": "", "version": recipe.old, "created_at": DATE,
        "instance_dict": json.dumps(columns), "repo": recipe.package}
    return envelope(metadata, recipe.split)


def envelope(metadata: Mapping[str, Any], split: str) -> dict[str, Any]:
    """The benchmark's fields around a task's own."""
    agent = {"train": "swe_agents_train", "validation": "swe_agents_val"}[split]
    return {"responses_create_params": {"input": [], "metadata": dict(metadata)},
            "agent_ref": {"type": "responses_api_agents", "name": agent}}


def instance_id(recipe: Recipe, commit: str) -> str:
    return f"releases__{recipe.package}-{commit}"


def from_changelog(release: Path, recipe: Recipe) -> str:
    """The section on the new release in the changelog that it comes with; empty where there is none."""
    for path in sorted(path for path in release.iterdir() if path.is_file() and _CHANGELOG.fullmatch(path.name)):
        section = _section(path.read_text(errors="replace").splitlines(), recipe.new)
        if section:
            return (f"{recipe.package} {recipe.new} is to differ from the release in this repository, {recipe.old}, as "
                    f"follows. Make it so.\n\n{section}")
    return ""


def _section(lines: list[str], version: str) -> str:
    names = [found[0].rstrip(":),") if len(line) <= _HEADING_CHARACTERS and (found := _VERSION.search(line)) else ""
             for line in lines]
    start = next((number for number, name in enumerate(names) if name == version), None)
    if start is None:
        return ""
    end = next((number for number, name in enumerate(names) if number > start and name and name != version
                and re.match(r"\W*(v|version|release)?\W*\d", lines[number], re.I)), len(lines))
    body = [line for line in lines[start + 1:end] if not re.fullmatch(r"\s*([-=~^*#])\1{2,}\s*", line)]
    return "\n".join(body).strip()
