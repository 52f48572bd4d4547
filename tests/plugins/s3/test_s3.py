from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.errors import (
    BucketNotFoundError,
    ClosedError,
    ConfigError,
    PluginImportError,
    ReadOnlyError,
    StoreError,
    StorePermissionError,
    StoreThrottledError,
    StoreTimeoutError,
)
from stratalog.spi import Buffer, BytesSource, Capability, Created, Env, ObjectStore
from stratalog.testing.s3 import LocalS3
from stratalog_s3.settings import MIN_PART_BYTES, S3Section

OpenStore = Callable[..., ObjectStore]
RawServer = Callable[[bytes | None], str]
PART = MIN_PART_BYTES
KEYS = {"key": "made-up-key", "secret": "made-up-secret"}


class Zeros:
    """A large source that is never completely in memory. It yields ``missing`` bytes less than its size."""

    def __init__(self, size_bytes: int, missing: int = 0) -> None:
        self._size_bytes, self._missing = size_bytes, missing

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        sent_bytes = self._size_bytes - self._missing
        for start in range(0, sent_bytes, chunk_bytes):
            yield bytes(min(chunk_bytes, sent_bytes - start))


@pytest.fixture
def store(open_store: OpenStore, local_s3: LocalS3, s3_tier: str, deadline_ns: int) -> ObjectStore:
    new_store = open_store(s3_tier, local_s3.options, section=S3Section(part_bytes=PART))
    new_store.put_file("there", BytesSource(b"0123456789"), deadline_ns=deadline_ns)
    local_s3.counts.clear()
    return new_store


@pytest.fixture(autouse=True)
def no_faults_left(local_s3: LocalS3) -> Iterator[None]:
    """Remove faults that a test planned but did not reach, so that they do not affect the next test."""
    yield
    local_s3.heal()


# --- requests ----------------------------------------------------------------------------------------------------


def test_it_declares_what_s3_can(store: ObjectStore) -> None:
    expected = Capability.CREATE | Capability.LIST_AFTER | Capability.BATCH_DELETE | Capability.CHECKSUM
    assert store.capabilities == expected


def test_every_call_is_one_request(store: ObjectStore, local_s3: LocalS3, deadline_ns: int) -> None:
    calls: dict[str, Callable[[], object]] = {
        "PutObject": lambda: store.put_file("a", BytesSource(b"x"), deadline_ns=deadline_ns),
        "GetObject": lambda: store.read("there", 2, 5, deadline_ns=deadline_ns),
        "ListObjectsV2": lambda: store.list("", deadline_ns=deadline_ns),
        "DeleteObjects": lambda: store.delete(["a", "b", "c"], deadline_ns=deadline_ns),
    }
    for operation, call in calls.items():
        local_s3.counts.clear()
        call()
        assert local_s3.counts == Counter({operation: 1})


def test_a_whole_read_is_one_request_too(store: ObjectStore, local_s3: LocalS3, deadline_ns: int) -> None:
    assert store.read("there", deadline_ns=deadline_ns) == b"0123456789"
    assert local_s3.counts == Counter({"GetObject": 1})


@pytest.mark.parametrize("outcome", [Created.CREATED, Created.EXISTS])
def test_a_create_is_one_request(store: ObjectStore, local_s3: LocalS3, deadline_ns: int, outcome: Created) -> None:
    key = "new" if outcome is Created.CREATED else "there"
    assert store.create(key, b"x", deadline_ns=deadline_ns) is outcome
    assert local_s3.counts == Counter({"PutObject": 1})


