"""Where control groups of version 2 can be made, on folders that look like theirs."""

from __future__ import annotations

from pathlib import Path

import pytest
from grpo_bench_sandbox.cgroups import _delegating


def group(folder: Path, controllers: str, handed_out: str | None) -> Path:
    """``handed_out`` None: the kernel refuses to change it, as it does where processes are."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.controllers").write_text(controllers)
    (folder / "cgroup.procs").touch()
    if handed_out is None:
        (folder / "cgroup.subtree_control").mkdir()
    else:
        (folder / "cgroup.subtree_control").write_text(handed_out)
    return folder


@pytest.mark.parametrize(("own", "above", "found"), [
    ("memory pids", "memory pids", ["own"]),
    ("", "memory pids", ["own"]),
    (None, "cpu memory pids", ["above"]),
    (None, None, []),
])
def test_a_group_is_made_in_the_own_one_or_beside_it(
        tmp_path: Path, own: str | None, above: str | None, found: list[str]) -> None:
    root = tmp_path / "above"
    group(root, "cpu memory pids", above)
    inner = group(root / "own", "memory pids", own)
    assert [base.name for base in _delegating(root, inner)] == found


def test_nothing_is_made_above_the_root_or_without_the_controllers(tmp_path: Path) -> None:
    group(tmp_path, "memory pids", "memory pids")
    root = group(tmp_path / "root", "cpu", "cpu")
    assert _delegating(root, root) == []
