from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence

import pytest

import cleaning_logs
from cleaning_logs import LIMITS, Script, local_plan
from log_bed import LogBed
from stratalog.cleaning.compact.compaction_round import CleanerLimits, CompactionResult, compact
from stratalog.cleaning.compact.segment_range import RewriteStoppedError
from stratalog.cleaning.plan.retention import apply_retention
from stratalog.config.topic import TopicConfig
from stratalog.env.rate_limit import Throttle
from stratalog.errors import CorruptBatchError, DiskFullError, LogDirOfflineError, PluginError
from stratalog.log.log import Log
from stratalog.model.events import LogCleaned, LogUncleanable
from stratalog.model.records import Record, RecordColumns
from stratalog.segment.framing import scan
from stratalog.spi import Action, CleanupPolicy, LogSummary, RecordFilter, Rewrite, RewriteJob
from stratalog.testing.faults import FaultyVfs, failing


def filled(bed: LogBed, *values: tuple[bytes | None, bytes | None], **settings: object) -> Log:
    """Return a log with one record in each closed segment; the active segment is empty."""
    bed.topic = cleaning_logs.topic(**settings)
    log = bed.open()
    add(log, *values)
    return log


def add(log: Log, *values: tuple[bytes | None, bytes | None]) -> None:
    for key, value in values:
        log.append([Record(key=key, value=value)])
        log.roll()


def left(log: Log, isolation: str = "read_uncommitted") -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in log.records(isolation=isolation)]


def cleaned(bed: LogBed, log: Log) -> CompactionResult:
    result = cleaning_logs.clean(bed, log)
    assert result is not None
    assert result.error is None
    assert not result.stopped
    return result


# --- records that stay -----------------------------------------------------------------------------------------------


def test_the_example_of_the_manual(bed: LogBed) -> None:
    log = filled(bed, (b"A", b"1"), (b"B", b"1"), (b"A", b"2"), (b"C", b"1"), (b"B", None), (b"A", b"3"))
    first = cleaned(bed, log)
    assert (first.dirty_start, first.end) == (0, 6)
    assert left(log) == [(3, b"C", b"1"), (4, b"B", None), (5, b"A", b"3")]
    add(log, (b"E", b"1"), (b"D", b"1"), (b"C", b"2"))
    bed.clock.advance_ms(log.config.delete_retention_ms)
    second = cleaned(bed, log)
    assert (second.dirty_start, second.end) == (6, 9)
    assert left(log) == [(5, b"A", b"3"), (6, b"E", b"1"), (7, b"D", b"1"), (8, b"C", b"2")]


def test_segments_that_retention_will_delete_are_not_compacted_and_keep_their_tombstones(bed: LogBed) -> None:
    bed.topic = cleaning_logs.topic(cleanup_policy="compact,delete", retention_ms=100_000, delete_retention_ms=0)
    log = bed.open()
    log.append([Record(key=b"k", value=b"old", timestamp_ms=bed.clock.now_ms())])
    log.roll()
    bed.clock.advance_ms(100_001)
    for key, value in ((b"k", None), (b"x", b"1")):
        log.append([Record(key=key, value=value, timestamp_ms=bed.clock.now_ms())])
        log.roll()
    policies = {name: bed.host.policy(name) for name in ("compact", "delete")}
    for _ in range(2):
        result = cleaning_logs.clean(bed, log, delete=policies["delete"])
        assert result is not None
        assert (result.start, result.dirty_start) == (1, 1)
        assert left(log) == [(0, b"k", b"old"), (1, b"k", None), (2, b"x", b"1")]
        log.maintenance.resume_cleaning(0)
    apply_retention(log, policies, None, now_ms=bed.clock.now_ms())
    assert left(log) == [(1, b"k", None), (2, b"x", b"1")]
    for _ in range(2):
        log.maintenance.resume_cleaning(1)
        cleaning_logs.clean(bed, log, delete=policies["delete"])
        bed.clock.advance_ms(1)
    assert left(log) == [(2, b"x", b"1")]


def test_a_tombstone_stays_until_its_horizon(bed: LogBed) -> None:
    log = filled(bed, (b"k", b"1"), (b"k", None))
    cleaned(bed, log)
    bed.clock.advance_ms(log.config.delete_retention_ms - 1)
    add(log, (b"x", b"1"))
    cleaned(bed, log)
    assert left(log) == [(1, b"k", None), (2, b"x", b"1")]
    bed.clock.advance_ms(1)
    add(log, (b"y", b"1"))
    cleaned(bed, log)
    assert left(log) == [(2, b"x", b"1"), (3, b"y", b"1")]


