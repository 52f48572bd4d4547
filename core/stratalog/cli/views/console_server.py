"""HTTP server of the console. It answers only GET and HEAD, checks the Host header, and forbids scripts in pages."""

from __future__ import annotations

import ipaddress
import logging
import re
import socket
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import click

Answer = Callable[..., Any]  # the start_response of a WSGI server
Application = Callable[[dict[str, Any], Answer], Iterable[bytes]]

CONTENT_POLICY: Final = (
    "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = (
    ("Content-Security-Policy", CONTENT_POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
_LISTEN: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+):([0-9]{1,5})")
_LOCALHOST: Final = "localhost"
_LOGGER: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Listener:
    """Address of a server. Port 0 means any free port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """True if only programs on this machine can connect."""
        address = _address(self.host)
        return self.host == _LOCALHOST if address is None else address.is_loopback

    def url(self, port: int) -> str:
        """Return the URL of a server that listens on ``port``, which differs from ``self.port`` if that is 0."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{port}/"


def listener(text: str) -> Listener:
    """Return the address of ``HOST:PORT``, or raise BadParameter."""
    address = _LISTEN.fullmatch(text)
    if address is None or int(address[2]) > 0xFFFF:
        raise click.BadParameter(f"{text!r} is not of the form HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080")
    return Listener(address[1].strip("[]"), int(address[2]))


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


class GuardedApplication:
    """Application that answers only GET and HEAD requests for its own address, and adds headers that protect its pages.

    The Host header of a request must be localhost, the listener's host or an IP address. If the listener's host is a
    loopback address, the IP address must be a loopback address, too. This check prevents DNS rebinding: an attacker
    makes the name of another site resolve to this machine, to read the console from a page of that site. The Host
    header of such a request is the name of that site.
    """

    def __init__(self, application: Application, address: Listener) -> None:
        self._application, self._address = application, address

    def __call__(self, environ: dict[str, Any], start_response: Answer) -> Iterable[bytes]:
        """Answer one WSGI request, with status 405 for other methods, and 421 for a Host header of another site."""

        def start(status: str, headers: list[tuple[str, str]], *error_info: Any) -> Any:
            return start_response(status, [*headers, *_HEADERS], *error_info)

        if environ["REQUEST_METHOD"] not in {"GET", "HEAD"}:
            return _refuse(
                start, "405 Method Not Allowed", "The console only reads: use GET.", [("Allow", "GET, HEAD")]
            )
        if not self._is_own(str(environ.get("HTTP_HOST", ""))):
            return _refuse(start, "421 Misdirected Request", "Open the console at the address that it prints.", [])
        return self._application(environ, start)

    def _is_own(self, host_header: str) -> bool:
        host = host_header.rpartition(":")[0] if re.search(r":[0-9]+$", host_header) else host_header
        host = host.strip("[]").lower()
        address = _address(host)
        if address is not None:
            return address.is_loopback or not self._address.is_loopback
        return host in {_LOCALHOST, self._address.host.lower()}


def _refuse(start: Answer, status: str, text: str, headers: list[tuple[str, str]]) -> Iterable[bytes]:
    start(status, [("Content-Type", "text/plain; charset=utf-8"), *headers])
    return [f"{text}\n".encode()]


class ConsoleServer(ThreadingMixIn, WSGIServer):
    """Server with a thread for each connection, so a connection without a request does not delay other connections."""

    daemon_threads = True

    def __init__(self, address: Listener, application: Application) -> None:
        if ":" in address.host:
            self.address_family = socket.AF_INET6
        super().__init__((address.host, address.port), _Handler)
        self.set_app(GuardedApplication(application, address))

    def server_bind(self) -> None:
        """Bind the socket. Unlike the base class, do not look up the host's name in DNS."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def handle_error(self, request: object, client_address: object) -> None:
        """Log the error of a connection, for example when a browser disconnects before the response."""
        del request
        _LOGGER.debug("a connection failed client=%s error=%r", client_address, sys.exception())


class _Handler(WSGIRequestHandler):
    timeout = 10  # seconds until the request must arrive, because browsers open connections in advance

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parameter's name in the standard library
        """Do nothing, because a log of requests would make the command's output long."""

    def address_string(self) -> str:
        return str(self.client_address[0])
