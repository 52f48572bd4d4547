"""Power losses before every change of the disk while a round of segments is added: the log has all of it or nothing."""

from __future__ import annotations

import contextlib
import errno
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from log_bed import LogBed, offsets_in, records
from stratalog.config.topic import TopicConfig
from stratalog.errors import DiskFullError, OffsetsOutOfOrderError, StorageError
from stratalog.log.log import Log
from stratalog.model.names import MARKS_FILE
from stratalog.model.records import Record
from stratalog.registry.registry import Registry
from stratalog.testing.faults import FaultyVfs
from stratalog.testing.power_loss import Image, LazyNames, LazySync, PowerLossVfs

SAMPLES = 3
WRITER = "query"
TOPIC = TopicConfig(segment_bytes=2_000, index_interval_bytes=200)


def add(bed: LogBed, log: Log, number: int, counts: list[int]) -> None:
    """Add one round. Each number in ``counts`` is a segment with two batches of this number of records."""
    publisher, segments, base = log.maintenance.publisher(), [], log.offsets().log_end
    for count in counts:
        segment = publisher.begin(base)
        for _ in range(2):
            segment.append(bed.batch(base, [Record(timestamp_ms=base, value=b"%d" % number) for _ in range(count)]))
            base += count
        segments.append(segment.finish(base, 1_000))
    publisher.add(segments, (WRITER, number))


@dataclass
class Search:
    """A log with some records, and two rounds that are added. ``ends`` are the log ends after each completed step."""

    tmp_path: Path
    registry: Registry
    files_class: type[PowerLossVfs] = PowerLossVfs
    ends: list[int] = field(default_factory=list)
    checked: int = 0
    seen: set[int] = field(default_factory=set)
    outcomes: set[tuple[int, int]] = field(default_factory=set)

    def run(self) -> None:
        self.chance = random.Random(5)  # noqa: S311 - the same in every run
        bed = LogBed(self.tmp_path / "data", self.registry, TOPIC)
        log = bed.open()
        log.append(records(20), durability="durable")
        bed.close()
        self.ends = [20]
        files = self.files_class(bed.folder, lambda _: self.look(files))
        bed.files_port = files
        with bed:
            log = bed.open()
            for number, counts in enumerate([[7, 5, 6], [9]]):
                add(bed, log, number, counts)
                self.ends.append(log.offsets().log_end)
                log.append(records(1), durability="durable")
                self.ends.append(log.offsets().log_end)

    def look(self, files: PowerLossVfs) -> None:
        for image in files.images(self.chance, SAMPLES):
            state = hash(frozenset(image.items()))
            if state not in self.seen:
                self.seen.add(state)
                self.recover(image)

    def recover(self, image: Image) -> None:
        """Check that completed rounds are there, and that the interrupted round is there completely or not at all.

        The write mark of the log must show which of both is the case.
        """
        self.checked += 1
        bed = LogBed(self.tmp_path / "after", self.registry, TOPIC)
        bed.write(image)
        with bed:
            log = bed.open(clean=False)
            end, number = log.offsets().log_end, log.maintenance.marks().number_of(WRITER)
            log_records = list(log.records())
            assert [record.offset for record in log_records] == list(range(end))
            assert end >= self.ends[-1]
            assert end in {20, 56, 57, 75, 76}
            assert number == {20: -1, 56: 0, 57: 0, 75: 1, 76: 1}[end]
            assert [sum(record.value == b"%d" % n for record in log_records[20:]) for n in (0, 1)] == [
                36 * (number >= 0),
                18 * (number >= 1),
            ]
            assert not [name for name in bed.names() if name.endswith((".cleaned", ".swap"))]
            self.outcomes.add((len(self.ends), end))
            log.append(records(1), durability="durable")
            assert bed.open(clean=False).offsets().log_end == end + 1


@pytest.mark.long
def test_a_round_is_there_as_a_whole_or_not_at_all(tmp_path: Path, bed: LogBed) -> None:
    search = Search(tmp_path, bed.registry)
    search.run()
    assert search.checked > 50
    assert {end for _, end in search.outcomes} == {20, 56, 57, 75, 76}


@pytest.mark.parametrize("broken", [LazyNames, LazySync])
@pytest.mark.long
def test_a_sync_that_is_left_out_is_found(tmp_path: Path, bed: LogBed, broken: type[PowerLossVfs]) -> None:
    with pytest.raises((AssertionError, StorageError)):
        Search(tmp_path, bed.registry, broken).run()


def test_readers_see_what_was_added_and_appends_continue(bed: LogBed) -> None:
    bed.topic = TOPIC
    log = bed.open()
    log.append(records(3))
    add(bed, log, 0, [4, 4])
    log.append(records(2))
    assert [record.offset for record in log.records(start=0)] == list(range(21))
    assert log.offsets().high_watermark == 21
    assert log.maintenance.marks().number_of(WRITER) == 0
    reopened_log = bed.open()
    assert len(list(reopened_log.records())) == 21
    assert reopened_log.maintenance.marks().number_of(WRITER) == 0


