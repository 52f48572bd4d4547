"""Service ``otel``, which sends spans of store requests, offloads and background duties to OpenTelemetry."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Final

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import ProxyTracerProvider, Tracer, get_tracer_provider
from opentelemetry.trace import TracerProvider as AnyTracerProvider

from stratalog import Engine
from stratalog.spi import Service

_SCOPE: Final = "stratalog"
_NAME_VARIABLE: Final = "OTEL_SERVICE_NAME"


class Otel(Service):
    """Service that sends spans to a tracer provider.

    Args:
        provider: tracer provider. None means OpenTelemetry's global provider. If the program has not set a global
            provider, the service sends the spans to the OTLP endpoint in OpenTelemetry's environment variables.
    """

    def __init__(self, provider: AnyTracerProvider | None = None) -> None:
        self._provider = provider
        self._own_provider: TracerProvider | None = None
        self._engine: Engine | None = None

    def start(self, engine: Engine) -> None:
        """Start to send spans of the engine to the tracer provider."""
        provider = self._provider or get_tracer_provider()
        if isinstance(provider, ProxyTracerProvider):  # the program has not set a global provider
            provider = self._own_provider = _otlp_provider()
        tracer = provider.get_tracer(_SCOPE)
        self._engine = engine

        def begin_span(name: str, attributes: Mapping[str, str]) -> AbstractContextManager[object]:
            return _begin(tracer, name, attributes)

        engine.trace(begin_span)

    def stop(self, deadline_ns: int) -> None:
        """Stop the tracing. If the service created the tracer provider, send the remaining spans. Idempotent."""
        del deadline_ns  # OTEL_EXPORTER_OTLP_TIMEOUT is the timeout of the exporter
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.trace(None)
        provider, self._own_provider = self._own_provider, None
        if provider is not None:
            provider.shutdown()


def _begin(tracer: Tracer, name: str, attributes: Mapping[str, str]) -> AbstractContextManager[object]:
    return tracer.start_as_current_span(name, attributes=attributes)


def _otlp_provider() -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - only without another provider

    name = os.environ.get(_NAME_VARIABLE, "stratalog")
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