def test_more_keys_than_a_page_holds_take_more_requests(
    store: ObjectStore, local_s3: LocalS3, deadline_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog_s3.s3.PAGE_KEYS", 5)
    keys = [f"many/{number:02d}" for number in range(12)]
    for key in keys:
        store.create(key, b"", deadline_ns=deadline_ns)
    local_s3.counts.clear()
    infos = store.list("many/", after="many/00", limit=10, deadline_ns=deadline_ns)
    assert [info.key for info in infos] == keys[1:11]
    assert local_s3.counts == Counter({"ListObjectsV2": 2})
    assert store.delete(keys, deadline_ns=deadline_ns) == {}
    assert local_s3.counts["DeleteObjects"] == 3
    assert list(store.list("many/", deadline_ns=deadline_ns)) == []


def test_listed_objects_have_size_etag_and_time(store: ObjectStore, deadline_ns: int) -> None:
    before_ms = Env().clock.now_ms()
    put = store.put_file("a", BytesSource(b"xyz"), deadline_ns=deadline_ns)
    (info,) = store.list("a", deadline_ns=deadline_ns)
    assert (info.key, info.size_bytes, info.etag) == ("a", 3, put.etag)
    assert put.etag
    assert '"' not in put.etag
    assert abs(info.modified_ms - before_ms) < 600_000


@pytest.mark.long
def test_the_marker_of_a_folder_is_no_object(open_store: OpenStore, local_s3: LocalS3, deadline_ns: int) -> None:
    bucket_store = open_store(local_s3.uri(), local_s3.options)
    bucket_store.put_file("marked/one", BytesSource(b"x"), deadline_ns=deadline_ns)
    import boto3  # noqa: PLC0415 - makes the marker that a web console makes

    client = boto3.client("s3", "us-east-1", endpoint_url=local_s3.endpoint_url, **_boto(local_s3))
    client.put_object(Bucket=local_s3.bucket, Key="marked/", Body=b"")
    client.close()
    prefix_store = open_store(local_s3.uri("marked"), local_s3.options)
    assert [info.key for info in prefix_store.list("", deadline_ns=deadline_ns)] == ["one"]


def _boto(local_s3: LocalS3) -> dict[str, str]:
    options = local_s3.options
    return {"aws_access_key_id": options["key"], "aws_secret_access_key": options["secret"]}


@pytest.mark.parametrize("ending", ["", "/", "//"])
@pytest.mark.long
def test_slashes_at_the_end_of_the_uri_do_not_matter(
    open_store: OpenStore, local_s3: LocalS3, s3_tier: str, store: ObjectStore, deadline_ns: int, ending: str
) -> None:
    same_store = open_store(s3_tier + ending, local_s3.options)
    assert same_store.uri == store.uri
    assert same_store.read("there", deadline_ns=deadline_ns) == b"0123456789"


def test_a_bucket_without_prefix_is_a_store(open_store: OpenStore, local_s3: LocalS3, deadline_ns: int) -> None:
    bucket_store = open_store(local_s3.uri(), local_s3.options)
    assert bucket_store.create("top-level", b"x", deadline_ns=deadline_ns) is Created.CREATED
    assert "top-level" in [info.key for info in bucket_store.list("top", deadline_ns=deadline_ns)]


@pytest.mark.long
def test_a_store_below_another_sees_the_same_objects(
    open_store: OpenStore, local_s3: LocalS3, s3_tier: str, store: ObjectStore, deadline_ns: int
) -> None:
    store.create("deep/er/x", b"x", deadline_ns=deadline_ns)
    prefix_store = open_store(f"{s3_tier}/deep", local_s3.options)
    assert [info.key for info in prefix_store.list("", after="er/a", deadline_ns=deadline_ns)] == ["er/x"]
    assert prefix_store.read("er/x", deadline_ns=deadline_ns) == b"x"


# --- large objects -----------------------------------------------------------------------------------------------


def test_a_large_object_is_uploaded_in_parts(store: ObjectStore, local_s3: LocalS3, deadline_ns: int) -> None:
    size_bytes = 2 * PART + 7
    info = store.put_file("large", Zeros(size_bytes), deadline_ns=deadline_ns)
    assert info.size_bytes == size_bytes
    assert local_s3.counts == Counter(CreateMultipartUpload=1, UploadPart=3, CompleteMultipartUpload=1)
    assert [listed_info.size_bytes for listed_info in store.list("large", deadline_ns=deadline_ns)] == [size_bytes]
    assert store.read("large", size_bytes - 9, None, deadline_ns=deadline_ns) == bytes(9)


def test_an_object_of_one_part_needs_no_parts(store: ObjectStore, local_s3: LocalS3, deadline_ns: int) -> None:
    store.put_file("part", Zeros(PART), deadline_ns=deadline_ns)
    assert local_s3.counts == Counter(PutObject=1)


@pytest.mark.parametrize("operation", ["UploadPart", "CompleteMultipartUpload"])
def test_an_upload_that_fails_is_aborted(
    store: ObjectStore, local_s3: LocalS3, deadline_ns: int, operation: str
) -> None:
    local_s3.fail(operation, status=500, code="InternalError", times=3)
    with pytest.raises(StoreTimeoutError):
        store.put_file("large", Zeros(PART + 1), deadline_ns=deadline_ns)
    assert local_s3.counts["AbortMultipartUpload"] == 1
    assert list(store.list("large", deadline_ns=deadline_ns)) == []


def test_a_large_source_that_ends_too_soon_is_aborted(store: ObjectStore, local_s3: LocalS3, deadline_ns: int) -> None:
    with pytest.raises(StoreError):
        store.put_file("large", Zeros(PART + 10, missing=5), deadline_ns=deadline_ns)
    assert local_s3.counts["CompleteMultipartUpload"] == 0
    assert local_s3.counts["AbortMultipartUpload"] == 1


@pytest.mark.long
def test_an_abort_that_fails_does_not_hide_the_first_error(
    store: ObjectStore, local_s3: LocalS3, deadline_ns: int, caplog: pytest.LogCaptureFixture
) -> None:
    local_s3.fail("UploadPart", status=403, code="AccessDenied", times=3)
    local_s3.fail("AbortMultipartUpload", status=500, code="InternalError")
    with pytest.raises(StorePermissionError):
        store.put_file("large", Zeros(PART + 1), deadline_ns=deadline_ns)
    assert "could not be aborted" in caplog.text


# --- failures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (403, "AccessDenied", StorePermissionError),
        (403, "InvalidAccessKeyId", StorePermissionError),
        (400, "ExpiredToken", StorePermissionError),
        (404, "NoSuchBucket", BucketNotFoundError),
        (503, "SlowDown", StoreThrottledError),
        (429, "TooManyRequests", StoreThrottledError),
        (500, "InternalError", StoreTimeoutError),
        (504, "GatewayTimeout", StoreTimeoutError),
        (400, "Odd", StoreError),
    ],
)
@pytest.mark.long
def test_an_answer_becomes_a_typed_error_after_one_try(
    store: ObjectStore, local_s3: LocalS3, deadline_ns: int, status: int, code: str, kind: type[StoreError]
) -> None:
    local_s3.fail("GetObject", status=status, code=code)
    with pytest.raises(kind) as caught:
        store.read("there", 0, 5, deadline_ns=deadline_ns)
    assert type(caught.value) is kind
    assert local_s3.counts["GetObject"] == 1
    assert caught.value.key == (store.uri if kind is BucketNotFoundError else "there")


