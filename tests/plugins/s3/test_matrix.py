"""Every fault of a network or a store, at every operation: each operation ends correctly within its deadline."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest

import stratalog_s3
from s3_faults import FAULTS, FOR_GOOD
from s3_uploads import left_upload
from stratalog import TopicId
from stratalog.config.engine_settings import EngineConfig
from stratalog.errors import StorageError, StoreError, StoreTimeoutError
from stratalog.spi import BytesSource, Created, Env, ObjectStore, StoredSegment
from stratalog.testing.contracts.made_segments import LOG, MemoryObjects, made_segment
from stratalog.testing.contracts.tier_layout import DATA, FILES, a_segment, joined
from stratalog.testing.faultproxy import FaultProxy, Misdeed, ProxyFault
from stratalog.testing.s3 import LocalS3
from stratalog.tier.store.probe import probe
from stratalog.tier.store.store import TierStore
from stratalog.tier.tier import Tier
from stratalog_formats.layouts.single import SingleLayout
from stratalog_s3.location import parse_location
from stratalog_s3.multipart import _ABORT_NS
from stratalog_s3.s3 import _request_name
from stratalog_s3.secret import SecretOptions
from stratalog_s3.settings import MIN_PART_BYTES
from stratalog_s3.store import FsspecStore
from tier_bed import TierBed

DEADLINE_MS: Final = 400
LONGER: Final = 4  # factor of the deadline for each attempt, for a machine too busy to reach the fault in time
TRIES: Final = 3
ABORT_MS: Final = _ABORT_NS // 1_000_000
PATIENT_MS: Final = 3_000  # deadline that allows a second attempt on a busy machine
GRACE_MS: Final = 3_000  # additional time for a busy machine
OF_FILE_SYSTEMS: Final = {"pipe_file", "cat_file", "put_file", "rm_file"}  # methods of fsspec
LARGE: Final = bytes(range(256)) * (MIN_PART_BYTES // 256) + b"end"


@dataclass(frozen=True, slots=True)
class Bed:
    """Stores of a test, and the prefix of its keys.

    Attributes:
        proxy: the proxy that causes faults.
        behind: store behind the proxy.
        server: the S3 server.
        round: store without the proxy.
        looking: generic store behind the proxy, which checks for a key before it creates it.
        prefix: prefix of the keys of this test.
        deadline_ms: deadline of an operation.
    """

    proxy: FaultProxy
    behind: ObjectStore
    server: LocalS3
    round: TierStore
    looking: ObjectStore
    prefix: str
    deadline_ms: int = DEADLINE_MS

    def guarded(self, store: ObjectStore | None = None) -> TierStore:
        """Return a tier store with a new retry budget. It is never closed, because the store below it is shared."""
        config = EngineConfig(store_deadline_ms=self.deadline_ms, store_retries=3)
        return TierStore(store or self.behind, Env(), config)

    def left_upload(self, key: str) -> str:
        return left_upload(self.server.uri("matrix"), self.server.options, key)

    def key(self, name: str) -> str:
        return f"{self.prefix}/{name}"


@pytest.fixture(scope="module")
def looking(proxy: FaultProxy, local_s3: LocalS3) -> Iterator[ObjectStore]:
    location = parse_location(local_s3.uri("matrix"))
    options = SecretOptions({**local_s3.options, "endpoint_url": proxy.endpoint_url})
    with FsspecStore(location, options, Env().clock, read_only=False) as store:
        # Connects before a deadline is measured.
        store.list("", deadline_ns=Env().clock.monotonic_ns() + 30_000_000_000)
        yield store


@pytest.fixture
def bed(
    proxy: FaultProxy,
    stores: tuple[ObjectStore, ObjectStore],
    looking: ObjectStore,
    local_s3: LocalS3,
    request: pytest.FixtureRequest,
) -> Iterator[Bed]:
    name = "".join(char if char.isalnum() else "-" for char in request.node.name)
    proxied_store, direct_store = stores
    yield Bed(proxy, proxied_store, local_s3, TierStore(direct_store, Env(), EngineConfig()), looking, prefix=name)
    proxy.heal()


# --- operations: each checks its own result --------------------------------


def put(bed: Bed, data: bytes) -> None:
    key = bed.key("put")
    with contextlib.suppress(StoreError):
        assert bed.guarded().put(key, BytesSource(data)).size_bytes == len(data)
        assert bed.round.read(key) == data, "what was said to be stored is stored"
        return
    stored_sizes = [info.size_bytes for info in bed.round.list(key)]
    assert stored_sizes in ([], [len(data)]), "whole, or not at all"


def create(bed: Bed) -> None:
    key = bed.key("created")
    try:
        created = bed.guarded().create(key, b"ours")
    except StoreError:
        assert bed.round.list(key) == [], "an error means that nothing was written"
        return
    stored_keys = [info.key for info in bed.round.list(key)]
    if created is Created.CREATED:
        assert bed.round.read(key) == b"ours"
    elif created is Created.EXISTS:
        assert stored_keys or any(fault.status == 412 for fault in bed.proxy.faults), "or the store said so itself"


def create_taken(bed: Bed) -> None:
    key = bed.key("taken")
    bed.round.create(key, b"theirs")
    with contextlib.suppress(StoreError):
        assert bed.guarded().create(key, b"ours") in {Created.EXISTS, Created.UNKNOWN}
    assert bed.round.read(key) == b"theirs", "whatever the answer was"


def read_segment(bed: Bed) -> None:
    """Read a segment through a layout, as the tier does, which checks the hash of a whole log."""
    layout, objects = SingleLayout(1 << 20), MemoryObjects()
    entry: StoredSegment = layout.write(a_segment(), objects, None)
    for key, data in objects.objects.items():
        bed.round.put(key, BytesSource(data))
    try:
        with contextlib.suppress(StorageError):
            assert joined(layout.read(entry, 0, len(DATA), bed.guarded().read_exactly)) == DATA
            for kind, data in FILES.items():
                assert layout.read_index(entry, kind, bed.guarded().read_exactly) == data
    finally:
        bed.round.delete(list(objects.objects))


def list_keys(bed: Bed) -> None:
    keys = [bed.key(f"listed/{number}") for number in range(3)]
    prefix = bed.key("listed/")
    for key in keys:
        bed.round.create(key, b"x")
    with contextlib.suppress(StoreError):
        listed_keys = [info.key for info in bed.guarded().list(prefix)]
        assert listed_keys == keys or any(fault.do is Misdeed.FLIP for fault in bed.proxy.faults)


def delete_keys(bed: Bed) -> None:
    keys = [bed.key(f"deleted/{number}") for number in range(3)]
    for key in keys:
        bed.round.create(key, b"x")
    failed_keys = bed.guarded().delete(keys)
    remaining_keys = {info.key for info in bed.round.list(bed.key("deleted/"))}
    assert remaining_keys <= set(failed_keys), "what is there still was said to be"


def list_unfinished(bed: Bed) -> None:
    uploads = {bed.left_upload(bed.key(f"unfinished/{number}")) for number in range(2)}
    try:
        with contextlib.suppress(StoreError):
            upload_ids = {upload.upload_id for upload in bed.guarded().unfinished(bed.key("unfinished/"))}
            assert upload_ids == uploads or any(fault.do is Misdeed.FLIP for fault in bed.proxy.faults)
    finally:
        abort_all(bed, "unfinished/")


def abort_upload(bed: Bed) -> None:
    bed.left_upload(bed.key("aborted/1"))
    (upload,) = bed.round.unfinished(bed.key("aborted/"))
    try:
        with contextlib.suppress(StoreError):
            bed.guarded().abort(upload)
            assert bed.round.unfinished(bed.key("aborted/")) == [], "what was said to be aborted is"
    finally:
        abort_all(bed, "aborted/")


def abort_all(bed: Bed, prefix: str) -> None:
    for upload in bed.round.unfinished(bed.key(prefix)):
        bed.round.abort(upload)


def look_and_create(bed: Bed) -> None:
    """Create an object with a HEAD and a PUT, as for protocols without a conditional create."""
    key = bed.key("looked for")
    with contextlib.suppress(StoreError):
        if bed.guarded(bed.looking).create(key, b"ours") is Created.CREATED:
            assert bed.round.read(key) == b"ours"
            return
    assert [bed.round.read(info.key) for info in bed.round.list(key)] in ([], [b"ours"])


def look_and_create_taken(bed: Bed) -> None:
    key = bed.key("found")
    bed.round.create(key, b"theirs")
    with contextlib.suppress(StoreError):
        assert bed.guarded(bed.looking).create(key, b"ours") is Created.EXISTS
    assert bed.round.read(key) == b"theirs", "whatever the HEAD said"


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
    "uploads without an end": ("ListMultipartUploads", list_unfinished),
    "abort": ("AbortMultipartUpload", abort_upload),
    "look and create": ("HeadObject", look_and_create),
    "look and create a taken key": ("HeadObject", look_and_create_taken),
}


IN_PARTS: Final = {name for name in OPERATIONS if name.startswith("put in parts")}


def test_every_request_that_a_store_sends_has_a_row() -> None:
    """Operations are named as in botocore. The generic store's check for a key is a HEAD."""
    source = "".join(path.read_text("utf-8") for path in Path(stratalog_s3.__file__).parent.glob("*.py"))
    request_names = set(re.findall(r"(?:ask|begin|_call)\(\s*\"([a-z]+(?:_[a-z0-9]+)+)\"", source)) - OF_FILE_SYSTEMS
    assert {_request_name(method) for method in request_names} | {"HeadObject"} == {
        operation for operation, _ in OPERATIONS.values()
    }


