from __future__ import annotations

import errno

import pytest

from log_bed import LogBed, records
from stratalog.config.topic import TopicConfig
from stratalog.errors import CorruptCheckpointError, DiskFullError
from stratalog.model.offsets import EpochEntry
from stratalog.producers.snapshot import ProducerEntry, decode_snapshot, encode_snapshot
from stratalog.testing.faults import FaultyVfs, failing

BATCHES, EACH = 6, 3
COUNT = BATCHES * EACH


# --- leader epochs -----------------------------------------------------------------------------------------------


def write_epochs(bed: LogBed, text: str) -> None:
    (bed.folder / "leader-epoch-checkpoint").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("clean", [True, False])
def test_epochs_beyond_the_end_are_forgotten(small: LogBed, *, clean: bool) -> None:
    write_epochs(small, "0\n3\n0 0\n4 9\n5 18\n")
    log = small.open(clean=clean)
    assert log.view().epochs.entries == (EpochEntry(0, 0), EpochEntry(4, 9))
    assert (small.folder / "leader-epoch-checkpoint").read_bytes() == b"0\n2\n0 0\n4 9\n"
    log.append(records(1))
    assert log.view().epochs.entries == (EpochEntry(0, 0), EpochEntry(4, 9))


@pytest.mark.parametrize("clean", [True, False])
def test_a_full_disk_keeps_a_file_with_more_epochs_than_needed(small: LogBed, *, clean: bool) -> None:
    """On a full disk, the log must open: otherwise retention could not make room."""
    epochs_text = "0\n3\n0 0\n4 9\n5 18\n"
    write_epochs(small, epochs_text)
    small.files_port = files = FaultyVfs()
    files.room_bytes = 0
    log = small.open(clean=clean)
    assert log.view().epochs.entries == (EpochEntry(0, 0), EpochEntry(4, 9))
    assert len(list(log.records())) == COUNT
    assert (small.folder / "leader-epoch-checkpoint").read_text(encoding="utf-8") == epochs_text
    files.room_bytes = None
    log.lead(6)
    assert (small.folder / "leader-epoch-checkpoint").read_bytes() == b"0\n3\n0 0\n4 9\n6 18\n"


def test_epochs_that_a_full_disk_kept_do_not_return_after_an_append(small: LogBed) -> None:
    """The append moves the log end above their start, so the next loading could not tell that they are obsolete."""
    write_epochs(small, "0\n3\n0 0\n4 9\n5 18\n")
    small.files_port = files = FaultyVfs()
    files.room_bytes = 0
    log = small.open(clean=False)
    files.room_bytes = None
    log.append(records(1, start=COUNT))
    assert small.open().view().epochs.entries == (EpochEntry(0, 0), EpochEntry(4, 9))


def test_a_full_disk_refuses_a_log_whose_file_lacks_an_epoch(small: LogBed) -> None:
    """The epoch would be lost if the log were closed cleanly before it is stored."""
    (small.folder / "leader-epoch-checkpoint").unlink()
    small.files_port = files = FaultyVfs()
    files.rule = failing("create", errno.ENOSPC, path="leader-epoch-checkpoint.tmp")
    with pytest.raises(DiskFullError):
        small.open(clean=False)


def test_recovery_finds_lost_epochs_and_stores_them(bed: LogBed) -> None:
    bed.write_segment(0, [bed.batch(n, records(1), leader_epoch=n // 2) for n in range(6)])
    expected = (EpochEntry(0, 0), EpochEntry(1, 2), EpochEntry(2, 4))
    assert bed.open(clean=False).view().epochs.entries == expected
    bed.close()
    assert bed.open().view().epochs.entries == expected


def test_a_malformed_epoch_file_is_reported_and_nothing_stays_open(small: LogBed) -> None:
    write_epochs(small, "0\n9\n0 0\n")
    for attempt in (small.load, small.open_reader):
        with pytest.raises(CorruptCheckpointError, match="leader-epoch-checkpoint"):
            attempt()
    assert small.host.handles.open_count == 0


# --- producer snapshots ------------------------------------------------------------------------------------------


@pytest.fixture
def produced(bed: LogBed) -> LogBed:
    """Return a log of one idempotent producer with a snapshot at each segment and one at the log end."""
    bed.topic = TopicConfig(segment_bytes=250, index_interval_bytes=0)
    log = bed.open()
    for index in range(BATCHES):
        log.append_as_leader(bed.batch(0, records(EACH), producer=(7, 0, EACH * index)))
    bed.close()
    return bed


def snapshots(bed: LogBed) -> list[int]:
    return [int(name[:20]) for name in bed.names() if name.endswith(".snapshot")]


def sequence(bed: LogBed, *, clean: bool = True) -> int:
    log = bed.open(clean=clean)
    (entry,) = log.producers()
    assert (entry.producer_id, entry.last_offset) == (7, COUNT - 1)
    bed.close()
    return entry.last_sequence


def test_a_snapshot_a_segment_and_one_at_the_end(produced: LogBed) -> None:
    bases = [int(name[:20]) for name in produced.names() if name.endswith(".log")]
    assert snapshots(produced) == [*bases[1:], COUNT]
    (entry,) = decode_snapshot(produced.path(COUNT, ".snapshot").read_bytes(), "f")
    assert entry == ProducerEntry(7, 0, COUNT - 1, COUNT - 1, EACH - 1, records(EACH)[-1].timestamp_ms)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lost", [0, 1, 2, 99])
def test_damaged_snapshots_are_passed_over(produced: LogBed, lost: int, *, clean: bool) -> None:
    for offset in list(reversed(snapshots(produced)))[:lost]:
        produced.path(offset, ".snapshot").write_bytes(b"damaged")
    assert sequence(produced, clean=clean) == COUNT - 1


def test_after_an_unclean_stop_the_log_itself_is_asked(produced: LogBed) -> None:
    for offset in snapshots(produced):
        produced.path(offset, ".snapshot").unlink()
    before = set(produced.names())
    assert sequence(produced, clean=False) == COUNT - 1
    bases = [int(name[:20]) for name in produced.names() if name.endswith(".log")]
    assert set(snapshots(produced)) == {*bases[1:], COUNT}
    assert before <= set(produced.names())


def test_an_old_directory_without_snapshots_is_not_scanned(produced: LogBed) -> None:
    for offset in snapshots(produced):
        produced.path(offset, ".snapshot").unlink()
    assert produced.open().producers() == []


def test_stray_snapshots_are_deleted(produced: LogBed) -> None:
    expected = snapshots(produced)
    for offset in (1, 7, 17):
        produced.path(offset, ".snapshot").write_bytes(encode_snapshot([]))
    assert sequence(produced) == COUNT - 1
    assert snapshots(produced) == expected


def test_a_snapshot_of_what_was_lost_is_not_believed(produced: LogBed) -> None:
    last = max(int(name[:20]) for name in produced.names() if name.endswith(".log"))
    produced.path(last).write_bytes(produced.path(last).read_bytes()[:-1])
    log = produced.open(clean=False)
    (entry,) = log.producers()
    assert entry.last_sequence == entry.last_offset == COUNT - EACH - 1
    assert max(snapshots(produced)) == COUNT - EACH
