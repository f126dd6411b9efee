"""``grpo-bench launch``: submit runs to a Slurm cluster, watch them, cancel them."""

from __future__ import annotations

import argparse
import hashlib
import os
import secrets
import shlex
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from grpo_bench.cli.columns import tell
from grpo_bench.cli.options import MAX_SEED, add_layer_options, add_pace_option, surveyed_by
from grpo_bench.contract import InputError
from grpo_bench.registry import Plan, Resolved
from grpo_bench.registry.site_tables import Launch

from . import slurm
from .container import inside
from .form import Evaluation, Order, check, jobs, selection, wall_minutes
from .submission import TRAINING, Submission, call, folder_name, submit
from .wall import judged
from .watching_cli import add_actions, up_to

MAX_REPLICAS = 1000
MAX_MINUTES = 43_200


def fill(parser: argparse.ArgumentParser) -> None:
    """Give ``grpo-bench launch`` its arguments."""
    parser.description = ("Submit one job for each replica of a profile, each with a folder and a seed of its own. "
                          "Partition, account, container and the like come from [launch] of the site file.")
    parser.add_argument("--profile", metavar="NAME", help="which profile; see 'profiles list'")
    parser.add_argument("--replicas", type=up_to(MAX_REPLICAS), default=1, metavar="N", help="runs (default: 1)")
    parser.add_argument("--seed-base", type=_seed, metavar="N",
                        help="seed of replica 0, one more for each later one (default: each drawn by this system)")
    parser.add_argument("--eval", choices=[item.value for item in Evaluation], dest="evaluation",
                        help="where a deferred evaluation takes place: in the job that trains, in one that waits for "
                             "it (the default), in none")
    parser.add_argument("--minutes", type=up_to(MAX_MINUTES), metavar="M", help="wall time of a job (default: the "
                        "site's, else what such runs are given)")
    parser.add_argument("--dry-run", action="store_true", help="print the calls and scripts, write and submit nothing")
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR",
                        help="where launches go, on a file system that all hosts share (default: runs)")
    parser.add_argument("--division", metavar="NAME", help="short for --set ruleset.division=NAME")
    add_pace_option(parser)
    add_layer_options(parser)
    parser.set_defaults(verb=_launch)
    add_actions(parser)


def _launch(arguments: argparse.Namespace) -> int:
    if arguments.profile is None:
        raise InputError("--profile is missing: which one should be launched?", hint="see 'profiles list'")
    seeds = _seeds(arguments.replicas, arguments.seed_base)
    _check_paths(arguments.overrides)
    resolved, plan = surveyed_by(argparse.Namespace(**vars(arguments), seed=seeds[0], replica=None))
    launch = resolved.site.launch if resolved.site else Launch()
    order = _order(arguments, resolved, plan)
    check(plan, launch, order)
    told = list(judged(plan, wall_minutes(plan, launch, order.minutes), order.evaluation))
    segments, about = _segments(plan, dry=arguments.dry_run)
    folder = folder_name(arguments.runs, plan.name, datetime.now(UTC))
    replicas = tuple((seed, jobs(plan, launch, order, folder / f"replica-{number}", number, seed))
                     for number, seed in enumerate(seeds))
    submission = Submission(folder, replicas, launch, segments, _kept(arguments, resolved, plan, order, segments))
    for line in (*told, *about, *_notes(plan, resolved, launch)):
        print(line, file=sys.stderr)
    if arguments.dry_run:
        return _show(submission)
    if unset := [line for line in plan.missing if line.startswith("site: ")]:
        raise InputError(f"the site file leaves open what profile {plan.name!r} needs:"
                         + "".join(f"\n    {line}" for line in unset))
    for replica in submit(submission):
        numbers = ", ".join(f"{purpose} {number}" for purpose, number in replica.jobs.items())
        print(f"replica {replica.number}: seed {replica.seed}, {numbers}: {replica.folder}")
    print(f"grpo-bench launch status {shlex.quote(str(folder))}")
    if order.evaluation is Evaluation.NONE:
        print("each is evaluated by grpo-bench eval RUN, once its training is over; "
              "its run folder is in the replica's folder")
    return 0


def _seeds(count: int, base: int | None) -> list[int]:
    if base is None:
        return [secrets.randbelow(MAX_SEED + 1) for _ in range(count)]
    if base + count - 1 > MAX_SEED:
        raise InputError(f"--seed-base {base}: the seed of replica {count - 1} would be above {MAX_SEED}, the highest",
                         hint="give a lower one")
    return list(range(base, base + count))


