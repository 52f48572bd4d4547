from __future__ import annotations

import copy
import logging
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path

import boto3
import pytest

from stratalog.engine.open_engine import open_engine
from stratalog.errors import ConfigError, StorageError, StoreError, StorePermissionError
from stratalog.model.records import Record
from stratalog.reading.open_reader import open_reader
from stratalog.spi import Env, ObjectStore
from stratalog.testing.s3 import LocalS3
from stratalog_s3.secret import SecretOptions

OpenStore = Callable[..., ObjectStore]
RawServer = Callable[[bytes | None], str]
CANARY = "cAnArY9876543210"
NOBODY = "http://127.0.0.1:9"  # no server listens at this address
OPTIONS: dict[str, object] = {"key": f"{CANARY}-key", "secret": f"{CANARY}-secret", "token": f"{CANARY}-token"}


def shown(error: BaseException) -> str:
    """Return all texts of an error that a log may contain."""
    return "".join(traceback.format_exception(error)) + repr(error) + str(error)


def with_locals(error: BaseException) -> str:
    """Return the traceback with local variables, without the frames of tests."""
    text = ""
    for chained_error in chain(error):
        frames = traceback.StackSummary.extract(traceback.walk_tb(chained_error.__traceback__), capture_locals=True)
        text += f"{chained_error!r}{[frame.locals for frame in frames if '/tests/' not in frame.filename]}"
    return text


def chain(error: BaseException | None) -> list[BaseException]:
    """Return an error and the errors that a traceback shows with it; errors of asyncio can form a cycle."""
    errors: list[BaseException] = []
    while error is not None and all(error is not earlier for earlier in errors):
        errors.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return errors


def test_options_are_not_shown() -> None:
    options = SecretOptions(OPTIONS)
    assert CANARY not in repr(options) + str(options)
    assert options.reveal() == OPTIONS


def test_options_are_not_pickled_or_copied() -> None:
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            way(SecretOptions(OPTIONS))


def test_nested_secrets_are_struck_out_and_plain_words_are_not() -> None:
    options = SecretOptions(
        {"client_kwargs": {"aws_secret_access_key": CANARY, "region_name": "eu-north-1"}, "secret": "abc"}
    )
    assert options.redact(f"{CANARY} in eu-north-1 abc") == "*** in eu-north-1 abc"


def test_a_secret_in_a_secret_is_struck_out_whole() -> None:
    options = SecretOptions({"key": CANARY, "secret": f"{CANARY}-and-more"})
    assert options.redact(f"x {CANARY}-and-more y") == "x *** y"


def test_secrets_of_the_environment_are_struck_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", CANARY)
    assert CANARY not in SecretOptions({}).redact(f"token {CANARY}")


def test_a_cause_that_shows_a_secret_is_dropped() -> None:
    options = SecretOptions(OPTIONS)
    telling, harmless = ValueError(f"bad {CANARY}-token"), ValueError("bad")
    assert options.safe_cause(telling) is None
    assert options.safe_cause(harmless) is harmless


def test_a_cause_comes_without_the_frames_of_libraries() -> None:
    """The frames of all errors in the chain are removed, because their local variables may hold a signed request."""

    def fail() -> None:
        try:
            Path("/no/such/file").stat()
        except OSError as error:
            raise ValueError("harmless") from error

    with pytest.raises(ValueError, match="harmless") as caught:
        fail()
    error = caught.value
    assert [chained_error.__traceback__ is None for chained_error in chain(error)] == [False, False]
    assert SecretOptions(OPTIONS).safe_cause(error) is error
    assert [chained_error.__traceback__ is None for chained_error in chain(error)] == [True, True]


def test_a_store_shows_no_secret(open_store: OpenStore, local_s3: LocalS3, s3_tier: str, deadline_ns: int) -> None:
    store = open_store(s3_tier, {**local_s3.options, **OPTIONS})
    store.list("", deadline_ns=deadline_ns)
    assert CANARY not in repr(store) + str(store) + store.uri
    with pytest.raises(TypeError) as caught:
        pickle.dumps(store)
    assert CANARY not in shown(caught.value)


