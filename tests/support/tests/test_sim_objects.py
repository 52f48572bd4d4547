from __future__ import annotations

import pytest

from sim_objects import ObjectFault, SimBucket, SimObjectStore, SimRequest, random_faults, scripted_faults
from stratalog.env.clock import SystemClock
from stratalog.errors import (
    ClosedError,
    ObjectNotFoundError,
    StorePermissionError,
    StoreThrottledError,
    StoreTimeoutError,
)
from stratalog.spi import BytesSource
from stratalog.spi.objects import Created
from stratalog.testing.contracts.object_store import ObjectStoreContract
from tier_bed import TierBed

DEADLINE_NS = 1 << 62


class TestContract(ObjectStoreContract):
    @pytest.fixture
    def store(self) -> SimObjectStore:
        return SimObjectStore(SimBucket(SystemClock()))


def once(fault: ObjectFault) -> SimObjectStore:
    return SimObjectStore(faults=scripted_faults({0: fault}))


def test_objects_are_whole_and_listed_in_order() -> None:
    store = SimObjectStore()
    for key in ("b/2", "a", "b/10", "b/1"):
        store.put_file(key, BytesSource(key.encode()), deadline_ns=DEADLINE_NS)
    assert [info.key for info in store.list("b/", deadline_ns=DEADLINE_NS)] == ["b/1", "b/10", "b/2"]
    assert [info.key for info in store.list("b/", after="b/1", limit=1, deadline_ns=DEADLINE_NS)] == ["b/10"]
    assert store.read("b/10", 1, 3, deadline_ns=DEADLINE_NS) == b"/1"
    assert store.read("b/10", 1, 99, deadline_ns=DEADLINE_NS) == b"/10"
    assert store.delete(["a", "missing"], deadline_ns=DEADLINE_NS) == {}
    with pytest.raises(ObjectNotFoundError):
        store.read("a", deadline_ns=DEADLINE_NS)
    assert store.counts == {"put_file": 4, "list": 2, "read": 3, "delete": 1}


def test_one_of_several_creators_wins() -> None:
    bucket = SimBucket()
    clients = [SimObjectStore(bucket) for _ in range(3)]
    results = [client.create("a", b"%d" % number, deadline_ns=DEADLINE_NS) for number, client in enumerate(clients)]
    assert results == [Created.CREATED, Created.EXISTS, Created.EXISTS]
    assert bucket.objects["a"][0] == b"0"


@pytest.mark.parametrize(
    ("fault", "there"), [(ObjectFault.NOT_APPLIED, False), (ObjectFault.REPLY_LOST, True), (ObjectFault.LATE, False)]
)
def test_a_write_without_a_reply_has_an_unknown_outcome(fault: ObjectFault, *, there: bool) -> None:
    created = once(fault)
    assert created.create("a", b"1", deadline_ns=DEADLINE_NS) is Created.UNKNOWN
    assert ("a" in created.bucket.objects) == there
    uploaded = once(fault)
    with pytest.raises(StoreTimeoutError):
        uploaded.put_file("a", BytesSource(b"1"), deadline_ns=DEADLINE_NS)
    assert ("a" in uploaded.bucket.objects) == there
    deleted = once(fault)
    deleted.bucket.write("a", b"1")
    assert set(deleted.delete(["a"], deadline_ns=DEADLINE_NS)) == {"a"}
    assert ("a" not in deleted.bucket.objects) == there


def test_late_writes_are_delivered_and_creates_still_yield() -> None:
    store = SimObjectStore(faults=scripted_faults({0: ObjectFault.LATE, 1: ObjectFault.LATE}))
    store.create("a", b"late", deadline_ns=DEADLINE_NS)
    store.create("b", b"late", deadline_ns=DEADLINE_NS)
    store.create("a", b"in time", deadline_ns=DEADLINE_NS)
    assert store.bucket.deliver() == 2
    assert {key: data for key, (data, _) in store.bucket.objects.items()} == {"a": b"in time", "b": b"late"}
    assert store.bucket.deliver() == 0


def test_throttled_denied_and_cut_short_requests() -> None:
    with pytest.raises(StoreThrottledError):
        once(ObjectFault.THROTTLED).create("a", b"", deadline_ns=DEADLINE_NS)
    with pytest.raises(StorePermissionError):
        once(ObjectFault.DENIED).list("", deadline_ns=DEADLINE_NS)
    store = once(ObjectFault.CUT_SHORT)
    store.bucket.write("a", b"1234")
    assert store.read("a", deadline_ns=DEADLINE_NS) == b"12"
    assert store.read("a", deadline_ns=DEADLINE_NS) == b"1234"


def test_a_bucket_that_ignores_conditions_overwrites() -> None:
    store = SimObjectStore(SimBucket(atomic=False))
    assert [store.create("a", data, deadline_ns=DEADLINE_NS) for data in (b"1", b"2")] == [Created.CREATED] * 2
    assert [data for _, data in store.bucket.history] == [b"1", b"2"]


def test_random_faults_repeat_with_their_seed() -> None:
    requests = [SimRequest("read", "a", number) for number in range(200)]

    def drawn(seed: int) -> list[ObjectFault]:
        faults = random_faults(TierBed(seed=seed).env().chance, 0.3, [ObjectFault.NOT_APPLIED, ObjectFault.REPLY_LOST])
        return [faults(request) for request in requests]

    assert drawn(1) == drawn(1) != drawn(2)
    assert set(drawn(1)) == {ObjectFault.NONE, ObjectFault.NOT_APPLIED, ObjectFault.REPLY_LOST}


def test_others_work_before_a_request_is_applied() -> None:
    bucket = SimBucket()
    store = SimObjectStore(bucket, before=lambda _: bucket.write("a", b"theirs"))
    assert store.create("a", b"ours", deadline_ns=DEADLINE_NS) is Created.EXISTS


def test_a_closed_store_refuses() -> None:
    store = SimObjectStore()
    store.close()
    with pytest.raises(ClosedError):
        store.list("", deadline_ns=DEADLINE_NS)