def _check_paths(overrides: Sequence[str]) -> None:
    """InputError where one names a file of this folder: jobs have another one."""
    for override in overrides:
        path = override.partition("=")[2].strip("\"'")
        if any(sign in path for sign in "./") and not os.path.isabs(path) and os.path.exists(path):
            raise InputError(f"--set {override}: a path relative to this folder, and jobs work in their own",
                             hint=f"give {os.path.abspath(path)}")


def _order(arguments: argparse.Namespace, resolved: Resolved, plan: Plan) -> Order:
    """What is asked for; the registry file of this folder is named, since a job works in its own."""
    local = next((source.file for source in resolved.sources if source.layer == "local"), None)
    site = resolved.site.file if resolved.site else None
    if resolved.site and resolved.site.launch.container and (user := _of_the_user(resolved)):
        raise InputError(f"{', '.join(user[:3])}: set in the user's own registry file, which no container has",
                         hint="set it in a file that --registry names, or with --set")
    chosen = selection(arguments.profile, arguments.division, arguments.overrides, site, local)
    files = tuple(file.absolute() for file in (site, local) if file is not None)
    usual = Evaluation.DEPENDENT if plan.profile.validation.deferred else Evaluation.SAME
    return Order(chosen, files, Evaluation(arguments.evaluation or usual), arguments.minutes,
                 str(Path(sys.executable).parent))


def _of_the_user(resolved: Resolved) -> list[str]:
    return [item.key for item in resolved.explained if item.origin.layer == "user"]


def _segments(plan: Plan, *, dry: bool) -> tuple[bool, list[str]]:
    """Whether Slurm knows segments, and what is to be said of that."""
    if dry:
        try:
            found = slurm.version()
        except (InputError, slurm.SlurmError) as error:
            return True, [f"slurm: its version is not known here ({error.message}); taken as one that knows segments"]
    else:
        found = slurm.version()
    if not plan.form.segment or found >= slurm.SEGMENTS_SINCE:
        return True, []
    return False, [f"WARNING: Slurm {found[0]}.{found[1]:02} knows no --segment, so it is left out: nodes may come "
                   f"from anywhere, and a run that finds less than {plan.form.segment} of them in a domain refuses"]


def _kept(arguments: argparse.Namespace, resolved: Resolved, plan: Plan, order: Order,
          segments: bool) -> dict[str, Any]:
    """What is kept about the launch: all that was decided, and from what."""
    launch = resolved.site.launch if resolved.site else Launch()
    digests = {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in order.files}
    return {
        "profile": plan.name, "division": arguments.division, "overrides": list(arguments.overrides),
        "seed_base": arguments.seed_base, "eval": order.evaluation.value, "selection": list(order.selection),
        "files_sha256": digests, "launch": launch.model_dump(mode="json", exclude_unset=True),
        "minutes": wall_minutes(plan, launch, order.minutes), "segments": segments,
        "form": plan.to_json()["form"], "estimate": plan.to_json()["estimate"], "settings": dict(plan.resolved),
        "launched_at": datetime.now(UTC).isoformat(timespec="seconds"), "version": version("grpo-bench"),
        "sources": plan.provenance["sources"],
    }


def _notes(plan: Plan, resolved: Resolved, launch: Launch) -> Iterator[str]:
    """What the cluster has to have that is not here, or that nobody has said."""
    if plan.missing:
        yield "missing on this machine; where a job runs it has to be there:"
        yield from (f"  {line}" for line in plan.missing)
    if launch.container is None or resolved.site is None:
        return
    if launch.container_digest is None:
        yield "note: launch.container_digest is not set, so no record will say which image ran"
    for key, value in resolved.site.artifacts.model_dump(exclude={"sources"}, exclude_none=True).items():
        if not inside(Path(value), launch.mounts):
            yield f"note: artifacts.{key} = {value} is below none of launch.mounts: the image has to have it"


def _show(submission: Submission) -> int:
    """What would be submitted, as it would be."""
    for seed, found in submission.replicas:
        for job in found:
            tell(f"# seed {seed}", shlex.join(call(job, TRAINING)), indent=4)
            print(f"# {job.script}")
            print(submission.script(job))
    return 0


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= MAX_SEED):
        raise argparse.ArgumentTypeError(f"should be an integer between 0 and {MAX_SEED}, got {text!r:.40}")
    return int(text)
