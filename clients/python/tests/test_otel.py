"""Spans and histograms, where the application has OpenTelemetry."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import pytest

import redfence
from backends import Backend

pytest.importorskip("opentelemetry.sdk", reason="the OpenTelemetry SDK is not installed: runs in `make sdk`")


def test_span_and_histograms_without_resource_names(single: Backend) -> None:
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider(metric_readers=[reader]))
    resource = f"secret-{uuid.uuid4().hex}"
    with redfence.Client(single.urls()) as rf:
        with rf.lock(resource, tier="correctness") as lock:
            with pytest.raises(redfence.Busy):
                rf.lock(resource).acquire()
    granted, busy = spans.get_finished_spans()
    assert granted.name == "lock.acquire"
    assert granted.attributes["redfence.fence"] == lock.fence()
    assert granted.attributes["redfence.tier"] == "correctness"
    assert granted.attributes["redfence.outcome"] == "granted"
    assert busy.attributes["redfence.outcome"] == "busy"
    told = reader.get_metrics_data().to_json()
    assert "redfence.lock.wait" in told and "redfence.lock.hold" in told
    assert resource not in told and resource not in granted.to_json()


def test_off_unless_the_application_has_it() -> None:
    program = (
        "import sys, redfence; rf = redfence.Client('127.0.0.1:1'); "
        "print(rf._telemetry.active, any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    source = str(Path(redfence.__file__).resolve().parents[1])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={"PYTHONPATH": source}, check=True)
    assert done.stdout.split()[0] == "False"
