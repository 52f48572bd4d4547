from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from log_bed import LogBed, records
from stored_batches import prepared
from stratalog.config.topic import TopicConfig
from stratalog.env import PosixVfs
from stratalog.errors import CorruptBatchError, DiskFullError, StorageError
from stratalog.log.state.roll import new_appender
from stratalog.model.messages.control import ControlType
from stratalog.model.records import Record
from stratalog.model.segment_info import AbortedTransaction
from stratalog.segment.appender import Appender
from stratalog.segment.framing import walk
from stratalog.segment.segment import Segment
from stratalog.segment.time_search import find_timestamp
from stratalog.spi.indexes import IndexRole
from vectors import VECTORS

SCENARIOS = {case["name"]: case for case in VECTORS["index_scenarios"] if "then_truncate_to" not in case}
BATCH_BYTES = 111


def new_segment(bed: LogBed, base_offset: int) -> Segment:
    log = bed.files().open_segment(bed.path(base_offset).name, create=True)
    return Segment(bed.files(), base_offset, base_offset, bed.components, log)


def append(appender: Appender, bed: LogBed, data: bytes) -> None:
    appender.append(prepared(bed.components.formats, data))


def one(bed: LogBed, offset: int, timestamp_ms: int = 1000) -> bytes:
    """Return a batch of 111 bytes."""
    return bed.batch(offset, [Record(timestamp_ms=timestamp_ms, key=b"k", value=b"x" * 42)])


# --- index entries: the same as Kafka's --------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCENARIOS)
def test_entries_are_those_of_kafka(bed: LogBed, name: str) -> None:
    """stratalog considers an index entry for each batch, as Kafka does in recovery.

    Kafka's append considers one entry for each append, which may have several batches.
    """
    case = SCENARIOS[name]
    expected, base = case["expected"], case["base_offset"]
    config = TopicConfig(
        index_interval_bytes=case["index_interval_bytes"], segment_index_bytes=case["segment_index_bytes"]
    )
    with closing(new_segment(bed, base)) as segment:
        appender = Appender(segment, bed.components, config)
        failed = append_all(appender, bed, case["appends"])
        assert failed == ("append_error" in case)
        assert segment.size_bytes == expected["log_size"]
        appender.finish()
        assert bytes(segment.index_entries(IndexRole.OFFSET)).hex() == expected["index_after_recovery"]
        assert bytes(segment.index_entries(IndexRole.TIME)).hex() == expected["timeindex_after_recovery"]
        for stamp, answer in expected.get("find_offset_by_timestamp", {}).items():
            result = find_timestamp(segment, int(stamp), base, bed.components)
            assert ("none" if result is None else f"{result.timestamp_ms}@{result.offset}") == answer
    assert bed.path(base, ".index").read_bytes().hex() == expected["index_after_recovery"]
    assert bed.path(base, ".timeindex").read_bytes().hex() == expected["timeindex_after_recovery"]
    assert not bed.path(base, ".txnindex").exists()


def append_all(appender: Appender, bed: LogBed, appends: Sequence[dict[str, Any]]) -> bool:
    """Append each item; return True if one append failed."""
    for item in appends:
        try:
            append(appender, bed, bytes.fromhex(item["hex"]))
        except CorruptBatchError:
            return True
        assert appender.segment.end_offset == item["last_offset"] + 1
    return False


