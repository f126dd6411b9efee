"""The lock: content hashes, source trees, and what a dirty one means."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import grpo_bench.registry as registry
from grpo_bench.registry import make_plan, resolve
from grpo_bench.contract import PlanError
from grpo_bench.engine.folder import software_of
from grpo_bench.registry.provenance import dirty_sources, distribution_files, distribution_lock
from grpo_bench.registry.statement import CONTAINER_DIGEST, container
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


def test_the_hash_covers_the_files_that_are_listed(bench) -> None:
    files = distribution_files("test-parts")
    assert {name.partition("/")[0] for name, _ in files} == {bench.modules[-1]}
    digest = hashlib.sha256()
    for name, file in files:
        digest.update(len(name).to_bytes(4, "big") + name.encode() + hashlib.sha256(file.read_bytes()).digest())
    assert digest.hexdigest() == distribution_lock(["test-parts"])["distributions"]["test-parts"]["sha256"]
    assert distribution_files("test-nothing") == []


@pytest.mark.parametrize(("origin", "install"), [
    (None, {"kind": "index"}),
    ({"url": "file:///src", "dir_info": {"editable": True}}, {"kind": "editable", "url": "file:///src"}),
    ({"url": "file:///src", "dir_info": {}}, {"kind": "folder", "url": "file:///src"}),
    ({"url": "https://x.test/r.git", "vcs_info": {"vcs": "git", "commit_id": "ab" * 20}},
     {"kind": "vcs", "url": "https://x.test/r.git", "commit": "ab" * 20}),
    ({"url": "https://x.test/r.whl", "archive_info": {"hashes": {"sha256": "00"}}},
     {"kind": "archive", "url": "https://x.test/r.whl", "hashes": {"sha256": "00"}}),
])
def test_the_statement_says_how_each_distribution_came_here(bench, origin: object, install: object) -> None:
    if origin is not None:
        (bench.site / "test_parts-1.0.dist-info" / "direct_url.json").write_text(json.dumps(origin))
    assert make_plan(resolve("base")).provenance["installs"]["test-parts"] == install


def test_the_statement_says_what_each_part_is(bench) -> None:
    found = make_plan(resolve("base")).provenance
    assert found["schema"] == 1 and found["locks"] == {}
    assert found["parts"]["trainer"] == {"plugin": "steady", "distribution": "test-parts", "version": "1.0",
                                         "stand_in": False, "facts": {}}
    assert json.loads(json.dumps(found)) == found


def test_the_page_explains_every_key_of_the_statement(bench) -> None:
    page = (Path(__file__).parents[3] / "docs/package.md").read_text("utf-8")
    rows = re.findall(r"^\| (`[^|]*`) \|", page.partition("## The provenance statement")[2], re.MULTILINE)
    explained = {name.strip("`") for row in rows for name in row.split(", ")}
    plan = make_plan(resolve("base"))
    assert explained == {*software_of(plan), *software_of(replace(plan, modelled="logs"))}
    assert "modelled" not in software_of(plan)


def test_a_container_is_what_was_said_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONTAINER_DIGEST, raising=False)
    file = tmp_path / "image.json"
    assert container(file) == {"digest": None, "image": None}
    file.write_text('{"revision": "abc"}')
    for digest in (f"sha256:{'0' * 64}", f"registry.test/grpo@sha256:{'f' * 64}"):
        monkeypatch.setenv(CONTAINER_DIGEST, digest)
        assert container(file) == {"digest": digest, "image": {"revision": "abc"}}


@pytest.mark.parametrize("digest", ["latest", "sha256:12", f"sha256:{'0' * 65}", f"sha256:{'X' * 64}"])
def test_a_digest_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digest: str) -> None:
    monkeypatch.setenv(CONTAINER_DIGEST, digest)
    with pytest.raises(PlanError, match=f"{CONTAINER_DIGEST} should be"):
        container(tmp_path / "image.json")


@pytest.mark.parametrize("content", ["{", "[]", "\udcff"])
def test_an_image_that_says_nonsense_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "image.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(PlanError, match=r"image\.json"):
        container(tmp_path / "image.json")


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
