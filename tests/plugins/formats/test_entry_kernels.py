"""Builders of entries of offset and time indexes: both kernels build the same entries from any batches."""

from __future__ import annotations

from array import array
from itertools import accumulate
from struct import Struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

import twins
from stratalog.errors import CorruptBatchError
from stratalog.model.batches import BATCH_COLUMNS
from stratalog.spi import BatchTable, IndexBuilder, PreparedBatches, ScanStop
from stratalog_formats.kernels.dispatch import Kernels

BASE = 1 << 40
ENTRY = Struct(">ii")
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
sizes = st.integers(1, 300)
offsets = st.integers(BASE - 2, BASE + 30) | st.sampled_from([BASE + (1 << 31) - 1, BASE + (1 << 31)]) | INT64
stamps = st.integers(-2, 20) | INT64
batches = st.tuples(sizes, offsets, stamps)
runs = st.tuples(st.booleans(), st.lists(batches, max_size=8))
"""Lists of batches, each with True if they are added as one table."""
bounds = st.tuples(st.integers(0, 400), st.integers(0, 6))


def _offsets(kernels: Kernels, interval_bytes: int, max_entries: int) -> IndexBuilder:
    return kernels.offset_entries(BASE, interval_bytes, max_entries, 0, -1)


def _times(kernels: Kernels, interval_bytes: int, max_entries: int) -> IndexBuilder:
    return kernels.time_entries(BASE, interval_bytes, max_entries, 0, BASE, -1)


def _add_batches(builder: IndexBuilder, drawn: list[tuple[int, int, int]], position: int, *, as_table: bool) -> bytes:
    if as_table:
        return (
            builder.add(PreparedBatches(_table(sorted(drawn, key=lambda batch: batch[1]))), position, {})
            if drawn
            else b""
        )
    table = _table(drawn)
    return b"".join([builder.add(PreparedBatches(table.take(row, row + 1)), position, {}) for row in range(len(table))])


def _table(drawn: list[tuple[int, int, int]]) -> BatchTable:
    starts = list(accumulate((size for size, _, _ in drawn), initial=0))
    column_values = {
        "position": starts[:-1],
        "size_bytes": [size for size, _, _ in drawn],
        "base_offset": [last for _, last, _ in drawn],
        "last_offset": [last for _, last, _ in drawn],
        "max_timestamp_ms": [stamp for _, _, stamp in drawn],
    }
    columns = [memoryview(array("q", column_values.get(name, [0] * len(drawn)))) for name in BATCH_COLUMNS]
    return BatchTable(2, columns, ScanStop.END, starts[-1])


def _outcome(builder: IndexBuilder, drawn: list[tuple[bool, list[tuple[int, int, int]]]]) -> list[object]:
    """Return the results of a builder up to its first error, and the text and position of this error."""
    results: list[object] = []
    position = 0
    for as_table, batches in drawn:
        try:
            results.append(_add_batches(builder, batches, position, as_table=as_table))
        except CorruptBatchError as error:
            return [*results, str(error), error.position, builder.full]
        results.append(builder.full)
        position += sum(size for size, _, _ in batches)
    return [*results, builder.finish(), builder.finish(), builder.full]


@given(bounds, st.lists(runs, max_size=6))
@pytest.mark.long
def test_the_twins_agree_on_anything(
    bound: tuple[int, int], drawn: list[tuple[bool, list[tuple[int, int, int]]]]
) -> None:
    for opener in (_offsets, _times):
        outcomes = [_outcome(opener(kernels, *bound), drawn) for kernels in twins.twins()]
        assert outcomes[1:] in ([], outcomes[:1])


def test_a_position_above_31_bits_is_refused() -> None:
    for kernels in twins.twins():
        builder = _offsets(kernels, 0, 10)
        assert _add_batches(builder, [(1, BASE, 0)], 0, as_table=False) == b""
        with pytest.raises(OverflowError, match="position 2147483648 is no int32"):
            _add_batches(builder, [(1, BASE + 1, 0)], 1 << 31, as_table=False)


@given(bounds, st.lists(st.tuples(sizes, st.integers(1, 9)), max_size=40))
def test_an_entry_is_due_when_more_than_the_interval_came(bound: tuple[int, int], steps: list[tuple[int, int]]) -> None:
    interval_bytes, max_entries = bound
    drawn = [
        (size, last, 0)
        for (size, _), last in zip(steps, accumulate((step for _, step in steps), initial=BASE), strict=False)
    ]
    expected, unindexed_bytes, position = list[bytes](), 0, 0
    for size, last, _ in drawn:
        if unindexed_bytes > interval_bytes:
            expected.append(ENTRY.pack(last - BASE, position))
            unindexed_bytes = 0
        unindexed_bytes += size
        position += size
    for kernels in twins.twins():
        builder = _offsets(kernels, interval_bytes, max_entries)
        assert _add_batches(builder, drawn, 0, as_table=False) == b"".join(expected[:max_entries])
        assert builder.full == (len(expected) >= max_entries)
