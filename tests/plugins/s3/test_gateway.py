"""The S3 store with a server that is not moto: preconditions hold in races, and the server verifies checksums."""

from __future__ import annotations

import base64
import os
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from s3_uploads import check_unfinished
from stratalog.engine.open_engine import open_engine
from stratalog.env import Env
from stratalog.errors import StoreError
from stratalog.model.records import Record
from stratalog.reading.open_reader import open_reader
from stratalog.spi import BytesSource, Created, ObjectStore
from stratalog.testing.contracts import ObjectStoreContract
from stratalog.testing.contracts.object_store import raced
from stratalog_s3.checksums import CHECKSUMS, Checksum
from stratalog_s3.settings import MIN_PART_BYTES, S3Section
from tier_bed import TierBed
from versitygw import Gateway

OpenStore = Callable[..., ObjectStore]
pytestmark = pytest.mark.long


@pytest.fixture
def open_here(open_store: OpenStore, server: Gateway) -> Callable[..., ObjectStore]:
    uri = server.uri(f"test-{uuid.uuid4().hex}")
    return lambda **values: open_store(uri, server.options, section=S3Section(part_bytes=MIN_PART_BYTES, **values))


@pytest.fixture
def store(open_here: Callable[..., ObjectStore]) -> ObjectStore:
    return open_here()


class TestGateway(ObjectStoreContract):
    @pytest.fixture
    def store(self, store: ObjectStore) -> ObjectStore:
        return store


def test_twenty_races_have_twenty_winners(store: ObjectStore, deadline_ns: int) -> None:
    for turn in range(20):
        outcomes = list(raced(store, f"race/{turn}", deadline_ns).values())
        assert outcomes.count(Created.CREATED) == 1
        assert outcomes.count(Created.EXISTS) == len(outcomes) - 1


def test_the_tier_takes_it_for_several_writers(open_here: Callable[..., ObjectStore]) -> None:
    with TierBed().open(open_here()) as tier:
        assert (tier.availability.shared, tier.availability.reason) == (True, "")


@pytest.mark.parametrize("kind", [kind for kind in CHECKSUMS if kind != "none"])
@pytest.mark.parametrize("size_bytes", [10, MIN_PART_BYTES + 1], ids=["whole", "in parts"])
def test_right_checksums_are_taken_and_wrong_ones_refused(
    open_here: Callable[..., ObjectStore],
    deadline_ns: int,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    size_bytes: int,
) -> None:
    source = BytesSource(bytes(size_bytes))
    open_here(checksum=kind).put_file("right", source, deadline_ns=deadline_ns)
    corrupting_store = open_here(checksum=kind)

    def parameters(self: Checksum, data: Any) -> dict[str, str]:
        return {self.parameter: base64.b64encode(self.compute(bytes(data) + b"!")).decode()}

    monkeypatch.setattr(Checksum, "parameters", parameters)
    with pytest.raises(StoreError):
        corrupting_store.put_file("wrong", source, deadline_ns=deadline_ns)
    assert [info.key for info in corrupting_store.list("", deadline_ns=deadline_ns)] == ["right"]


def test_large_objects_come_back(store: ObjectStore, deadline_ns: int) -> None:
    data = os.urandom(2 * MIN_PART_BYTES + 12_345)
    store.put_file("large", BytesSource(data), deadline_ns=deadline_ns)
    assert store.read("large", deadline_ns=deadline_ns) == data
    assert (
        store.read("large", MIN_PART_BYTES - 5, MIN_PART_BYTES + 5, deadline_ns=deadline_ns)
        == (data[MIN_PART_BYTES - 5 : MIN_PART_BYTES + 5])
    )


def test_uploads_without_an_end_are_reported_and_aborted(
    open_store: OpenStore, server: Gateway, deadline_ns: int
) -> None:
    uri = server.uri(f"test-{uuid.uuid4().hex}")
    check_unfinished(open_store(uri, server.options), uri, server.options, deadline_ns)


def test_an_engine_works_on_it(server: Gateway, tmp_path: Any) -> None:
    uri = server.uri(f"engine-{uuid.uuid4().hex}")
    config = {"remote.storage.enable": True, "retention.ms": -1, "local.retention.ms": 1, "segment.bytes": 10_000}
    values = [f"value {number} ".encode() * 30 for number in range(100)]
    with open_engine(tmp_path, tier=uri, tier_options=server.options, env=Env()) as engine:
        engine.create_topic("orders", config=config)
        log = engine.log("orders", 0)
        for value in values:
            log.append([Record(key=b"k", value=value, timestamp_ms=1_000)])
        log.roll()
        engine.offload()
        engine.apply_retention()
        assert log.offsets().local_log_start > 0
    with open_reader(uri, tier_options=server.options) as reader:
        assert [record.value for record in reader.log("orders", 0).records()] == values
