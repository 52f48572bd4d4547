"""Every fault of a network or a store, at every operation: each ends right, and inside its deadline."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pytest

from s3_faults import FAULTS, FOR_GOOD
from stratalog.config.engine import EngineConfig
from stratalog.spi import (
    BytesSource,
    Created,
    Env,
    ObjectStore,
    StorageError,
    StoredSegment,
    StoreError,
    StoreTimeoutError,
    TopicId,
)
from stratalog.testing.contracts.tier_layout import DATA, FILES, MemoryObjects, a_segment, joined
from stratalog.testing.faultproxy import Fault, FaultProxy, Misdeed
from stratalog.testing.tiers import LOG, TierBed, made_segment
from stratalog.tier.layers import TierStore
from stratalog.tier.probe import probe
from stratalog.tier.tier import Tier
from stratalog_formats.layouts.single import SingleLayout
from stratalog_s3.settings import MIN_PART_BYTES

DEADLINE_MS: Final = 400
PATIENT_MS: Final = 3_000  # where the second try must have time enough on a busy machine
GRACE_MS: Final = 3_000  # of a busy machine
LARGE: Final = bytes(range(256)) * (MIN_PART_BYTES // 256) + b"end"


@dataclass(frozen=True, slots=True)
class Bed:
    """A store behind the proxy, and one that goes round it."""

    proxy: FaultProxy
    behind: ObjectStore
    round: TierStore
    prefix: str

    def guarded(self) -> TierStore:
        """With a fresh budget; never closed, as the store below is shared."""
        return TierStore(self.behind, Env(), EngineConfig(store_deadline_ms=DEADLINE_MS, store_retries=3))

    def key(self, name: str) -> str:
        return f"{self.prefix}/{name}"


@pytest.fixture
def bed(proxy: FaultProxy, stores: tuple[ObjectStore, TierStore], request: pytest.FixtureRequest) -> Iterator[Bed]:
    name = "".join(char if char.isalnum() else "-" for char in request.node.name)
    yield Bed(proxy, *stores, prefix=name)
    proxy.heal()


# --- operations: each returns nothing if it went well, and checks what it returned --------------------------------


def put(bed: Bed, data: bytes) -> None:
    key = bed.key("put")
    with contextlib.suppress(StoreError):
        assert bed.guarded().put(key, BytesSource(data)).size_bytes == len(data)
        assert bed.round.read(key) == data, "what was said to be stored is stored"
        return
    found = [info.size_bytes for info in bed.round.list(key)]
    assert found in ([], [len(data)]), "whole, or not at all"


def create(bed: Bed) -> None:
    key = bed.key("created")
    try:
        created = bed.guarded().create(key, b"ours")
    except StoreError:
        assert bed.round.list(key) == [], "an error means that nothing was written"
        return
    there = [info.key for info in bed.round.list(key)]
    if created is Created.CREATED:
        assert bed.round.read(key) == b"ours"
    elif created is Created.EXISTS:
        assert there or any(fault.status == 412 for fault in bed.proxy._faults), "or the store said so itself"


def create_taken(bed: Bed) -> None:
    key = bed.key("taken")
    bed.round.create(key, b"theirs")
    with contextlib.suppress(StoreError):
        assert bed.guarded().create(key, b"ours") in {Created.EXISTS, Created.UNKNOWN}
    assert bed.round.read(key) == b"theirs", "whatever the answer was"


def read_segment(bed: Bed) -> None:
    """As the tier reads: through a layout, which checks the hash of a whole log."""
    layout, objects = SingleLayout(1 << 20), MemoryObjects()
    stored: StoredSegment = layout.write(a_segment(), objects, None)
    for key, data in objects.objects.items():
        bed.round.put(key, BytesSource(data))
    try:
        with contextlib.suppress(StorageError):
            assert joined(layout.read(stored, 0, len(DATA), bed.guarded().read_exactly)) == DATA
            for kind, data in FILES.items():
                assert layout.read_index(stored, kind, bed.guarded().read_exactly) == data
    finally:
        bed.round.delete(list(objects.objects))


def list_keys(bed: Bed) -> None:
    keys = [bed.key(f"listed/{number}") for number in range(3)]
    prefix = bed.key("listed/")
    for key in keys:
        bed.round.create(key, b"x")
    with contextlib.suppress(StoreError):
        found = [info.key for info in bed.guarded().list(prefix)]
        assert found == keys or any(fault.do is Misdeed.FLIP for fault in bed.proxy._faults)


def delete_keys(bed: Bed) -> None:
    keys = [bed.key(f"deleted/{number}") for number in range(3)]
    for key in keys:
        bed.round.create(key, b"x")
    failed = bed.guarded().delete(keys)
    left = {info.key for info in bed.round.list(bed.key("deleted/"))}
    assert left <= set(failed), "what is there still was said to be"


OPERATIONS: Final[dict[str, tuple[str, Callable[[Bed], None]]]] = {
    "put": ("PutObject", lambda bed: put(bed, DATA)),
    "put in parts: create": ("CreateMultipartUpload", lambda bed: put(bed, LARGE)),
    "put in parts: part": ("UploadPart", lambda bed: put(bed, LARGE)),
    "put in parts: complete": ("CompleteMultipartUpload", lambda bed: put(bed, LARGE)),
    "create": ("PutObject", create),
    "create a taken key": ("PutObject", create_taken),
    "read": ("GetObject", read_segment),
    "list": ("ListObjectsV2", list_keys),
    "delete": ("DeleteObjects", delete_keys),
}


def deadline_ms(name: str) -> int:
    """Of the operation: a large upload has one for each 64 MiB begun, a segment is read in six calls."""
    return DEADLINE_MS * (7 if name == "read" else 1)


def run(bed: Bed, name: str, fault: Fault, times: int) -> None:
    operation, call = OPERATIONS[name]
    planned = Fault(fault.do, operation, times=times, status=fault.status, code=fault.code, headers=fault.headers)
    bed.proxy.plan(planned)
    clock = Env().clock
    before_ns = clock.monotonic_ns()
    call(bed)
    assert (clock.monotonic_ns() - before_ns) // 1_000_000 < deadline_ms(name) + GRACE_MS
    assert planned.hits, "the fault was met"


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_ends_right(bed: Bed, fault: str, name: str) -> None:
    run(bed, name, FAULTS[fault], times=1)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("fault", sorted(FOR_GOOD))
def test_a_fault_that_does_not_end_is_left_at_the_deadline(bed: Bed, fault: str, name: str) -> None:
    run(bed, name, FAULTS[fault], times=1_000)


@pytest.mark.parametrize("fault", ["503", "500", "409", "429", "reset before", "reset after", "cut", "garbage", "silent", "drip"])  # fmt: skip
@pytest.mark.parametrize("name", ["put", "read", "list", "delete"])
def test_one_fault_is_overcome(bed: Bed, fault: str, name: str) -> None:
    """Not only ended right: the second try does it."""
    operation, _ = OPERATIONS[name]
    bed.round.put(bed.key("there"), BytesSource(DATA))
    store = TierStore(bed.behind, Env(), EngineConfig(store_deadline_ms=PATIENT_MS, store_retries=3))
    shape = FAULTS[fault]
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: store.put(bed.key("put"), BytesSource(DATA)),
        "read": lambda: store.read_exactly(bed.key("there"), 0, 100),
        "list": lambda: store.list(bed.key("")),
        "delete": lambda: store.delete([bed.key("there")]),
    }
    if name == "put" and fault in {"silent", "drip"}:
        pytest.skip("an upload has the whole deadline for its one try: it may be large")
    bed.proxy.plan(Fault(shape.do, operation, status=shape.status, code=shape.code))
    answer = calls[name]()
    if name == "read":
        assert answer == DATA[:100]
    if name == "list":
        assert isinstance(answer, list)
        assert len(answer) == 1
    if name == "delete":
        assert answer == {}


def test_a_drip_ends_at_the_deadline_and_not_at_its_own_end(bed: Bed) -> None:
    """Each byte that comes resets a library's time-out; the reply would take half an hour."""
    bed.round.put(bed.key("slow"), BytesSource(DATA))
    bed.proxy.plan(Fault(Misdeed.DRIP, "GetObject", times=1_000))
    clock = Env().clock
    before_ns = clock.monotonic_ns()
    with pytest.raises(StoreTimeoutError):
        bed.guarded().read_exactly(bed.key("slow"), 0, len(DATA))
    assert (clock.monotonic_ns() - before_ns) // 1_000_000 < DEADLINE_MS + GRACE_MS


