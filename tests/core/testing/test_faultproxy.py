"""The fault proxy causes exactly the planned faults, for the planned requests. The client is ``http.client``."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

import pytest

from stratalog.testing.faultproxy import FaultProxy, Misdeed, ProxyFault, fault_proxy
from stratalog.testing.s3 import LocalS3

SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=local-key/20260101/us-east-1/s3/aws4_request"}
NONE: Mapping[str, str] = MappingProxyType({})
BODY = b"0123456789"


@pytest.fixture
def proxy(local_s3: LocalS3) -> Iterator[FaultProxy]:
    port = urlsplit(local_s3.endpoint_url).port
    assert port is not None
    with fault_proxy(port) as started:
        yield started


@pytest.fixture
def path(proxy: FaultProxy, local_s3: LocalS3, s3_tier: str) -> str:
    """Return the path of an object that was stored through the proxy."""
    path = f"/{local_s3.bucket}/{s3_tier.rpartition('/')[2]}"
    assert ask(proxy, "PUT", path, BODY)[0] == 200
    proxy.counts.clear()
    return path


def ask(
    proxy: FaultProxy,
    method: str,
    path: str,
    body: bytes | None = None,
    *,
    timeout_s: float = 30,
    headers: Mapping[str, str] = NONE,
) -> tuple[int, bytes]:
    port = urlsplit(proxy.endpoint_url).port
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request(method, path, body, {**SIGNED, **headers})
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def test_requests_pass_and_are_counted(proxy: FaultProxy, path: str) -> None:
    assert ask(proxy, "GET", path) == (200, BODY)
    assert ask(proxy, "GET", path, headers={"Range": "bytes=2-4"}) == (206, b"234")
    assert ask(proxy, "HEAD", path) == (200, b"")
    assert proxy.counts == {"GetObject": 2, "HeadObject": 1}


def test_an_answer_may_be_an_error(proxy: FaultProxy, path: str) -> None:
    proxy.plan(ProxyFault(Misdeed.STATUS, "GetObject", status=409, code="Conflict", times=2))
    assert ask(proxy, "HEAD", path)[0] == 200
    for _ in range(2):
        status, body = ask(proxy, "GET", path)
        assert status == 409
        assert b"<Code>Conflict</Code>" in body
    assert ask(proxy, "GET", path) == (200, BODY)


@pytest.mark.parametrize(("do", "applied"), [(Misdeed.RESET_BEFORE, False), (Misdeed.RESET_AFTER, True)])
def test_a_connection_breaks_before_or_after_the_server_has_seen_it(
    proxy: FaultProxy, path: str, do: Misdeed, *, applied: bool
) -> None:
    proxy.plan(ProxyFault(do, "PutObject"))
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        ask(proxy, "PUT", path, b"new")
    assert ask(proxy, "GET", path) == (200, b"new" if applied else BODY)


@pytest.mark.parametrize("do", [Misdeed.SILENT, Misdeed.DRIP])
@pytest.mark.long
def test_an_answer_may_never_end(proxy: FaultProxy, path: str, do: Misdeed) -> None:
    """A client without a timeout would wait for ever. The socket in this test has a short timeout."""
    proxy.plan(ProxyFault(do, "GetObject"))
    with pytest.raises(TimeoutError):
        ask(proxy, "GET", path, timeout_s=0.5)


def test_a_reply_may_be_cut_or_changed_or_no_reply_at_all(proxy: FaultProxy, path: str) -> None:
    proxy.plan(
        ProxyFault(Misdeed.CUT, "GetObject"),
        ProxyFault(Misdeed.FLIP, "GetObject"),
        ProxyFault(Misdeed.GARBAGE, "GetObject"),
    )
    with pytest.raises(http.client.IncompleteRead):
        ask(proxy, "GET", path)
    status, body = ask(proxy, "GET", path)
    assert status == 200
    assert sum((actual ^ expected).bit_count() for actual, expected in zip(body, BODY, strict=True)) == 1
    with pytest.raises(http.client.HTTPException):
        ask(proxy, "GET", path)


def test_a_reply_may_be_an_old_one(proxy: FaultProxy, path: str) -> None:
    assert ask(proxy, "GET", path) == (200, BODY)
    ask(proxy, "PUT", path, b"new")
    proxy.plan(ProxyFault(Misdeed.STALE, "GetObject"))
    assert ask(proxy, "GET", path) == (200, BODY)
    assert ask(proxy, "GET", path) == (200, b"new")


def test_a_precondition_may_be_lost_on_the_way(proxy: FaultProxy, path: str) -> None:
    assert ask(proxy, "PUT", path, b"new", headers={"If-None-Match": "*"})[0] == 412
    proxy.plan(ProxyFault(Misdeed.UNCONDITIONAL, "PutObject"))
    assert ask(proxy, "PUT", path, b"new", headers={"If-None-Match": "*"})[0] == 200
    assert ask(proxy, "GET", path) == (200, b"new")


def test_planned_faults_are_forgotten_on_request(proxy: FaultProxy, path: str) -> None:
    proxy.plan(ProxyFault(Misdeed.SILENT, times=100))
    proxy.heal()
    assert ask(proxy, "GET", path) == (200, BODY)
