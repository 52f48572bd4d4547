"""The example of an object store from another package passes the tests of the built-in stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("obstore", reason="obstore is not installed: the example that stands on it cannot run")

import obstore_tier
from example_plugins import wheel_of
from obstore_tier.store import PART_BYTES
from stratalog.config.engine_settings import Limits
from stratalog.engine.open_engine import open_engine
from stratalog.errors import BucketNotFoundError, ConfigError, StoreError, StoreThrottledError, StoreTimeoutError
from stratalog.model.records import Record
from stratalog.spi import BytesSource, CodecTable, Created, Env, HandlePool, ObjectStore, OpenContext
from stratalog.testing.contracts import EngineContract, EngineSetup, ObjectStoreContract
from stratalog.testing.faultproxy import FaultProxy, Misdeed, ProxyFault, fault_proxy
from stratalog.testing.s3 import LocalS3
from tier_bed import TierBed

CANARY = "cAnArY9876543210"
OpenStore = Callable[..., ObjectStore]


@pytest.fixture
def open_store() -> Iterator[OpenStore]:
    stores: list[ObjectStore] = []
    (provider,) = obstore_tier.stratalog_object_stores()

    def open_(uri: str, options: Mapping[str, object]) -> ObjectStore:
        env = Env()
        context = OpenContext(
            env=env,
            limits=Limits(),
            handles=HandlePool(env.files, 8),
            codecs=CodecTable(),
            location=uri,
            options=options,
        )
        stores.append(provider.open(context))
        return stores[-1]

    yield open_
    for store in stores:
        store.close()


@pytest.fixture
def store(open_store: OpenStore, local_s3: LocalS3, s3_tier: str) -> ObjectStore:
    return open_store(s3_tier, local_s3.options)


@pytest.mark.long
class TestObstoreInAnEngine(EngineContract):
    opens_without = False
    missing = "obstore"

    @pytest.fixture
    def engine_setup(self, local_s3: LocalS3, s3_tier: str) -> EngineSetup:
        config = {"plugins.prefer": ["s3=obstore"]}
        return EngineSetup(plugins=[obstore_tier], config=config, tier=s3_tier, tier_options=local_s3.options)


@pytest.fixture
def deadline_ns() -> int:
    return Env().clock.monotonic_ns() + 60_000_000_000


@pytest.fixture
def proxy(local_s3: LocalS3) -> Iterator[FaultProxy]:
    port = urlsplit(local_s3.endpoint_url).port
    assert port is not None
    with fault_proxy(port) as started:
        yield started


class TestObstore(ObjectStoreContract):
    @pytest.fixture
    def store(self, store: ObjectStore) -> ObjectStore:
        return store


def test_the_tier_takes_it_for_several_writers(store: ObjectStore) -> None:
    with TierBed().open(store) as tier:
        assert (tier.availability.shared, tier.availability.reason) == (True, "")


def test_a_large_object_is_uploaded_in_parts(store: ObjectStore, local_s3: LocalS3, deadline_ns: int) -> None:
    local_s3.counts.clear()
    store.put_file("large", BytesSource(bytes(PART_BYTES + 1)), deadline_ns=deadline_ns)
    assert local_s3.counts["UploadPart"] == 2
    assert [info.size_bytes for info in store.list("", deadline_ns=deadline_ns)] == [PART_BYTES + 1]


@pytest.mark.parametrize("applied", [True, False])
def test_a_create_whose_answer_is_lost_is_unknown(
    store: ObjectStore, local_s3: LocalS3, deadline_ns: int, *, applied: bool
) -> None:
    local_s3.fail("PutObject", status=500, code="InternalError", applied=applied)
    assert store.create("a", b"x", deadline_ns=deadline_ns) is Created.UNKNOWN
    assert len(store.list("", deadline_ns=deadline_ns)) == applied


def test_a_throttled_call_is_one_try_and_may_be_repeated(
    store: ObjectStore, local_s3: LocalS3, deadline_ns: int
) -> None:
    store.put_file("a", BytesSource(b"x"), deadline_ns=deadline_ns)
    local_s3.counts.clear()
    local_s3.fail("GetObject", status=503, code="SlowDown")
    with pytest.raises(StoreThrottledError):
        store.read("a", deadline_ns=deadline_ns)
    assert local_s3.counts["GetObject"] == 1


@pytest.mark.parametrize("do", [Misdeed.DRIP, Misdeed.SILENT])
@pytest.mark.long
def test_a_reply_that_never_ends_is_left_at_the_deadline(
    open_store: OpenStore, proxy: FaultProxy, local_s3: LocalS3, s3_tier: str, deadline_ns: int, do: Misdeed
) -> None:
    store = open_store(s3_tier, {**local_s3.options, "endpoint_url": proxy.endpoint_url})
    store.put_file("a", BytesSource(bytes(1000)), deadline_ns=deadline_ns)
    proxy.plan(ProxyFault(do, "GetObject"), ProxyFault(Misdeed.SILENT, "PutObject"))
    soon_ns = Env().clock.monotonic_ns() + 300_000_000
    with pytest.raises(StoreTimeoutError):
        store.read("a", deadline_ns=soon_ns)
    assert store.create("b", b"x", deadline_ns=Env().clock.monotonic_ns() + 300_000_000) is Created.UNKNOWN


def test_a_missing_bucket_is_named(open_store: OpenStore, local_s3: LocalS3, deadline_ns: int) -> None:
    store = open_store("s3://no-such-bucket/p", local_s3.options)
    with pytest.raises(BucketNotFoundError, match="s3://no-such-bucket/p"):
        store.read("a", deadline_ns=deadline_ns)


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        (f"s3://{CANARY}@bucket/p", {}),
        ("s3://", {}),
        ("s3://bucket/p", {"no_such_option": CANARY}),
        ("s3://bucket/p", {"endpoint_url": "http://store.example"}),
        ("s3://bucket/p", {"endpoint_url": "http://store.example", "allow_http": "false"}),
    ],
)
def test_a_request_that_is_not_allowed_is_refused(open_store: OpenStore, uri: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(uri, options)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("consent", [True, "true"])
def test_plain_http_to_another_machine_is_accepted_on_request_and_logged(
    open_store: OpenStore, caplog: pytest.LogCaptureFixture, consent: object
) -> None:
    open_store("s3://bucket/p", {"endpoint_url": "http://store.example", "allow_http": consent})
    assert "requests to http://store.example are not encrypted" in caplog.text


def test_no_secret_is_shown(open_store: OpenStore, local_s3: LocalS3, s3_tier: str, deadline_ns: int) -> None:
    store = open_store(s3_tier, {**local_s3.options, "secret": CANARY})
    local_s3.fail("GetObject", status=403, code="SignatureDoesNotMatch")
    with pytest.raises(StoreError) as caught:
        store.read("a", deadline_ns=deadline_ns)
    assert CANARY not in repr(store) + str(caught.value) + repr(caught.value.__cause__)


def test_an_engine_prefers_it(tmp_path: Path, local_s3: LocalS3, s3_tier: str) -> None:
    config = {"plugins.prefer": ["s3=obstore"], "tier": s3_tier}
    with open_engine(tmp_path, tier_options=local_s3.options, config=config, plugins=[obstore_tier]) as engine:
        engine.create_topic("orders", config={"remote.storage.enable": True})
        log = engine.log("orders", 0)
        log.append([Record(key=b"k", value=b"v", timestamp_ms=1)])
        log.roll()
        (upload,) = [result for result in engine.offload() if result.log.topic == "orders"]
        assert upload.segments == 1


@pytest.mark.long
def test_it_is_installable_by_itself(tmp_path: Path) -> None:
    names, points = wheel_of("obstore_tier", tmp_path)
    assert "[stratalog.v1]\nobstore_tier = obstore_tier" in points
    assert "obstore_tier/store.py" in names