@pytest.mark.long
def test_failures_show_no_secret(
    open_store: OpenStore, local_s3: LocalS3, raw_server: RawServer, deadline_ns: int
) -> None:
    soon_ns = Env().clock.monotonic_ns() + 300_000_000
    denied = open_store(local_s3.uri("denied"), {**local_s3.options, **OPTIONS})
    local_s3.fail("GetObject", status=403, code="SignatureDoesNotMatch")
    silent = open_store("s3://bucket/p", {**OPTIONS, "endpoint_url": raw_server(None)})
    broken = open_store("s3://bucket/p", {**OPTIONS, "endpoint_url": raw_server(b"nonsense")})
    strange = open_store("s3://bucket/p", {**OPTIONS, "no_such_option": CANARY})
    unheard = open_store("s3://bucket/p", {**OPTIONS, "token": f"{CANARY}\n", "endpoint_url": raw_server(None)})
    unreachable = open_store("s3://bucket/p", {**OPTIONS, "endpoint_url": NOBODY})
    for store, until_ns in (
        (denied, deadline_ns),
        (silent, soon_ns),
        (broken, deadline_ns),
        (unheard, deadline_ns),
        (unreachable, deadline_ns),
    ):
        with pytest.raises(StoreError) as caught:
            store.read("a", 0, 5, deadline_ns=until_ns)
        assert CANARY not in shown(caught.value) + with_locals(caught.value)
    for call in (
        lambda: unreachable.list("", deadline_ns=deadline_ns),
        lambda: unreachable.delete(["a"], deadline_ns=deadline_ns),
    ):
        with pytest.raises(StoreError) as caught:
            call()
        assert CANARY not in with_locals(caught.value)
    with pytest.raises(ConfigError) as option_error:
        strange.read("a", 0, 5, deadline_ns=deadline_ns)
    assert CANARY not in shown(option_error.value) + with_locals(option_error.value)


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        (f"s3://{CANARY}:{CANARY}@bucket/p", {}),
        (f"s3://{CANARY}@bucket/p", {}),
        (f"sftp://user:{CANARY}@host/p", {}),
        ("s3://bucket/p", {"endpoint_url": f"https://{CANARY}:{CANARY}@store.example"}),
        ("s3://bucket/p", {"client_kwargs": {"endpoint_url": f"https://user:{CANARY}@store.example"}}),
    ],
)
def test_credentials_in_addresses_are_refused_unseen(
    open_store: OpenStore, uri: str, options: dict[str, object]
) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(uri, options)
    assert CANARY not in shown(caught.value)


def test_refused_options_are_in_no_frame_of_stratalog(open_store: OpenStore, deadline_ns: int) -> None:
    """This is also true if a function for credentials returns an unknown option."""
    with pytest.raises(ConfigError) as caught:
        open_store("s3://bucket/p", {**OPTIONS, "asynchronous": True})
    assert CANARY not in with_locals(caught.value)
    rotating = open_store("s3://bucket/p", {"credentials": lambda: {**OPTIONS, "more": 1}, "endpoint_url": NOBODY})
    with pytest.raises(StorePermissionError) as credentials_error:
        rotating.list("", deadline_ns=deadline_ns)
    assert CANARY not in with_locals(credentials_error.value)


@pytest.mark.parametrize("way", ["fixed", "rotating"])
@pytest.mark.long
def test_a_whole_engine_at_debug_leaves_no_secret_anywhere(
    local_s3: LocalS3, s3_tier: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    """No secret is in a log message, a manifest, a segment object, a local file, or the output of the engine."""
    caplog.set_level(logging.DEBUG)
    credentials: dict[str, object] = dict(OPTIONS) if way == "fixed" else {"credentials": lambda: OPTIONS}
    options = {"endpoint_url": local_s3.endpoint_url, **credentials}
    with open_engine(tmp_path, tier=s3_tier, tier_options=options) as engine:
        engine.create_topic("orders", config={"remote.storage.enable": True})
        log = engine.log("orders", 0)
        log.append([Record(key=b"k", value=b"v", timestamp_ms=1)])
        log.roll()
        engine.offload()
        local_s3.fail("PutObject", status=403, code="SignatureDoesNotMatch", times=3)
        log.append([Record(key=b"k", value=b"w", timestamp_ms=1)])
        log.roll()
        with pytest.raises(StorageError) as caught:
            engine.offload()
        local_s3.heal()
        assert CANARY not in shown(caught.value) + repr(engine)
    assert CANARY not in caplog.text
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
    with open_reader(s3_tier, tier_options=options) as reader:
        assert [record.value for record in reader.log("orders", 0).records()] == [b"v"]
        assert CANARY not in repr(reader)
    client = boto3.client(
        "s3", "us-east-1", endpoint_url=local_s3.endpoint_url, aws_access_key_id="k", aws_secret_access_key="s"
    )
    prefix = s3_tier.rpartition("/")[2]
    for item in client.list_objects_v2(Bucket=local_s3.bucket, Prefix=prefix)["Contents"]:
        s3_object = client.get_object(Bucket=local_s3.bucket, Key=item["Key"])
        assert CANARY.encode() not in s3_object["Body"].read()
        assert CANARY not in str(s3_object["Metadata"])
    client.close()


def test_logs_show_no_secret(
    open_store: OpenStore, local_s3: LocalS3, s3_tier: str, deadline_ns: int, caplog: pytest.LogCaptureFixture
) -> None:
    """At level DEBUG, botocore would log the session token."""
    caplog.set_level(logging.DEBUG)
    store = open_store(s3_tier, {**local_s3.options, **OPTIONS})
    store.create("a", b"x", deadline_ns=deadline_ns)
    assert store.read("a", deadline_ns=deadline_ns) == b"x"
    with pytest.raises(StorageError):
        store.read("missing", deadline_ns=deadline_ns)
    assert CANARY not in caplog.text
    assert logging.getLogger("botocore").getEffectiveLevel() >= logging.INFO
