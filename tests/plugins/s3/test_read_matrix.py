"""Every fault of a network or a store during reads of a tiered log, with prefetch and several threads.

The reader returns a correct prefix, or raises a typed error within the deadline. When the store works, the same reader
continues: no wrong bytes stay in a cache.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import pytest

from log_bed import LOG, TOPIC_ID, LogBed
from s3_faults import ANSWERED, FAULTS, FOR_GOOD
from stratalog.config.engine_settings import EngineConfig
from stratalog.config.topic import TopicConfig
from stratalog.engine.tiering.offload_log import offload_source
from stratalog.errors import StorageError, StoreError
from stratalog.log.read.log_reader import LogReader
from stratalog.model.records import Record
from stratalog.reading.reader import StaticLog
from stratalog.reading.tier_reader import tier_view
from stratalog.registry.registry import Registry
from stratalog.segment.components import Components
from stratalog.spi import Env, ObjectStore
from stratalog.testing.faultproxy import FaultProxy, Misdeed, ProxyFault
from stratalog.tier.manifest.authenticity import Authenticity
from stratalog.tier.manifest.pages import PageCache
from stratalog.tier.read.fetcher import Fetcher
from stratalog.tier.store.availability import TierAvailability
from stratalog.tier.store.probe import ProbeResult
from stratalog.tier.store.store import TierStore
from stratalog.tier.tier import Tier
from stratalog.tier.tier_log_reader import TierComponents
from stratalog_formats.layouts.single import SingleLayout
from tier_bed import TierBed

DEADLINE_MS: Final = 1_000
PATIENT_MS: Final = 3_000  # deadline that allows a second attempt
ANSWERED_MS: Final = 15_000  # deadline if the first attempt ends at once; long, because the machine may be very busy
GRACE_MS: Final = 3_000  # additional time for a busy machine
SEGMENTS, BATCHES = 4, 12
OVERCOME: Final = FAULTS.keys() - {
    "412",
    "409",
    "garbage",
    "stale",
}  # faults after which a retry succeeds


def patience_ms(fault: str) -> int:
    """Return a deadline that allows a second attempt after this fault, in milliseconds."""
    return ANSWERED_MS if fault in ANSWERED else PATIENT_MS


@dataclass(slots=True)
class Place:
    """A tiered log of some segments, which is read through the proxy.

    Attributes:
        proxy: the proxy that causes faults.
        behind: store behind the proxy.
        components: the installed formats, codecs and indexes.
        written: offset and value of each record of the log.
    """

    proxy: FaultProxy
    behind: ObjectStore
    components: Components
    written: list[tuple[int, bytes | None]]

    def tier(self, deadline_ms: int) -> Tier:
        """Return a tier that is never closed, because its store is shared. ``Tier.fetcher`` must be closed."""
        bed = TierBed(layout=SingleLayout(1 << 20))
        limits = replace(bed.limits, prefetch_bytes=24 << 10, chunk_cache_bytes=1 << 20)
        config = EngineConfig(store_deadline_ms=deadline_ms, store_retries=3, reader_threads=3)
        env, layouts = Env(), bed.layouts()
        store = TierStore(self.behind, env, config)
        fetcher = Fetcher(store, layouts, limits, threads=config.reader_threads)
        probe_result = ProbeResult(shared=True)
        reach = TierAvailability(store.uri, env.clock, lambda: probe_result, probe_result)
        authenticity = Authenticity(layouts)
        return Tier(
            TierComponents(store, fetcher, PageCache(), env, limits, reach, read_only=True, authenticity=authenticity)
        )

    def log(self, tier: Tier) -> LogReader:
        return StaticLog(tier_view(LOG, tier.log(LOG, TOPIC_ID).refresh(), self.components), TOPIC_ID)

    def plan(self, fault: str, operation: str, *, passes: int = 0, times: int = 1) -> ProxyFault:
        shape = FAULTS[fault]
        planned_fault = replace(shape, operation=operation, passes=passes, times=times, hits=0)
        self.proxy.plan(planned_fault)
        return planned_fault


@pytest.fixture(scope="module")
def written(
    stores: tuple[ObjectStore, ObjectStore], proxy: FaultProxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    topic = TopicConfig(index_interval_bytes=1_000)
    with LogBed(tmp_path_factory.mktemp("log") / "data", Registry.load(), topic=topic) as bed:
        log = bed.open()
        for number in range(SEGMENTS * BATCHES):
            log.append([Record(timestamp_ms=1_000 + number, value=b"%04d" % number * 250) for _ in range(2)])
            if number % BATCHES == BATCHES - 1:
                log.roll()
        layouts = TierBed(layout=SingleLayout(1 << 20))
        env, limits, config = Env(), layouts.limits, EngineConfig()
        store = TierStore(stores[1], env, config, limits)  # the store without the proxy
        tier = Tier.open(store, layouts.layouts(), env=env, limits=limits, config=config)
        view = log.view()
        sources = [offload_source(log, view, segment) for segment in view.segments[:-1]]
        tier.log(LOG, TOPIC_ID).offload(
            sources, layout="pair", leader_epoch=0, log_start=0, high_watermark=view.offsets.log_end
        )
        tier.fetcher.close()
        yield Place(proxy, stores[0], bed.components, [(record.offset, record.value) for record in log.records()])


@pytest.fixture
def place(written: Place) -> Iterator[Place]:
    yield written
    written.proxy.heal()


class Stopwatch:
    """Measures elapsed time."""

    def __init__(self) -> None:
        self._clock = Env().clock
        self._began_ns = self._clock.monotonic_ns()

    @property
    def passed_ms(self) -> int:
        return (self._clock.monotonic_ns() - self._began_ns) // 1_000_000


def read(log: LogReader, start: int = 0) -> tuple[list[tuple[int, bytes | None]], StorageError | None]:
    """Return the records read, and the error that ended the read."""
    rows = list[tuple[int, bytes | None]]()
    try:
        rows.extend((record.offset, record.value) for record in log.records(start, isolation="read_committed"))
    except StorageError as error:
        return rows, error
    return rows, None


def read_until_success(log: LogReader) -> tuple[list[tuple[int, bytes | None]], StorageError | None]:
    """Read until a read succeeds, at most six times.

    With a short deadline on a busy machine, even a request without a fault may be late.
    """
    return next((outcome for _ in range(5) if (outcome := read(log))[1] is None), read(log))


@pytest.mark.parametrize("passes", [0, 3])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.long
def test_one_fault_while_reading_on(place: Place, fault: str, passes: int) -> None:
    tier = place.tier(patience_ms(fault))
    try:
        log = place.log(tier)
        planned_fault = place.plan(fault, "GetObject", passes=passes)
        watch = Stopwatch()
        rows, error = read(log)
        assert watch.passed_ms < patience_ms(fault) + GRACE_MS
        assert planned_fault.hits == 1, "the fault was met"
        assert rows == place.written[: len(rows)]
        assert error is None or fault not in OVERCOME, error
        assert error is not None or rows == place.written
        place.proxy.heal()
        assert read(log) == (place.written, None), "nothing that went wrong is kept"
        for start in (1, 20, 55, 90):
            assert read(log, start) == (place.written[start:], None)
    finally:
        tier.fetcher.close()


@pytest.mark.parametrize("fault", sorted(FOR_GOOD | {"cut", "garbage", "flip", "429"}))
@pytest.mark.long
def test_a_fault_that_does_not_end_ends_the_read_inside_its_deadline(place: Place, fault: str) -> None:
    tier = place.tier(DEADLINE_MS)
    try:
        log = place.log(tier)
        place.plan(fault, "GetObject", passes=3, times=1_000)
        watch = Stopwatch()
        rows, error = read(log)
        assert watch.passed_ms < 2 * DEADLINE_MS + GRACE_MS, "once more where what came was damaged"
        assert rows == place.written[: len(rows)] != place.written
        assert isinstance(error, StorageError)
        place.proxy.heal()
        assert read_until_success(log) == (place.written, None)
    finally:
        watch = Stopwatch()
        tier.fetcher.close()
        assert watch.passed_ms < DEADLINE_MS + GRACE_MS, "what is read ahead ends with its deadline"


@pytest.mark.parametrize("operation", ["ListObjectsV2", "GetObject"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.long
def test_one_fault_while_the_newest_state_is_searched(place: Place, fault: str, operation: str) -> None:
    tier = place.tier(patience_ms(fault))
    try:
        planned_fault = place.plan(fault, operation)
        watch = Stopwatch()
        may_fail = fault not in OVERCOME or FAULTS[fault].do is Misdeed.FLIP
        with contextlib.suppress(*[StorageError] if may_fail else []):
            assert read(place.log(tier)) == (place.written, None)
        assert watch.passed_ms < patience_ms(fault) + GRACE_MS
        assert planned_fault.hits == 1
        place.proxy.heal()
        assert read(place.log(tier)) == (place.written, None)
    finally:
        tier.fetcher.close()


@pytest.mark.parametrize("operation", ["ListObjectsV2", "GetObject"])
@pytest.mark.parametrize("fault", sorted(FOR_GOOD))
@pytest.mark.long
def test_a_store_that_stays_unavailable_is_reported_within_the_deadline(
    place: Place, fault: str, operation: str
) -> None:
    tier = place.tier(DEADLINE_MS)
    try:
        place.plan(fault, operation, times=1_000)
        watch = Stopwatch()
        with pytest.raises(StoreError):
            place.log(tier)
        assert watch.passed_ms < DEADLINE_MS + GRACE_MS
    finally:
        tier.fetcher.close()
    place.proxy.heal()
    tier = place.tier(PATIENT_MS)
    try:
        assert read(place.log(tier)) == (place.written, None)
    finally:
        tier.fetcher.close()
