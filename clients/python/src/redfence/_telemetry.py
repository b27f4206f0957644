"""OpenTelemetry, if the application has it. Without it every call here does nothing.

One span, ``lock.acquire``, with the attributes ``redfence.tier``, ``redfence.kind``, ``redfence.wait_s``, ``redfence.outcome`` and ``redfence.fence``;
two histograms, ``redfence.lock.wait`` and ``redfence.lock.hold``, in seconds. No resource names: there may be millions of them.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Optional

from ._wire import Grant, LockRequest

_OUTCOMES = {
    "Busy": "busy",
    "CircuitOpen": "unavailable",
    "Deadlock": "deadlock",
    "Indeterminate": "indeterminate",
    "TierRefused": "tier_refused",
    "Unavailable": "unavailable",
    "UnsupportedByServer": "unsupported",
}


class Telemetry:
    """Made once per client. `active` is False unless the application has set up OpenTelemetry by then."""

    def __init__(self, enabled: Optional[bool]) -> None:
        self.active = False
        if enabled is False or (enabled is None and "opentelemetry" not in sys.modules):
            return
        try:
            from opentelemetry import metrics, trace
        except ImportError:
            if enabled:
                raise
            return
        # redis-py imports the API by itself: only providers that somebody set up count.
        providers: Any = (trace.get_tracer_provider(), metrics.get_meter_provider())
        if enabled is None and all("Proxy" in type(each).__name__ or "NoOp" in type(each).__name__ for each in providers):
            return
        self.active = True
        self._tracer: Any = trace.get_tracer("redfence")
        meter: Any = metrics.get_meter("redfence")
        self._wait: Any = meter.create_histogram("redfence.lock.wait", unit="s", description="time to acquire a lock")
        self._hold: Any = meter.create_histogram("redfence.lock.hold", unit="s", description="time a lock was held")

    def acquiring(self, request: LockRequest) -> "AcquireSpan":
        return AcquireSpan(self, request)

    def released(self, request: LockRequest, seconds: float, outcome: str) -> None:
        if self.active:
            self._hold.record(seconds, {**_labels(request), "redfence.outcome": outcome})


class AcquireSpan:
    """The span of one acquisition."""

    def __init__(self, telemetry: Telemetry, request: LockRequest) -> None:
        self._telemetry = telemetry
        self._request = request
        self._began = time.monotonic()
        self._span: Any = telemetry._tracer.start_span("lock.acquire", attributes=_labels(request))

    def granted(self, grant: Grant) -> None:
        self._span.set_attribute("redfence.fence", max(grant.fences))
        self._end("granted")

    def failed(self, error: BaseException) -> None:
        self._end(_OUTCOMES.get(type(error).__name__, "cancelled" if not isinstance(error, Exception) else "error"))

    def _end(self, outcome: str) -> None:
        waited = time.monotonic() - self._began
        self._span.set_attribute("redfence.wait_s", waited)
        self._span.set_attribute("redfence.outcome", outcome)
        self._span.end()
        self._telemetry._wait.record(waited, {**_labels(self._request), "redfence.outcome": outcome})


def _labels(request: LockRequest) -> Any:
    return {"redfence.tier": (request.tier or "default").lower(), "redfence.kind": request.kind}