@pytest.mark.parametrize("interval_bytes", [0, 100, 111, 250, 4096])
def test_a_continued_segment_has_an_honest_index(bed: LogBed, interval_bytes: int) -> None:
    """The segment is reopened after each append. The largest timestamp so far must not be lost."""
    config = TopicConfig(index_interval_bytes=interval_bytes)
    stamps = [5000, 1000, 2000, 9000, 3000, 3000, 9000, 9500, 100]
    new_segment(bed, 0).close()
    for offset, stamp in enumerate(stamps):
        log = bed.files().open_segment(bed.path(0).name)
        with closing(Segment(bed.files(), 0, offset, bed.components, log)) as segment:
            if offset % 2:
                bed.path(0, ".timeindex").unlink(missing_ok=True)
            appender = Appender(segment, bed.components, config)
            append(appender, bed, one(bed, offset, stamp))
            so_far = stamps[: offset + 1]
            reader = bed.components.indexes[IndexRole.TIME].reader(segment.index_entries(IndexRole.TIME), 0)
            for entry in reader:
                assert max(so_far[: entry.offset + 1]) == entry.timestamp_ms
            for stamp_asked in range(0, 10_001, 500):
                expected = next((o for o, t in enumerate(so_far) if t >= stamp_asked), None)
                result = find_timestamp(segment, stamp_asked, 0, bed.components)
                assert (None if result is None else result.offset) == expected
            if offset % 3:
                appender.finish()


@pytest.mark.parametrize("offset", range(4))
@pytest.mark.parametrize("timestamp_ms", [1, 1000, 2999, 3000, 3001, 5000, 5001, 10**15])
def test_a_time_index_with_a_wrong_end_is_not_continued(bed: LogBed, timestamp_ms: int, offset: int) -> None:
    """If the offset of the last entry is above that of a larger timestamp, an engine once refused the log."""
    stamps, later = [1000, 5000, 2000, 3000], 6000
    bed.write_segment(0, [one(bed, number, stamp) for number, stamp in enumerate(stamps)])
    bed.path(0, ".timeindex").write_bytes(timestamp_ms.to_bytes(8, "big") + offset.to_bytes(4, "big"))
    log = bed.files().open_segment(bed.path(0).name)
    with closing(Segment(bed.files(), 0, len(stamps), bed.components, log)) as segment:
        appender = Appender(segment, bed.components, TopicConfig(index_interval_bytes=0))
        append(appender, bed, one(bed, len(stamps), later))
        appender.finish()
        entries = list(bed.components.indexes[IndexRole.TIME].reader(segment.index_entries(IndexRole.TIME), 0))
        assert entries[-1] == (later, len(stamps))
        bed.components.indexes[IndexRole.TIME].reader(segment.index_entries(IndexRole.TIME), 0).check(
            segment.end_offset, segment.size_bytes
        )
        stamps.append(later)
        for target_ms in range(0, later + 501, 500):
            expected = next((number for number, stamp in enumerate(stamps) if stamp >= target_ms), None)
            result = find_timestamp(segment, target_ms, 0, bed.components)
            assert (None if result is None else result.offset) == expected


# --- when to roll ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "rolls"), [(1000 - BATCH_BYTES, False), (1001 - BATCH_BYTES, True), (1, False)])
def test_a_segment_may_be_filled_exactly(bed: LogBed, size: int, *, rolls: bool) -> None:
    with closing(new_segment(bed, 0)) as segment:
        appender = Appender(segment, bed.components, TopicConfig(segment_bytes=1000))
        append(appender, bed, one(bed, 0))
        assert segment.size_bytes == BATCH_BYTES
        assert appender.should_roll(size, 1, 1000) is rolls


def test_an_empty_segment_takes_anything(bed: LogBed) -> None:
    with closing(new_segment(bed, 5)) as segment:
        appender = Appender(segment, bed.components, TopicConfig(segment_bytes=100, segment_ms=1))
        bed.clock.advance_ms(10**9)
        assert not appender.should_roll(5000, 5, 10**15)


@pytest.mark.parametrize(("waited", "rolls"), [(500, False), (501, True), (-10_000, False)])
def test_records_time_decides(bed: LogBed, waited: int, *, rolls: bool) -> None:
    with closing(new_segment(bed, 0)) as segment:
        appender = Appender(segment, bed.components, TopicConfig(segment_ms=500))
        append(appender, bed, one(bed, 0, 20_000))
        append(appender, bed, one(bed, 1, 20_400))
        bed.clock.advance_ms(10**9)
        assert appender.should_roll(100, 2, 20_000 + waited) is rolls
    log = bed.files().open_segment(bed.path(0).name)
    with closing(Segment(bed.files(), 0, 2, bed.components, log)) as segment:
        second_appender = Appender(segment, bed.components, TopicConfig(segment_ms=500))
        assert second_appender.should_roll(100, 2, 20_000 + waited) is rolls


