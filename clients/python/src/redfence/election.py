"""Leader election: a lock whose value says who leads."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Iterator, Optional, Union

from ._handle import Released
from ._wire import WAIT_MS_MAX, LockInfo, Resource, show
from .errors import Busy, RedfenceError, Unavailable

if TYPE_CHECKING:
    from .client import Client
    from .lock import Lock

__all__ = ["Election", "Leader"]

#: An observer looks again this often, also without an event: events are delivered at most once.
OBSERVE_SECONDS = 2.0


@dataclass(frozen=True)
class Leader:
    """Who leads: the value it campaigned with, and the fence of its term."""

    value: Optional[bytes]
    fence: int
    owner: Optional[str]


def leader_of(info: LockInfo) -> Optional[Leader]:
    return Leader(info.value, info.fence, info.owner) if info.held else None


class Election:
    """One election. Made by :meth:`Client.election`.

    >>> election = rf.election("scheduler")                               # doctest: +SKIP
    >>> with election.campaign("host-1:8080") as leadership:              # doctest: +SKIP
    ...     while not leadership.lost.wait(1.0):
    ...         work(leadership.fence())
    """

    def __init__(self, client: "Client", name: Resource, ttl: Optional[float]) -> None:
        self._client = client
        self._name = name
        self._ttl = ttl

    def campaign(self, value: Union[str, bytes, None] = None, *, wait: Optional[float] = None) -> "Lock":
        """Waits until this client leads, for ever or for `wait` seconds (then :class:`Busy`). The handle is the leadership.

        A leadership has no `max_hold`: it lasts until it is resigned or lost. A value needs a server that has values.
        """
        give_up_at = None if wait is None else time.monotonic() + wait
        while True:
            left = WAIT_MS_MAX / 1000 if give_up_at is None else max(0.0, give_up_at - time.monotonic())
            try:
                return self._client.lock(
                    self._name, ttl=self._ttl, wait=min(left, WAIT_MS_MAX / 1000), max_hold=None, value=value
                ).acquire()
            except Busy:
                if give_up_at is not None:
                    raise
            except Unavailable:
                if give_up_at is not None:
                    raise
                time.sleep(1.0)

    def resign(self, leadership: "Lock") -> Released:
        """Gives the leadership back; the next candidate has it in the same step."""
        return leadership.release()

    def leader(self) -> Optional[Leader]:
        """Who leads now."""
        return leader_of(self._client.info(self._name))

    def observe(self, timeout: Optional[float] = None) -> Iterator[Optional[Leader]]:
        """The leader, and each new one as it comes; None while there is none. Ends after `timeout` seconds without a change.

        For followers that want to know where to send work. The fence tells terms apart.
        """
        last: object = self  # nothing equals it: the first look is always told
        with self._client.watch(show(self._name)) as events:
            give_up_at = None if timeout is None else time.monotonic() + timeout
            while give_up_at is None or time.monotonic() < give_up_at:
                try:
                    now = self.leader()
                except RedfenceError:
                    time.sleep(0.5)
                    continue
                if now != last:
                    last = now
                    give_up_at = None if timeout is None else time.monotonic() + timeout
                    yield now
                events.next(OBSERVE_SECONDS if give_up_at is None else min(OBSERVE_SECONDS, give_up_at - time.monotonic()))
