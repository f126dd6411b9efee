"""Locks: what a worker environment is built from, a TOML resource in the package of the plugin that needs it.

    schema = 1
    python = ">=3.11,<3.12"          # interpreters that it can be built with
    imports = ["solver"]             # modules that must import once it is built

    [[steps]]                        # one call of pip each, in this order
    options = ["--no-deps"]
    packages = ["solver==2.1.0"]     # exact pins

    [files]                          # modules and .pth files beside the packages, where libraries need a stand-in
    "solver_hook.pth" = "import solver_hook"

The bytes of the file are the environment's identity: whoever changes one has another environment. A lock says what is
installed and never from where; that is for the settings of the machine's pip.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Annotated, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, Field, ValidationError

from ..contract import PlanError, Settings, WorkerEnv
from .names import dotted

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_SHORT = 12
"""Digits of a lock's hash in the name of a build."""
_PLACES = ("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--trusted-host", "--no-index", "--proxy")


def _pinned(text: str) -> str:
    try:
        found = Requirement(text)
    except InvalidRequirement as error:
        raise ValueError(f"{text!r} is no requirement") from error
    pins = [item for item in found.specifier if item.operator in ("==", "===") and not item.version.endswith(".*")]
    if len(found.specifier) != 1 or not pins or found.url:
        raise ValueError(f"{text!r} is no exact pin, as in name==1.2.3")
    return text


def _placeless(text: str) -> str:
    if text.partition("=")[0] in _PLACES:
        raise ValueError(f"{text!r} says where packages come from, which is for the settings of the machine's pip")
    return text


def _range(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError("should be a range of Python versions, as in '>=3.11,<3.12'") from error
    return text


class _Step(Settings):
    options: tuple[Annotated[str, AfterValidator(_placeless)], ...] = ()
    packages: Annotated[tuple[Annotated[str, AfterValidator(_pinned)], ...], Field(min_length=1)]


class _Content(Settings):
    lock_schema: Literal[1] = Field(alias="schema")
    python: Annotated[str, AfterValidator(_range)]
    steps: Annotated[tuple[_Step, ...], Field(min_length=1)]
    files: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+\.(py|pth)$")], str] = {}
    imports: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$")], ...] = ()


@dataclass(frozen=True)
class Step:
    """One call of ``pip install``."""

    options: tuple[str, ...]
    packages: tuple[str, ...]


@dataclass(frozen=True)
class Lock:
    """A lock as read. ``digest`` is the SHA-256 of its bytes, in hex."""

    name: str
    digest: str
    python: SpecifierSet
    steps: tuple[Step, ...]
    files: Mapping[str, str]
    imports: tuple[str, ...]

    @property
    def stem(self) -> str:
        """What the names of its builds begin with."""
        return f"{self.name}-{self.digest[:_SHORT]}"


def read_lock(env: WorkerEnv) -> Lock:
    """The lock of an environment; PlanError where it is missing or no lock, which is an error of its package."""
    if not _NAME.fullmatch(env.name):
        raise _wrong(env, f"{env.name!r} is no name of an environment: those are made of lower-case letters, digits, "
                          "'_' and '-'")
    package, _, path = env.lock.partition("/")
    try:
        data = files(package).joinpath(path).read_bytes()
        content = _read(data)
    except (ImportError, TypeError, OSError) as error:
        raise _wrong(env, f"cannot be read: {error}") from error
    except ValidationError as error:
        found = [f"{dotted(item['loc'])}: {item['msg'].removeprefix('Value error, ')}"
                 for item in error.errors(include_url=False)]
        raise _wrong(env, "; ".join(found)) from error
    except ValueError as error:
        raise _wrong(env, f"no valid TOML: {error}") from error
    steps = tuple(Step(step.options, step.packages) for step in content.steps)
    return Lock(env.name, hashlib.sha256(data).hexdigest(), SpecifierSet(content.python), steps, content.files,
                content.imports)


@lru_cache(maxsize=16)
def _read(data: bytes) -> _Content:
    """Kept, since a plan asks for each lock several times and checking hundreds of pins takes a while."""
    return _Content.model_validate(tomllib.loads(data.decode()))


def _wrong(env: WorkerEnv, why: str) -> PlanError:
    return PlanError(f"environment {env.name!r}: its lock {env.lock}: {why}", hint="an error of that package")
