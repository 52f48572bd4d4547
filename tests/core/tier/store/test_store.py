from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest

from sim_objects import ObjectFault, SimBucket, SimObjectStore, SimRequest, scripted_faults
from stratalog.config.engine_settings import EngineConfig
from stratalog.env.clock import ManualClock
from stratalog.env.deadlines import DeadlineCalls
from stratalog.errors import (
    CorruptObjectError,
    ObjectNotFoundError,
    PluginError,
    StoreError,
    StorePermissionError,
    StoreThrottledError,
    StoreTimeoutError,
)
from stratalog.model.batches import Buffer
from stratalog.registry.guard import Guard
from stratalog.spi import BytesSource
from stratalog.spi.objects import ByteSource, Created, ObjectInfo
from stratalog.tier.store.requests import RetryBudget
from stratalog.tier.store.store import DELETE_LIMIT, LIST_LIMIT, UPLOAD_STEP_BYTES, TierStore
from tier_bed import TierBed


def over(
    store: SimObjectStore, *, retries: int = 5, deadline_ms: int = 60_000, clock: ManualClock | None = None
) -> TierStore:
    return TierStore(
        store,
        TierBed(clock=clock or ManualClock()).env(),
        EngineConfig(store_deadline_ms=deadline_ms, store_retries=retries),
    )


def failing(*faults: ObjectFault) -> SimObjectStore:
    return SimObjectStore(faults=scripted_faults(dict(enumerate(faults))))


def test_a_call_is_repeated_while_that_helps() -> None:
    store = failing(ObjectFault.NOT_APPLIED, ObjectFault.REPLY_LOST, ObjectFault.THROTTLED)
    guarded = over(store)
    assert guarded.put("a", BytesSource(b"bytes")).size_bytes == 5
    assert guarded.read("a") == b"bytes"
    puts = guarded.metrics().puts
    assert (puts.requests, puts.failures, puts.retries, puts.moved_bytes) == (4, 3, 3, 5)


def test_tries_are_bounded() -> None:
    store = failing(*[ObjectFault.THROTTLED] * 10)
    with pytest.raises(StoreThrottledError):
        over(store, retries=2).list("")
    assert store.counts["list"] == 3


def test_permanent_errors_are_not_retried() -> None:
    store = failing(ObjectFault.DENIED)
    with pytest.raises(StorePermissionError):
        over(store).read("a")
    with pytest.raises(ObjectNotFoundError):
        over(store).read("a")
    assert store.counts["read"] == 2


def test_pauses_grow_and_stay_inside_the_deadline() -> None:
    clock = ManualClock()
    began = clock.monotonic_ns()
    with pytest.raises(StoreThrottledError):
        over(failing(*[ObjectFault.THROTTLED] * 100), retries=100, deadline_ms=2_000, clock=clock).list("")
    assert 1_000 <= (clock.monotonic_ns() - began) // 1_000_000 < 2_000


def test_a_store_gets_no_request_before_the_time_that_it_set() -> None:
    def busy(request: SimRequest) -> ObjectFault:
        error = StoreThrottledError("slow down", request.key)
        error.retry_after_ms = 7_000
        raise error

    for retries, deadline_ms, pauses in ((3, 60_000, 3), (100, 10_000, 1)):
        clock = ManualClock()
        before_ns = clock.monotonic_ns()
        with pytest.raises(StoreThrottledError):
            over(SimObjectStore(faults=busy), retries=retries, deadline_ms=deadline_ms, clock=clock).list("")
        waited_ns = clock.monotonic_ns() - before_ns
        assert pauses * 7_000_000_000 <= waited_ns < min(deadline_ms * 1_000_000, (pauses + 1) * 7_000_000_000)