@pytest.mark.parametrize("status", [500, 502, 503, 504])
@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.long
def test_a_create_that_may_have_been_applied_is_unknown(
    store: ObjectStore, local_s3: LocalS3, deadline_ns: int, status: int, *, applied: bool
) -> None:
    """A response with a status of 500 or above may come from a proxy between the client and the store."""
    local_s3.fail("PutObject", status=status, code="SlowDown", applied=applied)
    assert store.create("new", b"x", deadline_ns=deadline_ns) is Created.UNKNOWN
    assert local_s3.counts["PutObject"] == 1
    assert [info.key for info in store.list("new", deadline_ns=deadline_ns)] == (["new"] if applied else [])


def test_a_conflicting_create_is_retried_instead_of_reported_as_existing(
    store: ObjectStore, local_s3: LocalS3, deadline_ns: int
) -> None:
    """With status 409, the other writer may fail as well.

    The Rust crate object_store reported "exists" in this case (bug 852).
    """
    local_s3.fail("PutObject", status=409, code="ConditionalRequestConflict")
    with pytest.raises(StoreThrottledError) as caught:
        store.create("new", b"x", deadline_ns=deadline_ns)
    assert caught.value.retriable


@pytest.mark.parametrize(("status", "code"), [(403, "AccessDenied"), (404, "NoSuchBucket"), (400, "Odd")])
@pytest.mark.long
def test_a_refused_create_raises(
    store: ObjectStore, local_s3: LocalS3, deadline_ns: int, status: int, code: str
) -> None:
    local_s3.fail("PutObject", status=status, code=code)
    with pytest.raises(StoreError):
        store.create("new", b"x", deadline_ns=deadline_ns)