# --- preconditions -----------------------------------------------------------------------------------------------


def test_a_server_that_ignores_preconditions_is_not_shared(bed: Bed) -> None:
    bed.proxy.plan(Fault(Misdeed.UNCONDITIONAL, "PutObject", times=1_000))
    probed = probe(bed.guarded(), Env())
    assert not probed.shared
    assert "though it declares not to" in probed.reason


def test_a_server_that_keeps_them_is(bed: Bed) -> None:
    assert probe(bed.guarded(), Env()).shared


# --- a whole tier ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["PutObject", "GetObject", "ListObjectsV2"])
@pytest.mark.parametrize("fault", FAULTS)
def test_an_offload_is_committed_or_can_be_done_again(bed: Bed, fault: str, operation: str) -> None:
    """What is said to be in the tier is read from it; what is not is offloaded again, and nothing is there twice."""
    tier_bed, topic_id, shape = TierBed(layout=SingleLayout(1 << 20)), TopicId.from_uuid(uuid.uuid4()), FAULTS[fault]
    config = EngineConfig(store_deadline_ms=PATIENT_MS, store_retries=3)
    tier = Tier.open(bed.behind, tier_bed.layouts(), env=Env(), limits=tier_bed.limits, config=config)
    log = tier.log(LOG, topic_id)  # the tier is never closed, as the store is shared

    def offload(start: int, end: int) -> None:
        segment = made_segment(start, end, data=DATA, files=FILES, topic_id=topic_id)
        log.offload([segment], layout="pair", leader_epoch=0, log_start=0, high_watermark=end)

    offload(0, 10)
    bed.proxy.plan(Fault(shape.do, operation, status=shape.status, code=shape.code))
    with contextlib.suppress(StorageError):
        offload(10, 20)
    bed.proxy.heal()
    offload(10, 20)
    assert [(segment.base_offset, segment.end_offset) for segment in log.view().segments] == [(0, 10), (10, 20)]
    for segment in log.view().segments:
        with segment.slice(0, len(DATA)) as part:
            assert bytes(part.data) == DATA
