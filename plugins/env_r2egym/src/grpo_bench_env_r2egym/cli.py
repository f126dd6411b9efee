"""``grpo-bench tasks``: make, check and convert files of tasks, and make their images."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

from grpo_bench.contract import InputError


def tasks(parser: argparse.ArgumentParser) -> None:
    """Give ``grpo-bench tasks`` its verbs."""
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    build = verbs.add_parser("build", help="make tasks of adjacent releases of packages",
                             description="Make R2E-Gym tasks of pairs of releases, each verified by grading it.")
    build.add_argument("pairs", nargs="*", metavar="PKG==OLD..NEW")
    build.add_argument("--set", dest="name", metavar="NAME", help="a packaged set (swe), or a file of recipes")
    build.add_argument("--out", type=Path, help="where the tasks go (default for a packaged set: the user's cache)")
    build.add_argument("--validation", type=int, metavar="N", help="the last N tasks are for validation")
    build.add_argument("--statement", type=Path, metavar="FILE", help="what the agent is told (for one pair)")
    build.add_argument("--jobs", type=int, default=2, help="tasks at once (default: 2)")
    build.set_defaults(verb=run_build)
    verify = verbs.add_parser("verify", help="check a file of tasks")
    verify.add_argument("file", type=Path)
    verify.add_argument("--images", type=Path, help="folder of their images; each task must have one")
    verify.add_argument("--against", type=Path, metavar="FILE", help="another file that must share no task with it")
    verify.add_argument("--sha256", help="what the file's hash must be")
    verify.add_argument("--grade", action="store_true", help="grade no change and the fix of each (needs --images)")
    verify.set_defaults(verb=run_verify)
    convert = verbs.add_parser("convert", help="make the benchmark's files of R2E-Gym's rows")
    convert.add_argument("--dataset", type=Path, required=True, help="a JSONL or parquet file, or a folder of such")
    convert.add_argument("--ids", type=Path, nargs=2, required=True, metavar=("TRAIN", "VALIDATION"),
                         help="files of instance ids, one a line: these tasks in this order")
    convert.add_argument("--out", type=Path, required=True)
    convert.add_argument("--cache-dir", type=Path, help="where rows that lie in parquet are kept, to be used again")
    convert.set_defaults(verb=run_convert)
    images = verbs.add_parser("images", help="make and check images of tasks")
    from .images_cli import fill

    fill(images)


def run_build(arguments: argparse.Namespace) -> int:
    from . import tasks_build, tasks_recipes

    recipes = [tasks_recipes.parse(pair) for pair in arguments.pairs]
    chosen = tasks_recipes.load(arguments.name or "swe")
    if arguments.name:
        recipes = [*chosen.task, *recipes]
    if not recipes:
        raise InputError("there is nothing to build", hint="name pairs of releases, or --set swe")
    if arguments.statement:
        if len(recipes) != 1:
            raise InputError("--statement goes with one pair of releases", hint="put several into a file (--set FILE)")
        recipes = [recipes[0].model_copy(update={"statement": _text(arguments.statement)})]
    if arguments.out is None and arguments.name not in tasks_recipes.PACKAGED:
        raise InputError("--out is missing: where should the tasks go?")
    recipes = tasks_recipes.split_up(recipes, arguments.validation)
    out = (arguments.out or cache() / arguments.name).expanduser().absolute()
    out.mkdir(parents=True, exist_ok=True)
    builder = tasks_build.Builder(out, chosen.pins)
    results = asyncio.run(tasks_build.build_all(builder, recipes, max(1, arguments.jobs)))
    made = [result for result in results if isinstance(result, tasks_build.Made)]
    for name, digest in tasks_build.write(out, made).items():
        print(f"{digest}  {out / name}")
    print(f"{len(made)} of {len(recipes)} tasks in {out}")
    return 0 if len(made) == len(recipes) else 1


def run_verify(arguments: argparse.Namespace) -> int:
    from .tasks_verify import findings

    count = 0
    for finding in findings(arguments.file, images=arguments.images, against=arguments.against,
                            sha256=arguments.sha256, grade=arguments.grade):
        count += 1
        print(finding, file=sys.stderr)
    return 1 if count else 0


def run_convert(arguments: argparse.Namespace) -> int:
    from .tasks_convert import convert

    for path, digest, number in convert(arguments.dataset, arguments.ids, arguments.out, arguments.cache_dir):
        print(f"{digest}  {path} ({number} tasks)")
    return 0


def cache() -> Path:
    """Where packaged sets are built."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpo-bench" / "tasks"


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from None
