"""The lock: content hashes, source trees, and what a dirty one means."""

from __future__ import annotations

import importlib
import json
import subprocess
from pathlib import Path

import pytest

import grpo_bench.registry as registry
from grpo_bench.registry import make_plan, resolve
from grpo_bench.registry.provenance import dirty_sources, distribution_lock
from grpo_bench.registry.places import packaged_file


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(bench) -> Path:
    """``test-parts`` as an editable install of a committed source tree."""
    folder = bench.folder / "checkout"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "file").write_text("x")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    origin = {"url": folder.as_uri(), "dir_info": {"editable": True}}
    (bench.site / "test_parts-1.0.dist-info" / "direct_url.json").write_text(json.dumps(origin))
    return folder


def test_a_source_tree_is_clean_then_dirty(checkout: Path) -> None:
    state = distribution_lock(["test-parts"])["sources"][str(checkout)]
    assert (state["dirty"], len(state["commit"])) == (False, 40)
    (checkout / "new").write_text("y")
    lock = distribution_lock(["test-parts"])
    assert lock["sources"][str(checkout)]["dirty"] is True
    assert str(checkout) in dirty_sources(lock)


def test_a_dirty_tree_leaves_the_run_unscored(checkout: Path) -> None:
    (checkout / "new").write_text("y")
    plan = make_plan(resolve("base"))
    assert not plan.scored
    assert any(str(checkout) in reason for reason in plan.unscored)


def test_a_tree_without_version_control_counts_as_changed(bench) -> None:
    bare = bench.folder / "bare"
    bare.mkdir()
    origin = {"url": bare.as_uri(), "dir_info": {"editable": True}}
    (bench.site / "test_parts-1.0.dist-info" / "direct_url.json").write_text(json.dumps(origin))
    lock = distribution_lock(["test-parts"])
    assert lock["sources"][str(bare)] == {"commit": None, "dirty": None}
    assert str(bare) in dirty_sources(lock)
    assert any(f"git does not say which commit source tree {bare}" in reason
               for reason in make_plan(resolve("base")).unscored)


def test_caches_and_a_packaged_registry_do_not_change_the_hash(bench) -> None:
    [module] = {path.parent for path in bench.site.glob("*/__init__.py")}
    before = distribution_lock(["test-parts"])["distributions"]["test-parts"]
    (module / "registry.toml").write_text("schema = 1")
    (module / ".cache").mkdir()
    (module / ".cache" / "file").write_text("x")
    assert distribution_lock(["test-parts"])["distributions"]["test-parts"] == before
    (module / "other.toml").write_text("schema = 1")
    assert distribution_lock(["test-parts"])["distributions"]["test-parts"] != before


def test_the_public_surface() -> None:
    assert all(getattr(registry, name) for name in registry.__all__)
    assert sorted(registry.__all__) == registry.__all__
    with pytest.raises(AttributeError, match="nothing"):
        _ = registry.nothing


def test_every_packaged_profile_resolves() -> None:
    importlib.invalidate_caches()
    assert packaged_file().is_file()
    assert resolve("laptop", cwd=packaged_file().parent).profile.validation.metric == "pass_k"
    assert resolve("mock", cwd=packaged_file().parent).profile.fabric.use == "inline"
