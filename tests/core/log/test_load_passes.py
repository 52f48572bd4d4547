"""Files other than logs that loading leaves on disk: snapshots, rebuilt indexes, discarded segments."""

from __future__ import annotations

import itertools
import random

import pytest

from log_bed import LogBed, offsets_in, records
from stratalog.config.topic import TopicConfig
from stratalog.model.messages.control import ControlType
from stratalog.model.names import segment_file
from stratalog.producers.snapshot import decode_snapshot, encode_snapshot
from stratalog.testing.power_loss import PowerLossVfs

EACH, SEGMENTS = 3, 4
COUNT = EACH * SEGMENTS
DAY_MS = 86_400_000


@pytest.fixture
def produced(bed: LogBed) -> LogBed:
    """Write one batch into each segment, each by another producer, and close cleanly.

    The last transaction stays open.
    """
    bed.topic = TopicConfig(segment_bytes=170, index_interval_bytes=0)
    log = bed.open()
    for index in range(SEGMENTS):
        batch_records = records(EACH, start=EACH * index)
        open_at_the_end = index == SEGMENTS - 1
        log.append_as_leader(bed.batch(0, batch_records, producer=(index, 0, 0), transactional=open_at_the_end))
    assert [segment.base_offset for segment in log.segments()] == list(range(0, COUNT, EACH))
    bed.close()
    return bed


def producers(bed: LogBed, offset: int) -> list[int]:
    """Return the producer ids in a snapshot."""
    data = bed.path(offset, ".snapshot").read_bytes()
    return sorted(entry.producer_id for entry in decode_snapshot(data, "f"))


def snapshots(bed: LogBed) -> list[int]:
    return [int(name[:20]) for name in bed.names() if name.endswith(".snapshot")]


def load(bed: LogBed, *, clean: bool) -> list[str]:
    """Load the log as an engine does, and return the names of the files that it set aside."""
    loaded_log = bed.load(clean=clean)
    for segment in loaded_log.segments:
        segment.close()
    return loaded_log.deleted_files


# --- snapshots -------------------------------------------------------------------------------------------------------


def test_producers_that_were_silent_too_long_are_not_taken_from_a_snapshot(produced: LogBed) -> None:
    """Like Kafka, stratalog removes expired producers only when it loads a snapshot.

    Each recovered segment begins with its snapshot; producers of this segment stay until its end.
    """
    newest = records(1, start=COUNT - 1)[0].timestamp_ms
    produced.clock.advance_ms(newest + DAY_MS - produced.clock.now_ms())
    produced.recovery_point = 2 * EACH
    load(produced, clean=False)
    # these snapshots were written before the crash, and recovery does not read them
    assert producers(produced, 2 * EACH) == [0, 1]
    assert producers(produced, 3 * EACH) == [2]
    assert producers(produced, COUNT) == [3]


@pytest.mark.parametrize(("silent_ms", "known"), [(DAY_MS - 1, [0, 3]), (DAY_MS, [3])])
def test_a_producer_expires_at_its_limit_unless_its_transaction_is_open(
    produced: LogBed, silent_ms: int, known: list[int]
) -> None:
    first = records(1, start=EACH - 1)[0].timestamp_ms
    produced.path(COUNT, ".snapshot").write_bytes(
        encode_snapshot(
            entry._replace(last_timestamp_ms=first)
            for entry in decode_snapshot(produced.path(COUNT, ".snapshot").read_bytes(), "f")
            if entry.producer_id in {0, 3}
        )
    )
    produced.clock.advance_ms(first + silent_ms - produced.clock.now_ms())
    log = produced.open()
    assert sorted(entry.producer_id for entry in log.producers()) == known


@pytest.mark.parametrize("clean", [True, False])
def test_the_snapshot_at_the_end_stays_as_it_is_while_nothing_is_appended(produced: LogBed, *, clean: bool) -> None:
    """Kafka also writes no second snapshot at the same offset. Each opening ignores expired producers."""
    path = produced.path(COUNT, ".snapshot")
    before = path.read_bytes()
    produced.clock.advance_ms(records(1, start=COUNT)[0].timestamp_ms + DAY_MS - produced.clock.now_ms())
    log = produced.open(clean=clean)
    assert [entry.producer_id for entry in log.producers()] == [3]
    produced.close()
    assert path.read_bytes() == before if clean else producers(produced, COUNT) == [SEGMENTS - 1]
    log = produced.open()
    log.append(records(1, start=COUNT))
    produced.close()
    assert producers(produced, COUNT + 1) == [3]