def run(bed: Bed, name: str, fault: ProxyFault, times: int) -> None:
    """Run an operation with a fault. If the deadline passes before the fault, repeat it with a longer deadline.

    Each attempt uses new keys.
    """
    operation, call = OPERATIONS[name]
    planned_fault = ProxyFault(
        fault.do, operation, times=times, status=fault.status, code=fault.code, headers=fault.headers
    )
    bed.proxy.plan(planned_fault)
    for attempt in range(TRIES):
        timed(replace(bed, prefix=f"{bed.prefix}/{attempt}", deadline_ms=DEADLINE_MS * LONGER**attempt), name, call)
        if planned_fault.hits:
            return
    pytest.fail("the fault was not met")


def timed(bed: Bed, name: str, call: Callable[[Bed], None]) -> None:
    """Run an operation, and check that it ends within its deadline.

    A segment is read in several calls. A failed multipart upload may also use the time of its abort.
    """
    clock = Env().clock
    before_ns = clock.monotonic_ns()
    call(bed)
    bound_ms = bed.deadline_ms * (7 if name == "read" else 1) + (ABORT_MS if name in IN_PARTS else 0)
    assert (clock.monotonic_ns() - before_ns) // 1_000_000 < bound_ms + GRACE_MS


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.long
def test_an_operation_ends_correctly_after_one_fault(bed: Bed, fault: str, name: str) -> None:
    run(bed, name, FAULTS[fault], times=1)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("fault", sorted(FOR_GOOD))