def test_new_settings_move_the_time_of_a_segment_that_has_begun(bed: LogBed) -> None:
    with closing(new_segment(bed, 0)) as segment:
        appender = Appender(segment, bed.components, TopicConfig(segment_ms=500))
        append(appender, bed, one(bed, 0, 20_000))
        assert not appender.should_roll(100, 1, 20_400)
        appender.configure(TopicConfig(segment_ms=300))
        assert appender.should_roll(100, 1, 20_400)


@pytest.mark.parametrize("timestamp_ms", [-1, 1000])
def test_one_batch_by_itself_leaves_what_it_leaves_among_others(bed: LogBed, timestamp_ms: int) -> None:
    """Bytes, indexes and bounds are equal, whether batches are appended one by one or together.

    The indexes must also be full after the same batch.
    """
    config = TopicConfig(index_interval_bytes=100, segment_index_bytes=48)
    outcomes, full = list[tuple[object, ...]](), list[list[bool]]()
    for base, batch_count in ((0, 1), (1000, 4)):
        with closing(new_segment(bed, base)) as segment:
            appender = Appender(segment, bed.components, config)
            stamps = [timestamp_ms + number * (timestamp_ms > 0) for number in range(8)]
            batches = [one(bed, base + number, stamp) for number, stamp in enumerate(stamps)]
            full.append([])
            for start in range(0, 8, batch_count):
                append(appender, bed, b"".join(batches[start : start + batch_count]))
                full[-1].append(appender.has_full_index)
            indexes = [bytes(segment.index_entries(role)) for role in (IndexRole.OFFSET, IndexRole.TIME)]
            newest = (segment.largest.timestamp_ms, segment.largest.offset - base if timestamp_ms > 0 else 0)
            outcomes.append((indexes, newest, segment.size_bytes, segment.end_offset - base))
    assert outcomes[0] == outcomes[1]
    assert full[0][3::4] == full[1]
    assert (full[0][0], full[0][-1]) == (False, True)


@pytest.mark.parametrize(("waited", "rolls"), [(500, False), (501, True)])
def test_without_timestamps_the_clock_decides(bed: LogBed, waited: int, *, rolls: bool) -> None:
    with closing(new_segment(bed, 0)) as segment:
        appender = Appender(segment, bed.components, TopicConfig(segment_ms=500))
        append(appender, bed, one(bed, 0, -1))
        bed.clock.advance_ms(waited)
        assert appender.should_roll(100, 1, 10**15) is rolls


@pytest.mark.parametrize(
    ("policy", "lag_ms", "rolls"),
    [
        (("delete",), 10, False),
        (("compact",), 10, True),
        (("compact",), 10**6, False),
        (("compact", "delete"), 10, True),
    ],
)
def test_compacted_logs_roll_within_their_longest_lag(
    bed: LogBed, policy: tuple[str, ...], lag_ms: int, *, rolls: bool
) -> None:
    config = TopicConfig(cleanup_policy=policy, segment_ms=500, max_compaction_lag_ms=lag_ms)
    with closing(new_segment(bed, 0)) as segment:
        appender = Appender(segment, bed.components, config)
        append(appender, bed, one(bed, 0, 1000))
        assert appender.should_roll(100, 1, 1100) is rolls


def test_jitter_is_taken_off(bed: LogBed) -> None:
    with closing(new_segment(bed, 0)) as segment:
        appender = Appender(segment, bed.components, TopicConfig(segment_ms=500), jitter_ms=100)
        append(appender, bed, one(bed, 0, 1000))
        assert not appender.should_roll(100, 1, 1400)
        assert appender.should_roll(100, 1, 1401)


