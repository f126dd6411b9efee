"""Requests and answers as they cross a boundary, for whoever carries them.

A *request* is a method and its arguments, packed. An *answer* is its kind, one byte, and what was packed: the result,
or an error as data. Nothing is ever pickled.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

from grpo_bench.contract import GrpoBenchError
from grpo_bench.contract.codec import pack, unpack

from ._calls import error_from_wire, error_to_wire, invoke, plugin_error


class Kind(IntEnum):
    CALL = 1
    CANCEL = 2
    RESULT = 3
    ERROR = 4


def pack_request(method: str, args: Any, kwargs: Any) -> bytes:
    """What a worker is asked, as it crosses; the same for every worker that is asked it."""
    return pack([method, list(args), kwargs])


async def answer_to(label: str, function: Callable[..., Any], args: Any, kwargs: Any) -> bytes:
    """Call, and pack what came of it: a result or, as data, an error."""
    return answer_of(*await outcome_of(label, function, args, kwargs))


def answer_of(kind: int, body: bytes | memoryview) -> bytes:
    return b"".join((bytes([kind]), body))


def read_answer(answer: bytes) -> Any:
    """The result that was packed; the error that was packed is raised."""
    return content_of(answer[0], memoryview(answer)[1:])


async def outcome_of(label: str, function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Kind, bytes]:
    """Kind and body of an answer."""
    try:
        return Kind.RESULT, pack(await invoke(label, function, args, kwargs))
    except Exception as error:
        return failure(error, label)


def refusal(error: Exception, label: str) -> bytes:
    """The answer for what went wrong before the worker was asked."""
    return answer_of(*failure(error, label))


def failure(error: Exception, label: str) -> tuple[Kind, bytes]:
    known = error if isinstance(error, GrpoBenchError) else plugin_error(label, error)
    return Kind.ERROR, pack(error_to_wire(known))


def content_of(kind: int, body: memoryview) -> Any:
    try:
        content = unpack(body)
    except Exception as error:
        raise plugin_error("reading a worker's answer", error) from error
    if kind == Kind.ERROR:
        raise error_from_wire(content)
    return content
