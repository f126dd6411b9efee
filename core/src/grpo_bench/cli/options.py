"""Arguments that several verbs share."""

from __future__ import annotations

import argparse
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from ..registry import Plan, Resolved

Verbs = Any
"""What ``add_subparsers`` returns; argparse has no public name for it."""

MAX_SEED = 2**32 - 1


class Parser(argparse.ArgumentParser):
    """Wrong arguments are one message and exit code 2, not a page of usage; abbreviations are refused. A description
    may be a docstring: its marks of code are left out."""

    def __init__(self, *args: Any, description: str | None = None, **kwargs: Any) -> None:
        plain = description and description.replace("``", "")
        super().__init__(*args, **{"allow_abbrev": False, "description": plain, **kwargs})

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}\n  hint: see {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)


def add_profile_options(parser: argparse.ArgumentParser) -> None:
    """Everything that chooses what to run."""
    parser.add_argument("--profile", required=True, metavar="NAME", help="which profile; see 'profiles list'")
    parser.add_argument("--seed", type=_seed, metavar="N", help="root of all random streams (default: the profile's)")
    parser.add_argument("--replica", type=_seed, metavar="I", help="number of this run among several: seed N + I")
    parser.add_argument("--division", metavar="NAME", help="short for --set ruleset.division=NAME")
    add_layer_options(parser)


def add_layer_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--registry", type=Path, metavar="FILE", help="read this instead of ./registry.toml")
    parser.add_argument("--site", type=Path, metavar="FILE",
                        help="where artifacts lie and what the system is (default: $GRPO_BENCH_SITE)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
                        help="override one value, as in trainer.learning_rate=1e-3; may be repeated")


def resolved_by(arguments: argparse.Namespace) -> Resolved:
    """The profile that the common options choose."""
    from ..contract import RegistryError
    from ..registry import resolve
    chosen = partial(resolve, arguments.profile, registry=arguments.registry, site=arguments.site)
    resolved = chosen(overrides=arguments.overrides)
    division = getattr(arguments, "division", None)
    if division is None:
        return resolved
    if resolved.profile.ruleset is None:
        raise RegistryError(f"--division {division}: profile {resolved.name!r} has no ruleset, so no division either",
                            hint="leave it out, or choose rules with --set ruleset.use=NAME")
    return chosen(overrides=[*arguments.overrides, f"ruleset.division={json.dumps(division)}"])


def planned_by(arguments: argparse.Namespace) -> tuple[Resolved, Plan]:
    """That profile and its plan, the policy's chat format tried out as well; Missing where this machine lacks part."""
    from ..registry.missing import lacking
    resolved, plan = surveyed_by(arguments)
    if plan.missing:
        raise lacking(plan.name, plan.missing)
    return resolved, plan


def add_pace_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--like", type=run_folder, metavar="RUN",
                        help="estimate the time by the pace of this run (default: what the ruleset knows)")


def surveyed_by(arguments: argparse.Namespace) -> tuple[Resolved, Plan]:
    """The same, with a plan that may miss something."""
    from ..contract import InputError
    from ..observers import pace_of
    from ..policy import ChatFormat
    from ..registry import survey
    like = getattr(arguments, "like", None)
    pace = pace_of(like) if like is not None else None
    resolved = resolved_by(arguments)
    plan = survey(resolved, _run_seed(arguments, resolved), pace=pace)
    policy, found = plan.profile.policy, plan.checkpoint
    try:
        if found.vocab_size:
            ChatFormat(found.checkpoint, policy.enable_thinking, policy.tool_parser).check(found.vocab_size)
    except InputError as error:
        raise resolved.merged.error(("policy", "checkpoint"), error.message, hint=error.hint) from error
    return resolved, plan


def run_folder(text: str) -> Path:
    """A RUN argument. Whether a run is in there is for the verb to say; that one can look at all is seen to here."""
    reason = ""
    try:
        os.stat(text)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        reason = str(error.strerror if isinstance(error, OSError) else error)
    if reason or (os.path.isdir(text) and not os.access(text, os.R_OK | os.X_OK)):
        raise argparse.ArgumentTypeError(f"{text:.80} cannot be read: {reason or 'Permission denied'}")
    return Path(text)


def _run_seed(arguments: argparse.Namespace, resolved: Resolved) -> int | None:
    """The seed that the command line gives, a replica's number added; None where it gives none."""
    from ..contract import RegistryError
    if arguments.replica is None:
        return arguments.seed
    base: object = resolved.profile.seed if arguments.seed is None else arguments.seed
    if not isinstance(base, int):
        raise RegistryError(f"--replica {arguments.replica}: profile {resolved.name!r} has no seed to count from",
                            hint="give --seed N as well")
    if base + arguments.replica > MAX_SEED:
        raise RegistryError(f"--replica {arguments.replica}: {base} + {arguments.replica} is above {MAX_SEED}, the "
                            "highest seed", hint="give a lower --seed")
    return base + arguments.replica


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= MAX_SEED):
        raise argparse.ArgumentTypeError(f"should be an integer between 0 and {MAX_SEED}, got {text!r}")
    return int(text)