def test_an_empty_log_takes_segments_first(bed: LogBed) -> None:
    bed.topic = TOPIC
    add(bed, bed.open(), 0, [4])
    assert len(list(bed.open().records())) == 8


def test_segments_that_do_not_start_at_the_log_end_are_refused(bed: LogBed) -> None:
    bed.topic = TOPIC
    log = bed.open()
    publisher = log.maintenance.publisher()
    builder = publisher.begin(5)
    builder.append(bed.batch(5, [Record(timestamp_ms=1, value=b"v")]))
    with pytest.raises(OffsetsOutOfOrderError, match="ends at 0"):
        publisher.add([builder.finish(6, 1_000)])
    assert log.healthy
    assert not [name for name in bed.names() if name.endswith(".cleaned")]
    assert log.append(records(1)).base_offset == 0


def test_an_append_that_comes_before_the_segments_is_not_lost(bed: LogBed) -> None:
    """Between the sync of earlier records and the renames, the log accepts appends.

    An earlier version then deleted the empty active segment with the records that were just appended.
    """
    bed.topic, bed.files_port = TOPIC, (files := FaultyVfs())
    log = bed.open()
    log.append(records(1))
    publisher = log.maintenance.publisher()
    builder = publisher.begin(1)
    builder.append(bed.batch(1, [Record(timestamp_ms=1, value=b"v")]))
    new_segment = builder.finish(2, 1_000)
    came: list[int] = []

    def rule(operation: str, path: str) -> None:
        if operation == "sync" and path.endswith(bed.path(1, ".index").name) and not came:
            came.append(-1)
            came[0] = log.append(records(1, start=1)).base_offset

    files.rule = rule
    with pytest.raises(OffsetsOutOfOrderError, match="ends at 2"):
        publisher.add([new_segment])
    assert not [name for name in bed.names() if name.endswith(".cleaned")]
    assert (came, offsets_in(log), log.healthy) == ([1], [0, 1], True)


def test_segments_whose_round_cannot_be_noted_are_removed(bed: LogBed) -> None:
    bed.topic, bed.files_port = TOPIC, (files := FaultyVfs())
    log = bed.open()
    log.append(records(1))

    def full(operation: str, path: str) -> None:
        if operation in {"create", "write"} and MARKS_FILE in path:
            raise OSError(errno.ENOSPC, "no space", path)

    files.rule = full
    with pytest.raises(DiskFullError):
        add(bed, log, 0, [4])
    assert not [name for name in bed.names() if name.endswith(".cleaned")], "a full disk needs the space"
    assert (log.healthy, log.append(records(1)).base_offset) == (True, 1)


def test_a_log_that_is_only_read_settles_nothing(bed: LogBed) -> None:
    bed.topic = TOPIC
    add(bed, bed.open(), 0, [4])
    bed.close()
    before = bed.contents()
    bed.open_reader()
    bed.close()
    assert bed.contents() == before


@pytest.mark.long
def test_a_full_disk_leaves_all_of_a_round_or_nothing(tmp_path: Path, installed: Registry) -> None:
    """The log continues if no file was changed yet. Otherwise the log is offline."""
    outcomes, number, changes = set[tuple[bool, int]](), 0, 0
    while changes >= number:  # until the disk has room for all changes of the round
        number += 1
        disk = FaultyVfs()
        bed = LogBed(tmp_path / f"{number}", installed, TOPIC, files_port=disk)
        with bed:
            log = bed.open()
            log.append(records(10), durability="durable")
            changes = 0

            def full(operation: str, path: str, number: int = number) -> None:
                nonlocal changes
                if operation in {"create", "write", "rename", "truncate", "allocate"}:
                    changes += 1
                    if changes == number:
                        raise OSError(errno.ENOSPC, "no space", path)

            disk.rule = full
            with contextlib.suppress(StorageError):
                add(bed, log, 0, [4, 5])
            disk.rule = None
            if log.healthy:
                is_added = log.maintenance.marks().number_of(WRITER) == 0
                assert log.append(records(1)).base_offset == (28 if is_added else 10)
            healthy = log.healthy
            end = bed.open(clean=False).offsets().log_end
            outcomes.add((healthy, end - healthy))
            assert end - healthy in {10, 28}
            assert [record.offset for record in bed.open().records(start=0)] == list(range(end))
            assert bed.open().maintenance.marks().number_of(WRITER) == (0 if end >= 28 else -1)
    assert {(True, 10), (False, 10), (False, 28), (True, 28)} == outcomes
