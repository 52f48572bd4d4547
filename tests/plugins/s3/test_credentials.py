"""Credentials that change while a store is open."""

from __future__ import annotations

import pickle
import traceback
from collections import Counter
from collections.abc import Callable, Mapping

import pytest

from stratalog.env.clock import ManualClock
from stratalog.errors import ConfigError, StorePermissionError
from stratalog.spi import BytesSource, Created, Env, ObjectStore
from stratalog.testing.s3 import LocalS3
from stratalog_s3.credentials import EARLY_MS, RETRY_MS, RotatingCredentials
from stratalog_s3.secret import SecretOptions
from stratalog_s3.settings import MIN_PART_BYTES, S3Section

OpenStore = Callable[..., ObjectStore]
CANARY = "cAnArY-0123456789"


class Provider:
    """Function that returns other credentials at each call."""

    def __init__(self, expires_ms: int | None = None) -> None:
        self.calls, self.expires_ms = 0, expires_ms

    def __call__(self) -> Mapping[str, object]:
        self.calls += 1
        credentials: dict[str, object] = {
            "key": f"key-{self.calls}",
            "secret": f"{CANARY}-{self.calls}",
            "token": "token",
        }
        return credentials if self.expires_ms is None else {**credentials, "expires_ms": self.expires_ms}


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def store(open_store: OpenStore, local_s3: LocalS3, s3_tier: str, provider: Provider) -> ObjectStore:
    return open_store(s3_tier, {"endpoint_url": local_s3.endpoint_url, "credentials": provider})


def test_requests_are_signed_with_what_the_function_gives(
    store: ObjectStore, provider: Provider, deadline_ns: int
) -> None:
    store.create("a", b"x", deadline_ns=deadline_ns)
    assert store.read("a", deadline_ns=deadline_ns) == b"x"
    assert provider.calls == 1


def test_ended_credentials_are_replaced_and_the_request_is_sent_again(
    store: ObjectStore, provider: Provider, local_s3: LocalS3, deadline_ns: int
) -> None:
    """The error shows that the request had no effect, so that a create can be repeated, too."""
    store.create("a", b"x", deadline_ns=deadline_ns)
    local_s3.counts.clear()
    local_s3.fail("PutObject", status=400, code="ExpiredToken")
    assert store.create("b", b"y", deadline_ns=deadline_ns) is Created.CREATED
    local_s3.fail("GetObject", status=400, code="ExpiredToken")
    assert store.read("b", deadline_ns=deadline_ns) == b"y"
    assert provider.calls == 3
    assert local_s3.counts == Counter(PutObject=2, GetObject=2)


def test_credentials_may_expire_during_the_upload_of_a_small_object(
    store: ObjectStore, provider: Provider, local_s3: LocalS3, deadline_ns: int
) -> None:
    data = bytes(range(256)) * 4096
    local_s3.fail("PutObject", status=400, code="ExpiredToken")
    store.put_file("small", BytesSource(data), deadline_ns=deadline_ns)
    assert provider.calls == 2
    assert store.read("small", deadline_ns=deadline_ns) == data


