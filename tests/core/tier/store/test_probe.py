from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from sim_objects import ObjectFault, SimBucket, SimObjectStore, scripted_faults
from stratalog.errors import BucketNotFoundError, StoreError, StorePermissionError, StoreTimeoutError
from stratalog.model.batches import Buffer
from stratalog.spi.objects import Capability, Created
from stratalog.tier.store.probe import ProbeResult, probe
from stratalog.tier.store.store import TierStore
from tier_bed import TierBed


def tried(store: SimObjectStore) -> ProbeResult:
    bed = TierBed()
    env = bed.env()
    return probe(TierStore(store, env, bed.config), env)


def test_a_store_that_refuses_the_second_create_may_be_shared() -> None:
    store = SimObjectStore()
    assert tried(store) == ProbeResult(shared=True)
    assert store.counts["create"] == 2
    assert store.bucket.keys() == []


def test_a_store_without_its_promised_guarantees_is_detected() -> None:
    store = SimObjectStore(SimBucket(atomic=False))
    result = tried(store)
    assert not result.shared
    assert "creates an object that exists" in result.reason
    assert store.bucket.keys() == []


class Overwriting(SimObjectStore):
    def create(self, key: str, data: Buffer, *, deadline_ns: int) -> Created:
        created = super().create(key, data, deadline_ns=deadline_ns)
        self.bucket.write(key, bytes(data))
        return created


def test_a_store_that_refuses_and_overwrites_is_found_out() -> None:
    assert "overwrites" in tried(Overwriting()).reason


def test_a_store_that_promises_nothing_has_one_writer() -> None:
    store = SimObjectStore(capabilities=Capability.NONE)
    result = tried(store)
    assert not result.shared
    assert "does not declare" in result.reason
    assert (store.counts["create"], store.bucket.keys()) == (1, [])


@pytest.mark.parametrize("fault", [ObjectFault.NOT_APPLIED, ObjectFault.REPLY_LOST, ObjectFault.THROTTLED])
@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_the_probe_accepts_a_correct_store_that_loses_replies(fault: ObjectFault, number: int) -> None:
    store = SimObjectStore(faults=scripted_faults({number: fault}))
    assert tried(store).shared
    assert store.bucket.keys() == []


def test_a_silent_store_is_an_error() -> None:
    with pytest.raises(StoreTimeoutError):
        tried(
            SimObjectStore(
                faults=lambda request: ObjectFault.REPLY_LOST if request.kind == "create" else ObjectFault.NONE
            )
        )


def test_missing_permissions_come_out_as_such() -> None:
    with pytest.raises(StorePermissionError):
        tried(SimObjectStore(faults=lambda _: ObjectFault.DENIED))


class Undeletable(SimObjectStore):
    def delete(self, keys: Sequence[str], *, deadline_ns: int) -> Mapping[str, StoreError]:
        super().delete([], deadline_ns=deadline_ns)
        return {key: StorePermissionError("may not delete", key) for key in keys}


def test_a_writer_that_may_not_delete_learns_it_at_once() -> None:
    with pytest.raises(StorePermissionError, match="may not delete"):
        tried(Undeletable())


def test_a_missing_bucket_comes_out_as_such() -> None:
    with pytest.raises(BucketNotFoundError):
        tried(SimObjectStore(SimBucket(exists=False)))


def test_a_probe_object_that_cannot_be_deleted_now_is_left_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    store = SimObjectStore(
        faults=lambda request: ObjectFault.NOT_APPLIED if request.kind == "delete" else ObjectFault.NONE
    )
    assert tried(store).shared
    assert "could not be deleted" in caplog.text
