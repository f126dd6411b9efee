"""Manifests that came with artifacts."""

import hashlib
from pathlib import Path

import pytest
from grpo_bench.preflight import file_digests
from grpo_bench.preflight.manifests import findings

HASHED = file_digests(cached=False)


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with a manifest, two files, and one in a subfolder."""
    contents = {"a": b"one", "b c": b"two", "images/d.sif": b"three"}
    (tmp_path / "images").mkdir()
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "mlcommons.md5").write_text("".join(
        f"{md5(content)}  {name}\n" for name, content in contents.items()))
    return tmp_path


def messages(*artifacts: Path) -> list[tuple[bool, str]]:
    return [(finding.ok, finding.message) for finding in findings(artifacts, HASHED)]


def test_files_are_as_the_manifest_says(package):
    assert messages(package) == [(True, f"all 3 files are as {package}/mlcommons.md5 says")]


def test_an_artifact_answers_for_its_own_files_only(package):
    (package / "a").write_bytes(b"changed")
    assert messages(package / "images") == [(True, f"all 1 files are as {package}/mlcommons.md5 says")]
    assert messages(package / "images", package / "a") == [
        (False, f"1 of 2 files have another MD5: {package}/a")]


def test_what_differs_or_is_missing_is_named(package):
    (package / "a").write_bytes(b"changed")
    (package / "images/d.sif").unlink()
    assert messages(package) == [
        (False, f"1 of 3 files are missing: {package}/images/d.sif; 1 of 3 files have another MD5: {package}/a")]


@pytest.mark.parametrize("line", ["abc  a", f"{'0' * 32} a", f"{'g' * 32}  a", ""])
def test_a_line_that_is_none_is_named(package, line):
    manifest = package / "mlcommons.md5"
    manifest.write_text(manifest.read_text() + line + "\n")
    assert messages(package) == [(False, f"{manifest}, line 4: is no line of md5sum: {line}")]


def test_binary_marks_and_links_are_fine(package):
    (package / "mlcommons.md5").write_text(f"{md5(b'one').upper()} *./a\n")
    (package / "link").symlink_to(package)
    assert messages(package / "link") == [(True, f"all 1 files are as {package}/link/mlcommons.md5 says")]


def test_without_a_manifest_there_is_nothing_to_say(tmp_path):
    assert messages(tmp_path, tmp_path / "gone") == []
