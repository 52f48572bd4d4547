"""S3 server on loopback in this process: moto, with counted requests and injected failures."""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection
from socketserver import BaseServer
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs

from stratalog.env.threads import Worker
from stratalog.errors import ConfigError, PluginImportError

HOST: Final = "127.0.0.1"
_ACCOUNT: Final = "123456789012"  # moto's own
_ERROR: Final = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>as the test asked</Message></Error>"
Wsgi: TypeAlias = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass(slots=True)
class _Failure:
    status: int
    code: str
    applied: bool
    times: int


@dataclass(slots=True)
class LocalS3:
    """Running server with one bucket; the context manager that started it stops it.

    Attributes:
        endpoint_url: ``http://127.0.0.1:port``.
        counts: number of requests so far, by S3's name of the operation (``GetObject``, ``ListObjectsV2``, ...).
    """

    endpoint_url: str
    bucket: str
    counts: Counter[str] = field(default_factory=Counter)
    _failures: dict[str, _Failure] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def options(self) -> dict[str, Any]:
        """``tier_options`` for this server. The server accepts any credentials."""
        return {"key": "local-key", "secret": "local-secret", "endpoint_url": self.endpoint_url}

    def uri(self, prefix: str = "") -> str:
        """Return the URI of a prefix in the bucket. If ``prefix`` is "", return the URI of the bucket."""
        return f"s3://{self.bucket}/{prefix}".rstrip("/")

    def fail(
        self, operation: str, *, status: int = 503, code: str = "SlowDown", applied: bool = False, times: int = 1
    ) -> None:
        """Make the next ``times`` requests of an operation fail. An earlier plan for the operation is replaced.

        Args:
            operation: S3's name of the operation, as in ``counts``.
            status: status of the HTTP reply.
            code: S3's error code.
            applied: True to process the request before the error is returned, as if only the reply was lost.
            times: number of requests that fail.
        """
        with self._lock:
            self._failures[operation] = _Failure(status, code, applied, times)

    def heal(self) -> None:
        """Remove the failures planned by ``fail``."""
        with self._lock:
            self._failures.clear()

    def _due(self, operation: str) -> _Failure | None:
        """Count a request; return its planned failure, or None."""
        with self._lock:
            self.counts[operation] += 1
            failure = self._failures.get(operation)
            if failure is None or failure.times < 1:
                return None
            failure.times -= 1
            return failure


@contextlib.contextmanager
def local_s3(bucket: str = "") -> Iterator[LocalS3]:
    """Serve S3 on a free loopback port until the ``with`` block ends, and yield the server.

    Nothing is written to stderr.

    Args:
        bucket: name of the bucket; "" means a unique name. The bucket is created empty, and removed with all its
            objects at the end. Servers of one process share moto's state: use a different bucket for each.

    Raises:
        PluginImportError: moto is not installed; ``stratalog[local-s3]`` installs it.
        ConfigError: the bucket cannot be created.
    """
    application, make_server, handler, connections = _moto()
    server = make_server(HOST, 0, application, threaded=True, request_handler=handler)
    local = LocalS3(f"http://{HOST}:{server.server_port}", bucket or f"local-{uuid.uuid4().hex}")
    server.app = _counting(local, application)
    worker = Worker(f"stratalog-local-s3-{server.server_port}")
    stopping = threading.Event()
    worker.submit(partial(_serve, server, stopping))
    try:
        _make_bucket(server.server_port, local.bucket)
        local.counts.clear()
        yield local
    finally:
        stopping.set()
        with socket.create_connection((HOST, server.server_port), timeout=30):
            worker.close()  # the connection ended the wait for the next request
        server.server_close()
        for connection in list(connections):
            with contextlib.suppress(OSError):  # the client has closed the connection
                connection.shutdown(socket.SHUT_RDWR)
        _drop_bucket(local.bucket)


def _serve(server: BaseServer, stopping: threading.Event) -> None:
    """Serve until a request comes after ``stopping`` is set. ``serve_forever`` would wake up 50 times a second."""
    while not stopping.is_set():
        server.handle_request()


def _moto() -> tuple[Wsgi, Callable[..., Any], type, set[socket.socket]]:
    """Return the S3 application, werkzeug's server factory, a request handler, and the handler's connections."""
    connections: set[socket.socket] = set()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of moto's dependencies, at import
            from moto.moto_server.werkzeug_app import (  # noqa: PLC0415 - an extra, and slow to import
                MotoRequestHandler,
                create_backend_app,
            )
            from werkzeug.serving import make_server  # noqa: PLC0415 - an extra, and slow to import
            from werkzeug.test import run_wsgi_app  # noqa: PLC0415 - an extra, and slow to import

            application: Wsgi = create_backend_app("s3")
    except ImportError as error:
        raise PluginImportError(
            f"a local S3 server needs moto: {error}", "stratalog.testing", "stratalog[local-s3]"
        ) from error

    class Handler(MotoRequestHandler):
        """Request handler that logs nothing, and keeps the connection open for the client's next request."""

        wbufsize = -1  # sends the headers and the body together
        disable_nagle_algorithm = True

        def handle(self) -> None:
            """Respond to all requests of a connection."""
            connections.add(self.connection)
            try:
                super().handle()
            finally:
                connections.discard(self.connection)

        def run_wsgi(self) -> None:
            """Respond to one request. werkzeug's method would then close the connection."""
            if self.headers.get("Expect", "").strip().lower() == "100-continue":
                self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                self.wfile.flush()
            environ = self.make_environ()
            _read_body(environ)
            chunks, status, headers = run_wsgi_app(self.server.app, environ, buffered=True)
            body, (code, _, phrase) = b"".join(chunks), status.partition(" ")
            if self.command != "HEAD" and int(code) not in {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED}:
                headers.setdefault("Content-Length", str(len(body)))  # the client needs it to find the next response
            self.send_response(int(code), phrase)
            for name, value in headers:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log(self, type: str, message: str, *args: object) -> None:  # noqa: A002 - werkzeug's name
            """Log nothing."""

    return application, make_server, Handler, connections