@pytest.mark.long
def test_a_fault_that_does_not_end_is_left_at_the_deadline(bed: Bed, fault: str, name: str) -> None:
    run(bed, name, FAULTS[fault], times=1_000)


# Fmt: skip.
@pytest.mark.parametrize(
    "fault", ["503", "500", "409", "429", "reset before", "reset after", "cut", "garbage", "silent", "drip"]
)
@pytest.mark.parametrize("name", ["put", "read", "list", "delete"])
@pytest.mark.long
def test_one_fault_is_overcome(bed: Bed, fault: str, name: str) -> None:
    """The second attempt of the operation succeeds."""
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
    bed.proxy.plan(ProxyFault(shape.do, operation, status=shape.status, code=shape.code))
    answer = calls[name]()
    if name == "read":
        assert answer == DATA[:100]
    if name == "list":
        assert isinstance(answer, list)
        assert len(answer) == 1
    if name == "delete":
        assert answer == {}


def test_a_drip_ends_at_the_deadline_and_not_at_its_own_end(bed: Bed) -> None:
    """Each received byte resets the library's time-out. Without a deadline, the response would take half an hour."""
    bed.round.put(bed.key("slow"), BytesSource(DATA))
    bed.proxy.plan(ProxyFault(Misdeed.DRIP, "GetObject", times=1_000))
    clock = Env().clock
    before_ns = clock.monotonic_ns()
    with pytest.raises(StoreTimeoutError):
        bed.guarded().read_exactly(bed.key("slow"), 0, len(DATA))
    assert (clock.monotonic_ns() - before_ns) // 1_000_000 < DEADLINE_MS + GRACE_MS


# --- preconditions -----------------------------------------------------------------------------------------------


def test_a_server_that_ignores_preconditions_is_not_shared(bed: Bed) -> None:
    bed.proxy.plan(ProxyFault(Misdeed.UNCONDITIONAL, "PutObject", times=1_000))
    probed = probe(replace(bed, deadline_ms=PATIENT_MS).guarded(), Env())
    assert not probed.shared
    assert "although it declares that it does not" in probed.reason


def test_a_server_that_keeps_preconditions_is_shared(bed: Bed) -> None:
    assert probe(replace(bed, deadline_ms=PATIENT_MS).guarded(), Env()).shared


# --- a whole tier ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["PutObject", "GetObject", "ListObjectsV2"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.long
def test_an_offload_is_committed_or_can_be_repeated(bed: Bed, fault: str, operation: str) -> None:
    """After a fault, a committed segment can be read, and another one can be offloaded again. None is there twice."""
    tier_bed, topic_id, shape = TierBed(layout=SingleLayout(1 << 20)), TopicId.from_uuid(uuid.uuid4()), FAULTS[fault]
    config = EngineConfig(store_deadline_ms=PATIENT_MS, store_retries=3)
    env, limits = Env(), tier_bed.limits
    store = TierStore(bed.behind, env, config, limits)
    tier = Tier.open(store, tier_bed.layouts(), env=env, limits=limits, config=config)
    log = tier.log(LOG, topic_id)  # the tier is never closed, because the store is shared

    def offload(start: int, end: int) -> None:
        segment = made_segment(start, end, data=DATA, files=FILES, topic_id=topic_id)
        log.offload([segment], layout="pair", leader_epoch=0, log_start=0, high_watermark=end)

    offload(0, 10)
    bed.proxy.plan(ProxyFault(shape.do, operation, status=shape.status, code=shape.code))
    with contextlib.suppress(StorageError):
        offload(10, 20)
    bed.proxy.heal()
    offload(10, 20)
    assert [(segment.base_offset, segment.end_offset) for segment in log.view().segments] == [(0, 10), (10, 20)]
    for segment in log.view().segments:
        assert segment.read(0, len(DATA)) == DATA
