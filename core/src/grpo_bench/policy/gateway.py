"""The policy for agents that are programs: OpenAI's chat completions over HTTP, without streaming.

One gateway serves all rollouts of a worker. A rollout is admitted with its session and gets a bearer token; it is
reached on loopback, or on a Unix socket of its own that can be mounted into a sandbox, where nothing but its own
token counts. Such a program is untrusted: the session behind it, not what the program says, is the record.

A client that disconnects cancels its call, and so does its next call. A reply that could not be written is taken back
from the record.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from aiohttp import web

from ..contract import Clock, DeadlineExceeded
from .messages import ConversationError
from .openai_form import RequestError, completion_body, read_body, read_request
from .session import CallSuperseded, Session, TurnLimit

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_TOKEN_BYTES = 24


@dataclass(frozen=True, slots=True)
class Ticket:
    """How one rollout's agent reaches the policy: bearer token, base URL of the API, and its socket where it has one
    (then the URL's host does not matter)."""

    token: str
    base_url: str
    socket: Path | None


@dataclass(frozen=True, slots=True)
class _Guest:
    session: Session
    ticket: Ticket
    site: web.UnixSite | None


class Gateway:
    """An HTTP server in front of sessions. ``model`` is the only model name it knows."""

    def __init__(self, clock: Clock, *, model: str = "policy", max_body_bytes: int = 64 * 2**20) -> None:
        self.model = model
        self._clock = clock
        self._guests: dict[str, _Guest] = {}
        self._served = 0
        self._base_url = "http://localhost/v1"
        app = web.Application(client_max_size=max_body_bytes, middlewares=[_errors_in_openai_form])
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)

    async def start(self, *, tcp: bool = True) -> None:
        """Begin to serve; with ``tcp`` on a free port of 127.0.0.1, else on the rollouts' sockets only."""
        await self._runner.setup()
        if tcp:
            await web.TCPSite(self._runner, "127.0.0.1", 0).start()
            self._base_url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def admit(self, session: Session, socket: Path | None = None) -> Ticket:
        """Let a rollout in, on ``socket`` too where a path is given."""
        ticket = Ticket(secrets.token_urlsafe(_TOKEN_BYTES), self._base_url, socket)
        site = None
        if socket is not None:
            site = web.UnixSite(self._runner, socket)
            await site.start()
        self._guests[ticket.token] = _Guest(session, ticket, site)
        return ticket

    async def dismiss(self, ticket: Ticket) -> None:
        """End a rollout's access and remove its socket. Dismissing twice is fine."""
        guest = self._guests.pop(ticket.token, None)
        if guest is not None and guest.site is not None and ticket.socket is not None:
            await guest.site.stop()
            ticket.socket.unlink(missing_ok=True)

    async def close(self) -> None:
        for guest in list(self._guests.values()):
            await self.dismiss(guest.ticket)
        await self._runner.cleanup()

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        session = self._admitted(request)
        asked = read_request(read_body(await request.read()), session, self.model)
        completion = await session.complete(asked.messages, asked.tools)
        self._served += 1
        created = int(datetime.fromisoformat(self._clock.now_utc()).timestamp())
        response = web.json_response(completion_body(
            completion, asked, session, number=self._served, created=created, model=self.model))
        try:
            await response.prepare(request)
            await response.write_eof()
        except (OSError, asyncio.CancelledError):
            session.retract(completion)
            raise
        return response

    async def _models(self, request: web.Request) -> web.StreamResponse:
        self._admitted(request)
        model = {"id": self.model, "object": "model", "created": 0, "owned_by": "grpo-bench"}
        return web.json_response({"object": "list", "data": [model]})

    async def _health(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"status": "ok"})

    def _admitted(self, request: web.Request) -> Session:
        """The session of the request's token, which must not come over another rollout's socket."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        guest = self._guests.get(token.strip()) if scheme.lower() == "bearer" else None
        name = request.transport.get_extra_info("sockname") if request.transport else None
        if guest is None or (isinstance(name, str) and name != str(guest.ticket.socket)):
            raise RequestError("this bearer token belongs to no rollout here", status=401, kind="authentication_error",
                               code="invalid_api_key")
        return guest.session


@web.middleware
async def _errors_in_openai_form(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RequestError as error:
        refused = error
    except ConversationError as error:
        refused = RequestError(str(error), param="messages")
    except web.HTTPRequestEntityTooLarge as error:
        refused = RequestError(f"the request is too large: {error.text}", status=413, code="request_too_large")
    except web.HTTPException as error:
        refused = RequestError(f"{request.method} {request.path}: {error.reason}", status=error.status,
                               code="unknown_url")
    except TurnLimit as error:
        refused = RequestError(str(error), status=403, kind="permission_error", code="max_turns")
    except CallSuperseded as error:
        refused = RequestError(str(error), status=409, kind="conflict_error", code="superseded")
    except DeadlineExceeded as error:
        refused = RequestError(str(error), status=504, kind="server_error", code="deadline_exceeded")
    except Exception as error:
        refused = RequestError(f"{type(error).__name__}: {error}", status=500, kind="server_error",
                               code="generator_failed")
    return web.json_response(refused.body, status=refused.status, headers={"x-should-retry": "false"})
