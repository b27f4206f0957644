"""When to try again, and where: backoff with jitter, a circuit breaker, and the list of addresses."""

from __future__ import annotations

import random
import threading
from collections import deque
from typing import Callable, Deque, List

from .errors import CircuitOpen

Clock = Callable[[], float]


class Backoff:
    """Waits that grow, with full jitter: many clients that failed together do not come back together."""

    def __init__(self, first: float = 0.02, most: float = 1.0) -> None:
        self._next = first
        self._most = most

    def next(self) -> float:
        pause = random.uniform(self._next / 2, self._next)
        self._next = min(self._most, self._next * 2)
        return pause


class CircuitBreaker:
    """Opens after five failures in ten seconds; then one request at a time tries again.

    A request asks :meth:`admit` first. After it, it says :meth:`succeeded` or :meth:`failed`.
    """

    def __init__(self, clock: Clock, failures: int = 5, within: float = 10.0, retry_after: float = 1.0) -> None:
        self._clock = clock
        self._failures_max = failures
        self._within = within
        self._retry_after = retry_after
        self._failures: Deque[float] = deque(maxlen=failures)
        self._open = False
        self._probe_at = 0.0
        self._mutex = threading.Lock()

    @property
    def is_open(self) -> bool:
        return self._open

    def admit(self) -> None:
        """Raises :class:`CircuitOpen`, or lets the request through; while open, one request in ``retry_after`` seconds."""
        if not self._open:
            return
        with self._mutex:
            now = self._clock()
            if self._open and now < self._probe_at:
                raise CircuitOpen(
                    f"{self._failures_max} requests were unavailable within {self._within:g} s;"
                    f" the next one is tried in {self._probe_at - now:.2f} s"
                )
            self._probe_at = now + self._retry_after

    def succeeded(self) -> None:
        if self._failures or self._open:
            with self._mutex:
                self._failures.clear()
                self._open = False

    def failed(self) -> None:
        with self._mutex:
            now = self._clock()
            self._failures.append(now)
            if len(self._failures) == self._failures_max and now - self._failures[0] <= self._within and not self._open:
                self._open = True
                self._probe_at = now + self._retry_after


class Addresses:
    """Which node to talk to. Stays with one while it works, moves on when it does not."""

    def __init__(self, count: int, shuffle: bool) -> None:
        self._order: List[int] = list(range(count))
        if shuffle:
            random.shuffle(self._order)
        self._at = 0
        self._mutex = threading.Lock()

    @property
    def current(self) -> int:
        return self._order[self._at]

    def move_on(self, failed: int) -> None:
        """Leaves `failed`, unless another request has already done so."""
        with self._mutex:
            if self._order[self._at] == failed:
                self._at = (self._at + 1) % len(self._order)

    def round(self) -> List[int]:
        """Every address once, the current one first."""
        at = self._at
        return self._order[at:] + self._order[:at]
