"""The artifacts that the benchmark is run with: what each is, where a site file has it, and what identifies it.

A name here is a key of the site file's ``[artifacts]``. What can be fetched has a metadata URI in its ``sources``.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from grpo_bench.contract import InputError

from .training_6_1 import RULES

ARCHITECTURES = {"aarch64": b"04", "x86_64": b"02"}
"""What images are made for, and how a SIF header says so."""


class Kind(StrEnum):
    """What an artifact looks like on disk."""

    HF = "folder in HF form"
    FILE = "file"
    IMAGES = "folder of images"
    CACHE = "folder that the trainer fills"


@dataclass(frozen=True)
class Identity:
    """What a file must be; ``bytes`` and ``rows`` are 0 where they are not known."""

    sha256: str
    bytes: int = 0
    rows: int = 0


@dataclass(frozen=True)
class Artifact:
    """``name`` is its key in the site file, ``source`` that among the sources, empty where it is not fetched.
    ``identity`` is that of a file; ``images`` how many a folder has."""

    name: str
    summary: str
    kind: Kind
    source: str = ""
    identity: Identity | None = None
    images: int = 0

    @property
    def key(self) -> str:
        """The site file's key that says where it lies."""
        return f"artifacts.{self.name}"

    def source_key(self, arch: str) -> str | None:
        """The site file's key that says where it comes from; None where it is not fetched."""
        return f"artifacts.sources.{self.source.format(arch=arch)}" if self.source else None


def _tasks(split: str, rows: int) -> Identity:
    return Identity(RULES.value(f"environment.{split}_expected.sha256"),
                    RULES.value(f"environment.{split}_expected.bytes"), rows)


_TRAINING, _VALIDATION = RULES.training_tasks, RULES.validation_tasks
ARTIFACTS = (
    Artifact("hf_checkpoint", f"the policy, {RULES.model}", Kind.HF, "policy_checkpoint"),
    Artifact("megatron_cache", "the policy in Megatron's form, made at first use", Kind.CACHE),
    Artifact("train_data", f"{_TRAINING} tasks to train on", Kind.FILE, "train_data", _tasks("train", _TRAINING)),
    Artifact("validation_data", f"{_VALIDATION} tasks to validate with", Kind.FILE, "validation_data",
             _tasks("validation", _VALIDATION)),
    Artifact("sif_dir", f"an image for each of the {_TRAINING + _VALIDATION} tasks", Kind.IMAGES, "sif_{arch}",
             images=_TRAINING + _VALIDATION),
    Artifact("system_template", "the agent's system prompt, as the reference implementation has it", Kind.FILE,
             identity=Identity(RULES.value("agent.system_template_sha256"))),
    Artifact("user_template", "the template of the agent's first message, likewise", Kind.FILE,
             identity=Identity(RULES.value("agent.user_template_sha256"))),
)


def chosen(names: Sequence[str]) -> tuple[Artifact, ...]:
    """The artifacts of these names; all of them where none is named."""
    known = {artifact.name: artifact for artifact in ARTIFACTS}
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"no artifact is called {unknown[0]!r} (there is: {', '.join(known)})")
    return tuple(artifact for artifact in ARTIFACTS if not names or artifact.name in names)


def architecture(named: str | None) -> str:
    """What images should be made for: as named, else this machine's."""
    arch = named or platform.machine()
    if arch not in ARCHITECTURES:
        raise InputError(f"there are no images for machines of {arch!r}", hint="--arch aarch64 or --arch x86_64")
    return arch
