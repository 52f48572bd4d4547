"""Selection of small segments to merge, and failures of a merge, which lose no record."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from log_bed import LogBed, records
from power_search import power_losses
from stratalog.cleaning.compact.segment_range import LocalRange
from stratalog.config.topic import TopicConfig
from stratalog.errors import CorruptBatchError, StorageError
from stratalog.log.log import Log
from stratalog.model.records import Record
from stratalog.testing.power_loss import PowerLossVfs
from stratalog.writing.merge_segments import end_group, merge_group, small_groups

DAY_MS = 86_400_000
CONFIG = TopicConfig(segment_bytes=10_000, segment_ms=DAY_MS)


@dataclass(frozen=True)
class Sized:
    """Replacement of a segment, with only the attributes that the selection uses."""

    base_offset: int
    size_bytes: int
    age_from_ms: int = 5

    @property
    def end_offset(self) -> int:
        return self.base_offset + 1


def segments(*sizes: int) -> list[Sized]:
    return [Sized(number, size) for number, size in enumerate(sizes)]


def after_rounds(sizes: Sequence[int], limit: int) -> tuple[list[int], int, int]:
    """Append segments of these sizes, and merge the end after each one.

    Return the final sizes, the largest number of segments, and the number of copied bytes.
    """
    final_sizes, max_segments, copied_bytes = list[int](), 0, 0
    for size in sizes:
        final_sizes.append(size)
        group = end_group(segments(*final_sizes), limit, CONFIG)
        if group:
            merged_bytes = sum(segment.size_bytes for segment in group)
            copied_bytes += merged_bytes
            final_sizes[len(final_sizes) - len(group) :] = [merged_bytes]
        max_segments = max(max_segments, len(final_sizes))
    return final_sizes, max_segments, copied_bytes


def test_rounds_of_one_size_are_copied_a_few_times_each() -> None:
    final_sizes, max_segments, copied_bytes = after_rounds([1] * 1024, 10_000)
    assert sum(final_sizes) == 1024
    assert max_segments < 8 + 3 * 5, "4 ** 5 is 1024"
    assert copied_bytes <= 5 * 1024
    _, max_segments, _ = after_rounds([10] * 2_000, 1_000)
    assert max_segments <= 2_000 * 10 / (1_000 / 8) + 8


@pytest.mark.parametrize("seed", range(5))
def test_rounds_of_any_size_leave_few_small_segments(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - the same in every run
    sizes = [int(10 ** chance.uniform(0, 3)) for _ in range(1_000)]
    final_sizes, _, copied_bytes = after_rounds(sizes, 10_000)
    assert sum(final_sizes) == sum(sizes)
    assert max(final_sizes) <= 10_000
    assert sum(size < 10_000 / 16 for size in final_sizes) < 100
    assert copied_bytes < 5 * sum(sizes)


def test_segments_of_other_times_stay_apart() -> None:
    """Retention deletes whole segments, so a merged segment must not span several days."""
    sized_segments = [Sized(number, 10, DAY_MS * (number // 10)) for number in range(20)]
    assert len(end_group(sized_segments, 10_000, CONFIG)) == 10
    group_sizes = [len(group) for group in small_groups(sized_segments, 10_000, CONFIG)]
    assert group_sizes == [10, 10]


@pytest.mark.parametrize("seed", range(5))
def test_merged_segments_are_not_merged_again(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - the same in every run
    original_segments = [
        Sized(number, chance.randrange(9_000 >> chance.randrange(12)), number * DAY_MS // 60) for number in range(300)
    ]
    groups = list(small_groups(original_segments, 50_000, CONFIG))
    assert groups
    groups_by_base = {group[0].base_offset: group for group in groups}
    merged_segments, covered_end = list[Sized](), 0
    for segment in original_segments:
        if segment.base_offset in groups_by_base:
            group = groups_by_base[segment.base_offset]
            covered_end = group[-1].end_offset
            merged_segments.append(Sized(segment.base_offset, sum(g.size_bytes for g in group), group[-1].age_from_ms))
            assert merged_segments[-1].size_bytes <= CONFIG.segment_bytes
        elif segment.base_offset >= covered_end:
            merged_segments.append(segment)
    assert len(merged_segments) < len(original_segments) / 2
    assert not list(small_groups(merged_segments, 50_000, CONFIG))


def small(log: Log, count: int) -> int:
    """Append this number of closed segments to a log, and return its log end."""
    for _ in range(count):
        log.append(records(3), durability="durable")
        log.roll()
    return log.offsets().log_end


def merge_all(log: Log) -> int | None:
    publisher, part = log.maintenance.publisher(), LocalRange(log)
    return merge_group(part, publisher, part.segments[:-1])


@pytest.mark.long
def test_a_power_cut_merges_all_or_nothing(tmp_path: Path, bed: LogBed) -> None:
    data = LogBed(tmp_path / "data", bed.registry, TopicConfig(index_interval_bytes=50))
    end, bed_after_cut = small(data.open(), 3), LogBed(tmp_path / "after", bed.registry, TopicConfig())
    data.close()
    files = data.files_port = PowerLossVfs(data.folder)
    outcomes = list[int]()

    def check(log: Log) -> None:
        assert [record.offset for record in log.records()] == list(range(end))
        assert not [name for name in bed_after_cut.names() if name.endswith((".cleaned", ".swap"))]
        outcomes.append(len(log.segments()))
        assert log.append(records(1)).base_offset == end

    with power_losses(files, bed_after_cut, check, samples=2), data:
        assert merge_all(data.open()) == end
    assert set(outcomes) == {2, 4}
    assert len(outcomes) > 10


def test_a_damaged_segment_is_not_merged(bed: LogBed) -> None:
    log = bed.open()
    end = small(log, 3)
    path = bed.folder / "00000000000000000003.log"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    names = bed.names()
    with pytest.raises(CorruptBatchError):
        merge_all(log)
    assert bed.names() == names
    assert log.append([Record(value=b"v")]).base_offset == end


def test_a_log_that_was_changed_meanwhile_is_left_alone(bed: LogBed) -> None:
    log = bed.open()
    small(log, 4)
    part, publisher = LocalRange(log), log.maintenance.publisher()
    log.truncate_to(7)
    names = bed.names()
    assert merge_group(part, publisher, part.segments[:2]) is None
    assert bed.names() == names
    with pytest.raises(StorageError):
        merge_group(part, publisher, part.segments[2:3])
