"""Whether an artifact is what the benchmark is run with, by reading it.

Files by size and SHA-256. A policy in HF form by its index: every shard it names is there, is as long as its header
says, and holds the tensors that it should. Images by their number, and each by its header. What identifies the
policy's contents is the manifest that came with it, or the hub's revision.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from grpo_bench.contract import FileDigests, Finding
from grpo_bench.steps import head_of

from .artifacts_known import ARCHITECTURES, Artifact, Identity, Kind
from .training_6_1 import RULES

INDEX = "model.safetensors.index.json"
_MAGIC, _MAGIC_AT, _ARCH_AT = b"SIF_MAGIC\0", 32, 45
_NAMED = 5


def checked(artifact: Artifact, place: Path, arch: str, digests: FileDigests,
            revision: str | None) -> Iterator[Finding]:
    """What is found out about the artifact at ``place``; ``revision`` is what a hub's cache says that a policy is."""
    if not place.exists():
        fetch = f"grpo-bench artifacts fetch {artifact.name}" if artifact.source_key(arch) else ""
        yield Finding("there", False, f"nothing at {place}", fix=fetch)
    elif artifact.kind is Kind.FILE and not place.is_file():
        yield Finding("there", False, f"{place} is no file", fix="let the site file name the file")
    elif artifact.kind is Kind.FILE and artifact.identity is not None:
        yield file_finding(place, artifact.identity, digests)
    elif artifact.kind is Kind.HF:
        if revision is not None:
            yield _revision(revision)
        yield from checkpoint_findings(place)
    elif artifact.kind is Kind.IMAGES:
        yield from image_findings(place, artifact.images, arch)


def file_finding(file: Path, wanted: Identity, digests: FileDigests) -> Finding:
    """A file of tasks against what it must be; one that is another is told by its rows."""
    size = file.stat().st_size
    found = digests([file], "sha256")[file] if wanted.bytes in (0, size) else ""
    if found == wanted.sha256:
        return Finding("content", True, f"{size:,} bytes, SHA-256 {found}")
    said = f"SHA-256 {found}" if found else f"{size:,} bytes and {_rows(file):,} rows"
    should = wanted.sha256 if found else f"{wanted.bytes:,} and {wanted.rows:,}"
    return Finding("content", False, f"{said}, should be {should}", fix="get the published file",
                   why="tasks, their order and the agent's prompts are part of the benchmark")


def checkpoint_findings(folder: Path) -> Iterator[Finding]:
    """A policy in HF form: what its index promises against its shards' headers."""
    try:
        index = json.loads((folder / INDEX).read_bytes())
        mapped: Mapping[str, str] = dict(index["weight_map"])
        total = index["metadata"]["total_size"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        yield Finding("index", False, f"{folder / INDEX} cannot be read: {_reason(error)}", fix="fetch it again")
        return
    shards: dict[str, set[str]] = {}
    for tensor, shard in mapped.items():
        shards.setdefault(str(shard), set()).add(tensor)
    wrong, size = [], 0
    for name, tensors in sorted(shards.items()):
        try:
            size += _shard(folder / name, tensors)
        except (OSError, ValueError) as error:
            wrong.append(f"{name}: {_reason(error)}")
    if wrong:
        yield Finding("shards", False, f"{len(wrong)} of {len(shards)} are not whole: {_some(wrong)}",
                      why="a policy that lacks weights is another policy", fix="fetch it again")
    elif size != total:
        yield Finding("shards", False, f"tensors have {size:,} bytes, and the index says {total!r}",
                      fix="fetch it again")
    else:
        yield Finding("shards", True, f"{len(shards)} shards, {len(mapped):,} tensors, {size:,} bytes")


def image_findings(folder: Path, wanted: int, arch: str) -> Iterator[Finding]:
    """Images by number, and each by its header; those of a subfolder count as well."""
    images = sorted(path for path in (*folder.glob("*.sif"), *folder.glob("*/*.sif")) if not path.name.startswith("."))
    yield Finding("number", len(images) >= wanted, f"{len(images)} images, {wanted} tasks",
                  why="a task without its image cannot be tried", fix="grpo-bench artifacts fetch sif_dir")
    wrong = [f"{path.name}: {reason}" for path in images if (reason := _image(path, arch))]
    if wrong:
        yield Finding("headers", False, f"{len(wrong)} of {len(images)} cannot be used: {_some(wrong)}",
                      why="a task without its image cannot be tried", fix="fetch them again")
    elif images:
        yield Finding("headers", True, f"all {len(images)} are images for {arch}")


def _revision(revision: str) -> Finding:
    known = revision in RULES.revisions
    return Finding("revision", known, f"revision {revision} of the hub" + (
        "" if known else f", should be {' or '.join(RULES.revisions)}"), why="the benchmark starts from one policy",
        fix="" if known else "download that revision")


def _rows(file: Path) -> int:
    with file.open("rb") as opened:
        return sum(1 for _ in opened)


def _shard(file: Path, tensors: set[str]) -> int:
    """Bytes of its tensors; ValueError where it is not as its header or the index says."""
    head, total = head_of(file), file.stat().st_size
    end = max((entry.stop for entry in head.tensors.values()), default=0)
    if total != head.data + end:
        raise ValueError(f"{total:,} bytes, should be {head.data + end:,}")
    if other := sorted(tensors ^ head.tensors.keys()):
        raise ValueError(f"{len(other)} tensors are not as in the index: {_some(other)}")
    return end


def _image(file: Path, arch: str) -> str:
    """Why an image cannot be used; empty where its header says that it can."""
    if not file.is_file():
        return "no file"
    try:
        with file.open("rb") as opened:
            head = opened.read(_ARCH_AT + 2)
    except OSError as error:
        return _reason(error)
    if head[_MAGIC_AT:_MAGIC_AT + len(_MAGIC)] != _MAGIC:
        return "no SIF image"
    return "" if head[_ARCH_AT:] == ARCHITECTURES[arch] else f"not for {arch}"


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"lacks {error}" if isinstance(error, KeyError) else str(error)


def _some(items: Sequence[str]) -> str:
    return ", ".join(items[:_NAMED]) + (", ..." if len(items) > _NAMED else "")
