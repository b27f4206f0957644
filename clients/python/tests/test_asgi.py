"""The ASGI middleware: 412 for a stale fence."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any, Dict, List, Optional, Tuple

import redfence
from backends import Backend
from redfence.asgi import FenceMiddleware, FenceStore, MemoryStore


async def app(scope: Any, receive: Any, send: Any) -> None:
    body = str(scope.get("redfence.fence", "none")).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def request(guarded: Any, fence: Optional[Any], method: str = "PUT", path: str = "/wallet/7") -> Tuple[int, bytes]:
    sent: List[Dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [] if fence is None else [(b"redfence-fence", str(fence).encode())]
    await guarded({"type": "http", "method": method, "path": path, "headers": headers}, None, send)
    return sent[0]["status"], sent[1]["body"]


def by_path(scope: Any) -> Optional[str]:
    return scope["path"] if scope["path"].startswith("/wallet/") else None


def test_stale_fences_are_answered_412() -> None:
    async def work() -> None:
        guarded = FenceMiddleware(app, MemoryStore(), by_path)
        assert await request(guarded, 43) == (200, b"43")
        assert await request(guarded, 43) == (200, b"43")
        status, body = await request(guarded, 42)
        assert status == 412 and json.loads(body)["error"] == "stale_fence"
        assert (await request(guarded, 42, path="/wallet/8"))[0] == 200

    asyncio.run(work())


def test_what_is_not_guarded_passes() -> None:
    async def work() -> None:
        guarded = FenceMiddleware(app, MemoryStore(), by_path)
        assert await request(guarded, None, method="GET") == (200, b"none")
        assert await request(guarded, None, path="/health") == (200, b"none")
        assert (await request(FenceMiddleware(app, MemoryStore(), by_path, required=False), None))[0] == 200

    asyncio.run(work())


def test_missing_and_malformed_fences() -> None:
    async def work() -> None:
        guarded = FenceMiddleware(app, MemoryStore(), by_path)
        assert (await request(guarded, None))[0] == 428
        for bad in ("x", "-1", "0", str(2**53), "1" * 40, "1.5", ""):
            assert (await request(guarded, bad))[0] == 400

    asyncio.run(work())


def test_marks_at_the_lock_server(any_backend: Backend) -> None:
    async def work() -> None:
        path = f"/wallet/{uuid.uuid4().hex}"
        async with redfence.AsyncClient(any_backend.urls()) as rf:
            guarded = FenceMiddleware(app, FenceStore(rf), by_path)
            async with rf.lock(path, transferable=True) as first:
                assert (await request(guarded, first.headers()["Redfence-Fence"], path=path))[0] == 200
            async with rf.lock(path) as second:
                assert (await request(guarded, second.fence(), path=path))[0] == 200
                assert (await request(guarded, first.fence(), path=path))[0] == 412

    asyncio.run(work())


def test_a_store_that_cannot_be_asked_is_503() -> None:
    async def work() -> None:
        async with redfence.AsyncClient("127.0.0.1:1", timeout=0.2, connect_timeout=0.1) as rf:
            assert (await request(FenceMiddleware(app, FenceStore(rf), by_path), 7))[0] == 503

    asyncio.run(work())
