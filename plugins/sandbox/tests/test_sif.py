"""The root filesystem in a SIF image, and what is said of files that are none."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path

import pytest
from grpo_bench_sandbox.sif import SifError, SquashFS, check_squashfs, squashfs_of, this_machine

CODES = {"amd64": b"02", "arm64": b"04"}


def part(kind: int, offset: int, size: int, extra: bytes = b"", used: bool = True) -> bytes:
    numbers = struct.pack("<i?3I7q", kind, used, 1, 1, 0, offset, size, size, 0, 0, 0, 0)
    return numbers + b"part".ljust(128, b"\0") + extra.ljust(384, b"\0")


def partition(offset: int, size: int, arch: bytes, filesystem: int = 1, purpose: int = 2, used: bool = True) -> bytes:
    return part(0x4004, offset, size, struct.pack("<2i3s", filesystem, purpose, arch), used)


def image(descriptors: list[bytes], payload: bytes = b"", start: int = 4096, total: int = 48) -> bytes:
    """A file as Apptainer writes it: header, a table of 48 descriptors at 4096, the data at 36864."""
    table = b"".join(descriptors).ljust(48 * 585, b"\0")
    head = b"#!/usr/bin/env run-singularity\n".ljust(32, b"\0") + b"SIF_MAGIC\0" + b"01\0" + b"02\0" + bytes(16)
    head += struct.pack("<8q", 0, 0, 48 - len(descriptors), total, start, len(table), 36864, len(payload))
    return (head.ljust(4096, b"\0") + table).ljust(36864, b"\0") + payload


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "image.sif"
    path.write_bytes(data)
    return path


def test_the_primary_partition_is_found_behind_other_parts(tmp_path: Path) -> None:
    descriptors = [part(0x4001, 32768, 100), partition(30000, 5, b"02", used=False),
                   partition(40000, 7, b"02", filesystem=2, purpose=3), partition(36864, 4000, b"02\0")]
    path = write(tmp_path, image(descriptors, bytes(4000)))
    assert squashfs_of(path, arch="amd64") == SquashFS(36864, 4000, "amd64")


def test_an_image_is_for_this_machine_unless_said_otherwise(tmp_path: Path) -> None:
    other = "arm64" if this_machine() == "amd64" else "amd64"
    path = write(tmp_path, image([partition(36864, 10, CODES[other])], bytes(10)))
    assert squashfs_of(path, arch=other).arch == other
    with pytest.raises(SifError, match=f"is for machines of {other}, and this one is {this_machine()}"):
        squashfs_of(path)


WHOLE = image([partition(36864, 10, b"02")], bytes(10))


@pytest.mark.parametrize(("data", "said"), [
    (b"", "is no SIF image"),
    (b"\x1f\x8b" + bytes(500), "is no SIF image"),
    (WHOLE[:100], "truncated: the file ends before its header"),
    (WHOLE[:2000], "truncated: the file ends before its table"),
    (WHOLE[:5000], "truncated: the file ends before its table"),
    (WHOLE[:-1], "truncated: the file ends before its root filesystem"),
    (image([partition(36864, -10, b"02")]), "is broken: its root filesystem is -10 bytes"),
    (image([partition(5, 10, b"02")], bytes(10)), "is broken: its root filesystem is 10 bytes at 5"),
    (image([], total=2**60), "claims 1152921504606846976 descriptors"),
    (image([], start=-1), "truncated"),
    (image([]), "no system partition.*partitions: none"),
    (image([part(0x4001, 32768, 100)]), "no system partition.*partitions: none"),
    (image([partition(36864, 10, b"02", filesystem=5)], bytes(10)), "partitions: an encrypted squashfs, primary"),
    (image([partition(36864, 10, b"02", filesystem=9, purpose=3)], bytes(10)), "partitions: filesystem 9"),
    (image([partition(36864, 10, b"99")], bytes(10)), "is for machines of unknown kind"),
])
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, data: bytes, said: str) -> None:
    with pytest.raises(SifError, match=said) as caught:
        squashfs_of(write(tmp_path, data), arch="amd64")
    assert "image.sif" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_path_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SifError, match="No such file"):
        squashfs_of(tmp_path / "none.sif")
    with pytest.raises(SifError, match="directory"):
        squashfs_of(tmp_path)


def squashfs(magic: bytes = b"hsqs", major: int = 4, used: int = 96) -> bytes:
    """The head of a root filesystem, as far as it is looked at, in 4096 bytes."""
    return (magic + bytes(24) + struct.pack("<2H8xQ", major, 0, used)).ljust(4096, b"\0")


def test_the_head_of_a_squashfs(tmp_path: Path) -> None:
    path = write(tmp_path, bytes(100) + squashfs(used=4096))
    check_squashfs(path, SquashFS(100, 4096, "amd64"))


@pytest.mark.parametrize(("content", "said"), [
    (squashfs(magic=b"sqsh"), "its root filesystem is no squashfs"),
    (squashfs(major=3), "has a squashfs of version 3.0, and kernels mount version 4"),
    (squashfs(used=4097), "its squashfs uses 4097 bytes, and has room for 4096"),
    (squashfs(used=48), "its squashfs uses 48 bytes"),
    (squashfs()[:47], "is truncated: the file ends before its root filesystem does"),
])
def test_a_squashfs_that_cannot_be_mounted(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(SifError, match=said):
        check_squashfs(write(tmp_path, bytes(100) + content), SquashFS(100, 4096, "amd64"))


def test_an_image_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(SifError, match="cannot read the image"):
        check_squashfs(tmp_path / "none.sif", SquashFS(100, 4096, "amd64"))
