"""Group commit: one thread writes the durable appends of several threads, with the same results as separate writes."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from inside import log_state
from log_bed import LogBed, offsets_in, records
from stratalog.config.topic import TopicConfig
from stratalog.env import PosixVfs
from stratalog.errors import ClosedError, DiskFullError, LogDirOfflineError, NotLeaderOrFollowerError
from stratalog.log.append.append import QueuedAppend
from stratalog.log.log import Log
from stratalog.log.prepare.preparer import Preparer
from stratalog.log.state.sync_turns import SyncTurns, Waiter
from stratalog.model.names import LOG_SUFFIX
from stratalog.testing.faults import FaultyVfs, failing

TIMESTAMP_MS = 1_700_000_000_000
THREADS = 8


def lined_up(
    bed: LogBed, log: Log, count: int, *, start: int, timestamp_ms: int = TIMESTAMP_MS, value_bytes: int = 0
) -> QueuedAppend:
    """Return an append of another thread that waits in the queue."""
    new_records = records(count, start=start, timestamp_ms=timestamp_ms, value_bytes=value_bytes)
    waiter = QueuedAppend(Preparer(bed.topic, bed.components).records(new_records))
    log_state(log).durability.turns.enqueue(waiter)
    return waiter


def log_writes(files: FaultyVfs) -> int:
    return sum(name.endswith(LOG_SUFFIX) for _, name in files.names("write"))


def test_the_row_is_written_at_once_and_each_learns_its_offsets(bed: LogBed, files: FaultyVfs) -> None:
    log = bed.open()
    log.append(records(2))
    waiters = [lined_up(bed, log, 3, start=2), lined_up(bed, log, 1, start=5), lined_up(bed, log, 2, start=6)]
    before = log_writes(files)
    assert log.flush() == 8
    assert log_writes(files) == before + 1
    results = [waiter.result for waiter in waiters]
    assert [(result.base_offset, result.last_offset) for result in results if result] == [(2, 4), (5, 5), (6, 7)]
    assert {result.append_time_ms for result in results if result} == {bed.clock.now_ms()}
    assert (offsets_in(log), log.offsets().high_watermark) == (list(range(8)), 8)
    reopened = bed.open(clean=False)
    assert offsets_in(reopened) == list(range(8))
    assert reopened.leader_epoch == log.leader_epoch


def test_indexes_are_those_of_appends_one_by_one(bed: LogBed) -> None:
    bed.topic = TopicConfig(index_interval_bytes=100)

    def made(*, together: bool) -> dict[str, bytes]:
        log = bed.open()
        log.append(records(1))
        for start in range(1, 12):
            lined_up(bed, log, 1, start=start, timestamp_ms=TIMESTAMP_MS + start, value_bytes=40)
            if not together:
                log.flush()
        log.flush()
        bed.close()
        contents = bed.contents()
        bed.write({})
        return {name: data for name, data in contents.items() if "index" in name or name.endswith(LOG_SUFFIX)}

    by_itself = made(together=False)
    assert len(by_itself["00000000000000000000.index"]) > 8
    assert made(together=True) == by_itself


@pytest.mark.parametrize(
    "topic", [TopicConfig(segment_bytes=300), TopicConfig(segment_ms=1000)], ids=["by size", "by time"]
)
def test_segments_are_those_of_appends_one_by_one(bed: LogBed, topic: TopicConfig) -> None:
    bed.topic = topic

    def bases(*, together: bool) -> list[int]:
        log = bed.open()
        for start in range(10):
            lined_up(bed, log, 1, start=start, timestamp_ms=TIMESTAMP_MS + 400 * start)
            if not together:
                log.flush()
        log.flush()
        assert offsets_in(log) == list(range(10))
        base_offsets = [segment.base_offset for segment in log.segments()]
        bed.close()
        bed.write({})
        return base_offsets

    by_itself = bases(together=False)
    assert len(by_itself) > 2
    assert bases(together=True) == by_itself


class NearlyFull(PosixVfs):
    """File system of a disk with room for a limited number of bytes at a time."""

    def write(self, descriptor: int, position: int, data: bytes | bytearray | memoryview) -> int:
        return super().write(descriptor, position, memoryview(data)[:20_000])


def test_on_a_full_disk_what_fits_is_written_and_the_others_are_refused(bed: LogBed) -> None:
    bed.files_port = NearlyFull()
    log = bed.open()
    log.append(records(1))
    small, large, last = (
        lined_up(bed, log, 1, start=1),
        lined_up(bed, log, 1, start=2, value_bytes=100_000),
        lined_up(bed, log, 1, start=2),
    )
    assert log.flush() == 3
    assert (small.error, last.error) == (None, None)
    assert isinstance(large.error, DiskFullError)
    assert offsets_in(log) == [0, 1, 2]
    assert log.append(records(1, start=3), "durable").base_offset == 3


def test_a_log_that_follows_or_failed_refuses_each(bed: LogBed, files: FaultyVfs) -> None:
    log = bed.open()
    log.append(records(1))
    waiters = [lined_up(bed, log, 1, start=1), lined_up(bed, log, 1, start=1)]
    log.follow(log.leader_epoch + 1)
    log.flush()
    assert [type(waiter.error) for waiter in waiters] == [NotLeaderOrFollowerError] * 2
    log.lead(log.leader_epoch + 1)
    files.rule = failing("write", errno.EIO, path=LOG_SUFFIX, times=9)
    waiters = [lined_up(bed, log, 1, start=1), lined_up(bed, log, 1, start=1)]
    with pytest.raises(LogDirOfflineError):
        log.append(records(1, start=1), "durable")
    with pytest.raises(LogDirOfflineError):
        log.append(records(1, start=1), "durable")
    assert log.offsets().log_end == 1


def test_threads_that_come_during_a_write_are_written_together(bed: LogBed, files: FaultyVfs) -> None:
    log = bed.open()
    log.append(records(1, start=99))
    turns, began = log_state(log).durability.turns, log_writes(files)

    def rule(operation: str, path: str) -> None:
        if operation == "write" and path.endswith(LOG_SUFFIX) and log_writes(files) == began + 1:
            while len(turns._queued or ()) < THREADS - 1:  # noqa: SLF001 - the queue shows its length nowhere else
                os.sched_yield()

    files.rule = rule
    with ThreadPoolExecutor(THREADS) as pool:
        results = [pool.submit(log.append, records(1, start=index), "durable") for index in range(THREADS)]
        indexes = {result.result().base_offset: index for index, result in enumerate(results)}
    assert log_writes(files) == began + 2
    assert sorted(indexes) == list(range(1, THREADS + 1))
    log_records = list(log.records())[1:]
    assert [record.value for record in log_records] == [b"v%d" % indexes[record.offset] for record in log_records]
    assert log.offsets().recovery_point == THREADS + 1


def test_a_failed_sync_is_raised_in_all_waiting_threads(bed: LogBed, files: FaultyVfs) -> None:
    log = bed.open()
    started = threading.Barrier(THREADS)
    files.rule = failing("sync", errno.EIO, path=LOG_SUFFIX)

    def append(index: int) -> type[BaseException]:
        started.wait(30)
        with pytest.raises(LogDirOfflineError) as failure:
            log.append(records(1, start=index), "durable")
        return failure.type

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(append, range(THREADS))) == [LogDirOfflineError] * THREADS
    assert log.offsets().recovery_point == 0


def test_an_interrupted_writer_of_a_group_leaves_no_thread_waiting(bed: LogBed, files: FaultyVfs) -> None:
    """Ctrl-C while one thread writes batches of other threads: these threads get an error, and the log is offline."""
    log = bed.open()
    log.append(records(1))

    def rule(operation: str, path: str) -> None:
        if operation == "write" and path.endswith(LOG_SUFFIX):
            raise KeyboardInterrupt

    waiter = lined_up(bed, log, 1, start=1)
    files.rule = rule
    with pytest.raises(KeyboardInterrupt):
        log.flush()
    files.rule = None
    assert waiter.result is None
    for _ in range(2):
        with pytest.raises(ClosedError, match="out of service"):
            log.append(records(1, start=1), "durable")
    assert offsets_in(bed.open(clean=False)) == [0]


def test_closing_writes_the_row_and_nothing_behind_what_it_finished(bed: LogBed, files: FaultyVfs) -> None:
    log = bed.open()
    log.append(records(1))
    in_time, late = lined_up(bed, log, 1, start=1), list[QueuedAppend]()

    def rule(operation: str, path: str) -> None:
        if operation == "create" and path.endswith(".snapshot.tmp") and not late:
            late.append(lined_up(bed, log, 1, start=2))

    files.rule = rule
    assert log.close()
    assert (in_time.result is not None, [waiter.result for waiter in late]) == (True, [None])
    with pytest.raises(ClosedError):
        log.append(records(1), "durable")
    assert offsets_in(bed.open()) == [0, 1]


def test_a_cancelled_append_is_not_written_later() -> None:
    turns = SyncTurns()
    cancelled, waiting = Waiter(1), Waiter(2)
    assert turns.enqueue(cancelled)
    assert not turns.enqueue(waiting)
    turns.leave(cancelled, 0)
    assert turns.take_queued() == [waiting]


def test_one_thread_writes_the_queue_until_it_is_empty() -> None:
    turns = SyncTurns()
    first, second, third = Waiter(1), Waiter(2), Waiter(3)
    assert turns.enqueue(first)
    assert turns.take_queued() == [first]
    assert not turns.enqueue(second)  # the thread that called take_queued will call it again
    assert turns.take_queued() == [second]
    assert turns.take_queued() == []
    assert turns.enqueue(third)
