"""Sandboxes for code that nobody trusts, on Linux.

A :class:`SandboxSpec` says what a sandbox is made of and :class:`Limits` what it may use; a backend opens it as the
contract's ProgramSandbox. ``inside/enter.py`` is for whoever moves a process of its own into one.
"""

from .backends import Backend, BackendName, available, backend
from .limits import Limits
from .spec import Image, SandboxError, SandboxSpec

__all__ = ["Backend", "BackendName", "Image", "Limits", "SandboxError", "SandboxSpec", "available", "backend"]
