"""The policy as an agent sees it: chat in, chat out; behind it tokens in, tokens out, and a record of every token.

:class:`ChatFormat` turns conversations into text and ids and replies into messages. A :class:`Policy` opens one
:class:`Session` per rollout; an in-process agent talks to the session itself, an agent that is a program reaches it
through the :class:`Gateway`. Either way the session alone decides what enters the token record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .chat_format import ChatFormat
from .messages import ConversationError
from .session import CallSuperseded, Completion, Policy, RolloutRecord, Session, TurnLimit, make_policy
from .toolcalls import Parsed

if TYPE_CHECKING:
    from .gateway import Gateway, Ticket

__all__ = [
    "CallSuperseded", "ChatFormat", "Completion", "ConversationError", "Gateway", "Parsed", "Policy", "RolloutRecord",
    "Session", "Ticket", "TurnLimit", "make_policy",
]


def __getattr__(name: str) -> Any:
    if name in ("Gateway", "Ticket"):
        from . import gateway

        return getattr(gateway, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
