"""What installed distributions say about themselves, read without their long descriptions."""

from __future__ import annotations

from email import message_from_string
from email.message import Message
from importlib.metadata import Distribution


def head_of(found: Distribution) -> Message | None:
    """The fields of its metadata; None where it was installed in a way of earlier times and has them elsewhere. Each of
    ``found.name``, ``found.version`` and ``found.requires`` would parse all of it, a long description included, which
    for hundreds of distributions takes longer than the rest of a plan."""
    head = message_from_string((found.read_text("METADATA") or "").partition("\n\n")[0])
    return head if head["Version"] is not None else None