class DeadlineRecordingStore(SimObjectStore):
    """Object store that records the remaining time until the deadline of each request, in milliseconds."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(SimBucket(clock), faults=scripted_faults({0: ObjectFault.THROTTLED}))
        self.clock = clock
        self.left_ms: list[int] = []

    def list(self, prefix: str, *, after: str = "", limit: int = 1000, deadline_ns: int) -> Sequence[ObjectInfo]:
        self.left_ms.append((deadline_ns - self.clock.monotonic_ns()) // 1_000_000)
        return super().list(prefix, after=after, limit=limit, deadline_ns=deadline_ns)

    def put_file(self, key: str, source: ByteSource, *, deadline_ns: int) -> ObjectInfo:
        self.left_ms.append((deadline_ns - self.clock.monotonic_ns()) // 1_000_000)
        for _ in source.chunks(1 << 20):
            pass
        return ObjectInfo(key, source.size_bytes)


def test_one_silent_try_leaves_time_for_the_last_one() -> None:
    clock = ManualClock()
    store = DeadlineRecordingStore(clock)
    over(store, retries=1, deadline_ms=10_000, clock=clock).list("")
    first, last = store.left_ms
    assert first == 5_000
    assert 9_900 <= last < 10_000


class Large(BytesSource):
    size_bytes = 3 * UPLOAD_STEP_BYTES

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        step = bytes(chunk_bytes)
        for start in range(0, self.size_bytes, chunk_bytes):
            yield step[: self.size_bytes - start]


def test_a_large_upload_gets_more_time() -> None:
    clock = ManualClock()
    store = DeadlineRecordingStore(clock)
    over(store, deadline_ms=10_000, clock=clock).put("a", Large(b""))
    assert store.left_ms == [40_000]


def test_the_budget_stops_repetitions_for_all_calls_and_fills_up_again() -> None:
    store = SimObjectStore(faults=lambda _: ObjectFault.THROTTLED)
    guarded = over(store, retries=5)
    for _ in range(40):
        with pytest.raises(StoreThrottledError):
            guarded.list("")
    assert store.counts["list"] == 40 + 32
    budget = RetryBudget(2)
    assert [budget.take() for _ in range(3)] == [True, True, False]
    for _ in range(11):
        budget.refill()
    assert [budget.take() for _ in range(2)] == [True, False]


def test_a_short_read_is_tried_again_and_then_corrupt() -> None:
    store = failing(ObjectFault.CUT_SHORT, ObjectFault.NONE)
    store.bucket.write("a", b"0123456789")
    guarded = over(store)
    assert guarded.read_exactly("a", 2, 6) == b"2345"
    assert store.counts["read"] == 2
    with pytest.raises(CorruptObjectError) as caught:
        guarded.read_exactly("a", 6, 20)
    assert (caught.value.file, caught.value.position) == ("a", 6)
    assert guarded.read("a", 6, 20) == b"6789"


def test_an_empty_read_sends_no_request() -> None:
    store = SimObjectStore()
    assert over(store).read_exactly("a", 5, 5) == b""
    assert store.counts["read"] == 0


class Shrinking(SimObjectStore):
    def put_file(self, key: str, source: ByteSource, *, deadline_ns: int) -> ObjectInfo:
        info = super().put_file(key, source, deadline_ns=deadline_ns)
        return replace(info, size_bytes=info.size_bytes - 1)


def test_an_upload_of_another_size_is_refused() -> None:
    with pytest.raises(CorruptObjectError, match="5 bytes were uploaded"):
        over(Shrinking()).put("a", BytesSource(b"bytes"))


def test_a_lost_reply_to_a_create_is_not_repeated_but_a_refusal_is() -> None:
    store = failing(ObjectFault.REPLY_LOST, ObjectFault.THROTTLED, ObjectFault.NONE)
    guarded = over(store)
    assert guarded.create("a", b"1") is Created.UNKNOWN
    assert store.counts["create"] == 1
    assert guarded.create("b", b"2") is Created.CREATED
    assert store.counts["create"] == 3


def test_a_listing_requests_pages_only_as_far_as_it_is_read() -> None:
    store = SimObjectStore()
    for number in range(LIST_LIMIT + 5):
        store.bucket.write(f"a/{number:05d}", b"")
    guarded = over(store)
    assert [info.key for info in guarded.list_all("a/")] == store.bucket.keys("a/")
    assert store.counts["list"] == 2
    next(guarded.list_all("a/"))
    assert store.counts["list"] == 3
    assert next(guarded.list_all("a/", after=f"a/{LIST_LIMIT:05d}")).key == f"a/{LIST_LIMIT + 1:05d}"


class RepeatedPageStore(SimObjectStore):
    """Object store that returns the first page for each list request."""

    def list(self, prefix: str, *, after: str = "", limit: int = 1000, deadline_ns: int) -> Sequence[ObjectInfo]:
        del after
        return super().list(prefix, limit=limit, deadline_ns=deadline_ns)


def test_a_listing_that_gives_the_same_page_once_more_ends_with_an_error() -> None:
    store = RepeatedPageStore()
    for number in range(LIST_LIMIT):
        store.bucket.write(f"a/{number:05d}", b"")
    with pytest.raises(StoreError, match="for a request of keys above 'a/00999'"):
        list(over(store).list_all("a/"))


def test_many_objects_are_deleted_in_pages_and_missing_objects_are_ignored() -> None:
    store = SimObjectStore()
    keys = [f"{number:05d}" for number in range(DELETE_LIMIT + 1)]
    for key in keys[::2]:
        store.bucket.write(key, b"")
    assert over(store).delete(keys) == {}
    assert (store.bucket.keys(), store.counts["delete"]) == ([], 2)


class PartlyFailingStore(SimObjectStore):
    """Object store that cannot delete one key, and fails to delete another one only at the first attempt."""

    def delete(self, keys: Sequence[str], *, deadline_ns: int) -> Mapping[str, StoreError]:
        super().delete([key for key in keys if key != "locked"], deadline_ns=deadline_ns)
        errors: dict[str, StoreError] = {}
        if "locked" in keys:
            errors["locked"] = StorePermissionError("no", "locked")
        if self.counts["delete"] == 1 and "slow" in keys:
            errors["slow"] = StoreTimeoutError("late", "slow")
        return errors


def test_only_keys_that_may_be_retried_are_deleted_again() -> None:
    store = PartlyFailingStore()
    failed_keys = over(store).delete(["fine", "locked", "slow"])
    assert list(failed_keys) == ["locked"]
    assert store.counts["delete"] == 2


def test_keys_that_keep_failing_are_named() -> None:
    store = SimObjectStore(faults=lambda _: ObjectFault.NOT_APPLIED)
    assert set(over(store, retries=1).delete(["a", "b"])) == {"a", "b"}


def test_metrics_show_the_difference_between_two_samples() -> None:
    store = SimObjectStore()
    guarded = over(store)
    guarded.put("a", BytesSource(b"12345"))
    before = guarded.metrics()
    guarded.read("a")
    between = guarded.metrics() - before
    assert (between.requests, between.reads.moved_bytes, between.puts.requests) == (1, 5, 0)


def test_closing_closes_the_store() -> None:
    store = SimObjectStore()
    guarded = over(store)
    guarded.close()
    guarded.close()
    assert store.closed


class BlockingStore(SimObjectStore):
    """Object store that ignores deadlines and blocks until the gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def create(self, key: str, data: Buffer, *, deadline_ns: int) -> Created:
        self.gate.wait()
        return super().create(key, data, deadline_ns=deadline_ns)

    def read(self, key: str, start: int | None = None, end: int | None = None, *, deadline_ns: int) -> bytes:
        self.gate.wait()
        return super().read(key, start, end, deadline_ns=deadline_ns)


