from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from log_bed import LogBed, records
from power_search import power_losses
from stratalog.errors import ClosedError, StoreTimeoutError, SystemLimitError
from stratalog.log.log import Log
from stratalog.log.read.tier_view import RemoteView
from stratalog.model.names import MARKS_FILE
from stratalog.model.records import Record
from stratalog.segment.build import copy_batches
from stratalog.testing.faults import FaultyVfs
from stratalog.testing.power_loss import PowerLossVfs


@pytest.mark.parametrize("renames", [1, 3, 5, 8])
def test_a_replacement_that_is_interrupted_takes_the_log_out_of_service(bed: LogBed, renames: int) -> None:
    """Some files may already have other names. Only the next opening completes or undoes the replacement."""
    bed.files_port = files = FaultyVfs()
    log = bed.open()
    log.append(records(3))
    log.roll()
    old, publisher = log.view().segments[0], log.maintenance.publisher()
    builder = publisher.begin(old.base_offset)
    copy_batches(old, builder, log.components)
    new_segment = builder.finish(old.end_offset, old.modified_ms)
    rename_count = [0]

    def interrupt(operation: str, _: str) -> None:
        rename_count[0] += operation == "rename"
        if rename_count[0] == renames:
            raise KeyboardInterrupt

    files.rule = interrupt
    with pytest.raises(KeyboardInterrupt):
        publisher.replace(new_segment, [old])
    files.rule = None
    with pytest.raises(ClosedError, match="KeyboardInterrupt"):
        log.append(records(1, start=3))
    assert log.close() is False
    reopened_log = bed.open(clean=False)
    assert [record.offset for record in reopened_log.records()] == [0, 1, 2]
    assert not [name for name in bed.names() if name.endswith((".cleaned", ".swap"))]


def test_a_replacement_that_cannot_read_the_tier_leaves_no_file(bed: LogBed) -> None:
    log = bed.open()
    log.append(records(3))
    log.roll()
    before = bed.names()
    old, publisher = log.view().segments[0], log.maintenance.publisher()
    builder = publisher.begin(old.base_offset)
    copy_batches(old, builder, log.components)
    new_segment = builder.finish(old.end_offset, old.modified_ms)
    remote = Mock(view=Mock(return_value=RemoteView()))
    log.maintenance.configure(log.config, log.components, remote)
    remote.view.side_effect = StoreTimeoutError("the store does not answer", "")
    with pytest.raises(StoreTimeoutError):
        publisher.replace(new_segment, [old])
    assert bed.names() == before
    assert log.healthy
    log.maintenance.configure(log.config, log.components)


def test_a_power_loss_during_a_replacement_restores_no_record_without_its_tombstone(
    tmp_path: Path, bed: LogBed
) -> None:
    """Recovery keeps old segments after the last batch of the new one, so they are removed in the order of offsets."""
    bed.folder.mkdir(parents=True)
    crashed_bed = LogBed(tmp_path / "left", bed.registry, bed.topic)

    def check(log: Log) -> None:
        offsets = [record.offset for record in log.records()]
        assert offsets in ([0, 1, 2, 3], [0, 2, 3], [0, 3])

    files = bed.files_port = PowerLossVfs(bed.folder)
    log = bed.open()
    for key, value in ((b"a", b"v"), (b"k", b"v"), (b"k", None), (b"b", b"v")):
        log.append([Record(key=key, value=value)], durability="durable")
        log.roll()
    old, publisher = log.view().segments[:3], log.maintenance.publisher()
    builder = publisher.begin(0)
    builder.append(bed.batch(0, [Record(key=b"a", value=b"v")]))
    new_segment = builder.finish(3, 0)
    with power_losses(files, crashed_bed, check, samples=10):
        assert publisher.replace(new_segment, old)


@pytest.mark.parametrize("refusals", [1, 2])
def test_a_round_that_could_not_begin_does_not_count_as_written(bed: LogBed, refusals: int) -> None:
    """The file may name the round although its sync failed. Later appends must not make it look written."""
    bed.files_port = files = FaultyVfs()
    log = bed.open()
    log.append(records(3))
    log.roll()
    publisher = log.maintenance.publisher()
    builder = publisher.begin(3)
    builder.append(bed.batch(3, records(2, start=3)))
    new_segment, rename_count = builder.finish(5, 0), [0]

    def refuse(operation: str, path: str) -> None:
        rename_count[0] += operation == "rename" and path.endswith(MARKS_FILE)
        if operation == "sync folder" and 1 <= rename_count[0] <= refusals:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    files.rule = refuse
    with pytest.raises(SystemLimitError):
        publisher.add([new_segment], ("w", 1))
    files.rule = None
    if not log.healthy:
        log.close()
        log = bed.open(clean=False)
    log.append(records(9, start=3))
    assert log.maintenance.marks().number_of("w") == -1


def test_added_segments_keep_the_producers_whose_records_are_deleted(bed: LogBed) -> None:
    """Only the snapshot of the empty active segment, which the added segment replaces, has these producers."""
    log = bed.open()
    batch = bed.batch(0, records(3), producer=(7, 0, 0))
    log.append_as_leader(batch)
    log.delete_records(3)
    log.maintenance.evict(3)
    publisher = log.maintenance.publisher()
    builder = publisher.begin(3)
    builder.append(bed.batch(3, records(2, start=3)))
    publisher.add([builder.finish(5, 0)])
    log.truncate_to(3)
    assert log.append_as_leader(batch).duplicate
