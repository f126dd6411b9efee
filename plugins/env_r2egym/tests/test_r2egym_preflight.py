"""What is looked at before a run, and each thing that can be wrong with it."""

from __future__ import annotations

import hashlib
import platform
import shutil
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from grpo_bench.contract import Finding, LimitSettings, PreflightContext
from grpo_bench.preflight import file_digests
from grpo_bench_env_r2egym import R2EGymConfig, preflight as module, rows
from grpo_bench_env_r2egym.preflight import order_of, preflight

from .toy import row, write_rows

HERE = {"x86_64": b"02", "aarch64": b"04"}[platform.machine()]
ELSEWHERE = {b"02": b"04", b"04": b"02"}[HERE]
SUPERBLOCK = b"hsqs" + bytes(24) + struct.pack("<2H", 4, 0) + bytes(8) + struct.pack("<Q", 96)
TRAIN = [f"toys__tally-{number:040x}" for number in range(3)]
VALIDATION = [f"toys__tally-{number:040x}" for number in range(3, 5)]


def sif(arch: bytes = HERE, payload: bytes = SUPERBLOCK.ljust(4096, b"\0")) -> bytes:
    """An image as Apptainer writes it, with a table of one descriptor."""
    head = b"#!/usr/bin/env run-singularity\n".ljust(32, b"\0") + b"SIF_MAGIC\0" + b"01\0" + arch + b"\0" + bytes(16)
    head += struct.pack("<8q", 0, 0, 0, 1, 4096, 585, 36864, len(payload))
    entry = struct.pack("<i?3I7q", 0x4004, True, 1, 1, 0, 36864, len(payload), len(payload), 0, 0, 0, 0) + bytes(128)
    entry += struct.pack("<2i3s", 1, 2, arch + b"\0").ljust(384, b"\0")
    return (head.ljust(4096, b"\0") + entry).ljust(36864, b"\0") + payload