@pytest.mark.parametrize("operation", ["UploadPart", "CompleteMultipartUpload"])
def test_credentials_may_expire_during_a_multipart_upload(
    open_store: OpenStore, provider: Provider, local_s3: LocalS3, s3_tier: str, deadline_ns: int, operation: str
) -> None:
    options = {"endpoint_url": local_s3.endpoint_url, "credentials": provider}
    store = open_store(s3_tier, options, section=S3Section(part_bytes=MIN_PART_BYTES))
    data = bytes(range(256)) * (MIN_PART_BYTES // 128)
    local_s3.fail(operation, status=400, code="ExpiredToken")
    store.put_file("large", BytesSource(data), deadline_ns=deadline_ns)
    assert provider.calls == 2
    assert store.read("large", deadline_ns=deadline_ns) == data


def test_an_error_is_raised_if_the_new_credentials_are_refused_too(
    store: ObjectStore, provider: Provider, local_s3: LocalS3, deadline_ns: int
) -> None:
    store.create("a", b"x", deadline_ns=deadline_ns)
    local_s3.fail("GetObject", status=400, code="ExpiredToken", times=5)
    with pytest.raises(StorePermissionError):
        store.read("a", deadline_ns=deadline_ns)
    assert provider.calls == 2
    local_s3.heal()


@pytest.mark.long
def test_credentials_are_read_again_from_their_source_without_a_function(
    open_store: OpenStore, local_s3: LocalS3, s3_tier: str, deadline_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "first-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "first-secret")
    store = open_store(s3_tier, {"endpoint_url": local_s3.endpoint_url})
    store.create("a", b"x", deadline_ns=deadline_ns)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "second-key")
    local_s3.fail("GetObject", status=400, code="ExpiredToken")
    assert store.read("a", deadline_ns=deadline_ns) == b"x"


def test_fixed_credentials_are_not_tried_twice(
    open_store: OpenStore, local_s3: LocalS3, s3_tier: str, deadline_ns: int
) -> None:
    store = open_store(s3_tier, local_s3.options)
    store.put_file("a", BytesSource(b"x"), deadline_ns=deadline_ns)
    local_s3.counts.clear()
    local_s3.fail("GetObject", status=400, code="ExpiredToken")
    with pytest.raises(StorePermissionError):
        store.read("a", deadline_ns=deadline_ns)
    assert local_s3.counts == Counter(GetObject=1)


def test_credentials_are_renewed_a_minute_before_they_expire() -> None:
    clock = ManualClock()
    provider = Provider(expires_ms=clock.now_ms() + 10 * EARLY_MS)
    credentials = RotatingCredentials(provider, clock, SecretOptions({}))
    assert credentials.current()[0] == credentials.current()[0] == "key-1"
    clock.advance_ms(9 * EARLY_MS - 1)
    assert credentials.current()[0] == "key-1"
    clock.advance_ms(1)
    provider.expires_ms = clock.now_ms() + 10 * EARLY_MS
    assert credentials.current()[0] == "key-2"


def test_credentials_are_used_until_they_expire_if_the_function_fails(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    provider = Provider(expires_ms=clock.now_ms() + 2 * EARLY_MS)
    is_failing, calls = False, 0

    def provide() -> Mapping[str, object]:
        nonlocal calls
        calls += 1
        if is_failing:
            raise TimeoutError
        return provider()

    credentials = RotatingCredentials(provide, clock, SecretOptions({}))
    first, is_failing = credentials.current(), True
    clock.advance_ms(2 * EARLY_MS - 2 * RETRY_MS - 1)
    for expected_calls in (2, 3):  # the function may be slow: not each request waits for it
        assert [credentials.current(), credentials.current()] == [first, first]
        assert calls == expected_calls == len(caplog.records) + 1
        clock.advance_ms(RETRY_MS)
    clock.advance_ms(1)
    with pytest.raises(StorePermissionError):
        credentials.current()
    is_failing = False
    assert credentials.current() != first


@pytest.mark.parametrize(
    "given",
    [{}, {"key": "k"}, {"key": "k", "secret": 7}, {"key": "k", "secret": CANARY, "expires": 1}, {"key": "k", "secret": CANARY, "expires_ms": "soon"}],
    ids=",".join,
)  # fmt: skip
@pytest.mark.long
def test_a_function_that_gives_something_else_is_a_typed_error(
    open_store: OpenStore, local_s3: LocalS3, s3_tier: str, deadline_ns: int, given: dict[str, object]
) -> None:
    store = open_store(s3_tier, {"endpoint_url": local_s3.endpoint_url, "credentials": lambda: given})
    with pytest.raises(StorePermissionError) as caught:
        store.list("", deadline_ns=deadline_ns)
    assert CANARY not in "".join(traceback.format_exception(caught.value))


def test_a_function_that_fails_shows_nothing(
    open_store: OpenStore, local_s3: LocalS3, s3_tier: str, deadline_ns: int
) -> None:
    def fail() -> Mapping[str, object]:
        raise ValueError("no vault")

    store = open_store(s3_tier, {"endpoint_url": local_s3.endpoint_url, "credentials": fail})
    with pytest.raises(StorePermissionError, match="ValueError"):
        store.create("a", b"x", deadline_ns=deadline_ns)


@pytest.mark.parametrize("options", [{"credentials": "key"}, {"credentials": dict, "key": "k", "secret": "s"}])
def test_options_that_contradict_each_other_are_refused(open_store: OpenStore, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        open_store("s3://bucket/p", options)


def test_credentials_of_the_function_are_removed_from_texts(provider: Provider) -> None:
    secrets = SecretOptions({})
    credentials = RotatingCredentials(provider, Env().clock, secrets)
    credentials.current()
    assert CANARY not in secrets.redact(f"signed with {CANARY}-1")
    assert secrets.safe_cause(ValueError(f"{CANARY}-1")) is None
    assert CANARY not in repr(credentials)
    with pytest.raises(TypeError):
        pickle.dumps(credentials)
