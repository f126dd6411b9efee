"""Where the root filesystem lies inside a SIF image.

A SIF file starts with a header (launch line, magic, version, architecture, offsets) which points at a table of
descriptors, one for each part of the file. The root filesystem is the part of kind partition that is marked as the
primary system; its bytes are a squashfs that a kernel can mount in place, at that offset. All numbers are
little-endian. Nothing here needs Apptainer, and nothing of the file but the header, the table and, where that is asked
for, the head of the squashfs is read.
"""

from __future__ import annotations

import os
import platform
import struct
from dataclasses import dataclass
from pathlib import Path

from grpo_bench.contract import PlanError

HEADER = struct.Struct("<32s10s3s3s16s8q")
"""Launch line, magic, version, architecture, id, then: created, modified, free and all descriptors, offset and bytes of
the table, offset and bytes of the data."""
DESCRIPTOR = struct.Struct("<i?3I7q128s384s")
"""Kind, used, id, group, link, then: offset, bytes, bytes with padding, created, modified, owner, owner's group, name,
and what the kind adds."""
PARTITION = struct.Struct("<2i3s")
"""What kind partition adds: filesystem, purpose, architecture."""
MAGIC, PARTITION_KIND, PRIMARY, SQUASHFS = b"SIF_MAGIC\0", 0x4004, 2, 1
SUPERBLOCK = struct.Struct("<4s24x2H8xQ")
"""The head of a squashfs, as far as it is looked at: magic, version, bytes used."""
FILESYSTEMS = {1: "squashfs", 2: "ext3", 3: "an archive", 4: "raw", 5: "an encrypted squashfs"}
ARCHITECTURES = {b"01": "386", b"02": "amd64", b"03": "arm", b"04": "arm64", b"05": "ppc64", b"06": "ppc64le",
                 b"07": "mips", b"08": "mipsle", b"09": "mips64", b"10": "mips64le", b"11": "s390x", b"12": "riscv64"}
MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le", "s390x": "s390x", "riscv64": "riscv64"}
MOST_DESCRIPTORS = 4096
"""Images have 48; a number far beyond it is a broken file and not one to make room for."""


class SifError(PlanError):
    """A file is no SIF image that this machine can run."""


@dataclass(frozen=True, slots=True)
class SquashFS:
    """``size`` bytes of the file from ``offset`` are the root filesystem, for machines of ``arch`` (``amd64``)."""

    offset: int
    size: int
    arch: str


def this_machine() -> str:
    """The architecture of this machine, by the names that images use."""
    machine = platform.machine()
    return MACHINES.get(machine, machine)


def squashfs_of(path: Path, *, arch: str | None = None) -> SquashFS:
    """The root filesystem of an image for machines of ``arch``, by default this one."""
    try:
        with open(path, "rb") as file:
            total = os.fstat(file.fileno()).st_size
            head = file.read(HEADER.size)
            if head[32:32 + len(MAGIC)] != MAGIC:
                raise SifError(f"{path} is no SIF image: it lacks the magic", hint="is it a Docker archive?")
            *_, count, start, _length, _data, _bytes = HEADER.unpack(_part(path, head, HEADER.size, "header"))
            if not 0 < count <= MOST_DESCRIPTORS:
                raise SifError(f"{path} is broken: it claims {count} descriptors")
            if not HEADER.size <= start <= total:
                raise _truncated(path, "table of descriptors")
            file.seek(start)
            table = _part(path, file.read(count * DESCRIPTOR.size), count * DESCRIPTOR.size, "table of descriptors")
    except OSError as error:
        raise SifError(f"cannot read the image {path}: {error.strerror}") from None
    found = _primary(path, table)
    if found.offset < HEADER.size or found.size <= 0:
        raise SifError(f"{path} is broken: its root filesystem is {found.size} bytes at {found.offset}")
    if found.offset + found.size > total:
        raise _truncated(path, "root filesystem")
    wanted = arch or this_machine()
    if found.arch != wanted:
        raise SifError(f"{path} is for machines of {found.arch}, and this one is {wanted}",
                       hint="build the image on a machine of this kind")
    return found


def check_squashfs(path: Path, part: SquashFS) -> None:
    """SifError unless the root filesystem begins as a squashfs does, and all it uses is there."""
    try:
        with open(path, "rb") as file:
            file.seek(part.offset)
            head = _part(path, file.read(SUPERBLOCK.size), SUPERBLOCK.size, "root filesystem")
    except OSError as error:
        raise SifError(f"cannot read the image {path}: {error.strerror}") from None
    magic, major, minor, used = SUPERBLOCK.unpack(head)
    if magic != b"hsqs":
        raise SifError(f"{path} is broken: its root filesystem is no squashfs", hint="copy or build it again")
    if major != 4:
        raise SifError(f"{path} has a squashfs of version {major}.{minor}, and kernels mount version 4")
    if not SUPERBLOCK.size < used <= part.size:
        raise SifError(f"{path} is broken: its squashfs uses {used} bytes, and has room for {part.size}",
                       hint="copy or build it again")


def _primary(path: Path, table: bytes) -> SquashFS:
    """The primary system partition among the descriptors."""
    seen: list[str] = []
    for kind, used, _id, _group, _link, offset, size, *_rest, extra in DESCRIPTOR.iter_unpack(table):
        if not used or kind != PARTITION_KIND:
            continue
        filesystem, purpose, arch = PARTITION.unpack_from(extra)
        if purpose == PRIMARY and filesystem == SQUASHFS:
            return SquashFS(offset, size, ARCHITECTURES.get(arch.rstrip(b"\0"), f"unknown kind {arch!r}"))
        name = FILESYSTEMS.get(filesystem, f"filesystem {filesystem}")
        seen.append(f"{name}{', primary' if purpose == PRIMARY else ''}")
    raise SifError(f"{path} has no system partition with a squashfs; its partitions: {'; '.join(seen) or 'none'}",
                   hint="was it built with apptainer or singularity 3 or later?")


def _part(path: Path, data: bytes, size: int, what: str) -> bytes:
    if len(data) < size:
        raise _truncated(path, what)
    return data


def _truncated(path: Path, what: str) -> SifError:
    return SifError(f"{path} is truncated: the file ends before its {what} does", hint="copy or build it again")