@pytest.mark.parametrize(("segment_ms", "jitter_ms", "limit"), [(500, 100, 100), (500, 10_000, 500), (500, 0, 1)])
def test_jitter_is_drawn_below_its_setting(bed: LogBed, segment_ms: int, jitter_ms: int, limit: int) -> None:
    config = TopicConfig(segment_ms=segment_ms, segment_jitter_ms=jitter_ms)
    components = replace(bed.components, env=replace(bed.components.env, chance=random.Random(1)))  # noqa: S311 - repeatable
    with closing(new_segment(bed, 0)) as segment:
        drawn = {new_appender(segment, components, config).jitter_ms for _ in range(30)}
    assert drawn <= set(range(limit))
    assert len(drawn) > 1 or limit == 1


@pytest.mark.parametrize(("index_bytes", "appends"), [(12, 0), (24, 1), (36, 2), (48, 3)])
def test_a_full_index_rolls(bed: LogBed, index_bytes: int, appends: int) -> None:
    """A time index reserves its last slot for the closing entry. The first batch has no entry."""
    config = TopicConfig(index_interval_bytes=0, segment_index_bytes=index_bytes)
    with closing(new_segment(bed, 0)) as segment:
        appender = Appender(segment, bed.components, config)
        count = 0
        while not appender.should_roll(100, count, 1000 + count) and count < 10:
            append(appender, bed, one(bed, count, 1000 + count))
            count += 1
        assert count == (appends + 1 if index_bytes > 12 else 0)
        appender.finish()
    assert bed.path(0, ".timeindex").stat().st_size <= index_bytes
    assert bed.path(0, ".index").stat().st_size <= index_bytes


@pytest.mark.parametrize(("last_offset", "rolls"), [(100 + (1 << 31) - 1, False), (100 + (1 << 31), True), (99, True)])
def test_offsets_stay_within_32_bits_of_the_base(bed: LogBed, last_offset: int, *, rolls: bool) -> None:
    with closing(new_segment(bed, 100)) as segment:
        assert Appender(segment, bed.components, TopicConfig()).should_roll(100, last_offset, 1000) is rolls


# --- a full disk -------------------------------------------------------------------------------------------------


