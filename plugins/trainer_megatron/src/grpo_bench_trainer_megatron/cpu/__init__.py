"""Megatron Core without a GPU: what it asks of CUDA is answered by the CPU, and its collectives go through gloo.

:func:`install` changes torch for the whole process, so it belongs into worker processes only, before Megatron is first
imported. Where CUDA is there torch stays as it is.
"""

from __future__ import annotations

import torch

_installed = False


def install() -> bool:
    """Whether this process computes on its CPU, made ready for that if so."""
    global _installed
    alone = not torch.cuda.is_available()
    if not _installed:
        from . import absent, collectives, devices

        absent.install()
        if alone:
            devices.install()
            collectives.install()
        _installed = True
    return alone


__all__ = ["install"]
