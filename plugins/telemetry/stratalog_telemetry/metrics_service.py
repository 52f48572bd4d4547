"""Service ``metrics``, which serves the metrics and the health of an engine over HTTP."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Final

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

from stratalog import Engine
from stratalog.errors import StorageError
from stratalog.spi import Service
from stratalog_telemetry.engine_collector import EngineCollector
from stratalog_telemetry.settings import MetricsSection

_LOGGER: Final = logging.getLogger(__name__)
_RETRY_S: Final = 10.0
_POLL_S: Final = 0.05
_PROBLEM_METRICS: Final = frozenset({
    "stratalog_failed_logs", "stratalog_log_dir_offline", "stratalog_log_failed", "stratalog_log_tier_failing",
})  # fmt: skip


class MetricsService(Service):
    """HTTP server for ``GET /metrics`` of Prometheus, and for ``GET /healthy``.

    ``/healthy`` returns the status 200, or the status 503 and a list of problems. If the service cannot listen on its
    address, it logs a warning, and retries every ten seconds.
    """

    def __init__(self, settings: MetricsSection) -> None:
        self._settings = settings
        self._server: _Server | None = None  # under _lock
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    @property
    def port(self) -> int:
        """The port on which the service listens; 0 if the service does not listen."""
        server = self._server
        return 0 if server is None else server.server_port

    def start(self, engine: Engine) -> None:
        """Start listening, and make the engine measure latencies. If listening fails, retry later."""
        engine.measure_latencies()
        if not self._listen(engine):
            threading.Thread(target=self._retry, args=(engine,), name="stratalog-metrics", daemon=True).start()

    def stop(self, deadline_ns: int) -> None:
        """Stop listening, and stop the retries. Idempotent. The service cannot be started again."""
        del deadline_ns  # no wait is necessary: requests are short, and a client that sends no request is disconnected
        self._stopped.set()
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def _listen(self, engine: Engine) -> bool:
        """Start listening, and return True. If the address cannot be used, log a warning and return False."""
        address = self._settings.host, self._settings.port
        with self._lock:
            if self._stopped.is_set():
                return True
            try:
                self._server = _Server(address, engine)
            except OSError as error:
                _LOGGER.warning(
                    "metrics are not served, which is tried again every %d s: set host and port of [plugins.metrics] to "
                    "a free address: address=%s:%d error=%s",
                    _RETRY_S,
                    *address,
                    error,
                )
                return False
            serve = self._server.serve_forever
            try:
                threading.Thread(target=serve, args=(_POLL_S,), name="stratalog-metrics", daemon=True).start()
            except BaseException:  # the thread cannot start, and `stop` would wait for it forever
                self._server.server_close()
                self._server = None
                raise
        return True

    def _retry(self, engine: Engine) -> None:
        while not self._stopped.wait(_RETRY_S) and not self._listen(engine):
            pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True  # an open connection without a request does not delay a stop

    def __init__(self, address: tuple[str, int], engine: Engine) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.engine = engine
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(engine))
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind the socket. Unlike the base class, do not look up the host's name in DNS."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """Log the error of a connection, for example when a client disconnects before the response."""
        del request
        error = sys.exception()
        level = logging.DEBUG if isinstance(error, ConnectionError) else logging.WARNING
        _LOGGER.log(level, "a request for metrics failed client=%s", client_address, exc_info=error)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10

    def do_GET(self) -> None:
        """Answer a request for ``/metrics`` or ``/healthy``. For other paths, the status is 404.

        The status is 503 if the engine is closed. For ``/healthy``, it is also 503 if the engine has problems.
        """
        path = self.path.partition("?")[0]
        if path not in {"/metrics", "/healthy"}:
            self.send_error(HTTPStatus.NOT_FOUND, "the paths are /metrics and /healthy")
            return
        try:
            if path == "/metrics":
                encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                self._answer(HTTPStatus.OK, content_type, encode(self.server.registry))
                return
            problems = [
                sample
                for sample in self.server.engine.metrics()
                if sample.metric.name in _PROBLEM_METRICS and sample.value
            ]
        except StorageError as error:  # the engine is closed
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
            return
        lines = [" ".join((sample.metric.name, *sample.labels)) for sample in problems]
        status = HTTPStatus.SERVICE_UNAVAILABLE if lines else HTTPStatus.OK
        self._answer(status, "text/plain; charset=utf-8", "".join(f"{line}\n" for line in lines or ["well"]).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it so
        """Log nothing, because Prometheus sends a request every few seconds."""

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