def test_the_log_end_and_what_is_known_of_producers_survive_reopening(bed: LogBed) -> None:
    """The last batch of a round stays, without records if necessary (KAFKA-17076)."""
    log = filled(bed, (b"k", b"1"))
    batch = bed.batch(0, [Record(key=b"k", value=None, timestamp_ms=bed.clock.now_ms())], producer=(7, 0, 0))
    log.append_as_leader(batch)
    log.roll()
    for _ in range(2):
        cleaned(bed, log)
        bed.clock.advance_ms(20_000)
        add(log, (b"x", b"1"))
    producers, end = log.producers(), log.offsets().log_end
    bed.close()
    bed.path(end).unlink()  # the file of the empty active segment is missing
    reopened_log = bed.open(clean=False)
    assert reopened_log.offsets().log_end == end
    assert reopened_log.producers() == producers


def test_the_last_batch_of_a_producer_stays_without_records(bed: LogBed) -> None:
    log = filled(bed)
    log.append_as_leader(
        bed.batch(0, [Record(key=b"k", value=b"1", timestamp_ms=bed.clock.now_ms())], producer=(7, 0, 0))
    )
    log.roll()
    add(log, (b"k", b"2"))
    cleaned(bed, log)
    assert left(log) == [(1, b"k", b"2")]
    with log.fetch(0) as fetched:
        assert fetched.size_bytes > 0
        table = bed.components.formats.of(2, "", 0).scan(fetched.read(), 0, fetched.size_bytes, check_crc=True)
    assert table.producer_id.tolist()[:1] == [7]
    assert table.record_count.tolist()[:1] == [0]
    bed.close()
    for snapshot in bed.folder.glob("*.snapshot"):
        snapshot.unlink()
    reopened_log = bed.open(clean=False)
    assert [producer.last_sequence for producer in reopened_log.producers() if producer.producer_id == 7] == [0]
    following = [Record(key=b"k", value=b"3", timestamp_ms=bed.clock.now_ms())]
    assert reopened_log.append_as_leader(bed.batch(0, following, producer=(7, 0, 1))).duplicate is False


@pytest.mark.parametrize("codec", [None, "lz4"])
def test_batches_without_records_are_passed_by_in_later_rounds(bed: LogBed, codec: str | None) -> None:
    bed.topic = cleaning_logs.topic()
    log = bed.open()

    def add_batch(key: bytes, value: bytes, producer: int) -> None:
        records = [Record(key=key, value=value, timestamp_ms=bed.clock.now_ms())]
        log.append_as_leader(bed.batch(0, records, codec=codec, producer=(producer, 0, 0)))

    for producer in (7, 8, 9):
        add_batch(b"k", b"%d" % producer, producer)
    log.roll()
    add(log, (b"other", b"1"))
    cleaned(bed, log)  # the last batches of producers 7 and 8 stay, without a record
    assert left(log) == [(2, b"k", b"9"), (3, b"other", b"1")]
    add(log, (b"other", b"2"), (b"k", b"10"))
    cleaned(bed, log)
    assert left(log) == [(4, b"other", b"2"), (5, b"k", b"10")]


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_outlives_its_data_and_then_its_horizon(bed: LogBed, commit: bool) -> None:  # noqa: FBT001 - parametrized
    """If a marker is deleted too early, an aborted transaction appears open or committed (KAFKA-8351, KAFKA-13727)."""
    log = filled(bed)
    records = [Record(key=b"k", value=b"1", timestamp_ms=bed.clock.now_ms())]
    log.append_as_leader(bed.batch(0, records, producer=(9, 0, 0), transactional=True))
    log.end_transaction(9, 0, commit=commit, coordinator_epoch=0)
    records = [Record(key=b"q", value=b"1", timestamp_ms=bed.clock.now_ms())]
    log.append_as_leader(bed.batch(0, records, producer=(9, 0, 1), transactional=True))
    log.end_transaction(9, 0, commit=True, coordinator_epoch=0)
    log.roll()
    add(log, (b"k", b"2"))
    cleaned(bed, log)
    assert left(log, "read_committed") == [(2, b"q", b"1"), (4, b"k", b"2")]
    assert markers(bed, log) == [1, 3]
    for step in (0, 20_000):
        bed.clock.advance_ms(step)
        assert markers(bed, log) == [1, 3]
        add(log, (b"x", b"1"))
        cleaned(bed, log)
    assert markers(bed, log) == [3]
    assert left(log, "read_committed")[0] == (2, b"q", b"1")