def test_a_missing_bucket_is_a_typed_error_of_every_call(
    open_store: OpenStore, local_s3: LocalS3, deadline_ns: int
) -> None:
    store = open_store("s3://no-such-bucket/prefix", local_s3.options)
    calls: list[Callable[[], object]] = [
        lambda: store.read("a", 0, 5, deadline_ns=deadline_ns),
        lambda: store.list("", deadline_ns=deadline_ns),
        lambda: store.put_file("a", BytesSource(b"x"), deadline_ns=deadline_ns),
        lambda: store.create("a", b"x", deadline_ns=deadline_ns),
        lambda: store.delete(["a"], deadline_ns=deadline_ns),
    ]
    for call in calls:
        with pytest.raises(BucketNotFoundError) as caught:
            call()
        assert "s3://no-such-bucket/prefix" in str(caught.value)


def test_single_keys_of_a_delete_may_fail(
    store: ObjectStore, deadline_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs  # noqa: PLC0415 - as the plugin does, at use

    original = s3fs.S3FileSystem._call_s3  # noqa: SLF001 - s3fs offers no public coroutine

    async def call(self: Any, method: str, **parameters: Any) -> Any:
        answer = await original(self, method, **parameters)
        if method != "delete_objects":
            return answer
        keys = [item["Key"] for item in parameters["Delete"]["Objects"]]
        codes = ["AccessDenied", "InternalError", "NoSuchKey"]
        return {"Errors": [{"Key": key, "Code": code} for key, code in zip(keys, codes, strict=True)]}

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", call)
    failed_keys = store.delete(["denied", "broken", "gone"], deadline_ns=deadline_ns)
    assert {key: type(error) for key, error in failed_keys.items()} == {
        "denied": StorePermissionError,
        "broken": StoreTimeoutError,
    }


def test_no_credentials_at_all_is_a_permission_error(
    open_store: OpenStore, local_s3: LocalS3, deadline_ns: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    store = open_store(local_s3.uri("x"), {"endpoint_url": local_s3.endpoint_url})
    for call in (
        lambda: store.read("a", 0, 5, deadline_ns=deadline_ns),
        lambda: store.create("a", b"x", deadline_ns=deadline_ns),
    ):
        with pytest.raises(StorePermissionError):
            call()


@pytest.mark.long
def test_settings_may_come_from_the_environment(
    open_store: OpenStore, local_s3: LocalS3, s3_tier: str, deadline_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", local_s3.endpoint_url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "made-up-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "made-up-secret")
    store = open_store(s3_tier)
    assert store.create("a", b"x", deadline_ns=deadline_ns) is Created.CREATED


# --- deadlines and broken connections ----------------------------------------------------------------------------


def soon_ns() -> int:
    return Env().clock.monotonic_ns() + 300_000_000


def test_a_server_that_never_answers_is_left_at_the_deadline(open_store: OpenStore, raw_server: RawServer) -> None:
    store = open_store("s3://bucket/p", {**KEYS, "endpoint_url": raw_server(None)})
    with pytest.raises(StoreTimeoutError):
        store.read("a", 0, 5, deadline_ns=soon_ns())
    with pytest.raises(StoreTimeoutError):
        store.list("", deadline_ns=soon_ns())
    with pytest.raises(StoreTimeoutError):
        store.put_file("a", BytesSource(b"x"), deadline_ns=soon_ns())


def test_a_create_without_answer_is_unknown(open_store: OpenStore, raw_server: RawServer) -> None:
    store = open_store("s3://bucket/p", {**KEYS, "endpoint_url": raw_server(None)})
    with pytest.raises(StoreTimeoutError):
        store.read("a", 0, 5, deadline_ns=soon_ns())  # creates the client, so that the next call is sent without delay
    assert store.create("a", b"x", deadline_ns=soon_ns()) is Created.UNKNOWN


def test_a_create_that_was_never_sent_raises(open_store: OpenStore, raw_server: RawServer, deadline_ns: int) -> None:
    endpoint = raw_server(None)
    port = int(endpoint.rpartition(":")[2])
    # No server listens at this address.
    store = open_store("s3://bucket/p", {**KEYS, "endpoint_url": f"http://127.0.0.2:{port}"})
    with pytest.raises(StoreTimeoutError):
        store.create("a", b"x", deadline_ns=deadline_ns)


def test_a_create_whose_connection_breaks_is_unknown(
    open_store: OpenStore, raw_server: RawServer, deadline_ns: int
) -> None:
    store = open_store("s3://bucket/p", {**KEYS, "endpoint_url": raw_server(b"")})
    assert store.create("a", b"x", deadline_ns=deadline_ns) is Created.UNKNOWN


HEAD = b"HTTP/1.1 %s\r\nContent-Type: binary/octet-stream\r\nConnection: close\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        HEAD % b"206 Partial" + b"Content-Range: bytes 0-4/100\r\nContent-Length: 5\r\n\r\nABCDE",
        HEAD % b"206 Partial" + b"Content-Range: bytes 10-19/100\r\nContent-Length: 10\r\n\r\nABCDEFGHIJ",
        HEAD % b"200 OK" + b"Content-Length: 100\r\n\r\n" + b"x" * 100,
        HEAD % b"200 OK" + b"Content-Length: 5\r\n\r\nABCDE",
        HEAD % b"206 Partial" + b"Content-Range: bytes 10-12/100\r\nContent-Length: 3\r\n\r\nABC",
        HEAD % b"206 Partial" + b"Content-Range: bytes 10-14/100\r\nContent-Length: 4\r\n\r\nABCD",
        HEAD % b"206 Partial" + b"Content-Range: pages 1-2\r\nContent-Length: 5\r\n\r\nABCDE",
        HEAD % b"206 Partial" + b"Content-Range: bytes 10-14/100\r\nContent-Length: 5\r\n\r\nAB",
        b"nonsense\r\n\r\n",
    ],
    ids=[
        "another range",
        "a longer range",
        "the whole object",
        "a short whole object",
        "a shorter range",
        "fewer bytes than the range",
        "no range",
        "cut short",
        "no http",
    ],
)
@pytest.mark.long
def test_another_range_than_asked_for_is_not_taken(
    open_store: OpenStore, raw_server: RawServer, deadline_ns: int, answer: bytes
) -> None:
    """A server may ignore ``Range``. Bytes of other positions must not be read as records."""
    store = open_store("s3://bucket/p", {**KEYS, "endpoint_url": raw_server(answer)})
    with pytest.raises(StoreError):
        store.read("a", 10, 15, deadline_ns=deadline_ns)


