"""``grpo-bench tasks images build`` and ``verify``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from grpo_bench.contract import PlanError
from grpo_bench_sandbox.sif import squashfs_of

from . import rows
from .images import find_image
from .images_build import STATE, Builder, Job, read_state, sha256_of
from .images_sources import Impossible, Tools, jobs


def fill(parser: argparse.ArgumentParser) -> None:
    """Give ``tasks images`` its two verbs."""
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    build = verbs.add_parser("build", help="make an image for each task of a file")
    build.add_argument("file", type=Path, help="the tasks: the benchmark's JSONL or R2E-Gym's own rows")
    build.add_argument("--out", type=Path, required=True, help="where the images go; run again to take up the rest")
    build.add_argument("--from", dest="origin", choices=("docker", "folder", "sif"), default="docker",
                       help="docker: the image that a row names; folder: an image folder of `tasks build`; sif: unpack "
                            "a SIF into a root filesystem for bubblewrap (default: docker)")
    build.add_argument("--images", type=Path,
                       help="where the image folders or SIFs are (default: the folder `images` beside the file)")
    build.add_argument("--jobs", type=int, default=2, help="images at once (default: 2)")
    build.add_argument("--timeout-s", type=float, default=3600, help="seconds for each image (default: 3600)")
    build.set_defaults(verb=run_build)
    verify = verbs.add_parser("verify", help="check that each task of a file has an image that this machine can use")
    verify.add_argument("file", type=Path)
    verify.add_argument("--images", type=Path, required=True)
    verify.add_argument("--full", action="store_true", help="also read each image that was made here, for its hash")
    verify.set_defaults(verb=run_verify)


def run_build(arguments: argparse.Namespace) -> int:
    images = arguments.images or arguments.file.parent / "images"
    planned = list(jobs(_rows(arguments.file), arguments.origin, images, arguments.out, Tools.here()))
    wanted = [job for job in planned if isinstance(job, Job)]
    failed = {item.instance_id: item.reason for item in planned if isinstance(item, Impossible)}
    made = kept = 0
    if wanted:
        builder = Builder(arguments.out, jobs=max(1, arguments.jobs), timeout_s=arguments.timeout_s)
        for name, done, old in builder.build(wanted):
            kept, made = kept + old, made + (done.state == "made" and not old)
            if done.state == "failed":
                failed[name] = done.reason
            elif not old:
                print(f"made {name} ({made + kept} of {len(planned)})", flush=True)
    print(f"{made} made, {kept} there already, {len(failed)} failed, of {len(planned)} tasks in {arguments.file}")
    _print_failed(failed)
    return 1 if failed else 0


def run_verify(arguments: argparse.Namespace) -> int:
    state = read_state(arguments.images)
    failed: dict[str, str] = {}
    count = 0
    for row in _rows(arguments.file):
        count += 1
        try:
            image = find_image(arguments.images, row.instance_id, row.dataset)
            if image is None:
                raise PlanError(f"neither an image folder nor a SIF in {arguments.images}")
            if image.image.root != "sif" or image.image.path is None:
                continue
            squashfs_of(image.image.path)
        except PlanError as error:
            failed[row.instance_id] = str(error)
            continue
        found = image.image.path
        done = state.get(row.instance_id)
        if arguments.full and done is not None and done.sha256 and done.sha256 != sha256_of(found):
            failed[row.instance_id] = f"{found} is not what was made: its hash differs from that in {STATE}"
    print(f"{count - len(failed)} of {count} tasks in {arguments.file} have an image in {arguments.images}")
    _print_failed(failed)
    return 1 if failed else 0


def _rows(path: Path) -> Iterator[rows.Row]:
    for place in rows.index(path).places:
        yield rows.read(path, place.number, place.offset, place.length, place.sha256)


def _print_failed(failed: dict[str, str]) -> None:
    """Names by reason, so that one cause of many failures reads as one."""
    reasons: dict[str, list[str]] = {}
    for name, reason in failed.items():
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        print(f"  {reason}:")
        for name in names:
            print(f"    {name}")
