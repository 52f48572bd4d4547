"""Damage to golden ``.log`` files: batches before it are read, and an error names the file and the position."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import golden_data
import stratalog
from golden_damage import Batch, DamagedLog, Outcome, forget_the_stop, read_all, repeatable
from golden_data import Golden
from stratalog import Record
from stratalog.errors import CorruptBatchError

Unpacked = Callable[[str], Golden]

# small topics, of every magic, and with several magics in one log
WANTED: Final = (
    "v2-zstd",
    "v1-gzip",
    "v0-none",
    "upgraded",
)
LOGS = [
    pytest.param((directory, name), id=f"{directory}/{name}")
    for directory, name in golden_data.expected_logs(*golden_data.plain_directories())
    if name.topic in WANTED
]
HEADER_BYTES: Final = {0: 26, 1: 34, 2: 61}
OFFSET: Final = slice(0, 8)  # base offset of a V2 batch; last offset of an entry of V0 or V1
LEADER_EPOCH: Final = slice(12, 16)  # only in V2 batches
ACTIVE_OFFSETS: Final = 1 << 31  # number of offsets that an active segment may span


class Place(NamedTuple):
    """A batch in a ``.log`` file, and its neighbours.

    Attributes:
        file: the file.
        batch: the batch.
        before: the batch before it; None if it is the first one.
        after: the batch after it; None if it is the last one.
        end: exclusive end offset of the file; None for the active segment.
    """

    file: Path
    batch: Batch
    before: Batch | None
    after: Batch | None
    end: int | None


@pytest.fixture(params=LOGS)
def damaged(request: pytest.FixtureRequest, golden: Unpacked, tmp_path: Path) -> DamagedLog:
    """Return a copy of a log, which the test may damage."""
    directory, name = request.param
    return DamagedLog(golden(directory), name, tmp_path / "logs")


def places(damaged: DamagedLog) -> Iterator[Place]:
    """Yield the middle batches of some segments: of the active one, and of the first one with each magic."""
    magics = set[int]()
    for number, file in enumerate(damaged.files):
        batches = damaged.batches(file)
        active = file is damaged.files[-1]
        index = len(batches) // 2
        if active or batches[index].magic not in magics:
            magics.add(batches[index].magic)
            yield Place(
                file,
                batches[index],
                batches[index - 1] if index else None,
                batches[index + 1] if index + 1 < len(batches) else None,
                None if active else int(damaged.files[number + 1].stem),
            )


def flipped(data: bytes, position: int, chance: random.Random) -> bytes:
    """Return a copy with one changed bit in the byte at ``position``."""
    changed = bytearray(data)
    changed[position] ^= 1 << chance.randrange(8)
    return bytes(changed)


def assert_ends_at(outcome: Outcome, damaged: DamagedLog, file: Path, offset: int, position: int) -> None:
    """Check that the records below ``offset`` were read, and then an error that names the file and the position."""
    assert outcome.records == damaged.records_below(offset)
    assert isinstance(outcome.error, CorruptBatchError)
    assert (outcome.error.file, outcome.error.position) == (str(file), position)


def test_undamaged_copies_are_read_as_a_client_read_them(damaged: DamagedLog) -> None:
    assert damaged.read() == Outcome(damaged.expected.records, None)
    assert {batch.magic for file in damaged.files for batch in damaged.batches(file)} <= {0, 1, 2}


# --- changed bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_change_in_a_header_or_in_the_contents_is_found(damaged: DamagedLog) -> None:
    chance = repeatable(1)
    for file, batch, *_ in places(damaged):
        open_fields = {*range(*OFFSET.indices(64)), *(range(*LEADER_EPOCH.indices(64)) if batch.magic == 2 else ())}
        header = HEADER_BYTES[batch.magic]
        contents = range(header, batch.size_bytes)
        sampled_positions = chance.sample(contents, min(5, len(contents)))
        for position in sorted({*range(header), *sampled_positions, batch.size_bytes - 1} - open_fields):
            file.write_bytes(flipped(damaged.original(file), batch.position + position, chance))
            assert_ends_at(damaged.read(), damaged, file, batch.first_offset, batch.position)
        file.write_bytes(damaged.original(file))


@pytest.mark.parametrize("magic", [3, 127, -1])
def test_an_unknown_magic_is_found(damaged: DamagedLog, magic: int) -> None:
    for file, batch, *_ in places(damaged):
        data = bytearray(damaged.original(file))
        data[batch.position + 16] = magic & 0xFF
        file.write_bytes(data)
        assert_ends_at(damaged.read(), damaged, file, batch.first_offset, batch.position)
        file.write_bytes(damaged.original(file))


@pytest.mark.long
def test_a_changed_offset_is_found_where_it_contradicts_another(damaged: DamagedLog) -> None:
    """A CRC does not cover offsets.

    An earlier release ended such reads without an error, or returned records at wrong offsets.
    """
    chance = repeatable(2)
    for place in places(damaged):
        file, batch = place.file, place.batch
        original = damaged.original(file)
        for index in range(8):
            data = flipped(original, batch.position + index, chance)
            changed_offset = int.from_bytes(data[batch.position :][OFFSET], "big", signed=True)
            contradicting_batch = contradiction(place, changed_offset)
            if contradicting_batch is None:
                continue  # the change looks like a gap after compaction
            file.write_bytes(data)
            outcome = damaged.read()
            assert isinstance(outcome.error, CorruptBatchError)
            assert (outcome.error.file, outcome.error.position) == (str(file), contradicting_batch.position)
            sound_records = damaged.records_below(batch.first_offset)
            assert outcome.records[: len(sound_records)] == sound_records
            assert contradicting_batch is not batch or outcome.records == sound_records
        file.write_bytes(original)


def contradiction(place: Place, changed_offset: int) -> Batch | None:
    """Return the batch at which a reader detects the ``changed_offset`` of ``place.batch``; None if it may be valid.

    It is ``place.batch`` itself if the next batch begins exactly where the unchanged batch ends.
    """
    batch = place.batch
    is_v2 = batch.magic == 2
    first, last = (
        (changed_offset, changed_offset + batch.next_offset - batch.first_offset - 1)
        if is_v2
        else (changed_offset, changed_offset)
    )
    base = int(place.file.stem)
    low = base if place.before is None else place.before.next_offset
    high = base + ACTIVE_OFFSETS if place.end is None else place.end
    if not low <= first <= last < high:
        return batch
    if place.after is None:
        return None
    following = place.after.first_offset if place.after.magic == 2 else place.after.next_offset - 1
    if following > last:
        return None
    is_plain = following == low + last - first + 1 and place.after.magic == batch.magic
    return batch if is_plain else place.after


def test_a_changed_leader_epoch_changes_nothing_else(damaged: DamagedLog) -> None:
    chance = repeatable(3)
    for file, batch, *_ in places(damaged):
        if batch.magic < 2:
            continue
        file.write_bytes(flipped(damaged.original(file), batch.position + LEADER_EPOCH.start, chance))
        outcome = damaged.read()
        assert outcome.error is None
        assert without_epochs(outcome.records) == without_epochs(damaged.expected.records)
        file.write_bytes(damaged.original(file))


def without_epochs(records: list[Record]) -> list[Record]:
    return [record._replace(leader_epoch=-1) for record in records]


# --- cut files -------------------------------------------------------------------------------------------------------


def cuts(damaged: DamagedLog, file: Path) -> list[int]:
    """Return sizes to truncate a file to: near batch boundaries, and some at random."""
    size = len(damaged.original(file))
    chance = repeatable(size)
    bounds = [batch.position for batch in damaged.batches(file)]
    if len(bounds) > 8:
        bounds = [0, *chance.sample(bounds, 5), bounds[-1]]
    boundary_sizes = {bound + delta for bound in (*bounds, size) for delta in (-1, 0, 1)}
    return sorted(
        cut_bytes
        for cut_bytes in {*boundary_sizes, *(chance.randrange(size) for _ in range(4))}
        if 0 <= cut_bytes < size
    )


def first_cut(damaged: DamagedLog, file: Path, size: int) -> Batch:
    """Return the first batch that is not complete in a file of ``size`` bytes."""
    return next(batch for batch in damaged.batches(file) if batch.position + batch.size_bytes > size)


def test_a_log_that_ends_too_early_is_reported(damaged: DamagedLog) -> None:
    """If the file is truncated between two batches, the high watermark checkpoint shows the loss."""
    file = damaged.files[-1]
    for size in cuts(damaged, file):
        file.write_bytes(damaged.original(file)[:size])
        lost = first_cut(damaged, file, size)
        assert_ends_at(damaged.read(), damaged, file, lost.first_offset, lost.position)


@pytest.mark.long
def test_a_cut_in_a_closed_segment_is_found_where_it_cuts_a_batch(damaged: DamagedLog) -> None:
    """A truncation between two batches looks like a gap after compaction: the remaining records are read."""
    if len(damaged.files) == 1:
        pytest.skip("this log has no closed segment")
    file = damaged.files[0]
    for size in cuts(damaged, file):
        file.write_bytes(damaged.original(file)[:size])
        lost = first_cut(damaged, file, size)
        if size != lost.position:
            assert_ends_at(damaged.read(), damaged, file, lost.first_offset, lost.position)
        else:
            lost_offsets = range(lost.first_offset, int(damaged.files[1].stem))
            remaining_records = [record for record in damaged.expected.records if record.offset not in lost_offsets]
            assert damaged.read() == Outcome(remaining_records, None)


# --- recovery --------------------------------------------------------------------------------------------------------


def recovered_from(damaged: DamagedLog, lost: Batch, file: Path) -> None:
    """Check that an engine truncates the log before ``lost`` and can append to it.

    A reader must return the same records before the recovery, without a change of the files.
    """
    unrepaired = damaged.read()
    sound_records = damaged.records_below(lost.first_offset)
    assert unrepaired == Outcome(sound_records, None)
    with stratalog.open_engine(damaged.folder) as engine:
        log = engine.log(*damaged.name)
        assert log.offsets().log_end == lost.first_offset
        assert read_all(log) == Outcome(sound_records, None)
        result = log.append([Record(key=b"k", value=b"after the crash", timestamp_ms=1)])
        assert result.base_offset == lost.first_offset
    assert file.read_bytes()[: lost.position] == damaged.original(file)[: lost.position]
    repaired = damaged.read()
    assert repaired.error is None
    assert repaired.records[:-1] == sound_records
    assert (repaired.records[-1].offset, repaired.records[-1].value) == (lost.first_offset, b"after the crash")


@pytest.mark.parametrize("number", range(4))
@pytest.mark.long
def test_a_crashed_log_that_ends_inside_a_batch_is_recovered(damaged: DamagedLog, number: int) -> None:
    file = damaged.files[-1]
    sizes = [size for size in cuts(damaged, file) if size]
    size = sizes[number * len(sizes) // 4]
    forget_the_stop(damaged.folder)
    file.write_bytes(damaged.original(file)[:size])
    recovered_from(damaged, first_cut(damaged, file, size), file)


@pytest.mark.parametrize("place", ["header", "contents"])
def test_a_crashed_log_is_truncated_at_its_first_damaged_batch(damaged: DamagedLog, place: str) -> None:
    number = len(damaged.files) // 2
    file = damaged.files[number]
    batch = damaged.batches(file)[-1]
    forget_the_stop(damaged.folder)
    position = batch.position + (HEADER_BYTES[batch.magic] + 3 if place == "contents" else 20)
    file.write_bytes(flipped(damaged.original(file), position, repeatable(position)))
    recovered_from(damaged, batch, file)
    assert sorted(log_file.name for log_file in file.parent.glob("*.log")) == [
        log_file.name for log_file in damaged.files[: number + 1]
    ]