@pytest.mark.parametrize("status", [b"200 OK", b"404 Not Found", b"405 Method Not Allowed"])
@pytest.mark.parametrize("body", [b"", b"<html><body>Hello</body></html>"])
def test_a_web_server_is_no_empty_store(
    open_store: OpenStore, raw_server: RawServer, deadline_ns: int, status: bytes, body: bytes
) -> None:
    endpoint = raw_server(HEAD % status + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    store = open_store("s3://bucket/p", {**KEYS, "endpoint_url": endpoint})
    with pytest.raises(StoreError, match="s3://bucket/p: check endpoint_url") as caught:
        store.list("", deadline_ns=deadline_ns)
    assert not caught.value.retriable


@pytest.mark.parametrize("object_bytes", [b"15", b"100"])
@pytest.mark.long
def test_the_range_asked_for_is_taken(
    open_store: OpenStore, raw_server: RawServer, deadline_ns: int, object_bytes: bytes
) -> None:
    answer = HEAD % b"206 Partial" + b"Content-Range: bytes 10-14/%s\r\nContent-Length: 5\r\n\r\nABCDE" % object_bytes
    store = open_store("s3://bucket/p", {**KEYS, "endpoint_url": raw_server(answer)})
    assert store.read("a", 10, 15, deadline_ns=deadline_ns) == b"ABCDE"


# --- opening -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_an_endpoint_in_the_clear_from_the_environment_is_refused(
    open_store: OpenStore, deadline_ns: int, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "http://store.invalid:9000")
    store = open_store("s3://bucket/p", KEYS)
    with pytest.raises(ConfigError, match="https"):
        store.read("a", 0, 5, deadline_ns=deadline_ns)