def markers(bed: LogBed, log: Log) -> list[int]:
    """Return the offsets of the control batches in a log."""
    offsets = []
    for segment in log.view().segments:
        data = segment.read(0, segment.size_bytes)
        for table in scan(bed.components.formats, data, 0, len(data), check_crc=True).tables:
            offsets += [batch.last_offset for batch in table if batch.is_control]
    return offsets


def test_aborted_data_of_a_transaction_that_ends_later_is_dropped_and_hides_nothing(bed: LogBed) -> None:
    """The transaction index of the new segment has the transactions that its markers end (KAFKA-14055)."""
    log = filled(bed)
    for sequence, key in enumerate((b"a", b"b")):
        records = [Record(key=key, value=b"1", timestamp_ms=bed.clock.now_ms())]
        log.append_as_leader(bed.batch(0, records, producer=(9, 0, sequence), transactional=True))
        log.roll()
    add(log, (b"c", b"1"))
    log.end_transaction(9, 0, commit=False, coordinator_epoch=0)
    log.roll()
    add(log, (b"d", b"1"))
    cleaned(bed, log)
    assert left(log, "read_committed") == [(2, b"c", b"1"), (4, b"d", b"1")]
    assert left(log) == left(log, "read_committed")
    bed.close()
    assert left(bed.open(clean=False), "read_committed") == [(2, b"c", b"1"), (4, b"d", b"1")]


def test_an_open_transaction_bounds_the_round(bed: LogBed) -> None:
    log = filled(bed, (b"k", b"1"), (b"k", b"2"))
    records = [Record(key=b"k", value=b"3", timestamp_ms=1)]
    log.append_as_leader(bed.batch(0, records, producer=(9, 0, 0), transactional=True))
    log.roll()
    assert cleaned(bed, log).end == 2
    assert left(log) == [(1, b"k", b"2"), (2, b"k", b"3")]


def test_unknown_markers_stay(bed: LogBed) -> None:
    bed.topic = cleaning_logs.topic()
    record = Record(key=b"\0\0\0\x63", value=bytes(6), timestamp_ms=1)
    control = bed.batch(0, [record], producer=(9, 0, -1), transactional=True, control=True)
    bed.write_segment(0, [control])
    log = bed.open(clean=False)
    log.roll()
    add(log, (b"x", b"1"))
    bed.clock.advance_ms(10**9)
    cleaned(bed, log)
    assert markers(bed, log) == [0]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(("late_ms", "stays"), [(-1, True), (0, False)])
def test_tombstones_of_older_formats_are_dropped_by_the_time_of_their_segment(
    bed: LogBed,
    magic: int,
    late_ms: int,
    stays: bool,  # noqa: FBT001 - parametrized
) -> None:
    """A tombstone is deleted if its segment is ``delete.retention.ms`` older than the last clean segment."""
    written_ms = 1_600_000_000_000
    log = filled(bed, (b"k", None), (b"j", b"1"), (b"i", b"1"), record_version=magic, segment_bytes=60)
    log.maintenance.resume_cleaning(2)
    clean_ms = written_ms + log.config.delete_retention_ms + late_ms
    for base, stamp_ms in ((0, written_ms), (1, clean_ms)):
        os.utime(bed.path(base), ns=(stamp_ms * 10**6, stamp_ms * 10**6))
    cleaned(bed, log)
    assert ((0, b"k", None) in left(log)) is stays
    assert left(log)[-2:] == [(1, b"j", b"1"), (2, b"i", b"1")]


def test_the_last_record_of_a_round_stays_where_batches_cannot_be_empty(bed: LogBed) -> None:
    """The formats V0 and V1 have no empty batches. Kafka stops cleaning such a log; stratalog keeps its last record."""
    bed.topic = cleaning_logs.topic(record_version=1)
    records = [Record(key=b"k", value=b"1", timestamp_ms=1), Record(value=b"keyless", timestamp_ms=1)]
    bed.write_segment(0, [bed.batch(number, [record], magic=1) for number, record in enumerate(records)])
    log = bed.open(clean=False)
    log.roll()
    assert cleaned(bed, log).end == 2
    assert left(log) == [(0, b"k", b"1"), (1, None, b"keyless")]


