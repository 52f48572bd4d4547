"""The service ``otel``: spans, as received by OpenTelemetry's in-memory exporter."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from stratalog import Engine, open_engine
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.errors import PluginImportError
from stratalog.spi import Service
from stratalog.testing.contracts import ServiceContract
from stratalog_telemetry.otel_service import Otel


@pytest.fixture
def exported() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exported: InMemorySpanExporter) -> Iterator[TracerProvider]:
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(exported))
    yield made
    made.shutdown()


def named(exported: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exported.get_finished_spans() if span.name == name]


def test_nothing_is_traced_before_the_start_and_after_the_stop(
    engine: Engine, provider: TracerProvider, exported: InMemorySpanExporter
) -> None:
    service = Otel(provider)
    service.start(engine)
    service.stop(0)
    engine.offload()
    assert exported.get_finished_spans() == ()


def test_an_offload_is_the_parent_of_its_requests(
    engine: Engine, provider: TracerProvider, exported: InMemorySpanExporter
) -> None:
    service = Otel(provider)
    service.start(engine)
    engine.offload()
    service.stop(0)
    (offload,) = named(exported, "offload log")
    assert dict(offload.attributes or {}) == {"stratalog.topic": "orders", "stratalog.partition": "0"}
    (upload,) = named(exported, "store put_file")
    assert upload.attributes is not None
    assert upload.attributes["stratalog.request"] == "puts"
    assert str(upload.attributes["stratalog.key"]).endswith(".seg")
    assert upload.parent is not None
    assert offload.context is not None
    assert upload.parent.span_id == offload.context.span_id


def test_a_duty_is_a_span_without_an_error(
    tmp_path: Path, provider: TracerProvider, exported: InMemorySpanExporter
) -> None:
    clock = ManualClock()
    with open_engine(tmp_path / "logs", env=Env(clock=clock)) as engine:
        Otel(provider).start(engine)
        clock.advance_ms(60_000)
        engine.run_duties()
        spans = named(exported, "duty sync")
        assert [span.status.status_code for span in spans] == [StatusCode.UNSET]


def test_a_tracer_that_raises_changes_nothing(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    def raising(name: str, attributes: object) -> object:
        raise RuntimeError(f"no span {name} {attributes}")

    engine.trace(raising)  # type: ignore[arg-type]  # what a wrong tracer does
    assert sum(result.segments for result in engine.offload()) == 1
    assert "a span could not be started: name=offload log" in caplog.text


class Collector(BaseHTTPRequestHandler):
    """HTTP handler that records the names of the received spans."""

    names: list[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            of = next(pair.value.string_value for pair in resource.resource.attributes if pair.key == "service.name")
            self.names += [f"{of}: {span.name}" for scope in resource.scope_spans for span in scope.spans]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write no log."""


def test_without_a_provider_spans_go_to_the_endpoint_of_the_environment(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    Collector.names = []
    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
            service = Otel()
            service.start(engine)
            engine.offload()
            service.stop(0)
        finally:
            server.shutdown()
            thread.join(30)
    assert "stratalog: offload log" in Collector.names


def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "stratalog_telemetry.otel_service", None)
    with pytest.raises(PluginImportError, match=r"stratalog\[otel\]"):
        open_engine(tmp_path / "logs", config={"services": ["otel"]})


class TestOtel(ServiceContract):
    @pytest.fixture
    def service(self, provider: TracerProvider) -> Service:
        return Otel(provider)
