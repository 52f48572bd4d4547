"""Syncs: waiting threads share one sync, appends continue meanwhile, and failures take the directory offline."""

from __future__ import annotations

import errno
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from log_bed import LOG, TOPIC_ID, LogBed, records
from stratalog.config.topic import TopicConfig
from stratalog.errors import ConfigError, LogDirOfflineError, StorageError
from stratalog.log.log import Log
from stratalog.log.open_log import LogEnvironment, OpenRequest
from stratalog.log.state.log_settings import LogSettings
from stratalog.model.names import LOG_SUFFIX
from stratalog.model.offsets import LogOffsets, Watermark
from stratalog.segment.build import copy_batches
from stratalog.testing.faults import FaultyVfs, failing

WRITERS = 16


def log_syncs(files: FaultyVfs) -> int:
    return sum(name.endswith(LOG_SUFFIX) for _, name in files.names("sync"))


def test_appends_that_wait_share_one_sync(bed: LogBed, files: FaultyVfs) -> None:
    log = bed.open()
    all_written = threading.Event()

    def look(offsets: LogOffsets) -> None:
        if offsets.log_end == WRITERS:
            all_written.set()

    log.subscribe(look)

    def rule(operation: str, path: str) -> None:
        if operation == "sync" and path.endswith(LOG_SUFFIX):
            assert all_written.wait(30), "appends wait for a sync of others"

    files.rule = rule
    with ThreadPoolExecutor(WRITERS) as pool:
        results = [pool.submit(log.append, records(1, start=index), "durable") for index in range(WRITERS)]
        offsets = sorted(result.result().base_offset for result in results)
    assert (offsets, log.offsets().recovery_point) == (list(range(WRITERS)), WRITERS)
    assert log_syncs(files) <= 2  # one sync for the first append, and one for all appends during it


def test_a_roll_during_a_sync_loses_nothing_of_it(bed: LogBed, files: FaultyVfs) -> None:
    log = bed.open()
    log.append(records(3))
    rolled: list[int] = []

    def rule(operation: str, path: str) -> None:
        if operation == "sync" and path.endswith(".index"):
            files.rule = None
            rolled.append(log.roll())
            log.append(records(2, start=3))

    files.rule = rule
    assert (log.flush(), rolled) == (3, [3])
    before = log_syncs(files)
    assert (log.flush(), log.offsets().recovery_point) == (5, 5)
    assert log_syncs(files) == before + 1
    assert files.names("sync folder")


@pytest.mark.parametrize("operation", ["drop", "replace"])
def test_a_segment_may_leave_the_log_while_it_is_synced(bed: LogBed, files: FaultyVfs, operation: str) -> None:
    """Retention and compaction rename the segment's files. The sync must not take this for another process."""
    log = bed.open()
    log.append(records(3))
    log.roll()
    log.append(records(2, start=3))
    old, publisher, changes = log.view().segments[0], log.maintenance.publisher(), list[str]()

    def leave(file_operation: str, path: str) -> None:
        if file_operation != "sync" or not path.endswith(bed.path(0).name) or changes:
            return
        changes.append(operation)
        if operation == "drop":
            log.maintenance.raise_log_start(3)
            log.maintenance.evict(3)
        else:
            builder = publisher.begin(0)
            copy_batches(old, builder, log.components)
            assert publisher.replace(builder.finish(3, old.modified_ms), [old])

    files.rule = leave
    assert (log.flush(), changes) == (5, [operation])
    files.rule = None
    log.append(records(1, start=5), "durable")
    assert [record.offset for record in log.records()] == list(range(3 if operation == "drop" else 0, 6))


def test_an_interrupted_sync_leaves_the_folder_to_the_next_one(bed: LogBed, files: FaultyVfs) -> None:
    """If the next sync left out the folder, a power loss could lose the name of a segment with durable records."""
    log = bed.open()
    log.append(records(1), "durable")
    log.roll()

    def interrupt(operation: str, path: str) -> None:
        if operation == "sync" and path.endswith(LOG_SUFFIX):
            raise KeyboardInterrupt

    files.rule = interrupt
    with pytest.raises(KeyboardInterrupt):
        log.append(records(1, start=1), "durable")
    files.rule = None
    before = len(files.names("sync folder"))
    log.append(records(1, start=2), "durable")
    assert len(files.names("sync folder")) == before + 1