# --- files -----------------------------------------------------------------------------------------------------------


def test_small_segments_become_one_with_the_time_of_the_last(bed: LogBed) -> None:
    log = filled(bed, *((b"%d" % number, b"v") for number in range(5)))
    for number in range(5):
        os.utime(bed.path(number), (1_600_000_000 + number, 1_600_000_000 + number))
    cleaned(bed, log)
    assert [segment.base_offset for segment in log.segments()] == [0, 5]
    assert bed.path(0).stat().st_mtime == 1_600_000_004
    log.maintenance.delete_expired()
    assert [name for name in bed.names() if name.endswith((".log", ".cleaned", ".swap", ".deleted"))] == [
        "00000000000000000000.log",
        "00000000000000000005.log",
    ]


def test_old_files_stay_for_the_delay(bed: LogBed) -> None:
    log = filled(bed, (b"k", b"1"), (b"k", b"2"), file_delete_delay_ms=500)
    cleaned(bed, log)
    assert "00000000000000000001.log.deleted" in bed.names()
    bed.clock.advance_ms(499)
    assert not log.maintenance.delete_expired()
    bed.clock.advance_ms(1)
    assert log.maintenance.delete_expired()
    assert not [name for name in bed.names() if name.endswith(".deleted")]


def test_offsets_that_do_not_fit_one_segment_stay_apart(bed: LogBed) -> None:
    bed.topic = cleaning_logs.topic()
    far = (1 << 31) - 1
    for base in (0, far, far + 1):
        bed.write_segment(base, [bed.batch(base, [Record(key=b"%d" % base, value=b"v", timestamp_ms=1)])])
    bed.write_segment(far + 2, [])
    log = bed.open(clean=False)
    cleaned(bed, log)
    assert [segment.base_offset for segment in log.segments()] == [0, far + 1, far + 2]
    assert [offset for offset, _, _ in left(log)] == [0, far, far + 1]


def test_reads_in_progress_continue_after_a_round(bed: LogBed) -> None:
    log = filled(bed, *((b"k", b"%d" % number) for number in range(6)))
    reading = log.records()
    assert next(reading).offset == 0
    with log.fetch(1) as fetched:
        before = fetched.read()
        cleaned(bed, log)
        log.maintenance.delete_expired()
        assert fetched.read() == before
    assert [record.offset for record in reading][-1] == 5


@pytest.mark.parametrize("clean", [4, 8])
def test_the_bytes_read_and_written_follow_the_dirty_range_not_the_log(bed: LogBed, clean: int) -> None:
    """Segments that lose no record are read and keep their files. Kafka rewrites these segments."""
    values = [(b"%d" % number, b"v" * 300) for number in range(clean)]
    log = filled(bed, *values, segment_bytes=400)
    first = cleaned(bed, log)
    assert first.stats.bytes_written == 0
    files = {number: bed.path(number).stat().st_ino for number in range(clean)}
    add(log, (b"0", b"w" * 300))
    stats = cleaned(bed, log).stats
    assert stats.bytes_observed < 400
    assert stats.bytes_written == 0  # the segment that lost its only record is empty now
    assert [offset for offset, _, _ in left(log)] == list(range(1, clean + 1))
    assert all(bed.path(number).stat().st_ino == files[number] for number in range(1, clean))


def test_a_segment_that_loses_its_end_keeps_the_rest_of_its_bytes(bed: LogBed) -> None:
    log = filled(bed)
    for number in range(20):
        log.append([Record(key=b"%d" % number, value=b"v" * 50)])
    log.roll()
    before = bed.path(0).read_bytes()
    add(log, (b"19", b"w" * 3800))
    cleaned(bed, log)
    after = bed.path(0).read_bytes()
    assert before.startswith(after)
    assert [offset for offset, _, _ in left(log)] == [*range(19), 20]


# --- failures --------------------------------------------------------------------------------------------------------


