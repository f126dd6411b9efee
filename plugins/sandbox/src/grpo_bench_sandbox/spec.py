"""What a sandbox is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Root = Literal["host", "folder", "sif"]


@dataclass(frozen=True)
class Image:
    """The root filesystem. ``host``: this machine's /usr with an /etc made up for it; ``folder``: a root filesystem in
    the folder ``path``; ``sif``: the squashfs in the SIF image ``path``. ``binds`` maps paths inside to paths of this
    host, read-only; ``masks`` are paths inside that are made empty or, where
    the root is the image's own, taken away."""

    root: Root = "host"
    path: Path | None = None
    binds: Mapping[str, str] = field(default_factory=dict)
    masks: tuple[str, ...] = ()


@dataclass(frozen=True)
class SandboxSpec:
    """One sandbox. ``source`` is the folder whose copy becomes ``workdir``; its .git holds the state that a diff starts
    from. None: the image's own ``workdir``, of which a history of one commit is made at the start. ``mounts`` and
    ``sockets`` map paths inside to paths of this host, as those of the contract's Environment.open."""

    image: Image = field(default_factory=Image)
    workdir: str = "/testbed"
    source: Path | None = None
    mounts: Mapping[str, str] = field(default_factory=dict)
    sockets: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


class SandboxError(RuntimeError):
    """The sandbox itself did not work; this says nothing about what should have run in it."""