@pytest.mark.parametrize(
    "options",
    [{"no_such_option": 1}, {"client_kwargs": {"no_such_option": 1}}, {"config_kwargs": {"no_such_option": 1}}],
    ids=["s3fs", "client", "config"],
)
def test_an_option_that_s3fs_does_not_take_is_a_config_error(
    open_store: OpenStore, deadline_ns: int, options: dict[str, object]
) -> None:
    store = open_store("s3://bucket/p", {**KEYS, **options})
    with pytest.raises(ConfigError, match="no_such_option"):
        store.read("a", 0, 5, deadline_ns=deadline_ns)


def test_a_store_opened_for_reading_refuses_writes(
    open_store: OpenStore, local_s3: LocalS3, s3_tier: str, store: ObjectStore, deadline_ns: int
) -> None:
    reader = open_store(s3_tier, local_s3.options, read_only=True)
    assert reader.read("there", 0, 2, deadline_ns=deadline_ns) == b"01"
    calls: list[Callable[[], object]] = [
        lambda: reader.put_file("a", BytesSource(b"x"), deadline_ns=deadline_ns),
        lambda: reader.create("a", b"x", deadline_ns=deadline_ns),
        lambda: reader.delete(["there"], deadline_ns=deadline_ns),
    ]
    for call in calls:
        with pytest.raises(ReadOnlyError):
            call()
    assert store.read("there", deadline_ns=deadline_ns) == b"0123456789"


@pytest.mark.long
def test_another_process_makes_a_connection_of_its_own(
    store: ObjectStore, deadline_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Event loops do not survive a fork, and a child must not use its parent's connections."""
    import s3fs  # noqa: PLC0415 - as the plugin does, at use

    connected, connect = list[object](), s3fs.S3FileSystem.set_session

    async def noted(self: Any, **options: Any) -> Any:
        connected.append(self)
        return await connect(self, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "set_session", noted)
    store.read("there", 0, 1, deadline_ns=deadline_ns)
    before = set(map(id, connected))
    with monkeypatch.context() as child:
        child.setattr("stratalog_s3.store.os.getpid", lambda: -1)
        assert store.read("there", 0, 1, deadline_ns=deadline_ns) == b"0"
        assert set(map(id, connected)) > before
        store.close()
    with pytest.raises(ClosedError):
        store.read("there", 0, 1, deadline_ns=deadline_ns)


def _s3_store() -> type[Any]:
    from stratalog_s3.s3 import S3Store  # noqa: PLC0415 - as the plugin does, at use

    return S3Store


def test_without_s3fs_the_error_names_the_extra_to_install(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(PluginImportError) as caught:
        open_store("s3://bucket/p", KEYS)
    assert caught.value.install == "stratalog[s3]"
