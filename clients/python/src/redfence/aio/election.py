"""Leader election for asyncio."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, AsyncIterator, Optional, Union

from .._handle import Released
from .._wire import WAIT_MS_MAX, Resource, show
from ..election import OBSERVE_SECONDS, Leader, leader_of
from ..errors import Busy, RedfenceError, Unavailable

if TYPE_CHECKING:
    from .client import AsyncClient
    from .lock import AsyncLock

__all__ = ["AsyncElection"]


class AsyncElection:
    """One election; see :class:`redfence.election.Election`."""

    def __init__(self, client: "AsyncClient", name: Resource, ttl: Optional[float]) -> None:
        self._client = client
        self._name = name
        self._ttl = ttl

    async def campaign(self, value: Union[str, bytes, None] = None, *, wait: Optional[float] = None) -> "AsyncLock":
        """Waits until this client leads, for ever or for `wait` seconds. The handle is the leadership."""
        give_up_at = None if wait is None else time.monotonic() + wait
        while True:
            left = WAIT_MS_MAX / 1000 if give_up_at is None else max(0.0, give_up_at - time.monotonic())
            try:
                return await self._client.lock(
                    self._name, ttl=self._ttl, wait=min(left, WAIT_MS_MAX / 1000), max_hold=None, value=value
                ).acquire()
            except Busy:
                if give_up_at is not None:
                    raise
            except Unavailable:
                if give_up_at is not None:
                    raise
                await asyncio.sleep(1.0)

    async def resign(self, leadership: "AsyncLock") -> Released:
        """Gives the leadership back; the next candidate has it in the same step."""
        return await leadership.release()

    async def leader(self) -> Optional[Leader]:
        """Who leads now."""
        return leader_of(await self._client.info(self._name))

    async def observe(self) -> AsyncIterator[Optional[Leader]]:
        """The leader, and each new one as it comes; None while there is none."""
        last: object = self
        async with self._client.watch(show(self._name)) as events:
            while True:
                try:
                    now = await self.leader()
                except RedfenceError:
                    await asyncio.sleep(0.5)
                    continue
                if now != last:
                    last = now
                    yield now
                await events.next(OBSERVE_SECONDS)