def test_a_truncation_to_the_end_that_was_loaded_has_its_own_snapshot(produced: LogBed) -> None:
    log = produced.open()
    log.truncate_to(COUNT - EACH)
    log.append(records(EACH, start=COUNT - EACH))
    produced.close()
    assert producers(produced, COUNT) == [0, 1, 2]


def test_recovery_leaves_a_snapshot_at_each_segment_that_it_checked(produced: LogBed) -> None:
    for offset in snapshots(produced):
        produced.path(offset, ".snapshot").unlink()
    produced.recovery_point = 2 * EACH
    load(produced, clean=False)
    assert snapshots(produced) == [2 * EACH, 3 * EACH, COUNT]
    assert [producers(produced, offset) for offset in snapshots(produced)] == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]


def test_a_clean_load_without_the_newest_snapshots_leaves_them_at_the_last_two_segments(produced: LogBed) -> None:
    for offset in snapshots(produced)[1:]:
        produced.path(offset, ".snapshot").unlink()
    load(produced, clean=True)
    assert snapshots(produced) == [EACH, 2 * EACH, 3 * EACH, COUNT]
    assert [producers(produced, offset) for offset in snapshots(produced)][1:] == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]


def test_a_clean_load_without_any_snapshot_leaves_empty_ones(produced: LogBed) -> None:
    """Kafka does the same: it avoids a scan of directories from a version without producers."""
    for offset in snapshots(produced):
        produced.path(offset, ".snapshot").unlink()
    load(produced, clean=True)
    assert snapshots(produced) == [2 * EACH, 3 * EACH, COUNT]
    assert [producers(produced, offset) for offset in snapshots(produced)] == [[], [], []]


@pytest.mark.parametrize("clean", [True, False])
def test_snapshots_above_the_end_are_deleted(produced: LogBed, *, clean: bool) -> None:
    for offset in (COUNT + 1, 10 * COUNT):
        produced.path(offset, ".snapshot").write_bytes(encode_snapshot([]))
    load(produced, clean=clean)
    assert snapshots(produced) == [EACH, 2 * EACH, 3 * EACH, COUNT]


# --- indexes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
def test_a_segment_without_offset_index_gets_all_its_indexes_again(bed: LogBed, *, clean: bool) -> None:
    """As in Kafka, this happens after a clean shutdown too, and for a segment below the recovery point."""
    bed.topic = TopicConfig(segment_bytes=600, index_interval_bytes=0)
    batches = [
        bed.batch(3 * n, records(EACH, start=3 * n), producer=(5, 0, 3 * n), transactional=True) for n in range(3)
    ]
    bed.write_segment(0, [*batches, bed.marker(9, 5, ControlType.ABORT)])
    bed.write_segment(10, [bed.batch(10, records(EACH, start=10))])
    load(bed, clean=False)
    assert [len(bed.path(0, suffix).read_bytes()) for suffix in (".index", ".timeindex", ".txnindex")] == [24, 24, 34]
    before = bed.contents()
    bed.recovery_point = COUNT * 10
    for suffix in (".index", ".timeindex", ".txnindex"):
        bed.path(0, suffix).unlink()
    load(bed, clean=clean)
    assert bed.contents() == before


@pytest.mark.parametrize("rolls", [True, False])
@pytest.mark.parametrize("clean", [True, False])
def test_rebuilt_indexes_survive_a_power_loss_after_a_clean_stop(produced: LogBed, *, clean: bool, rolls: bool) -> None:
    """A broker trusts the indexes then: it deletes a segment early if the time index of the segment has only zeros."""
    before = {name: data for name, data in produced.contents().items() if "index" in name}
    if clean:  # then only missing indexes are rebuilt
        for base in range(0, COUNT, EACH):
            produced.path(base, ".index").unlink()
    produced.recovery_point = 0
    produced.files_port = disk = PowerLossVfs(produced.directory)
    log = produced.open(clean=clean)
    if rolls:
        log.roll()
    produced.close()
    after = {name: data for name, data in produced.contents().items() if "index" in name}
    assert before.items() <= after.items()
    indexes = {f"{produced.folder.name}/{name}": data for name, data in after.items()}
    for image in disk.images(random.Random(1), 20):  # noqa: S311 - the states of the disk are the same in each run
        assert {path: data for path, data in image.items() if "index" in path} == indexes


