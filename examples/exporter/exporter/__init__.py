"""The engine's metrics over HTTP: a service in one file."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from stratalog import Engine
from stratalog.errors import ConfigError, StorageError
from stratalog.spi import OpenContext, Provider, Section, Service, hookimpl, key

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterSection(Section):
    """``[plugins.exporter]``."""

    title: ClassVar[str] = "Service exporter"

    host: str = key("host", "127.0.0.1", doc="Address on which the exporter listens.")
    port: int = key(
        "port", 9308, at_least=0, at_most=0xFFFF, doc="Port on which the exporter listens; 0 chooses a free port."
    )


class Exporter(Service):
    """Answers ``GET /metrics``, and whether the engine is well under ``GET /healthy``."""

    def __init__(self, settings: ExporterSection) -> None:
        self._settings = settings
        self._server: _Server | None = None

    @property
    def port(self) -> int:
        """Where it listens, once it is started."""
        return self._settings.port if self._server is None else self._server.server_port

    def start(self, engine: Engine) -> None:
        """Listen. OSError: the address is taken, or none of this machine."""
        self._server = _Server((self._settings.host, self._settings.port), engine)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="exporter").start()

    def stop(self, deadline_ns: int) -> None:
        """Answer what was asked, and nothing more."""
        del deadline_ns  # an answer is ready at once; a client that sends no request is disconnected
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True  # an open connection without a request does not delay a stop

    def __init__(self, address: tuple[str, int], engine: Engine) -> None:
        self.engine = engine
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10

    def do_GET(self) -> None:
        """One question, one answer."""
        if self.path not in {"/metrics", "/healthy"}:
            self.send_error(HTTPStatus.NOT_FOUND, "the paths are /metrics and /healthy")
            return
        try:
            text = self.server.engine.metrics_text()
        except StorageError as error:  # the engine closes
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
            return
        if self.path == "/metrics":
            self._answer(HTTPStatus.OK, text)
            return
        wrong = "".join(line for line in text.splitlines(keepends=True) if _UNWELL.match(line))
        status = HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK
        self._answer(status, wrong or "well\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it so
        """Nothing: collectors ask every few seconds."""

    def _answer(self, status: HTTPStatus, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


_UNWELL = re.compile(r"stratalog_(failed_logs|log_dir_offline|log_failed|log_tier_failing)(\{.*\})? [^0]")  # not 0


@hookimpl
def stratalog_services() -> Iterable[Provider[Service]]:
    """Offer the service."""
    return (Provider[Service](name="exporter", open=_open, engine_section=ExporterSection),)


def _open(context: OpenContext) -> Service:
    if not isinstance(context.section, ExporterSection):
        raise ConfigError("[plugins.exporter] was not read")
    return Exporter(context.section)
