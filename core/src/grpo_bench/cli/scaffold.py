"""``plugins new``: a distribution with one plugin in it that works from the start.

It is filled in from the templates beside this module: files that every role has in common, and those of the role. A
file ``x.py.tmpl`` becomes ``x.py`` with its ``$names`` replaced, a folder ``PACKAGE`` the plugin's package. All is
written into a temporary folder beside the new one, which then gets its name: there is a whole distribution or none.
"""

from __future__ import annotations

import argparse
import keyword
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .columns import say

_TEMPLATES = Path(__file__).parent / "templates"
_SUFFIX = ".tmpl"
_NAME = re.compile(r"[a-z][a-z0-9_]*")

_SUMMARIES = {
    "trainer": "trains the policy's embeddings, for a start",
    "generator": "samples from the policy's embeddings, for a start",
    "environment": "questions with one right answer, for a start",
    "agent": "a conversation about one file, for a start",
    "hardware": "one machine, for a start",
    "ruleset": "groups of some size and a target, for a start",
    "observer": "a table of rewards by step, for a start",
}
_DEPENDENCIES = {"trainer": ("grpo-bench[loss]", "numpy", "pydantic", "safetensors", "torch"),
                 "generator": ("grpo-bench", "numpy", "pydantic"), "observer": ("grpo-bench",)}
_NO_TARGET = """\

# No stand-in learns from what it gets, or answers as a policy would: three steps show that all parts work together.
[profiles.try-{name}.grpo]
max_steps = 3

[profiles.try-{name}.validation]
max_tasks = 4
metric = "off"
target = "off"
"""


def add(actions: Any) -> None:
    """The action ``new`` among those of ``plugins``."""
    parser = actions.add_parser("new", help="make a plugin that works from the start", description=(
        "Make a distribution with one plugin in it, which passes its role's conformance suite and runs in its place in "
        "the profile mock: a beginning for your own."))
    parser.add_argument("role", metavar="ROLE", help=f"one of {', '.join(_SUMMARIES)}")
    parser.add_argument("name", metavar="NAME", help="what profiles will call it: lower-case letters, digits, _")
    parser.add_argument("--dir", type=Path, default=Path(), metavar="DIR",
                        help="where the folder NAME goes, made where it is missing (default: .)")
    parser.set_defaults(verb=_new)


def _new(arguments: argparse.Namespace) -> int:
    role, name = arguments.role, arguments.name
    folder = make_plugin(role, name, arguments.dir)
    say(f"made {folder}, the distribution {_distribution(name)} with the {role} {name!r}. Next:",
        f"  pip install -e {shlex.quote(str(folder))}",
        f"  grpo-bench plugins check {name} --role {role}",
        f"  grpo-bench run --registry {shlex.quote(str(folder / 'registry.toml'))} --profile try-{name}")
    return 0


def make_plugin(role: str, name: str, parent: Path) -> Path:
    """Write the distribution into the new folder ``parent / name``; InputError where that cannot be."""
    from ..contract import InputError
    _check(role, name)
    folder = parent / name
    if os.path.lexists(folder):
        raise InputError(f"{folder} exists already", hint="choose another name, or another place with --dir")
    temporary: Path | None = None
    try:
        parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=parent))
        content = temporary / "content"  # made with the usual permissions, unlike the folder around it
        _fill(content, role, _values(role, name))
        content.rename(folder)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _check(role: str, name: str) -> None:
    """Refuse a role that cannot be made and a name that would be in somebody's way."""
    from importlib.util import find_spec

    from ..contract import InputError
    from ..registry import installed_plugins
    from ..registry.names import choices
    if role == "fabric":
        raise InputError("no fabric can be made this way: a small one would lose workers or leave them behind",
                         hint="start from one of the two in grpo_bench.fabric; FabricSuite in grpo_bench.testing says "
                              "what a fabric owes")
    if role not in _SUMMARIES:
        raise InputError(f"no role {role!r}{choices(role, _SUMMARIES)}")
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise InputError(f"{name!r} cannot be a plugin's name: it should be a Python identifier of lower-case letters, "
                         "digits and _ that begins with a letter")
    for plugin in installed_plugins():
        if (plugin.role, plugin.name) == (role, name):
            raise InputError(f"the {role} {name!r} is installed already, by {plugin.distribution} {plugin.version}",
                             hint="two of one name and role are an error; choose another name")
    if find_spec(_package(name)) is not None:
        raise InputError(f"a package {_package(name)} is installed already", hint="choose another name")


def _package(name: str) -> str:
    return f"grpo_{name}"


def _distribution(name: str) -> str:
    return f"grpo-{name.replace('_', '-')}"


def _values(role: str, name: str) -> dict[str, str]:
    dependencies = _DEPENDENCIES.get(role, ("grpo-bench", "pydantic"))
    section = f"[profiles.try-{name}.{role}]" if role != "observer" else f"[[profiles.try-{name}.observers]]"
    profile = f'\n{section}\nuse = "{name}"\n'
    if role in ("trainer", "generator"):
        profile += _NO_TARGET.format(name=name)
    return {"role": role, "name": name, "package": _package(name), "distribution": _distribution(name),
            "summary": _SUMMARIES[role], "dependencies": ", ".join(f'"{item}"' for item in dependencies),
            "profile": profile.rstrip("\n"), "start": "model" if role in ("trainer", "generator") else role}


def _fill(folder: Path, role: str, values: Mapping[str, str]) -> None:
    from string import Template
    for root in (_TEMPLATES / "common", _TEMPLATES / role):
        for source in sorted(root.rglob(f"*{_SUFFIX}")):
            inside = source.relative_to(root).as_posix().removesuffix(_SUFFIX).replace("PACKAGE", values["package"])
            target = folder / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(Template(source.read_text("utf-8")).substitute(values), "utf-8")