def test_a_damaged_segment_makes_the_log_uncleanable_and_loses_nothing(bed: LogBed) -> None:
    log = filled(bed, (b"k", b"1"), (b"j", b"1"), (b"k", b"2"))
    bed.close()
    data = bytearray(bed.path(1).read_bytes())
    data[-2] ^= 1
    bed.path(1).write_bytes(data)
    log = bed.open()
    result = cleaning_logs.clean(bed, log)
    assert result is not None
    assert isinstance(result.error, CorruptBatchError)
    assert "00000000000000000001.log" in str(result.error)
    assert bed.events[-1] == LogUncleanable(log=log.name, reason=str(result.error))
    assert cleaning_logs.clean(bed, log) is None
    assert next(log.records()).value == b"1"
    add(log, (b"k", b"3"))


def test_a_damaged_clean_segment_is_not_sealed_with_a_new_checksum(bed: LogBed) -> None:
    log = filled(bed, (b"j", b"1"), (b"k", b"1"))
    cleaned(bed, log)
    add(log, (b"k", b"2"))
    bed.close()
    data = bytearray(bed.path(0).read_bytes())
    data[-2] ^= 1
    bed.path(0).write_bytes(data)
    log = bed.open()
    log.maintenance.resume_cleaning(2)
    result = cleaning_logs.clean(bed, log)
    assert result is not None
    assert isinstance(result.error, CorruptBatchError)
    assert bed.path(0).read_bytes() == data


def test_a_full_disk_leaves_the_log_as_it_was_and_is_tried_again(bed: LogBed) -> None:
    log = filled(bed, *((b"%d" % (number % 3), b"v" * 50) for number in range(9)))
    bed.close()
    files = bed.files_port = FaultyVfs()
    log = bed.open()
    before = left(log)
    files.room_bytes = 100
    result = cleaning_logs.clean(bed, log)
    assert result is not None
    assert isinstance(result.error, DiskFullError)
    assert left(log) == before
    assert not [name for name in bed.names() if name.endswith((".cleaned", ".swap"))]
    files.room_bytes = None
    cleaned(bed, log)
    assert len(left(log)) == 3


@pytest.mark.parametrize(("operation", "path"), [("sync", ".cleaned"), ("rename", ".swap"), ("sync folder", "")])
def test_a_failing_disk_takes_the_log_out_of_service(bed: LogBed, operation: str, path: str) -> None:
    log = filled(bed, (b"k", b"1"), (b"k", b"2"))
    bed.close()
    files = bed.files_port = FaultyVfs()
    log = bed.open()
    files.rule = failing(operation, errno.EIO, path=path)
    result = cleaning_logs.clean(bed, log)
    assert result is not None
    assert isinstance(result.error, LogDirOfflineError)
    assert not log.healthy
    assert [value for _, _, value in left(log)][-1] == b"2"
    bed.crash()
    files.rule = None
    assert left(bed.open(clean=False))[-1] == (1, b"k", b"2")


# --- changes during a round ------------------------------------------------------------------------------------------


class InterferingFilter(RecordFilter):
    """Filter that calls ``InterferingPolicy.act`` during the round, with the verdicts on the records."""

    def __init__(self, policy: InterferingPolicy) -> None:
        self.policy = policy

    def observe(self, records: RecordColumns) -> int:
        return records.count

    def judge(self, records: RecordColumns, verdicts: bytearray) -> None:
        del records
        self.policy.act(verdicts)


class InterferingPolicy(CleanupPolicy):
    """Policy that wants all closed segments rewritten."""

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        del config, now_ms
        return (Rewrite(log.segments[0].base_offset, log.segments[-1].base_offset, 0, "all", 1.0),)

    def record_filter(self, job: RewriteJob) -> RecordFilter:
        del job
        return InterferingFilter(self)

    def act(self, verdicts: bytearray) -> None:
        """Change the log during a round. Subclasses override this method."""


def interfere(bed: LogBed, log: Log, policy: CleanupPolicy) -> CompactionResult:
    result = cleaning_logs.clean(bed, log, meddler=policy)
    assert result is not None
    return result


def test_appends_and_rolls_meanwhile_are_kept(bed: LogBed) -> None:
    log = filled(bed, (b"k", b"1"), (b"k", b"2"))

    class Appending(InterferingPolicy):
        def act(self, verdicts: bytearray) -> None:
            del verdicts
            add(log, (b"k", b"3"))

    result = interfere(bed, log, Appending())
    assert result.end == 2
    assert left(log)[:2] == [(1, b"k", b"2"), (2, b"k", b"3")]