def test_a_file_that_vanished_is_no_success(bed: LogBed) -> None:
    log = bed.open()
    log.append(records(1))
    bed.path(0).unlink()
    bed.host.handles.close()
    with pytest.raises(StorageError):
        log.flush()
    assert log.offsets().recovery_point == 0


@pytest.mark.parametrize("flush_ms", [500, 2000])
def test_records_that_waited_are_synced(bed: LogBed, flush_ms: int) -> None:
    bed.topic = TopicConfig(flush_ms=flush_ms)
    log = bed.open()
    assert not log.maintenance.sync_if_due(1000)
    log.append(records(1))
    log.flush()
    log.append(records(1, start=1))
    bed.clock.advance_ms(min(flush_ms, 1000) - 1)
    assert not log.maintenance.sync_if_due(1000)
    bed.clock.advance_ms(1)
    assert (log.maintenance.sync_if_due(1000), log.offsets().recovery_point) == (True, 2)
    assert not log.maintenance.sync_if_due(0)


def opened(bed: LogBed, watermark: Watermark, errors: list[StorageError] | None = None) -> Log:
    return Log(
        OpenRequest(LOG, TOPIC_ID, bed.files(), bed.load(), high_watermark=0),
        LogSettings(bed.topic, bed.components),
        LogEnvironment(
            notify=bed.events.append, watermark=watermark, on_offline=None if errors is None else errors.append
        ),
    )


def test_the_high_watermark_follows_what_is_durable(bed: LogBed) -> None:
    log = opened(bed, Watermark.DURABLE)
    log.append(records(3))
    assert (log.offsets().high_watermark, list(log.records())) == (0, [])
    assert len(list(log.records(isolation="log_end"))) == 3
    log.append(records(1, start=3), "durable")
    assert (log.offsets().high_watermark, log.offsets().last_stable) == (4, 4)
    log.close()


def test_the_high_watermark_is_moved_from_outside(bed: LogBed) -> None:
    log = opened(bed, Watermark.EXTERNAL)
    log.append(records(3), "durable")
    assert log.offsets().high_watermark == 0
    assert (log.set_high_watermark(2), log.offsets().high_watermark) == (2, 2)
    assert log.set_high_watermark(99) == 3
    log.close()


def test_the_engine_moves_its_own_high_watermark(bed: LogBed) -> None:
    with pytest.raises(ConfigError, match="watermark=written"):
        bed.open().set_high_watermark(0)


def test_a_failed_sync_is_reported_to_the_directory_and_never_repeated(bed: LogBed, files: FaultyVfs) -> None:
    errors: list[StorageError] = []
    log = opened(bed, Watermark.WRITTEN, errors)
    log.append(records(2))
    files.rule = failing("sync", errno.EIO, path=LOG_SUFFIX)
    with pytest.raises(LogDirOfflineError) as failure:
        log.append(records(1, start=2), "durable")
    assert errors == [failure.value]
    sync_count = log_syncs(files)
    for retry in (log.flush, lambda: log.append(records(1)), lambda: log.append(records(1), "durable")):
        with pytest.raises(LogDirOfflineError):
            retry()
    assert (log_syncs(files), log.offsets().recovery_point) == (sync_count, 0)
    assert [record.offset for record in log.records()] == [0, 1, 2]
    assert log.close() is False


def test_a_segment_rolls_by_the_clock(bed: LogBed) -> None:
    bed.topic = TopicConfig(segment_ms=1000)
    log = bed.open()
    assert not log.maintenance.roll_if_due()
    log.append(records(1, timestamp_ms=bed.clock.now_ms()))
    bed.clock.advance_ms(1000)
    assert not log.maintenance.roll_if_due()
    bed.clock.advance_ms(1)
    assert (log.maintenance.roll_if_due(), log.maintenance.roll_if_due()) == (True, False)
    assert [segment.base_offset for segment in log.segments()] == [0, 1]


def test_new_settings_hold_for_the_segment_that_is_open(bed: LogBed) -> None:
    log = bed.open()
    log.append(records(1, value_bytes=300))
    log.maintenance.configure(TopicConfig(segment_bytes=400), bed.components)
    log.append(records(1, start=1, value_bytes=300))
    assert [segment.base_offset for segment in log.segments()] == [0, 1]