class FullDisk(PosixVfs):
    """File system that raises ENOSPC if index space is allocated while ``full`` is True."""

    full = False

    def allocate(self, descriptor: int, size_bytes: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().allocate(descriptor, size_bytes)


def test_an_append_whose_index_entries_do_not_fit_is_taken_back(bed: LogBed) -> None:
    """The bytes of a failed append once stayed in the log, and the next append assigned the same offsets."""
    disk = FullDisk()
    bed.files_port = disk
    stamps = [5000, 1000, 2000, 3000, 6000]
    with closing(new_segment(bed, 0)) as segment:
        appender = Appender(segment, bed.components, TopicConfig(index_interval_bytes=0))
        append(appender, bed, one(bed, 0, stamps[0]))
        disk.full = True
        with pytest.raises(DiskFullError):
            append(appender, bed, one(bed, 1, 99_999))
        assert (segment.size_bytes, segment.end_offset) == (BATCH_BYTES, 1)
        assert segment.largest.timestamp_ms == stamps[0]
        failures = 0
        for offset in range(1, len(stamps)):
            try:  # an entry is due at every second append
                append(appender, bed, one(bed, offset, stamps[offset]))
            except DiskFullError:
                failures += 1
                disk.full = offset < 3
                append(appender, bed, one(bed, offset, stamps[offset]))
        assert failures
        disk.full = False
        appender.finish()
        offsets = [batch.base_offset for chunk in walk(segment, 0, bed.components) for batch in chunk.batches()]
        assert offsets == list(range(len(stamps)))
        for stamp in range(0, 7001, 500):
            expected = next((o for o, t in enumerate(stamps) if t >= stamp), None)
            answer = find_timestamp(segment, stamp, 0, bed.components)
            assert (None if answer is None else answer.offset) == expected
        bed.components.indexes[IndexRole.OFFSET].reader(segment.index_entries(IndexRole.OFFSET), 0).check(
            segment.end_offset, segment.size_bytes
        )


def test_many_batches_in_one_append(bed: LogBed) -> None:
    with closing(new_segment(bed, 0)) as segment:
        appender = Appender(segment, bed.components, TopicConfig(index_interval_bytes=100))
        parts = [bed.batch(3 * n, records(3, start=3 * n)) for n in range(20)]
        append(appender, bed, b"".join(parts))
        assert (segment.end_offset, segment.size_bytes) == (60, sum(map(len, parts)))
        assert segment.largest == (records(60)[59].timestamp_ms, 59)


class SyncedFiles(PosixVfs):
    """File system that records the inodes of the files that were synced."""

    def __init__(self) -> None:
        self.inodes = set[int]()

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        self.inodes.add(os.fstat(descriptor).st_ino)


def test_a_transaction_index_is_durable_when_its_segment_is_sealed(bed: LogBed) -> None:
    """A segment alone is not enough to rebuild its transaction index; the other indexes can be rebuilt."""
    disk = bed.files_port = SyncedFiles()
    with closing(new_segment(bed, 0)) as segment:
        appender = Appender(segment, bed.components, TopicConfig(index_interval_bytes=0))
        append(appender, bed, bed.batch(0, records(1), producer=(7, 0, 0), transactional=True))
        assert not bed.path(0, ".txnindex").exists()
        marker = bed.marker(1, 7, ControlType.ABORT)
        aborted = AbortedTransaction(7, 0, 1, 2)
        appender.append(prepared(bed.components.formats, marker), {1: aborted})
        appender.finish()
        reader = bed.components.indexes[IndexRole.TRANSACTION].reader(segment.index_entries(IndexRole.TRANSACTION), 0)
        assert list(reader) == [aborted]
    assert bed.path(0, ".txnindex").stat().st_ino in disk.inodes
    assert bed.path(0, ".txnindex").stat().st_size == 34


def test_a_segment_that_was_found_opens_its_indexes_at_the_first_append(bed: LogBed) -> None:
    with closing(new_segment(bed, 0)) as segment:
        appender = Appender(segment, bed.components, TopicConfig(index_interval_bytes=0))
        for offset in range(4):
            append(appender, bed, one(bed, offset, 1000 + offset))
        appender.finish()
        before = {suffix: bed.path(0, suffix).read_bytes() for suffix in (".index", ".timeindex")}
        Appender(segment, bed.components, TopicConfig()).finish()
        assert not segment.indexes()
        assert {suffix: bed.path(0, suffix).read_bytes() for suffix in before} == before
        second_appender = Appender(segment, bed.components, TopicConfig(index_interval_bytes=0))
        assert not segment.indexes()
        append(second_appender, bed, one(bed, 4, 2000))
        second_appender.finish()
        indexes = {suffix: bed.path(0, suffix).read_bytes() for suffix in before}
        assert all(indexes[suffix].startswith(before[suffix]) for suffix in before)
        result = find_timestamp(segment, 2000, 0, bed.components)
        assert result is not None
        assert result.offset == 4


def test_indexes_that_did_not_fit_at_the_first_append_are_opened_by_a_later_one(bed: LogBed) -> None:
    """If only one index was open, closing once replaced all entries of the other index by a single entry."""
    with closing(new_segment(bed, 0)) as segment:
        appender = Appender(segment, bed.components, TopicConfig(index_interval_bytes=0))
        for offset in range(4):
            append(appender, bed, one(bed, offset, 1000 + offset))
        appender.finish()
        time_index = bed.path(0, ".timeindex").read_bytes()
        bed.path(0, ".timeindex").rename(bed.path(0, ".kept"))
        bed.path(0, ".timeindex").mkdir()  # cannot be opened
        second_appender = Appender(segment, bed.components, TopicConfig(index_interval_bytes=0))
        with pytest.raises(StorageError):
            append(second_appender, bed, one(bed, 4, 2000))
        bed.path(0, ".timeindex").rmdir()
        bed.path(0, ".kept").rename(bed.path(0, ".timeindex"))
        second_appender.finish()
        assert bed.path(0, ".timeindex").read_bytes() == time_index
    assert segment.size_bytes == 4 * BATCH_BYTES
