"""``grpo-bench artifacts``: what the benchmark needs on disk: whether it is here, getting it, checking it."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo_bench.cli.columns import tell
from grpo_bench.contract import FileDigests, Finding, InputError
from grpo_bench.preflight import Progress, file_digests, manifest_findings
from grpo_bench.registry import SiteFile, read_site_file, resolve

from . import artifacts_fetch as fetching
from .artifacts_checks import checked
from .artifacts_known import ARCHITECTURES, Artifact, Kind, architecture, chosen
from .artifacts_manifest import Manifest, manifest_of
from .artifacts_transfer import FetchError, Hopeless, read_small

MAX_JOBS = 64


def fill(parser: argparse.ArgumentParser) -> None:
    """Give ``grpo-bench artifacts`` its actions."""
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="what is needed, where the site has it, what is there")
    listing.add_argument("--profile", metavar="NAME", help="only what this profile refers to")
    listing.add_argument("--registry", type=Path, metavar="FILE", help="read this instead of ./registry.toml")
    listing.set_defaults(verb=run_list)
    fetching = actions.add_parser("fetch", help="get what is missing from where the site file says; run again to go on")
    fetching.add_argument("--jobs", type=_jobs, default=8, metavar="N", help="files at once (default: 8)")
    fetching.set_defaults(verb=run_fetch)
    verifying = actions.add_parser("verify", help="read what is there and check that it is what it should be")
    verifying.add_argument("--no-cache", action="store_true", help="hash every file, whether or not its hash is known")
    verifying.set_defaults(verb=run_verify)
    for action in (listing, verifying):
        action.add_argument("--json", action="store_true", help="print one JSON object")
    for action in (fetching, verifying):
        action.add_argument("names", nargs="*", metavar="NAME", help="as in the site file's [artifacts] (default: all)")
    for action in (listing, fetching, verifying):
        action.add_argument("--site", type=Path, metavar="FILE", help="the site file (default: $GRPO_BENCH_SITE)")
        action.add_argument("--arch", choices=sorted(ARCHITECTURES), help="what images are for (default: this machine)")


def run_list(arguments: argparse.Namespace) -> int:
    site = read_site_file(arguments.site)
    used = _used(arguments) if arguments.profile else None
    items = [_listed(artifact, site, arguments.arch) for artifact in chosen(())
             if used is None or artifact.name in used]
    if arguments.json:
        print(json.dumps({"site": str(site.file) if site else None, "artifacts": items}))
        return 0
    for item in items:
        print(f"{item['name']}: {item['summary']}")
        print(f"    {item['path'] or 'not in the site file'}: {_state(item)}" if item["path"] else
              f"    set {item['key']} in the site file")
        if item["source_key"]:
            print(f"    from {item['source'] or 'nowhere: set ' + item['source_key'] + ' to fetch it'}")
    if site is None:
        print("no site file: name one with --site or $GRPO_BENCH_SITE")
    return 0


def run_fetch(arguments: argparse.Namespace) -> int:
    site = _site(arguments)
    wanted = list(_sources(chosen(arguments.names), site, architecture(arguments.arch), bool(arguments.names)))
    manifests = [manifest_of(artifact, uri, place, read_small) for artifact, uri, place in wanted]
    with _progress() as say:
        digests = file_digests(say)
        absent = {manifest: fetching.missing(manifest, digests) for manifest in manifests}
        say("asking for sizes")
        absent = {manifest: fetching.sized(items, arguments.jobs) for manifest, items in absent.items()}
    fetching.check_room(item for items in absent.values() for item in items)
    failed: list[FetchError] = []
    for manifest, items in absent.items():
        if not any(isinstance(error, Hopeless) for error in failed):
            failed += _fetch(manifest, items, arguments.jobs)
    return 1 if failed else 0


def _fetch(manifest: Manifest, items: Sequence[fetching.Wanted], jobs: int) -> list[FetchError]:
    """Get the files of one artifact; the errors of those that failed."""
    name = manifest.artifact.name
    with _progress() as say:
        errors = fetching.fetch(items, jobs, lambda text: say(f"{name}: {text}"))
    if not errors:
        fetching.keep(manifest)
    left_out = f", {manifest.left_out} of the source left out" if manifest.left_out else ""
    print(f"{name}: {len(items) - len(errors)} fetched, {len(manifest.files) - len(items)} there already, "
          f"{len(errors)} failed{left_out}: {manifest.root}", flush=True)
    for error in errors:
        print(f"  {error}", file=sys.stderr)
    return errors


def run_verify(arguments: argparse.Namespace) -> int:
    site, arch = _site(arguments), architecture(arguments.arch)
    with _progress() as say:
        digests = file_digests(say, cached=not arguments.no_cache)
        findings = {artifact.name: list(_found(artifact, site, arch, digests))
                    for artifact in chosen(arguments.names) if artifact.kind is not Kind.CACHE}
    if arguments.json:
        print(json.dumps({name: [asdict(item) for item in found] for name, found in findings.items()}))
    for name, item in ((name, item) for name, found in findings.items() for item in found if not arguments.json):
        tell(f"{'ok  ' if item.ok else 'FAIL'} {name}: {item.rule}: {item.message}", indent=5)
        if not item.ok:
            words = {"why": item.why, "fix": item.fix}
            tell(*(f"     {label}: {text}" for label, text in words.items() if text), indent=10)
    return 0 if all(item.ok for found in findings.values() for item in found) else 1


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    progress = Progress(shutil.get_terminal_size().columns)
    try:
        yield progress.say
    finally:
        progress.clear()


def _found(artifact: Artifact, site: SiteFile, arch: str, digests: FileDigests) -> Iterator[Finding]:
    place = _place(artifact, site)
    if place is None:
        yield Finding("there", False, f"the site file does not say where: {site.file}",
                      fix=f"set {artifact.key}")
        return
    try:
        yield from checked(artifact, place, arch, digests, site.snapshot.revision if site.snapshot else None)
        yield from manifest_findings([place], digests)
    except OSError as error:
        yield Finding("readable", False, f"{error.filename} cannot be read: {error.strerror}")


def _place(artifact: Artifact, site: SiteFile) -> Path | None:
    """Where the site has an artifact, or wants it."""
    value = site.get(artifact.key)
    return Path(value) if value else None


def _sources(artifacts: Sequence[Artifact], site: SiteFile, arch: str,
             named: bool) -> Iterator[tuple[Artifact, str, Path]]:
    """What can be fetched: the artifact, its metadata URI, where it goes. What was named must be."""
    for artifact in artifacts:
        key, place = artifact.source_key(arch), _place(artifact, site)
        uri = site.get(key) if key else None
        if key and uri and place:
            yield artifact, uri, place
        elif named and key is None:
            raise InputError(f"{artifact.name} is not fetched: it is {artifact.summary}")
        elif named:
            lacking = key if not uri else artifact.key
            raise InputError(f"{artifact.name} cannot be fetched: {site.file} does not set {lacking}")
        elif key:
            print(f"{artifact.name}: left out, {site.file} does not set {key if not uri else 'where it goes'}",
                  file=sys.stderr)


def _listed(artifact: Artifact, site: SiteFile | None, arch: str | None) -> dict[str, Any]:
    place = _place(artifact, site) if site else None
    key = artifact.source_key(architecture(arch))
    files = list(_files(place)) if place else []
    return {"name": artifact.name, "summary": artifact.summary, "key": artifact.key,
            "path": str(place) if place else None, "there": bool(place and place.exists()), "files": len(files),
            "bytes": sum(files), "source_key": key, "source": site.get(key) if site and key else None}


def _state(item: Mapping[str, Any]) -> str:
    if not item["there"]:
        return "not there"
    return f"{item['files']:,} file{'s' if item['files'] != 1 else ''}, {fetching.gigabytes(item['bytes'])}"


def _files(place: Path) -> Iterator[int]:
    """Sizes of the files at and below ``place``; of a link, what it leads to, and nothing where that is not there."""
    names = [place] if place.is_file() else [
        Path(folder, name) for folder, _, found in os.walk(place) for name in found]
    for path in names:
        with suppress(PermissionError):  # what only others may look at is no file for this user
            if path.is_file():
                yield path.stat().st_size


def _used(arguments: argparse.Namespace) -> set[str]:
    """Artifacts that a profile refers to, resolved or not."""
    resolved = resolve(arguments.profile, registry=arguments.registry, site=arguments.site)
    notes = {item.origin.note for item in resolved.explained if item.origin.layer == "site"}
    texts = {item.value for item in resolved.explained if isinstance(item.value, str)}
    return {artifact.name for artifact in chosen(()) if artifact.key in notes or f"site:{artifact.key}" in texts}


def _site(arguments: argparse.Namespace) -> SiteFile:
    site = read_site_file(arguments.site)
    if site is None:
        raise InputError("no site file: it says where artifacts lie", hint="name one with --site or $GRPO_BENCH_SITE; "
                                                                           "docs/site.md shows one")
    return site


def _jobs(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_JOBS):
        raise argparse.ArgumentTypeError(f"should be an integer from 1 to {MAX_JOBS}, got {text!r:.40}")
    return int(text)
