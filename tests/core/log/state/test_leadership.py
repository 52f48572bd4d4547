from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from log_bed import LogBed, records
from stratalog.config.topic import TopicConfig
from stratalog.errors import (
    ClosedError,
    ConfigError,
    DiskFullError,
    LogDirOfflineError,
    NotLeaderOrFollowerError,
    StaleLeaderEpochError,
    SystemLimitError,
    UnknownLeaderEpochError,
)
from stratalog.log.log import Log
from stratalog.model.offsets import EpochEntry, Watermark
from stratalog.testing.faults import FaultyVfs, failing


def test_a_log_leads_when_it_is_opened(bed: LogBed) -> None:
    log = bed.open()
    assert (log.is_leader, log.leader_epoch, log.view().is_leader, log.view().leader_epoch) == (True, 0, True, 0)


def test_a_new_epoch_begins_at_the_log_end_even_if_nothing_is_appended_in_it(bed: LogBed) -> None:
    log = bed.open()
    log.append(records(3))
    log.lead(4)
    assert log.view().epochs.entries == (EpochEntry(0, 0), EpochEntry(4, 3))
    log.append(records(1, start=3))
    assert [record.leader_epoch for record in log.records()] == [0, 0, 0, 4]
    log.lead(9)  # nothing is appended in it
    bed.crash()
    # epoch 9 began at the log end, and had no record
    assert bed.open(clean=False).view().epochs.entries == (EpochEntry(0, 0), EpochEntry(4, 3))
    assert bed.open().leader_epoch == 4


def test_with_a_tier_a_new_epoch_outlives_a_crash_even_if_nothing_is_appended_in_it(bed: LogBed) -> None:
    """The tier knows the new epoch. If the log lost it, its own commits to the tier would be fenced."""
    bed.topic = TopicConfig(remote_storage_enable=True)
    log = bed.open()
    log.append(records(3))
    log.lead(4)
    bed.crash()
    assert bed.open(clean=False).view().epochs.entries == (EpochEntry(0, 0), EpochEntry(4, 3))
    assert bed.open().leader_epoch == 4


def test_epochs_never_decrease(bed: LogBed) -> None:
    log = bed.open()
    log.lead(5)
    log.lead(5)
    for change in (log.lead, log.follow):
        with pytest.raises(StaleLeaderEpochError, match=r"leader epoch 5, not in 4"):
            change(4)
    log.follow(6)
    with pytest.raises(StaleLeaderEpochError, match="follows another leader in epoch 6"):
        log.lead(6)
    with pytest.raises(StaleLeaderEpochError):
        log.lead(-1)
    with pytest.raises(ConfigError, match="32 bits"):
        log.follow(1 << 31)
    log.lead(7)
    assert (log.leader_epoch, log.is_leader) == (7, True)


@pytest.mark.parametrize(
    "attempt",
    [
        lambda _, log: log.append(records(1)),
        lambda bed, log: log.append_as_leader(bed.batch(0, records(1))),
        lambda _, log: log.end_transaction(1, 0, commit=True, coordinator_epoch=0),
        lambda _, log: log.delete_records(0),
    ],
)
def test_a_follower_accepts_only_batches_of_its_leader(bed: LogBed, attempt: Callable[[LogBed, Log], object]) -> None:
    log = bed.open()
    log.follow(3)
    with pytest.raises(NotLeaderOrFollowerError, match="follows the leader of epoch 3") as caught:
        attempt(bed, log)
    assert (caught.value.kafka_code, caught.value.retriable, log.offsets().log_end) == (6, True, 0)
    log.lead(4)
    assert log.append(records(1)).base_offset == 0


def test_a_new_follower_keeps_its_high_watermark_until_the_leader_sends_another(bed: LogBed) -> None:
    bed.watermark = Watermark.EXTERNAL
    log = bed.open()
    log.append(records(4))
    assert log.set_high_watermark(2) == 2
    assert log.set_high_watermark(1) == 2  # the high watermark of a leader never decreases
    log.follow(1)
    assert log.offsets().high_watermark == 2
    assert (log.set_high_watermark(1), log.set_high_watermark(99), log.set_high_watermark(-5)) == (1, 4, 0)
    assert log.set_high_watermark(3) == 3
    log.lead(2)
    assert log.offsets().high_watermark == 3


def test_a_follower_has_its_high_watermark_from_outside_whatever_moves_a_leaders(bed: LogBed) -> None:
    log = bed.open()
    log.append(records(4))
    log.follow(1)
    assert (log.set_high_watermark(1), log.offsets().high_watermark) == (1, 1)
    log.lead(2)
    assert log.offsets().high_watermark == 4


@pytest.mark.parametrize(("error", "kind"), [(errno.ENOSPC, DiskFullError), (errno.EIO, LogDirOfflineError)])
def test_an_epoch_that_cannot_be_stored_is_not_led(bed: LogBed, error: int, kind: type[Exception]) -> None:
    files = bed.files_port = FaultyVfs()
    log = bed.open()
    log.append(records(1))
    log.follow(1)
    files.rule = failing("write", error)
    with pytest.raises(kind):
        log.lead(2)
    assert (log.is_leader, log.leader_epoch, log.view().epochs.latest) == (False, 1, 0)
    files.rule = None
    if kind is DiskFullError:
        log.lead(2)
        assert log.append(records(1)).base_offset == 1
    assert log.healthy == (kind is DiskFullError)


