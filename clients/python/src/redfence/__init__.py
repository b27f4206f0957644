"""Distributed locks with fencing tokens, for Python.

    import redfence

    with redfence.Client(["redis://n1:6380", "redis://n2:6380"]) as rf:
        with rf.lock("wallet:7", ttl=30, wait=5) as lock:
            lock.ensure(2.0)          # two more seconds, surely
            db.execute(..., lock.fence())

For asyncio use :class:`AsyncClient` in the same way with ``async with`` and ``await``.
"""

from __future__ import annotations

from ._handle import FENCE_HEADER, Released
from ._lease import State
from ._wire import Holder, LockEvent, LockInfo
from .aio import AsyncClient
from .client import Client
from .election import Leader
from .errors import (
    Busy,
    CircuitOpen,
    Deadlock,
    Indeterminate,
    InsufficientLease,
    InvalidRequest,
    Loss,
    Lost,
    NotFenced,
    NotTransferable,
    RedfenceError,
    ServerError,
    StaleFence,
    TierRefused,
    Unavailable,
    UnsupportedByServer,
    WrongMode,
)
from .lock import Lock

__version__ = "0.1.0"

__all__ = [
    "FENCE_HEADER",
    "AsyncClient",
    "Busy",
    "CircuitOpen",
    "Client",
    "Deadlock",
    "Holder",
    "Indeterminate",
    "InsufficientLease",
    "InvalidRequest",
    "Leader",
    "Lock",
    "LockEvent",
    "LockInfo",
    "Loss",
    "Lost",
    "NotFenced",
    "NotTransferable",
    "RedfenceError",
    "Released",
    "ServerError",
    "StaleFence",
    "State",
    "TierRefused",
    "Unavailable",
    "UnsupportedByServer",
    "WrongMode",
    "__version__",
]