def test_a_truncation_meanwhile_voids_the_round(bed: LogBed) -> None:
    log = filled(bed, (b"k", b"1"), (b"k", b"2"))

    class Truncating(InterferingPolicy):
        def act(self, verdicts: bytearray) -> None:
            del verdicts
            log.truncate_to(1)

    result = interfere(bed, log, Truncating())
    assert result.stopped
    assert left(log) == [(0, b"k", b"1")]
    assert not [name for name in bed.names() if name.endswith(".cleaned")]


def test_a_truncation_takes_the_checkpoint_back(bed: LogBed) -> None:
    log = filled(bed, (b"k", b"1"), (b"k", b"2"), (b"j", b"1"))
    cleaned(bed, log)
    assert log.maintenance.cleaning.dirty_start == 3
    log.truncate_to(2)
    assert log.maintenance.cleaning.dirty_start == 2


def test_retention_meanwhile_voids_the_round(bed: LogBed) -> None:
    """The round must not restore segments that retention deleted during the round (KAFKA-7401, KAFKA-9133)."""
    log = filled(bed, (b"k", b"1"), (b"j", b"2"), (b"i", b"2"))

    class Deleting(InterferingPolicy):
        def act(self, verdicts: bytearray) -> None:
            del verdicts
            log.maintenance.raise_log_start(1)
            log.maintenance.evict(1)

    assert interfere(bed, log, Deleting()).stopped
    assert left(log) == [(1, b"j", b"2"), (2, b"i", b"2")]
    assert cleaned(bed, log).dirty_start == 1


def test_a_log_that_is_closed_meanwhile_ends_the_round(bed: LogBed) -> None:
    log = filled(bed, (b"k", b"1"), (b"k", b"2"))

    def stop() -> None:
        raise RewriteStoppedError("the engine is closing")

    policies = {"compact": bed.host.policy("compact")}
    plan = local_plan(log, policies)
    result = compact(plan, policies, LIMITS, Throttle(bed.clock, 1e15), stop, 0)
    assert result.stopped == "the engine is closing"
    assert not log.maintenance.cleaning.local.uncleanable
    assert log.maintenance.cleaning.dirty_start is None


# --- policies that break the contract --------------------------------------------------------------------------------


class Raising(InterferingPolicy):
    def act(self, verdicts: bytearray) -> None:
        del verdicts
        raise KeyError("bug")


class Resizing(InterferingPolicy):
    def act(self, verdicts: bytearray) -> None:
        verdicts.append(0)


class Unknown(InterferingPolicy):
    def act(self, verdicts: bytearray) -> None:
        verdicts[0] = 77


@pytest.mark.parametrize("policy", [Raising(), Resizing(), Unknown()])
def test_a_wrong_filter_stops_only_the_compaction_of_its_log(bed: LogBed, policy: CleanupPolicy) -> None:
    log = filled(bed, (b"k", b"1"), (b"k", b"2"))
    result = interfere(bed, log, policy)
    assert isinstance(result.error, PluginError)
    assert left(log) == [(0, b"k", b"1"), (1, b"k", b"2")]
    assert log.maintenance.cleaning.local.uncleanable
    add(log, (b"k", b"3"))


@pytest.mark.parametrize(
    "lie",
    [
        Rewrite(0, 3, 0, "into the active segment"),
        Rewrite(0, 99, 0, "past the end"),
        Rewrite(1, 1, 1, "nothing"),
        Rewrite(0, 2, 2, "no dirt"),
        Rewrite(-1, 2, 0, "below the start"),
    ],
)
def test_a_policy_with_impossible_plans_is_reported(bed: LogBed, lie: Rewrite) -> None:
    log = filled(bed, (b"k", b"1"), (b"k", b"2"))
    log.append([Record(key=b"k", value=b"3")])

    class Lying(InterferingPolicy):
        def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
            del log, config, now_ms
            return (lie,)

    plan = local_plan(log, {"lying": Lying()})
    assert plan.rewrite is None
    assert isinstance(plan.error, PluginError)


def test_a_policy_that_raises_is_reported_by_name(bed: LogBed) -> None:
    log = filled(bed, (b"k", b"1"))

    class Broken(InterferingPolicy):
        def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
            del log, config, now_ms
            raise ZeroDivisionError

    plan = local_plan(log, {"broken": Broken()})
    assert "broken" in str(plan.error)


