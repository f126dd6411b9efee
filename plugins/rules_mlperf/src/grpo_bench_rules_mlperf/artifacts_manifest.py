"""What a metadata URI names: where an artifact's files lie, and the MD5 of each.

Two small documents lie side by side. ``NAME.uri`` is text with one URI, the folder that the files lie in. ``NAME.md5``
is a manifest in the form of ``md5sum``: one line a file, 32 hexadecimal digits, two blanks, and a path below that
folder. A path is somebody else's text that becomes a file here, so one that could lead elsewhere is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

from grpo_bench.contract import InputError

from .artifacts_known import Artifact, Kind

URI, MD5 = ".uri", ".md5"
SCHEMES = ("https", "http", "file")
MAX_BYTES = {URI: 2**16, MD5: 2**24}
"""Sizes of the two documents; far above what they have."""
KEPT = "mlcommons.md5"
"""The manifest's name in a folder that was fetched."""
_IMAGES = "images"
_LINE = re.compile(r"([0-9a-fA-F]{32}) [ *](.+)")
_LONGEST = 1024

Read = Callable[[str, int], bytes]
"""Reads a small document at a URI, at most that many bytes."""


@dataclass(frozen=True)
class Listed:
    """One file of an artifact: where it lies, and where it goes, relative to the artifact's folder."""

    uri: str
    md5: str
    path: PurePosixPath


@dataclass(frozen=True)
class Manifest:
    """An artifact's files. ``kept`` is where the manifest stays, beside what it describes; ``left_out`` counts the
    files of the source that do not belong to the artifact."""

    artifact: Artifact
    root: Path
    files: tuple[Listed, ...]
    kept: Path
    left_out: int

    @property
    def text(self) -> str:
        """In the form of md5sum, relative to the folder that it is kept in."""
        return "".join(f"{file.md5}  {file.path}\n" for file in self.files)


def manifest_of(artifact: Artifact, uri: str, place: Path, read: Read) -> Manifest:
    """What ``uri`` lists for an artifact that goes to ``place``."""
    address = urlsplit(uri)
    if not address.path.endswith(URI):
        raise InputError(f"{uri}: should end in {URI}", hint=f"a metadata URI names a {URI} document, beside which a "
                                                             f"{MD5} manifest lies")
    base = _base(uri, _text(read(uri, MAX_BYTES[URI]), uri))
    there = urlunsplit(address._replace(path=address.path.removesuffix(URI) + MD5))
    listed = parse(_text(read(there, MAX_BYTES[MD5]), there), there)
    if artifact.kind is Kind.FILE:
        paths, root, kept = _the_file(listed, place.name, there), place.parent, place.with_name(place.name + MD5)
    else:
        paths = _below_images(listed) if artifact.kind is Kind.IMAGES else _beside_config(listed, there)
        root, kept = place, place / KEPT
    files = tuple(Listed(_joined(base, source), listed[source], path) for source, path in paths.items())
    return Manifest(artifact, root, files, kept, len(listed) - len(files))


def parse(text: str, where: str) -> Mapping[str, str]:
    """MD5 by path, as a manifest has them; InputError on a line that is none, or a path that is refused."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.rstrip("\r"):
            continue
        parts = _LINE.fullmatch(line.rstrip("\r"))
        if parts is None:
            raise InputError(f"{where}, line {number}: no MD5 and path, got {line!r:.80}",
                             hint="is the manifest cut off? fetch again, or ask who publishes it")
        path = parts[2].removeprefix("./")
        if reason := _refused(path):
            raise InputError(f"{where}, line {number}: the path {path!r:.80} {reason}",
                             hint="nothing was fetched; ask who publishes it")
        if found.setdefault(path, parts[1].lower()) != parts[1].lower():
            raise InputError(f"{where}, line {number}: {path} is listed twice, with different MD5s")
    if not found:
        raise InputError(f"{where}: lists no files", hint="is the manifest cut off? ask who publishes it")
    folders = {str(parent) for path in found for parent in PurePosixPath(path).parents}
    if both := sorted(folders & found.keys()):
        raise InputError(f"{where}: {both[0]} is listed as a file and as a folder")
    return found


def _refused(path: str) -> str:
    """Why a path of a manifest is not taken; empty where it is."""
    parts = path.split("/")
    if path.startswith("/"):
        return "is absolute"
    if ".." in parts:
        return "leads out of its folder"
    if "" in parts or "." in parts:
        return "is no plain path"
    if "\\" in path or not path.isprintable():
        return "has characters that no path should have"
    return f"is longer than {_LONGEST} characters" if len(path) > _LONGEST else ""


def _text(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{where}: no UTF-8 text") from None


def _base(uri: str, text: str) -> str:
    lines = text.split()
    if len(lines) != 1:
        raise InputError(f"{uri}: should hold one URI, holds {len(lines)} words", hint="is it a metadata URI?")
    base = urljoin(uri, lines[0])
    scheme = urlsplit(base).scheme
    if scheme not in SCHEMES or (scheme == "file" and urlsplit(uri).scheme != "file"):
        raise InputError(f"{uri}: points at {base:.200}, which cannot be fetched from",
                         hint=f"it should begin with {', '.join(SCHEMES[:2])}")
    return base


def _joined(base: str, path: str) -> str:
    address = urlsplit(base)
    return urlunsplit(address._replace(path=f"{address.path.rstrip('/')}/{quote(path)}"))


def _the_file(listed: Mapping[str, str], name: str, where: str) -> dict[str, PurePosixPath]:
    named = [path for path in listed if PurePosixPath(path).name == name]
    matching: Sequence[str] = named or list(listed)
    if len(matching) != 1:
        raise InputError(f"{where}: lists {len(matching)} files, and which of them is {name} is not clear",
                         hint="call the file in the site file as it is called there: " + ", ".join(list(listed)[:5]))
    return {matching[0]: PurePosixPath(name)}


def _below_images(listed: Mapping[str, str]) -> dict[str, PurePosixPath]:
    """What lies in a folder ``images``; where there is none, every image by its path."""
    below = {path: PurePosixPath(*parts[parts.index(_IMAGES) + 1:]) for path in listed
             if _IMAGES in (parts := PurePosixPath(path).parts)[:-1]}
    return below or {path: PurePosixPath(path) for path in listed if path.endswith(".sif")}


def _beside_config(listed: Mapping[str, str], where: str) -> dict[str, PurePosixPath]:
    """What lies in the folder of the policy's ``config.json``, the outermost one."""
    configs = sorted((path for path in map(PurePosixPath, listed) if path.name == "config.json"),
                     key=lambda path: len(path.parts))
    if not configs:
        raise InputError(f"{where}: lists no config.json, so this is no policy in HF form")
    home = configs[0].parent
    return {path: PurePosixPath(path).relative_to(home) for path in listed if PurePosixPath(path).is_relative_to(home)}
