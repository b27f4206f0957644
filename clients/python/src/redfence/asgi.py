"""Fences in HTTP: a service that refuses requests of stale holders, with 412 Precondition Failed.

The client sends its fence in the header ``Redfence-Fence`` (:meth:`redfence.Lock.headers`). The service keeps the newest one it has seen:

    app = FenceMiddleware(app, FenceStore(rf), resource=lambda scope: scope["path"])

Works with every ASGI framework (Starlette, FastAPI, Django, Quart, Litestar).
"""

from __future__ import annotations

import json
from typing import Any, Awaitable, Callable, Dict, Mapping, MutableMapping, Optional

from ._handle import FENCE_HEADER
from .aio.client import AsyncClient
from .errors import RedfenceError

__all__ = ["FenceMiddleware", "FenceStore", "MemoryStore"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
FENCE_MAX = 2**53


class MemoryStore:
    """The newest fences in this process: for a service of one process, and for tests. Forgets everything at a restart."""

    def __init__(self) -> None:
        self._newest: Dict[str, int] = {}

    async def check(self, resource: str, fence: int) -> bool:
        """Whether the fence is not behind the newest one, which it becomes."""
        if fence < self._newest.get(resource, 0):
            return False
        self._newest[resource] = fence
        return True


class FenceStore:
    """The newest fences at the lock server (``FENCE.CHECK``): one truth for all processes of a service, over restarts."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def check(self, resource: str, fence: int) -> bool:
        """Whether the fence is not behind the newest one, which it becomes."""
        return await self._client.fence_check(resource, fence)


class FenceMiddleware:
    """Checks the fence before the application sees the request.

    :param app: the application.
    :param store: where the newest fences are: :class:`FenceStore` or :class:`MemoryStore`.
    :param resource: the resource that a request writes, from its ASGI scope; None: not guarded.
    :param required: answer 428 to a write without a fence. Otherwise it passes.

    The check and the write are two steps. A holder that is paused between them can still be late, so a database behind the service should check the
    fence, too: it is in ``scope["redfence.fence"]``.
    """

    def __init__(
        self, app: App, store: Any, resource: Callable[[Mapping[str, Any]], Optional[str]], *, required: bool = True
    ) -> None:
        self._app = app
        self._store = store
        self._resource = resource
        self._required = required

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry."""
        if scope["type"] != "http" or scope["method"].upper() in SAFE_METHODS:
            await self._app(scope, receive, send)
            return
        resource = self._resource(scope)
        if resource is None:
            await self._app(scope, receive, send)
            return
        given = [value for name, value in scope["headers"] if name.lower() == FENCE_HEADER.lower().encode()]
        if not given and not self._required:
            await self._app(scope, receive, send)
            return
        if not given:
            await _refuse(send, 428, "fence_required", f"this resource is guarded: send the header {FENCE_HEADER}")
            return
        fence = _parse(given)
        if fence is None:
            await _refuse(send, 400, "bad_fence", f"{FENCE_HEADER} is one positive integer below 2^53")
            return
        try:
            current = await self._store.check(resource, fence)
        except RedfenceError as error:
            await _refuse(send, 503, "fence_unchecked", str(error))
            return
        if not current:
            await _refuse(send, 412, "stale_fence", f"fence {fence} is behind a newer one: stop, acquire again, read again")
            return
        scope["redfence.fence"] = fence
        await self._app(scope, receive, send)


def _parse(given: Any) -> Optional[int]:
    if len(given) != 1 or not given[0].isdigit() or len(given[0]) > 16:
        return None
    fence = int(given[0])
    return fence if 0 < fence < FENCE_MAX else None


async def _refuse(send: Send, status: int, error: str, detail: str) -> None:
    body = json.dumps({"error": error, "detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