def _counting(local: LocalS3, application: Wsgi) -> Wsgi:
    turn = threading.Lock()

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        failure = local._due(operation_of(environ))  # noqa: SLF001 - a method of this module's class
        if failure is None and "HTTP_IF_NONE_MATCH" in environ:
            with turn:  # moto checks and stores the key in two steps: two concurrent creates would both succeed
                return application(environ, start_response)
        if failure is None:
            return application(environ, start_response)
        if failure.applied:
            _swallow(application(environ, lambda *_: None))
        body = b"" if environ["REQUEST_METHOD"] == "HEAD" else _ERROR.format(code=failure.code).encode()
        status = HTTPStatus(failure.status)
        headers = [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))]
        start_response(f"{status.value} {status.phrase}", headers)
        return [body]

    return serve


def _read_body(environ: dict[str, Any]) -> None:
    """Read the body of a request into memory: the next request begins behind it, and a slow client delays no other.

    Raises:
        ConnectionError: the client has closed the connection before the end of the body.
    """
    size = int(environ.get("CONTENT_LENGTH") or 0)
    body = environ["wsgi.input"].read(-1 if environ.get("wsgi.input_terminated") else size)
    if len(body) < size:
        raise ConnectionError("the body is incomplete")
    environ["wsgi.input"] = io.BytesIO(body)


def _swallow(reply: Iterable[bytes]) -> None:
    try:
        for _ in reply:
            pass
    finally:
        close = getattr(reply, "close", None)
        if close is not None:
            close()


def operation_of(environ: Mapping[str, Any]) -> str:
    """Return S3's name for the operation of a WSGI request; the HTTP method if this module knows no name."""
    method = environ["REQUEST_METHOD"]
    query = frozenset(parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True))
    in_object = "/" in environ.get("PATH_INFO", "").strip("/")
    table = _OBJECT_OPERATIONS if in_object else _BUCKET_OPERATIONS
    return next((name for verb, needed, name in table if verb == method and query.issuperset(needed)), method)


# method, parameters and name of each operation; of several matching operations, the first one counts
_OBJECT_OPERATIONS: Final = (
    ("PUT", ("partNumber", "uploadId"), "UploadPart"),
    ("POST", ("uploadId",), "CompleteMultipartUpload"),
    ("POST", ("uploads",), "CreateMultipartUpload"),
    ("DELETE", ("uploadId",), "AbortMultipartUpload"),
    ("DELETE", (), "DeleteObject"),
    ("GET", (), "GetObject"),
    ("HEAD", (), "HeadObject"),
    ("PUT", (), "PutObject"),
)
_BUCKET_OPERATIONS: Final = (
    ("GET", ("list-type",), "ListObjectsV2"),
    ("GET", ("uploads",), "ListMultipartUploads"),
    ("POST", ("delete",), "DeleteObjects"),
    ("HEAD", (), "HeadBucket"),
    ("PUT", (), "CreateBucket"),
    ("DELETE", (), "DeleteBucket"),
)


def _make_bucket(port: int, bucket: str) -> None:
    connection = HTTPConnection(HOST, port, timeout=30)
    try:
        connection.request("PUT", f"/{bucket}")
        reply = connection.getresponse()
        reply.read()
    finally:
        connection.close()
    if reply.status != HTTPStatus.OK:
        raise ConfigError(f"the local S3 server did not create bucket {bucket!r}: status {reply.status}")


def _drop_bucket(bucket: str) -> None:
    """Remove a bucket with its objects. Other buckets stay."""
    from moto.s3.models import s3_backends  # noqa: PLC0415 - an extra, and slow to import

    remove_objects(bucket, "")
    s3_backends[_ACCOUNT]["aws"].buckets.pop(bucket, None)
    s3_backends.bucket_accounts.pop(bucket, None)


def remove_objects(bucket: str, prefix: str) -> None:
    """Delete a bucket's objects and unfinished uploads whose keys start with ``prefix``, and release their memory.

    No requests are sent, so ``counts`` does not change. If the bucket is missing, do nothing.
    """
    from moto.s3.models import s3_backends  # noqa: PLC0415 - an extra, and slow to import

    fake_bucket = s3_backends[_ACCOUNT]["aws"].buckets.get(bucket)
    if fake_bucket is None:
        return
    for key in [key for key in dict(fake_bucket.keys) if key.startswith(prefix)]:
        fake_bucket.keys.pop(key)  # closes the temporary files of all versions
    for upload, parts in list(fake_bucket.multiparts.items()):
        if parts.key_name.startswith(prefix):
            del fake_bucket.multiparts[upload]
            parts.dispose()