def test_a_store_that_ignores_its_deadline_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratalog.tier.store.requests._GRACE_MS", 0)
    store = BlockingStore()
    guard = Guard("object store 'sleeping' version 1", "plugin odd", calls=DeadlineCalls())
    guarded = TierStore(store, TierBed().env(), EngineConfig(store_deadline_ms=1, store_retries=0), guard=guard)
    try:
        with pytest.raises(StoreTimeoutError, match=r"object store 'sleeping' version 1 .*: read did not return in"):
            guarded.read("a")
        assert guarded.create("a", b"data") is Created.UNKNOWN, "it may be created later"
    finally:
        store.gate.set()


class ConfusedStore(SimObjectStore):
    """Object store that raises an error of Python."""

    def list(self, prefix: str, *, after: str = "", limit: int = 1000, deadline_ns: int) -> Sequence[ObjectInfo]:
        raise LookupError(prefix, after, limit, deadline_ns)


@pytest.mark.parametrize(("is_bundled", "error_type"), [(True, LookupError), (False, PluginError)])
def test_only_a_store_of_another_plugin_is_guarded(*, is_bundled: bool, error_type: type[Exception]) -> None:
    guard = Guard("object store 'confused' version 1", "plugin odd", is_bundled=is_bundled)
    guarded = TierStore(ConfusedStore(), TierBed().env(), EngineConfig(), guard=guard)
    with pytest.raises(error_type):
        guarded.list("a")