class Place:
    """A folder with two files of tasks and a SIF image for each task, and what is expected of the files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.train = write_rows(folder / "train.jsonl", [row(name, "total") for name in TRAIN])
        self.validation = write_rows(folder / "validation.jsonl", [row(name, "most") for name in VALIDATION])
        self.expected = {f"{file.stem}_expected": {
            "bytes": file.stat().st_size, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
            for file in (self.train, self.validation)}
        (folder / "images" / "r2egym").mkdir(parents=True)
        for name in (*TRAIN, *VALIDATION):
            self.image(name).write_bytes(sif())

    def image(self, name: str) -> Path:
        return self.folder / "images" / "r2egym" / f"{name}.sif"

    def found(self, **options: Any) -> dict[str, Finding]:
        config = R2EGymConfig.model_validate({
            "train": str(self.train), "validation": str(self.validation), "images": str(self.folder / "images"),
            "backend": "process", **self.expected, **options})
        findings = list(preflight(config, context()))
        assert len({finding.rule for finding in findings}) == len(findings)
        return {finding.rule: finding for finding in findings}


def context(said: list[str] | None = None) -> PreflightContext:
    site: Any = SimpleNamespace(limits=LimitSettings())
    return PreflightContext(site=site, settings={}, facts={}, provenance={}, runs=Path(), say=(said or []).append,
                            digests=file_digests(cached=False))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def failed(found: dict[str, Finding]) -> dict[str, str]:
    """Messages of what is wrong, but for the sandbox: images of a few bytes run nothing."""
    return {rule: finding.message for rule, finding in found.items() if not finding.ok and rule != "sandbox"}


def test_all_is_as_it_should_be(place, monkeypatch):
    monkeypatch.setattr(module, "_FUSE", "/dev/null")
    found = place.found()
    assert failed(found) == {}
    assert list(found) == ["train tasks", "train rows", "validation tasks", "validation rows", "disjoint", "images",
                           "/dev/null", "sandbox"]
    order = hashlib.sha256("".join(f"{name}\n" for name in TRAIN).encode()).hexdigest()
    assert found["train rows"].message == f"3 in an order of hash {order[:12]}"
    assert found["images"].message.startswith("all 5 tasks have one that this machine (")


def test_a_wrong_byte(place):
    content = place.train.read_bytes()
    place.train.write_bytes(content.replace(b"total", b"totel"))
    wrong = failed(place.found())
    assert list(wrong) == ["train tasks"]
    assert wrong["train tasks"].endswith(f"and should have {place.expected['train_expected']['sha256']}")


def test_a_wrong_order(place):
    lines = place.train.read_text().splitlines(keepends=True)
    place.train.write_text("".join(reversed(lines)))
    found = place.found()
    assert list(failed(found)) == ["train tasks"]
    assert found["train rows"].ok
    places = list(rows.index(place.train).places)
    assert order_of(places) != order_of(reversed(places))


def test_a_wrong_size(place):
    place.validation.write_text(place.validation.read_text() + "\n")
    wrong = failed(place.found())
    size = place.expected["validation_expected"]["bytes"]
    assert wrong["validation tasks"] == f"{place.validation} has {size + 1:,} bytes, and should have {size:,}"
    assert wrong["validation rows"].startswith(f"1 of 3 are wrong: {place.validation}, line 3: is no JSON")


def test_rows_that_are_none(place):
    lines = place.train.read_text().splitlines(keepends=True)
    place.train.write_text(lines[0] + "{}\n" + lines[0] + lines[1])
    wrong = failed(place.found(train_expected=None))
    twice = f"{place.train}, line 3: instance_id: {TRAIN[0]} is on line 1 already"
    assert wrong == {"train rows": f"2 of 4 are wrong: {wrong_row(place.train, 2)}, {twice}"}


def wrong_row(path: Path, number: int) -> str:
    with pytest.raises(rows.RowError) as error:
        rows.parse(b"{}", path, number)
    return error.value.message


def test_a_file_that_is_not_there(place):
    place.train.unlink()
    expected = place.expected["train_expected"]
    found = place.found()
    assert failed(found) == {"train tasks": f"no file {place.train} of {expected['bytes']:,} bytes with SHA-256 "
                                            f"{expected['sha256']}"}
    assert found["images"].message.startswith("all 2 tasks")


def test_a_task_in_both_files(place):
    write_rows(place.validation, [row(TRAIN[1], "most")])
    assert failed(place.found(validation_expected=None)) == {"disjoint": f"{TRAIN[1]} are in both files"}


def test_images_that_are_missing(place):
    for name in TRAIN:
        place.image(name).unlink()
    place.image(VALIDATION[0]).unlink()
    wrong = failed(place.found())
    assert wrong["images"].startswith(f"{place.folder}/images has none for {', '.join(TRAIN)} and 1 more")


def test_no_folder_of_images(place):
    shutil.rmtree(place.folder / "images")
    found = place.found()
    assert failed(found) == {"images": f"no folder {place.folder / 'images'}"}
    assert (found["sandbox"].ok, found["sandbox"].unknown) == (False, True)


@pytest.mark.parametrize(("content", "said"), [
    (sif(ELSEWHERE), "is for machines of "),
    (b"", "is no SIF image: it lacks the magic"),
    (sif()[:40_000], "is truncated: the file ends before its root filesystem does"),
    (sif(payload=bytes(4096)), "is broken: its root filesystem is no squashfs"),
    (sif(payload=SUPERBLOCK.replace(struct.pack("<2H", 4, 0), struct.pack("<2H", 3, 1))), "squashfs of version 3.1"),
    (sif(payload=SUPERBLOCK), "is broken: its squashfs uses 96 bytes, and has room for 48"),
    (sif(payload=b"hsqs"), "is truncated: the file ends before its root filesystem does"),
])
def test_an_image_that_cannot_be_used(place, content, said):
    place.image(TRAIN[1]).write_bytes(content)
    wrong = failed(place.found())
    assert list(wrong) == ["SIF images"]
    assert wrong["SIF images"].startswith("1 of 5 cannot be used: ")
    assert said in wrong["SIF images"]


def test_sif_images_need_fuse(place, monkeypatch):
    monkeypatch.setattr(module, "_FUSE", "/dev/no-fuse")
    assert failed(place.found()) == {"/dev/no-fuse": "cannot be opened: No such file or directory"}


def test_a_backend_that_is_not_here(place, monkeypatch):
    monkeypatch.setenv("PATH", "")
    message = place.found(backend="apptainer")["sandbox"].message
    assert message == "no sandbox can be made here: apptainer: apptainer is not installed"


def test_a_sandbox_is_opened_for_real(toy):
    config = R2EGymConfig.model_validate({**toy.options, "backend": "process"})
    found = {finding.rule: finding for finding in preflight(config, context())}
    assert failed(found) == {}
    assert "/dev/fuse" not in found
    assert found["sandbox"] == Finding("sandbox", True, "process opens one on a task's image", "environment.backend",
                                       found["sandbox"].why, found["sandbox"].fix)


def test_a_sandbox_without_the_repository(toy, tmp_path):
    folder = tmp_path / "toy"
    shutil.copytree(toy.folder, folder, symlinks=True)
    for image in (folder / "images").iterdir():
        (image / "testbed" / ".git").rename(image / "testbed" / "git")
    config = R2EGymConfig.model_validate({
        "train": str(folder / "train.jsonl"), "validation": str(folder / "validation.jsonl"),
        "images": str(folder / "images"), "backend": "process"})
    found = {finding.rule: finding for finding in preflight(config, context())}
    assert list(failed({**found, "box": found["sandbox"]})) == ["box"]


def test_progress_is_said(place, monkeypatch):
    monkeypatch.setattr(module, "_EVERY", 1)
    said: list[str] = []
    config = R2EGymConfig.model_validate({"train": str(place.train), "validation": str(place.validation),
                                          "images": str(place.folder / "images"), "backend": "process"})
    list(preflight(config, PreflightContext(**{**vars(context()), "say": said.append})))
    assert "reading train tasks: 3 rows" in said
    assert "reading images: 4 of 5" in said
