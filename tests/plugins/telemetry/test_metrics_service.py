"""The service ``metrics`` serves the engine's metrics in a form that Prometheus' own parser accepts."""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, RemoteDisconnected
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics_of
from prometheus_client.parser import text_string_to_metric_families as metrics_of

import stratalog_telemetry.metrics_service as service_module
from stratalog import Engine, Record, open_engine
from stratalog.engine.duties.engine_metrics import METRICS
from stratalog.errors import PluginImportError, StorageError
from stratalog.spi import Service
from stratalog.testing.contracts import ServiceContract
from stratalog.testing.faults import FaultyVfs, failing
from stratalog_telemetry.metrics_service import MetricsService
from stratalog_telemetry.settings import MetricsSection


@pytest.fixture
def service(engine: Engine) -> Iterator[MetricsService]:
    made = MetricsService(MetricsSection(port=0))
    made.start(engine)
    yield made
    made.stop(0)


def get(port: int, path: str, accept: str = "", *, host: str = "127.0.0.1") -> tuple[int, str, str]:
    """Return the status, the content type and the text of the response."""
    connection = HTTPConnection(host, port, timeout=30)
    try:
        connection.request("GET", path, headers={"Accept": accept} if accept else {})
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()
    finally:
        connection.close()


def families(text: str) -> dict[str, Metric]:
    """Return the metrics of a response by their names in METRICS."""
    found = {}
    for family in metrics_of(text):
        found[f"{family.name}_total" if family.type == "counter" else family.name] = family
    return found


def test_every_metric_of_the_engine_is_served_with_its_kind_text_and_labels(
    service: MetricsService, engine: Engine
) -> None:
    engine.offload()
    status, kind, text = get(service.port, "/metrics")
    assert (status, kind.partition(";")[0]) == (200, "text/plain")
    served = families(text)
    given = {sample.metric for sample in engine.metrics()} | {sample.metric for sample in engine.latencies()}
    assert len(given) == len(METRICS) - 1  # the missing metric exists only after a listener failed
    for metric in given:
        family = served[metric.name]
        assert (family.type, family.documentation) == (metric.kind, metric.doc)
        assert {name for sample in family.samples for name in sample.labels} - {"le"} == set(metric.labels)
    end = {
        (sample.labels["topic"], sample.labels["partition"]): sample.value
        for sample in served["stratalog_log_end_offset"].samples
    }
    assert end == {("orders", "0"): 1, ("orders", "1"): 0}
    assert "process_resident_memory_bytes" in served


def test_a_latency_is_a_histogram_whose_buckets_are_cumulative(service: MetricsService, engine: Engine) -> None:
    for _ in range(3):
        engine.log("orders", 0).append([Record(value=b"x")])
    samples = families(get(service.port, "/metrics")[2])["stratalog_append_seconds"].samples
    counts = [sample.value for sample in samples if sample.name.endswith("_bucket")]
    assert counts == sorted(counts)
    assert counts[-1] == next(sample.value for sample in samples if sample.name.endswith("_count")) == 3
    assert next(sample.value for sample in samples if sample.name.endswith("_sum")) > 0


def test_a_client_that_accepts_openmetrics_gets_it(service: MetricsService) -> None:
    status, kind, text = get(service.port, "/metrics", "application/openmetrics-text; version=1.0.0")
    assert (status, kind.partition(";")[0]) == (200, "application/openmetrics-text")
    parsed = open_metrics_of(text)  # type: ignore[no-untyped-call]  # published without types
    assert "stratalog_logs" in {family.name for family in parsed}


def test_an_engine_is_healthy_until_a_log_has_failed(service: MetricsService, engine: Engine, files: FaultyVfs) -> None:
    assert get(service.port, "/healthy")[::2] == (200, "well\n")
    files.rule = failing("sync", errno.EIO)
    with pytest.raises(StorageError):
        engine.log("orders", 1).append([Record(value=b"x")], durability="durable")
    files.rule = None
    status, _, text = get(service.port, "/healthy")
    assert status == 503
    assert "stratalog_log_failed orders 1\n" in text