def test_a_filter_that_takes_nothing_is_no_endless_loop(bed: LogBed) -> None:
    log = filled(bed, (b"k", b"1"))
    result = cleaning_logs.clean(bed, log, CleanerLimits(memory_bytes=1, load_factor=0.9, read_bytes=1000))
    assert result is not None
    assert result.error is None or isinstance(result.error, PluginError)


def test_filters_join_by_the_harder_word(bed: LogBed) -> None:
    log = filled(bed, (b"k", b"1"), (b"j", b"1"), (b"i", b"1"))

    class Second(InterferingPolicy):
        def act(self, verdicts: bytearray) -> None:
            verdicts[0] = 1

    assert interfere(bed, log, Second()).error is None
    assert left(log) == []


# --- events, throttle ------------------------------------------------------------------------------------------------


def test_an_event_describes_the_change(bed: LogBed) -> None:
    log = filled(bed, (b"k", b"1"), (b"k", b"2"), (b"j", b"1"))
    size = sum(segment.size_bytes for segment in log.segments())
    cleaned(bed, log)
    event = bed.events[-1]
    assert isinstance(event, LogCleaned)
    assert (event.bytes_before, event.records_before, event.records_after) == (size, 3, 2)
    assert event.bytes_after == sum(segment.size_bytes for segment in log.segments())
    assert (event.segments_before, event.segments_after, event.dirty_start, event.end) == (3, 1, 0, 3)


def test_the_throttle_waits_as_long_as_the_bytes_may_take(bed: LogBed) -> None:
    clock = bed.clock
    throttle, start_ms = Throttle(clock, 1000), clock.now_ms()
    for _ in range(10):
        throttle.count_and_wait(500)
    assert 4500 <= clock.now_ms() - start_ms <= 5000


def test_a_round_is_held_to_its_bytes_a_second(bed: LogBed) -> None:
    log = filled(bed, *((b"k", b"v" * 200) for _ in range(20)))
    policies = {"compact": bed.host.policy("compact")}
    plan = local_plan(log, policies, bed.clock.now_ms())
    result = compact(plan, policies, LIMITS, Throttle(bed.clock, 1000), lambda: None, bed.clock.now_ms())
    stats = result.stats
    total_bytes = stats.bytes_observed + stats.bytes_read + stats.bytes_written
    assert result.elapsed_ms >= total_bytes - 300


def test_a_second_round_over_the_same_records_changes_nothing(bed: LogBed) -> None:
    """The first round also leaves the bytes of each kept record unchanged."""
    chance = random.Random(5)  # noqa: S311 - the same in every run
    bed.topic = cleaning_logs.uncompacted(cleaning_logs.topic())
    log = bed.open()
    script = Script(log, bed, chance, transactions=True, keys=20)
    script.append(40)
    script.end_all()
    log.roll()
    before = list(log.records())
    bed.topic = cleaning_logs.topic()
    log = bed.open()
    cleaned(bed, log)
    once = list(log.records())
    assert 0 < len(once) < len(before)
    assert [record for record in before if record in once] == once
    log.maintenance.resume_cleaning(0)
    cleaned(bed, log)
    assert list(log.records()) == once


def test_a_round_whose_map_is_full_ends_there_and_the_next_continues(bed: LogBed) -> None:
    chance = random.Random(3)  # noqa: S311 - the same in every run
    bed.topic = cleaning_logs.uncompacted(cleaning_logs.topic())
    log = bed.open()
    Script(log, bed, chance, keys=100).append(40)
    log.roll()
    before = left(log)
    bed.topic = cleaning_logs.topic()
    log = bed.open()
    limits = CleanerLimits(memory_bytes=24 * 20, load_factor=0.9, read_bytes=1 << 18)
    ends, reasons = [], []
    while (result := cleaning_logs.clean(bed, log, limits)) is not None:
        assert result.error is None
        ends.append(result.end)
        reasons.append(result.reason)
    assert len(ends) > 3
    # the reason names the full memory, and the command that has no such limit
    for end, reason in zip(ends[:-1], reasons[:-1], strict=True):
        assert f"memory is full at offset {end}," in reason
        assert "stratalog spark compact" in reason
    assert "too many keys" not in reasons[-1]
    assert ends == sorted(set(ends))
    last = {key: offset for offset, key, _ in before}
    assert [offset for offset, key, _ in left(log)] == sorted(last[key] for key in last if key is not None)
