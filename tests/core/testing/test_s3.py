from __future__ import annotations

import re
import socket
import sys
import urllib.error
import urllib.request
from http import HTTPStatus
from http.client import HTTPConnection

import pytest

from stratalog.errors import PluginImportError
from stratalog.testing.s3 import LocalS3, local_s3, operation_of, remove_objects

HEADERS = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=local-key/20260101/us-east-1/s3/aws4_request",
    "Content-Type": "application/octet-stream",
}


def ask(server: LocalS3, path: str, method: str = "GET", body: bytes | None = None) -> tuple[int, bytes]:
    """Send one request, and return status and body. The server does not check the signature."""
    url = f"{server.endpoint_url}/{server.bucket}{path}"
    request = urllib.request.Request(url, data=body, method=method, headers=HEADERS)  # noqa: S310 - loopback
    try:
        with urllib.request.urlopen(request) as reply:  # noqa: S310 - loopback
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_a_server_has_an_empty_bucket_and_keeps_objects() -> None:
    with local_s3("my-bucket") as server:
        assert server.uri() == "s3://my-bucket"
        assert server.uri("a/b") == "s3://my-bucket/a/b"
        assert b"<Contents>" not in ask(server, "?list-type=2")[1]
        assert ask(server, "/a/b", "PUT", b"data")[0] == HTTPStatus.OK
        assert ask(server, "/a/b") == (HTTPStatus.OK, b"data")


@pytest.mark.long
def test_servers_have_buckets_of_their_own_and_drop_them() -> None:
    with local_s3() as first:
        with local_s3() as second:
            assert first.bucket != second.bucket
            ask(first, "/kept", "PUT", b"data")
            ask(second, "/dropped", "PUT", b"data")
        assert ask(first, "/kept") == (HTTPStatus.OK, b"data")
    with local_s3(first.bucket) as restarted:
        assert ask(restarted, "/kept")[0] == HTTPStatus.NOT_FOUND


def test_requests_are_counted_by_operation() -> None:
    with local_s3() as server:
        assert not server.counts
        ask(server, "/a", "PUT", b"x")
        ask(server, "/a")
        ask(server, "/a")
        ask(server, "?list-type=2&prefix=a")
        assert server.counts == {"PutObject": 1, "GetObject": 2, "ListObjectsV2": 1}


@pytest.mark.parametrize(
    ("method", "path", "query", "operation"),
    [
        ("POST", "/b/k", "uploads", "CreateMultipartUpload"),
        ("PUT", "/b/k", "partNumber=1&uploadId=u", "UploadPart"),
        ("POST", "/b/k", "uploadId=u", "CompleteMultipartUpload"),
        ("DELETE", "/b/k", "uploadId=u", "AbortMultipartUpload"),
        ("DELETE", "/b/k", "", "DeleteObject"),
        ("HEAD", "/b/k/l", "", "HeadObject"),
        ("HEAD", "/b", "", "HeadBucket"),
        ("POST", "/b", "delete", "DeleteObjects"),
        ("PATCH", "/b/k", "", "PATCH"),
    ],
)
def test_operations_have_s3s_names(method: str, path: str, query: str, operation: str) -> None:
    assert operation_of({"REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": query}) == operation


def test_planned_failures_hit_the_next_requests_only() -> None:
    with local_s3() as server:
        server.fail("PutObject", status=503, code="SlowDown", times=2)
        assert ask(server, "/a", "PUT", b"x")[0] == HTTPStatus.SERVICE_UNAVAILABLE
        assert b"<Code>SlowDown</Code>" in ask(server, "/a", "PUT", b"x")[1]
        assert ask(server, "/a")[0] == HTTPStatus.NOT_FOUND
        assert ask(server, "/a", "PUT", b"x")[0] == HTTPStatus.OK


def test_a_reply_may_be_lost() -> None:
    with local_s3() as server:
        server.fail("PutObject", status=500, code="InternalError", applied=True)
        assert ask(server, "/a", "PUT", b"x")[0] == HTTPStatus.INTERNAL_SERVER_ERROR
        assert ask(server, "/a") == (HTTPStatus.OK, b"x")


def test_failures_are_forgotten_when_asked() -> None:
    with local_s3() as server:
        server.fail("PutObject", times=100)
        server.heal()
        assert ask(server, "/a", "PUT", b"x")[0] == HTTPStatus.OK


def test_a_server_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with local_s3() as server:
        ask(server, "/a", "PUT", b"x")
        ask(server, "/missing")
    assert capfd.readouterr() == ("", "")


def test_a_connection_serves_many_requests_and_ends_with_the_server() -> None:
    with local_s3() as server:
        connection = HTTPConnection(server.endpoint_url.removeprefix("http://"))
        connection.connect()
        open_socket = connection.sock
        bodies = {"PUT": b"x", "GET": None, "DELETE": None, "HEAD": None}
        for method, body in bodies.items():
            connection.request(method, f"/{server.bucket}/a", body, HEADERS)
            reply = connection.getresponse()
            assert reply.status in {HTTPStatus.OK, HTTPStatus.NO_CONTENT, HTTPStatus.NOT_FOUND}
            assert reply.read() == (b"x" if method == "GET" else b"")
            assert connection.sock is open_socket
    with open_socket:
        assert open_socket.recv(1) == b""


def test_an_incomplete_body_is_not_stored() -> None:
    with local_s3() as server:
        port = int(server.endpoint_url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(f"PUT /{server.bucket}/a HTTP/1.1\r\nContent-Length: 2\r\n\r\nx".encode())
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""  # the server has closed the connection without a response
        assert ask(server, "/a")[0] == HTTPStatus.NOT_FOUND


def test_the_fixture_gives_a_prefix_of_the_sessions_bucket(s3_tier: str, local_s3: LocalS3) -> None:
    assert s3_tier.startswith(f"s3://{local_s3.bucket}/")
    assert set(local_s3.options) == {"key", "secret", "endpoint_url"}


def test_objects_under_a_prefix_are_removed_without_requests() -> None:
    with local_s3() as server:
        for path in ("/a/b", "/a/c", "/ab"):
            ask(server, path, "PUT", b"data")
        ask(server, "/a/d?uploads", "POST")
        ask(server, "/ab?uploads", "POST")
        server.counts.clear()
        remove_objects(server.bucket, "a/")
        assert not server.counts
        assert re.findall(b"<Key>(.*?)</Key>", ask(server, "?list-type=2")[1]) == [b"ab"]
        assert re.findall(b"<Key>(.*?)</Key>", ask(server, "?uploads")[1]) == [b"ab"]


def test_without_moto_the_error_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "moto" or name.startswith("moto.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "moto", None)
    with pytest.raises(PluginImportError) as caught, local_s3():
        pass
    assert caught.value.install == "stratalog[local-s3]"