def has_ipv6() -> bool:
    """Return True if this machine has the IPv6 address of the loopback interface. Containers often have none."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    "host", ["127.0.0.1", pytest.param("::1", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6 address"))]
)
def test_it_listens_without_a_lookup_of_the_name(engine: Engine, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    def look_up(name: str) -> str:
        raise AssertionError(name)

    monkeypatch.setattr(socket, "getfqdn", look_up)
    service = MetricsService(MetricsSection(host=host, port=0))
    service.start(engine)
    try:
        assert get(service.port, "/healthy", host=host)[0] == 200
    finally:
        service.stop(0)


@pytest.mark.parametrize(("error", "level"), [(ConnectionResetError(), "DEBUG"), (RuntimeError(), "WARNING")])
def test_a_failed_request_is_logged(
    service: MetricsService,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    error: Exception,
    level: str,
) -> None:
    """A client that disconnects, such as Prometheus after its timeout, is no reason for a warning."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(f"{service_module.__name__}._Handler._answer", fail)
    with caplog.at_level(logging.DEBUG, service_module.__name__), pytest.raises(RemoteDisconnected):
        get(service.port, "/healthy")
    assert [entry.levelname for entry in caplog.records if entry.name == service_module.__name__] == [level]
    assert capfd.readouterr().err == ""


def test_other_paths_are_not_found(service: MetricsService) -> None:
    assert get(service.port, "/")[0] == 404


def test_a_closed_engine_is_unavailable(service: MetricsService, engine: Engine) -> None:
    engine.close()
    assert get(service.port, "/metrics")[0] == 503
    assert get(service.port, "/healthy")[0] == 503


def test_a_silent_client_does_not_delay_the_stop(service: MetricsService) -> None:
    with socket.create_connection(("127.0.0.1", service.port), 30) as silent:
        assert get(service.port, "/healthy")[0] == 200
        port = service.port
        service.stop(0)
        silent.close()
    with pytest.raises(ConnectionRefusedError):
        get(port, "/healthy")


def test_a_start_without_a_thread_keeps_neither_the_port_nor_the_stop(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    service = MetricsService(MetricsSection(port=port))
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError):
            service.start(engine)
    with pytest.raises(ConnectionRefusedError):
        get(port, "/healthy")
    stop = threading.Thread(target=service.stop, args=(0,), daemon=True)
    stop.start()
    stop.join(20)
    assert not stop.is_alive()


def test_a_port_that_is_taken_is_tried_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service_module, "_RETRY_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        service = MetricsService(MetricsSection(port=port))
        with caplog.at_level(logging.WARNING):
            service.start(engine)
        assert f"address=127.0.0.1:{port}" in caplog.text
        assert service.port == 0
    try:
        answered = next(status for _ in range(3000) if (status := answer_of(port)))
        assert answered == 200
    finally:
        service.stop(0)


def answer_of(port: int) -> int:
    """Return the status of /healthy; 0 while no server listens."""
    try:
        return get(port, "/healthy")[0]
    except OSError:
        with socket.socket() as waits:  # a short pause: no client connects to this socket
            waits.bind(("127.0.0.1", 0))
            waits.listen()
            waits.settimeout(0.01)
            with pytest.raises(TimeoutError):
                waits.accept()
        return 0


def test_an_engine_runs_the_service_of_its_settings(tmp_path: Path) -> None:
    settings = {"services": ["metrics"], "plugins": {"metrics": {"port": 0}}}
    with open_engine(tmp_path / "logs", config=settings) as engine:
        assert engine.latencies() == ()
        engine.start()
        assert {sample.metric.name for sample in engine.latencies()} >= {"stratalog_append_seconds"}


def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "stratalog_telemetry.metrics_service", None)
    with pytest.raises(PluginImportError, match=r"stratalog\[metrics\]"):
        open_engine(tmp_path / "logs", config={"services": ["metrics"]})


class TestMetricsService(ServiceContract):
    @pytest.fixture
    def service(self) -> Service:
        return MetricsService(MetricsSection(port=0))
