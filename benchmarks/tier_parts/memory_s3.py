"""A fast S3 server that keeps objects in memory and checks nothing, so that figures show the cost of the client.

memory_s3.py: serves on a free port of the loopback, prints the port on its first line, and ends when its standard input
is closed.

It supports the requests of stratalog and s3fs: whole objects and ranges, create-only-if-absent, multipart uploads,
listings and deletions. ``POST /`` deletes everything. Buffers of deleted objects are reused, because the allocation of
new memory takes more time than a request.
"""

from __future__ import annotations

import re
import socket
import socketserver
import sys
import threading
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_HEAD_END: Final = b"\r\n\r\n"
_RANGE: Final = re.compile(r"bytes=(\d+)-(\d*)")
_KEY: Final = re.compile(r"<Key>([^<]*)</Key>")
_ETAG: Final = '"0"'
_WRITTEN: Final = "2026-01-01T00:00:00Z"
_ACCEPT_BYTES: Final = 1 << 16


class Objects:
    """All stored objects, and the buffers of deleted objects for reuse. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[
            str, list[bytearray]
        ] = {}  # parts of each object, by bucket and key; _lock guards all attributes
        self._uploads: dict[str, dict[int, bytearray]] = {}
        self._spare: dict[int, list[bytearray]] = {}  # unused buffers, by size
        self._upload_count = 0

    def room(self, size_bytes: int) -> bytearray:
        """Return a buffer of this size for a body."""
        with self._lock:
            spare = self._spare.get(size_bytes)
            return spare.pop() if spare else bytearray(size_bytes)

    def put(self, name: str, parts: list[bytearray], *, only_new: bool) -> bool:
        """Store an object, and return True. With ``only_new``, store nothing and return False if the name exists."""
        with self._lock:
            if only_new and name in self._objects:
                self._give_back(parts)
                return False
            self._give_back(self._objects.pop(name, []))
            self._objects[name] = parts
            return True

    def get(self, name: str) -> list[bytearray] | None:
        """Return the parts of an object; None if it does not exist."""
        with self._lock:
            return self._objects.get(name)

    def names(self, prefix: str, after: str) -> list[tuple[str, int]]:
        """Return the names with ``prefix`` that sort after ``after``, ascending, with the sizes of their objects."""
        with self._lock:
            matching = sorted(name for name in self._objects if name.startswith(prefix) and name > after)
            return [(name, sum(map(len, self._objects[name]))) for name in matching]

    def delete(self, names: list[str]) -> None:
        """Delete objects. Names of missing objects are ignored."""
        with self._lock:
            for name in names:
                self._give_back(self._objects.pop(name, []))

    def forget(self) -> None:
        """Delete all objects."""
        self.delete([name for name, _ in self.names("", "")])

    def begin_upload(self) -> str:
        """Return the id of a new multipart upload."""
        with self._lock:
            self._upload_count += 1
            self._uploads[str(self._upload_count)] = {}
            return str(self._upload_count)

    def put_part(self, upload: str, number: int, part: bytearray) -> None:
        """Store a part of an upload."""
        with self._lock:
            self._uploads[upload][number] = part

    def end_upload(self, upload: str) -> list[bytearray]:
        """Return the parts of an upload in the order of their numbers, and forget the upload."""
        with self._lock:
            parts = self._uploads.pop(upload)
            return [parts[number] for number in sorted(parts)]

    def _give_back(self, parts: list[bytearray]) -> None:
        for part in parts:
            self._spare.setdefault(len(part), []).append(part)


class _Request:
    """One request with its body."""

    def __init__(self, head: bytes, body: bytearray) -> None:
        lines = head.decode("latin-1").split("\r\n")
        self.method, target, _ = lines[0].split(" ")
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        parts = urlsplit(target)
        self.path = unquote(parts.path)
        self.query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        self.body = body


class _Handler(socketserver.BaseRequestHandler):
    """Handles the requests of one connection."""

    def handle(self) -> None:
        """Answer requests until the client closes the connection."""
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        assert isinstance(self.server, Server)
        self._objects = self.server.objects
        unparsed = b""
        while True:
            while _HEAD_END not in unparsed:
                data = self.request.recv(_ACCEPT_BYTES)
                if not data:
                    return
                unparsed += data
            head, _, unparsed = unparsed.partition(_HEAD_END)
            size_bytes = int(_header(head, b"content-length") or 0)
            if _header(head, b"expect"):
                self.request.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = self._objects.room(size_bytes)
            received_bytes = min(len(unparsed), size_bytes)
            body[:received_bytes], unparsed = unparsed[:received_bytes], unparsed[received_bytes:]
            view = memoryview(body)
            while received_bytes < size_bytes:
                count = self.request.recv_into(view[received_bytes:])
                if not count:
                    return
                received_bytes += count
            view.release()
            self._answer(_Request(head, body))

    def _answer(self, request: _Request) -> None:
        bucket, _, key = request.path.lstrip("/").partition("/")
        if request.method == "PUT":
            self._put(request)
        elif request.method in {"GET", "HEAD"} and key:
            self._get(request)
        elif request.method == "GET":
            self._list(request, bucket)
        elif request.method == "POST" and not bucket:
            self._objects.forget()
            self._reply(HTTPStatus.OK)
        elif request.method == "POST" and "delete" in request.query:
            self._objects.delete([f"/{bucket}/{key_name}" for key_name in _KEY.findall(request.body.decode())])
            self._reply(HTTPStatus.OK, "<DeleteResult/>")
        elif request.method == "POST" and "uploads" in request.query:
            upload = self._objects.begin_upload()
            self._reply(HTTPStatus.OK, _xml("InitiateMultipartUploadResult", UploadId=upload))
        elif request.method == "POST":
            self._objects.put(request.path, self._objects.end_upload(request.query["uploadId"]), only_new=False)
            self._reply(HTTPStatus.OK, _xml("CompleteMultipartUploadResult", ETag=_ETAG))
        else:
            if "uploadId" in request.query:
                self._objects.end_upload(request.query["uploadId"])
            self._objects.delete([request.path])
            self._reply(HTTPStatus.NO_CONTENT)

    def _put(self, request: _Request) -> None:
        if "uploadId" in request.query:
            self._objects.put_part(request.query["uploadId"], int(request.query["partNumber"]), request.body)
        elif not self._objects.put(request.path, [request.body], only_new="if-none-match" in request.headers):
            self._reply(HTTPStatus.PRECONDITION_FAILED, _xml("Error", Code="PreconditionFailed"))
            return
        self._reply(HTTPStatus.OK)

    def _get(self, request: _Request) -> None:
        parts = self._objects.get(request.path)
        if parts is None:
            self._reply(HTTPStatus.NOT_FOUND, _xml("Error", Code="NoSuchKey") if request.method == "GET" else "")
            return
        size_bytes = sum(map(len, parts))
        start, end, status, extra = 0, size_bytes, HTTPStatus.OK, ""
        if byte_range := _RANGE.fullmatch(request.headers.get("range", "")):
            start, end = int(byte_range[1]), min(size_bytes, int(byte_range[2]) + 1 if byte_range[2] else size_bytes)
            status, extra = HTTPStatus.PARTIAL_CONTENT, f"Content-Range: bytes {start}-{end - 1}/{size_bytes}\r\n"
            if start >= size_bytes:
                self._reply(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, _xml("Error", Code="InvalidRange"))
                return
        self._head(status, end - start, extra)
        if request.method == "GET":
            for part in parts:
                if start < len(part) and end > 0:
                    self.request.sendall(memoryview(part)[max(0, start) : end])
                start, end = start - len(part), end - len(part)

    def _list(self, request: _Request, bucket: str) -> None:
        root = f"/{bucket}/"
        after = request.query.get("continuation-token") or request.query.get("start-after", "")
        limit = int(request.query.get("max-keys", 1000))
        objects = self._objects.names(root + request.query.get("prefix", ""), root + after)
        token = ""
        if len(objects) > limit:
            last = objects[limit - 1][0].removeprefix(root)
            token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>"
        items = "".join(
            "<Contents>"
            f"<Key>{escape(name.removeprefix(root))}</Key><LastModified>{_WRITTEN}</LastModified>"
            f"<ETag>{_ETAG}</ETag><Size>{size_bytes}</Size></Contents>"
            for name, size_bytes in objects[:limit]
        )
        flag = f"<IsTruncated>{'true' if token else 'false'}</IsTruncated>"
        self._reply(HTTPStatus.OK, f"<ListBucketResult>{flag}{token}{items}</ListBucketResult>")

    def _reply(self, status: HTTPStatus, text: str = "") -> None:
        self._head(status, len(text.encode()))
        self.request.sendall(text.encode())

    def _head(self, status: HTTPStatus, size_bytes: int, extra: str = "") -> None:
        self.request.sendall(
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Length: {size_bytes}\r\nETag: {_ETAG}\r\n"
            f"Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nContent-Type: application/xml\r\n{extra}\r\n".encode()
        )


class Server(socketserver.ThreadingTCPServer):
    """The server, with one thread for each connection."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects = Objects()


def _header(head: bytes, name: bytes) -> str:
    match = re.search(rb"\r\n" + name + rb":[ \t]*([^\r]*)", head, re.IGNORECASE)
    return match[1].decode() if match else ""


def _xml(element: str, **fields: str) -> str:
    inner = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in fields.items())
    return f"<{element}>{inner}</{element}>"


def main() -> None:
    """Serve until the standard input ends."""
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(server.server_address[1], flush=True)
        sys.stdin.read()
        server.shutdown()


if __name__ == "__main__":
    main()
