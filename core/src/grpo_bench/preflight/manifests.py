"""MD5 manifests that came with artifacts: ``*.md5`` files in the form of md5sum, one line a file.

A manifest lies in the folder that it describes, or in the one above, and its paths are relative to where it lies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ..contract import FileDigests, Finding

SUFFIX = ".md5"
_LINE = re.compile(r"\\?([0-9a-fA-F]{32}) [ *](.+)")
_NAMED = 3
_WHY = "what was fetched should be what was published, byte for byte"
_FIX = "fetch it again"


def findings(artifacts: Iterable[Path], digests: FileDigests) -> Iterator[Finding]:
    """Each manifest beside ``artifacts`` held against the files it names, as far as these belong to an artifact."""
    places = [path for path in dict.fromkeys(artifacts) if path.exists()]
    found: dict[Path, set[Path]] = {}
    for place in places:
        for folder in (place, place.parent) if place.is_dir() else (place.parent,):
            for manifest in sorted(folder.glob(f"*{SUFFIX}")):
                found.setdefault(manifest, set()).add(place)
    for manifest, of in found.items():
        wanted = read(manifest)
        if isinstance(wanted, Finding):
            yield wanted
        elif mine := {file: digest for file, digest in wanted.items()
                      if any(place == file or place in file.parents for place in of)}:
            yield _held(manifest, mine, digests)


def read(manifest: Path) -> Mapping[Path, str] | Finding:
    """What a manifest says each file should be."""
    rule = f"manifest {manifest.name}"
    try:
        lines = manifest.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        return Finding(rule, False, f"{manifest} cannot be read: {error}", why=_WHY, fix=_FIX)
    wanted = {}
    for number, line in enumerate(lines, 1):
        entry = _LINE.fullmatch(line)
        if entry is None:
            return Finding(rule, False, f"{manifest}, line {number}: is no line of md5sum: {line:.80}", why=_WHY,
                           fix=_FIX)
        wanted[manifest.parent / entry[2]] = entry[1].lower()
    return wanted


def _held(manifest: Path, wanted: Mapping[Path, str], digests: FileDigests) -> Finding:
    rule = f"manifest {manifest.name}"
    absent = [file for file in wanted if not file.is_file()]
    found = digests([file for file in wanted if file not in absent], "md5")
    other = [file for file, digest in found.items() if digest != wanted[file]]
    if not absent and not other:
        return Finding(rule, True, f"all {len(wanted)} files are as {manifest} says")
    said = [f"{len(files)} of {len(wanted)} files {what}: {', '.join(map(str, files[:_NAMED]))}"
            f"{', ...' if len(files) > _NAMED else ''}"
            for files, what in ((absent, "are missing"), (other, "have another MD5")) if files]
    return Finding(rule, False, "; ".join(said), why=_WHY, fix=_FIX)
