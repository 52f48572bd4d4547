"""Power losses before every change of the disk: durable records stay, and of the others only a suffix is lost."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from log_bed import LogBed, offsets_in, records
from power_search import PowerSearch, power_losses
from stratalog.config.topic import TopicConfig
from stratalog.errors import DiskFullError, LogDirOfflineError, StorageError
from stratalog.log.log import Log
from stratalog.model.names import LOG_SUFFIX
from stratalog.model.records import Record
from stratalog.testing.faults import FaultyVfs, failing
from stratalog.testing.power_loss import LazyNames, LazySync, PowerLossVfs


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.long
def test_durable_records_survive_a_power_loss_at_any_time(tmp_path: Path, bed: LogBed, seed: int) -> None:
    search = PowerSearch(tmp_path, bed.registry, seed)
    search.run()
    assert search.checked > 50


def test_a_log_that_was_closed_cleanly_has_no_reserved_space_after_a_power_loss(tmp_path: Path, bed: LogBed) -> None:
    """Zeros after the last batch would count as damage: a clean start neither scans nor truncates the segment."""
    bed.topic = TopicConfig(preallocate=True, segment_bytes=1000)
    bed.folder.mkdir(parents=True)
    files = bed.files_port = PowerLossVfs(bed.directory)
    log = bed.open()
    log.append([Record(value=b"first")])
    log.roll()  # the first segment of a log is not preallocated
    log.append([Record(value=b"second")], durability="durable")
    bed.close()
    files.leave(tmp_path / "left", None)
    with LogBed(tmp_path / "left", bed.registry, bed.topic) as crashed_bed:
        log = crashed_bed.open()
        assert log.healthy
        assert [record.value for record in log.records()] == [b"first", b"second"]


def test_a_second_power_loss_does_not_restore_bytes_that_recovery_removed(tmp_path: Path, bed: LogBed) -> None:
    """All records are durable, so a roll syncs nothing, and recovery does not scan the closed segment again."""
    log = bed.open()
    log.append(records(3), durability="durable")
    bed.close()
    with bed.path(0).open("ab") as file:
        file.write(b"torn" * 20)
    bed.recovery_point = 3
    files = bed.files_port = PowerLossVfs(bed.directory)
    log = bed.open(clean=False)
    log.roll()
    log.append(records(1, start=3), durability="durable")
    files.leave(tmp_path / "left", None)
    with LogBed(tmp_path / "left", bed.registry, bed.topic, recovery_point=4) as crashed_bed:
        assert offsets_in(crashed_bed.open(clean=False)) == [0, 1, 2, 3]


def damaged_in_the_middle(bed: LogBed) -> None:
    """Leave the segments 0, 3, 6 and 9, of which the second has a damaged end."""
    log = bed.open()
    for start in (0, 3, 6):
        log.append(records(3, start=start))
        log.roll()
    bed.close()
    data = bed.path(3).read_bytes()
    bed.path(3).write_bytes(data[:-1] + bytes([data[-1] ^ 0xFF]))


def test_recovery_that_ends_early_has_dropped_the_last_segment_first(bed: LogBed) -> None:
    """If it dropped the first one, the segments after it would seem to follow a gap of retention or compaction."""
    damaged_in_the_middle(bed)
    bed.files_port = files = FaultyVfs()
    files.rule = failing("rename", errno.EIO, path=f"{bed.path(6).name}.deleted")
    with pytest.raises(StorageError):
        bed.open(clean=False)
    assert [name for name in bed.names() if name.endswith(LOG_SUFFIX)] == [bed.path(base).name for base in (0, 3, 6)]


def test_a_power_loss_while_recovery_drops_segments_leaves_no_hole(tmp_path: Path, bed: LogBed) -> None:
    """Without its damaged end, a truncated segment does not show that the segments after it were dropped."""
    damaged_in_the_middle(bed)
    crashed_bed = LogBed(tmp_path / "left", bed.registry, bed.topic)

    def check(recovered_log: Log) -> None:
        assert offsets_in(recovered_log) == [0, 1, 2]

    files = bed.files_port = PowerLossVfs(bed.folder)
    with power_losses(files, crashed_bed, check):
        check(bed.open(clean=False))


def test_aborted_records_stay_aborted_if_the_power_fails_during_a_roll(tmp_path: Path, bed: LogBed) -> None:
    """The transaction index has a durable name before the next segment exists: recovery would not build it again."""
    bed.folder.mkdir(parents=True)
    crashed_bed = LogBed(tmp_path / "left", bed.registry, bed.topic, recovery_point=4)

    def check(recovered_log: Log) -> None:
        assert [record.offset for record in recovered_log.records(isolation="read_committed")] == [3]

    files = bed.files_port = PowerLossVfs(bed.folder)
    log = bed.open()
    log.append_as_leader(bed.batch(0, records(2), producer=(7, 0, 0), transactional=True), durability="durable")
    log.end_transaction(7, 0, commit=False, coordinator_epoch=0, durability="durable")
    log.append(records(1), durability="durable")
    with power_losses(files, crashed_bed, check, samples=10) as names:
        log.roll()
    assert bed.path(4).name in names


def test_a_deletion_of_records_keeps_the_producers_of_durable_ones(tmp_path: Path, bed: LogBed) -> None:
    """A log that ended below its durable log start after a power loss would begin again without producers."""
    bed.folder.mkdir(parents=True)
    files = bed.files_port = PowerLossVfs(bed.directory)
    log, batch = bed.open(), bed.batch(0, records(3), producer=(7, 0, 0))
    log.append_as_leader(batch, durability="durable")
    log.append(records(2))
    log.delete_records(5)
    files.leave(tmp_path / "left", None)
    with LogBed(tmp_path / "left", bed.registry, bed.topic, log_start=5, recovery_point=5) as crashed_bed:
        assert crashed_bed.open(clean=False).append_as_leader(batch).duplicate


def test_records_below_the_log_start_are_durable_before_a_roll(tmp_path: Path, bed: LogBed) -> None:
    """Damage in a closed segment takes a log out of service, also below the log start."""
    bed.folder.mkdir(parents=True)
    crashed_bed = LogBed(tmp_path / "left", bed.registry, bed.topic, log_start=3, recovery_point=3)

    def check(recovered_log: Log) -> None:
        assert recovered_log.healthy

    files = bed.files_port = PowerLossVfs(bed.folder)
    log = bed.open()
    log.append(records(3))
    log.maintenance.raise_log_start(3)
    with power_losses(files, crashed_bed, check):
        log.roll()


# --- the search detects missing syncs --------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [LazySync, LazyNames])
def test_a_sync_that_is_left_out_is_found(tmp_path: Path, bed: LogBed, broken: type[PowerLossVfs]) -> None:
    def search() -> None:
        for seed in range(5):
            PowerSearch(tmp_path / str(seed), bed.registry, seed, broken).run()

    with pytest.raises((AssertionError, StorageError)):  # records are lost, or the log cannot be opened
        search()


def test_records_that_cannot_be_made_durable_stop_a_roll(bed: LogBed) -> None:
    """The new segment then gets no name. No record may be written after records that could be lost."""
    files = bed.files_port = FaultyVfs()
    log = bed.open()
    log.append([Record(value=b"first")])
    before = bed.names()
    files.rule = failing("sync", errno.EIO, path=".log")
    with pytest.raises(LogDirOfflineError):
        log.roll()
    assert bed.names() == before
    with pytest.raises(LogDirOfflineError):
        log.append([Record(value=b"second")])
    assert [record.value for record in log.records()] == [b"first"]


def test_a_roll_of_durable_records_syncs_no_log(bed: LogBed) -> None:
    files = bed.files_port = FaultyVfs()
    log = bed.open()
    log.append([Record(value=b"first")], durability="durable")
    files.done.clear()
    log.roll()
    assert [name for _, name in files.names("sync") if name.endswith(".log")] == []


def test_a_roll_makes_the_removal_of_a_failed_append_durable(bed: LogBed) -> None:
    """A power loss could restore the removed bytes. Recovery does not scan a closed segment below the recovery point."""
    files = bed.files_port = FaultyVfs()
    log = bed.open()
    log.append([Record(value=b"first")], durability="durable")
    files.room_bytes = 10
    with pytest.raises(DiskFullError):
        log.append([Record(value=b"second")])
    files.room_bytes = None
    files.done.clear()
    log.roll()
    assert ("sync", f"{0:020}.log") in files.names("sync")
