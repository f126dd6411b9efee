"""How a worker's method is called and how what it raises travels, whatever the fabric.

A worker is any object; its public methods, async or plain, are what can be called. An exception that is none of the
contract's becomes a PluginError that names the worker, the method and the original type and keeps the traceback as
text; the contract's own errors keep their type. A deadline is always the caller's.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from grpo_bench.contract import DeadlineExceeded, GrpoBenchError, PluginError, WorkerLost, errors
from grpo_bench.contract.codec import pack, unpack

_ERRORS = {name: item for name, item in vars(errors).items()
           if isinstance(item, type) and issubclass(item, GrpoBenchError)}


def worker_name(group: str, rank: int) -> str:
    return f"{group}-{rank}"


async def settle(result: Any) -> Any:
    """What a plain or an async function gave, awaited where it has to be."""
    return await result if inspect.isawaitable(result) else result


def bound_method(name: str, worker: object, method: str) -> Callable[..., Any]:
    """A public method; PluginError lists the public ones where there is no such."""
    found = None if method.startswith("_") else getattr(worker, method, None)
    if not callable(found):
        public = sorted(item for item in dir(worker) if not item.startswith("_") and callable(getattr(worker, item)))
        raise PluginError(f"worker {name} has no method {method!r}", hint=f"it has: {', '.join(public) or 'none'}")
    return found


async def invoke(label: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call and await; only the contract's errors and a cancellation of this task come out."""
    try:
        return await settle(function(*args, **kwargs))
    except GrpoBenchError:
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise plugin_error(label, error) from error
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # libraries raise some that are no Exception, and the caller waits for an answer
        raise plugin_error(label, error) from error


def plugin_error(label: str, error: BaseException) -> PluginError:
    """The PluginError for an exception that a worker's method or target raised."""
    text = f": {error}" if str(error) else ""
    found = PluginError(f"{label} raised {type(error).__qualname__}{text}")
    found.remote_traceback = "".join(traceback.format_exception(error))
    return found


def error_to_wire(error: GrpoBenchError) -> dict[str, Any]:
    """What crosses for an error; a type that a plugin derived crosses as the contract's type it derives from."""
    kind = next(item.__name__ for item in type(error).__mro__ if _ERRORS.get(item.__name__) is item)
    return {"kind": kind, "message": error.message, "hint": error.hint, "boundary": error.boundary,
            "traceback": getattr(error, "remote_traceback", "") or "".join(traceback.format_exception(error))}


def error_from_wire(content: dict[str, Any]) -> GrpoBenchError:
    """The error again; its remote traceback is also a note, so that it shows wherever the error is printed."""
    found = _ERRORS[content["kind"]](content["message"], hint=content["hint"], boundary=content["boundary"])
    if isinstance(found, PluginError):
        found.remote_traceback = content["traceback"]
    found.add_note(content["traceback"])
    return found


class within:
    """DeadlineExceeded where the block takes longer; the block itself must not raise TimeoutError. A class, since every
    call goes through one."""

    __slots__ = ("_deadline", "_deadline_s", "_label")

    def __init__(self, deadline_s: float | None, label: str) -> None:
        self._deadline, self._deadline_s, self._label = asyncio.timeout(deadline_s), deadline_s, label

    async def __aenter__(self) -> None:
        await self._deadline.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        try:
            await self._deadline.__aexit__(kind, error, trace)
        except TimeoutError as passed:
            error = passed
        if isinstance(error, TimeoutError):
            raise DeadlineExceeded(f"{self._label} took longer than {self._deadline_s:g} s") from None


class DirectRemote:
    """A worker of this process. ``lookup`` finds it at each call, so that a restarted one is found too."""

    local = True

    def __init__(self, name: str, lookup: Callable[[], object], *, serialise: bool = False) -> None:
        self._name = name
        self._lookup = lookup
        self._serialise = serialise

    async def call(self, method: str, /, *args: Any, deadline_s: float | None = None, **kwargs: Any) -> Any:
        label = f"{self._name}.{method}"
        function = bound_method(self._name, self._lookup(), method)
        if self._serialise:
            args, kwargs = unpack(pack((args, kwargs)))
        if deadline_s is None:
            result = await invoke(label, function, args, kwargs)
        else:
            async with within(deadline_s, label):
                result = await invoke(label, function, args, kwargs)
        return unpack(pack(result)) if self._serialise else result


async def all_or_none(calls: list[Any], *, look_s: float = 0.0) -> list[Any]:
    """Results of all coroutines in order; the first failure cancels the others, waits for them, and is raised. Workers
    that compute together with one that dies may fail before its end is seen: so where a worker raised, the end of
    another is raised in its place if it comes within ``look_s``."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    except PluginError as error:
        lost = None if isinstance(error, WorkerLost) else await _first_lost(tasks, look_s)
        if lost is not None:
            raise lost from error
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _first_lost(tasks: list[asyncio.Future[Any]], look_s: float) -> WorkerLost | None:
    until = asyncio.get_running_loop().time() + look_s
    while True:
        raised = [task.exception() for task in tasks if task.done() and not task.cancelled()]
        lost = next((error for error in raised if isinstance(error, WorkerLost)), None)
        running = [task for task in tasks if not task.done()]
        left_s = until - asyncio.get_running_loop().time()
        if lost is not None or not running or left_s <= 0:
            return lost
        await asyncio.wait(running, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