@pytest.mark.parametrize("also_fails", ["sync folder", "create"])
def test_an_epoch_whose_file_could_not_be_synced_is_not_in_the_file(bed: LogBed, also_fails: str) -> None:
    """Otherwise the next opening would assign the records that follow to an epoch in which nobody led."""
    bed.files_port = files = FaultyVfs()
    log = bed.open()
    log.append(records(3))
    failing_operations = {"sync folder"}

    def refuse(operation: str, _: str) -> None:
        if operation in failing_operations:
            failing_operations.add(also_fails)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    files.rule = refuse
    with pytest.raises(SystemLimitError):
        log.lead(4)
    files.rule = None
    log.append(records(2, start=3))
    assert (log.leader_epoch, log.view().epochs.entries) == (0, (EpochEntry(0, 0),))
    reopened_log = bed.open()
    assert (reopened_log.leader_epoch, reopened_log.view().epochs.entries) == (0, (EpochEntry(0, 0),))


def test_an_interrupt_while_an_epoch_is_stored_takes_the_log_out_of_service(bed: LogBed) -> None:
    """Otherwise the next opening would assign the records that follow to an epoch in which nobody led."""
    bed.files_port = files = FaultyVfs()
    log = bed.open()
    log.append(records(3))

    def interrupt(operation: str, _: str) -> None:
        if operation == "sync folder":  # the file has the new epoch
            raise KeyboardInterrupt

    files.rule = interrupt
    with pytest.raises(KeyboardInterrupt):
        log.lead(4)
    files.rule = None
    with pytest.raises(ClosedError, match="KeyboardInterrupt"):
        log.append(records(2, start=3))
    bed.crash()
    assert bed.open(clean=False).view().epochs.entries == (EpochEntry(0, 0),)


def test_epochs_that_a_failed_append_has_removed_from_the_file_are_stored_again(bed: LogBed) -> None:
    """Otherwise the next opening would not know the epoch of the records that follow."""
    bed.files_port = files = FaultyVfs()
    log = bed.open()
    log.follow(4)
    log.append_as_follower(bed.batch(0, records(3), leader_epoch=4), 3, 0)
    failing_operations = {"sync folder"}

    def refuse(operation: str, _: str) -> None:
        if operation in failing_operations:
            failing_operations.add("create")
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    files.rule = refuse
    with pytest.raises(SystemLimitError):  # a batch of magic 1 removes all epochs
        log.append_as_follower(bed.batch(3, records(1), magic=1), 4, 0)
    files.rule = None
    log.append_as_follower(bed.batch(3, records(1), leader_epoch=4), 4, 0)
    assert log.view().epochs.entries == (EpochEntry(4, 0),)
    assert bed.open().view().epochs.entries == (EpochEntry(4, 0),)


def test_appends_succeed_if_a_deletion_of_records_could_not_store_the_remaining_epochs(bed: LogBed) -> None:
    """The file has only earlier epochs than needed, which do no harm."""
    bed.files_port = files = FaultyVfs()
    log = bed.open()
    log.append(records(3))
    log.lead(4)
    log.append(records(3, start=3), durability="durable")
    files.rule = failing("create", errno.EMFILE, times=1000)
    log.delete_records(4)
    assert log.append(records(1, start=6)).base_offset == 6
    files.rule = None


def test_each_offset_has_the_epoch_of_its_append(bed: LogBed) -> None:
    log = bed.open()
    assert log.leader_epoch_at(0) == -1
    for epoch in (1, 4):
        log.lead(epoch)
        log.append(records(10))
    assert [log.leader_epoch_at(offset) for offset in (0, 9, 10, 19, 20)] == [1, 1, 4, 4, 4]
    log.delete_records(5)
    assert [log.leader_epoch_at(offset) for offset in (4, 5)] == [-1, 1]


def test_the_end_of_an_epoch_is_reported_as_kafka_does(bed: LogBed) -> None:
    """The four cases of Kafka, with the epochs {0: 0, 1: 10, 2: 20} and log end 25."""
    log = bed.open()
    for epoch, count in enumerate((10, 10, 5)):
        log.lead(epoch)
        log.append(records(count))
    ends = {epoch: log.end_offset_for_epoch(epoch) for epoch in (-1, 0, 1, 2, 5)}
    assert ends == {-1: (-1, -1), 0: (0, 10), 1: (1, 20), 2: (2, 25), 5: (-1, -1)}
    log.delete_records(15)
    assert (log.end_offset_for_epoch(0), log.end_offset_for_epoch(1)) == ((0, 15), (1, 20))
    log.lead(7)
    assert (log.end_offset_for_epoch(4), log.end_offset_for_epoch(7)) == ((2, 25), (7, 25))
    assert log.end_offset_for_epoch(7, current_leader_epoch=7) == (7, 25)
    with pytest.raises(StaleLeaderEpochError):
        log.end_offset_for_epoch(7, current_leader_epoch=6)
    with pytest.raises(UnknownLeaderEpochError):
        log.end_offset_for_epoch(7, current_leader_epoch=8)
