"""The asyncio client: the same as the threaded one, with ``async with`` and ``await``."""

from __future__ import annotations

from .client import AsyncClient
from .election import AsyncElection
from .lock import AsyncLock, AsyncPendingLock, LostSignal
from .watch import AsyncWatch

__all__ = ["AsyncClient", "AsyncElection", "AsyncLock", "AsyncPendingLock", "AsyncWatch", "LostSignal"]