# --- discarded segments ------------------------------------------------------------------------------------------


def test_segments_after_damage_are_set_aside_and_deleted_after_the_delay(produced: LogBed) -> None:
    data = bytearray(produced.path(EACH).read_bytes())
    data[-1] ^= 1
    produced.path(EACH).write_bytes(data)
    log = produced.open(clean=False)
    assert log.offsets().log_end == EACH
    deleted_files = sorted(name for name in produced.names() if name.endswith(".deleted"))
    assert {name[:20] for name in deleted_files} == {f"{base:020d}" for base in (2 * EACH, 3 * EACH)}
    produced.clock.advance_ms(produced.topic.file_delete_delay_ms - 1)
    assert log.maintenance.delete_expired() == 0
    produced.clock.advance_ms(1)
    assert log.maintenance.delete_expired() == len(deleted_files)
    assert not [name for name in produced.names() if name.endswith(".deleted")]


def test_the_snapshot_at_the_end_stays_where_a_segment_that_is_given_up_begins(produced: LogBed) -> None:
    """The damage is after all batches of a segment. As in Kafka, the snapshot at the log end is loaded last."""
    path = produced.path(EACH)
    path.write_bytes(path.read_bytes() + b"\xff" * 30)
    deleted_files = load(produced, clean=False)
    assert any(name.startswith(f"{2 * EACH:020d}.log") for name in deleted_files)
    assert snapshots(produced) == [EACH, 2 * EACH]
    assert producers(produced, 2 * EACH) == [0, 1]


# --- progress --------------------------------------------------------------------------------------------------------


def test_progress_is_reported_up_to_the_last_byte(produced: LogBed) -> None:
    heard: list[tuple[int, int]] = []
    produced.recovery_point = EACH
    sizes = [produced.path(base).stat().st_size for base in range(EACH, COUNT, EACH)]
    loaded_log = produced.load(clean=False, progress=lambda done_bytes, total: heard.append((done_bytes, total)))
    for segment in loaded_log.segments:
        segment.close()
    assert heard == [(sum(sizes[: n + 1]), sum(sizes)) for n in range(3)]


# --- offsets, which no CRC covers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("segment", [0, 1])
@pytest.mark.long
def test_a_batch_whose_offset_is_damaged_never_puts_the_end_of_the_log_elsewhere(bed: LogBed, segment: int) -> None:
    """Flip every bit of every offset except those of the last batch, which no later batch can contradict.

    Recovery truncates the log before the damaged batch. The last batch of a closed segment can precede a gap that
    compaction left. As in Kafka, recovery keeps this batch and all later ones, and a reader gets an error.
    """
    batches = [b"".join(bed.batch(base + 2 * i, records(2, start=base + 2 * i)) for i in range(4)) for base in (0, 8)]
    size = len(batches[segment]) // 4
    for number, bit in itertools.product(range(4 if segment == 0 else 3), range(64)):
        damaged = bytearray(batches[segment])
        damaged[number * size + 7 - bit // 8] ^= 1 << bit % 8
        bed.write(
            {
                segment_file(8 * index, ".log"): bytes(damaged) if index == segment else batches[index]
                for index in (0, 1)
            }
        )
        sound_end = 8 * segment + 2 * number
        log = bed.open(clean=False)
        end, offsets_below = log.offsets().log_end, [record.offset for record in log.records(0, sound_end)]
        log.maintenance.abandon()
        assert end == (16 if (number, end) == (3, 16) else sound_end), (number, bit)
        assert offsets_below == list(range(sound_end))


@pytest.mark.parametrize("ahead", [3, 1 << 18])
def test_a_segment_that_is_cut_ends_below_the_next_one_whatever_its_offsets_claim(bed: LogBed, ahead: int) -> None:
    """Compaction leaves gaps, so either of two contradicting offsets may be wrong. Both are below the next segment."""
    first = [bed.batch(0, records(1)), bed.batch(9 + ahead, records(1, start=4)), bed.batch(6, records(1, start=6))]
    bed.write({segment_file(0, ".log"): b"".join(first), segment_file(10, ".log"): bed.batch(10, records(1, start=10))})
    log = bed.open(clean=False)
    assert (log.offsets().log_end, offsets_in(log)) == (1, [0])
    assert [entry.producer_id for entry in log.producers()] == []
    assert log.append(records(1, start=1)).base_offset == 1
