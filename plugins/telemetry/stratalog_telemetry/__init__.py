"""Services that observe an engine: ``metrics`` for Prometheus, and ``otel`` for OpenTelemetry."""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.errors import ConfigError, PluginImportError
from stratalog.spi import OpenContext, Provider, Service, hookimpl
from stratalog_telemetry.settings import MetricsSection


@hookimpl
def stratalog_services() -> Iterable[Provider[Service]]:
    """Return the providers of the services. The libraries of a service are imported when the service is opened."""
    return (
        Provider[Service](name="metrics", open=_open_metrics, engine_section=MetricsSection),
        Provider[Service](name="otel", open=_open_otel),
    )


def _open_metrics(context: OpenContext) -> Service:
    if not isinstance(context.section, MetricsSection):
        raise ConfigError("[plugins.metrics] was not read")
    try:
        from stratalog_telemetry.metrics_service import MetricsService  # noqa: PLC0415 - only if the service is used
    except ImportError as error:
        raise PluginImportError("prometheus_client is not installed", "metrics", "stratalog[metrics]") from error
    return MetricsService(context.section)


def _open_otel(context: OpenContext) -> Service:
    del context  # OpenTelemetry's own variables configure it
    try:
        from stratalog_telemetry.otel_service import Otel  # noqa: PLC0415 - only if the service is used
    except ImportError as error:
        raise PluginImportError("OpenTelemetry is not installed", "otel", "stratalog[otel]") from error
    return Otel()
