"""Contract tests of index formats."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from functools import partial
from itertools import pairwise, zip_longest
from typing import Any, cast

import pytest

from stratalog.config.topic import TopicConfig
from stratalog.errors import CorruptIndexError
from stratalog.model.batches import BatchTable, Buffer, RecordBatch, ScanStop
from stratalog.model.prepared import PreparedBatches
from stratalog.model.segment_info import AbortedTransaction
from stratalog.spi.indexes import IndexBuilder, IndexFormat, IndexRole

BASE = 1000
BATCH_BYTES = 100
OFFSETS_A_BATCH = 10


class IndexFormatContract:
    """Contract of an index format: subclass it, name the class ``Test...``, and override the fixture ``index_format``.

    The role of the format decides which keys the tests of searches expect.
    """

    @pytest.fixture
    def index_format(self) -> IndexFormat[Any]:
        """Return the format to check; overridden by the subclass."""
        raise NotImplementedError("a subclass of IndexFormatContract must define the fixture index_format")

    # --- test data ---------------------------------------------------------------------------------------------------

    @staticmethod
    def batches(count: int) -> list[RecordBatch]:
        """Return batches of one segment with ascending offsets and timestamps."""
        return [_batch(index) for index in range(count)]

    @staticmethod
    def config(segment_index_bytes: int = 1 << 20) -> TopicConfig:
        """Return topic settings whose ``index.interval.bytes`` is the size of two batches."""
        return TopicConfig(index_interval_bytes=2 * BATCH_BYTES, segment_index_bytes=segment_index_bytes)

    def built(self, index_format: IndexFormat[Any], batches: Sequence[RecordBatch], entries: Buffer = b"") -> bytes:
        """Return the bytes that a builder returns for ``batches``, including the bytes of ``finish``.

        The builder continues an index that contains ``entries``. Each batch has the marker of an aborted transaction.
        """
        builder = index_format.builder(BASE, self.config(), entries=entries)
        return b"".join([*(_add(builder, batch) for batch in batches), builder.finish()])

    # --- the format --------------------------------------------------------------------------------------------------

    def test_names_its_file_and_entries(self, index_format: IndexFormat[Any]) -> None:
        """The suffix begins with a dot and has no slash; the size of an entry is positive."""
        assert index_format.role in IndexRole
        assert index_format.suffix.startswith(".")
        assert "/" not in index_format.suffix
        assert index_format.entry_bytes > 0

    def test_no_batches_make_no_entries(self, index_format: IndexFormat[Any]) -> None:
        """An empty segment has an empty index, and the index passes ``check``."""
        assert self.built(index_format, []) == b""
        reader = index_format.reader(b"", BASE)
        assert len(reader) == 0
        assert reader.floor(BASE) is None
        assert reader.after(0) is None
        reader.check(BASE, 0)

    # --- builders ----------------------------------------------------------------------------------------------------

    def test_builder_makes_whole_entries(self, index_format: IndexFormat[Any]) -> None:
        """A builder always returns whole entries."""
        builder = index_format.builder(BASE, self.config())
        pieces = [*(_add(builder, batch) for batch in self.batches(50)), builder.finish()]
        assert any(pieces)
        assert all(len(piece) % index_format.entry_bytes == 0 for piece in pieces)

    def test_results_have_the_types_of_the_contract(self, index_format: IndexFormat[Any]) -> None:
        """Builders return bytes, and ``around`` a tuple of three: the engine refuses other types."""
        builder = index_format.builder(BASE, self.config())
        pieces = [*(_add(builder, batch) for batch in self.batches(5)), builder.finish()]
        assert {type(piece) for piece in pieces} == {bytes}
        result = index_format.around(b"".join(pieces), BASE, BASE)
        assert isinstance(result, tuple)
        assert len(result) == 3

    def test_finishing_twice_adds_nothing_twice(self, index_format: IndexFormat[Any]) -> None:
        """A second ``finish`` returns ``b""``: a failed roll of a segment may be retried."""
        builder = index_format.builder(BASE, self.config())
        for batch in self.batches(5):
            _add(builder, batch)
        builder.finish()
        assert builder.finish() == b""

    def test_builder_continues(self, index_format: IndexFormat[Any]) -> None:
        """A builder that continues an index adds entries, and the whole index passes ``check``."""
        batches = self.batches(60)
        first = self.built(index_format, batches[:31])
        entries = first + self.built(index_format, batches[31:], first)
        assert len(entries) > len(first)
        index_format.reader(entries, BASE).check(*_end(batches))

    @pytest.mark.parametrize("max_entries", [1, 3, 1000])
    @pytest.mark.parametrize("seed", range(5))
    def test_a_table_of_batches_counts_as_its_rows(
        self, index_format: IndexFormat[Any], seed: int, max_entries: int
    ) -> None:
        """Adding batches one by one or as tables gives the same entries from ``add`` and ``finish``."""
        chance = random.Random(seed)  # noqa: S311 - the same batches in every run
        table, position = _table(chance, 60), 1 << 20
        config = self.config(max_entries * index_format.entry_bytes)
        by_row, by_table = (index_format.builder(BASE, config) for _ in range(2))
        cuts = [0, *sorted(chance.sample(range(1, 60), k=3)), 60]
        rows = [by_row.add(PreparedBatches(table.take(row, row + 1)), position, {}) for row in range(60)]
        tables = [by_table.add(PreparedBatches(table.take(*row_range)), position, {}) for row_range in pairwise(cuts)]
        assert b"".join(tables) == b"".join(rows)
        assert by_table.full == by_row.full
        assert by_table.finish() == by_row.finish()

    def test_markers_of_other_batches_are_ignored(self, index_format: IndexFormat[Any]) -> None:
        """``add`` adds no entry for an aborted transaction whose marker is not in the batches of this call."""
        first, second = (PreparedBatches(_row_of(batch)) for batch in self.batches(2))
        all_aborted = {offset: AbortedTransaction(7, offset, offset, offset) for offset in range(BASE, BASE + 100)}
        strict_builder, builder = (index_format.builder(BASE, self.config()) for _ in range(2))
        expected = [
            strict_builder.add(batches, 0, {batches.last_offset: all_aborted[batches.last_offset]})
            for batches in (first, second)
        ]
        assert [builder.add(batches, 0, all_aborted) for batches in (first, second)] == expected

    def test_builder_says_when_it_is_full(self, index_format: IndexFormat[Any]) -> None:
        """``full`` becomes True before the entries exceed ``segment.index.bytes``.

        For a format without a size limit, ``full`` is always False.
        """
        limit = 5 * index_format.entry_bytes
        builder = index_format.builder(BASE, self.config(limit))
        entries = b"".join([*(_add(builder, batch) for batch in self.batches(100)), builder.finish()])
        if builder.full:
            assert 0 < len(entries) <= limit
        else:
            assert len(entries) > limit

    # --- readers -----------------------------------------------------------------------------------------------------

    def test_reader_sees_every_entry(self, index_format: IndexFormat[Any]) -> None:
        """Length, indexing from both ends, and iteration agree."""
        entries = self.built(index_format, self.batches(50))
        reader = index_format.reader(entries, BASE)
        count = len(entries) // index_format.entry_bytes
        all_entries = list(reader)
        assert len(reader) == len(all_entries) == count > 0
        assert [reader[index] for index in range(count)] == all_entries
        assert [reader[index - count] for index in range(count)] == all_entries
        for outside in (count, -count - 1):
            with pytest.raises(IndexError):
                reader[outside]

    def test_reader_does_not_copy(self, index_format: IndexFormat[Any]) -> None:
        """A reader uses the buffer without a copy, so a bytearray cannot be resized while the reader exists."""
        entries = bytearray(self.built(index_format, self.batches(50)))
        reader = index_format.reader(entries, BASE)
        with pytest.raises(BufferError):
            entries.clear()
        del reader
        entries.clear()

    def test_reader_leaves_out_a_partial_entry(self, index_format: IndexFormat[Any]) -> None:
        """A reader ignores bytes after the last whole entry."""
        entries = self.built(index_format, self.batches(50))
        reader = index_format.reader(entries[:-1], BASE)
        assert list(reader) == list(index_format.reader(entries, BASE))[:-1]

    def test_floor_finds_the_last_entry_at_or_below(self, index_format: IndexFormat[Any]) -> None:
        """``floor`` returns the entry that a linear search finds: the last entry at or below the target."""
        reader = index_format.reader(self.built(index_format, self.batches(50)), BASE)
        all_entries = list(reader)
        for target in _targets(_floor_key(index_format, entry) for entry in all_entries):
            expected = [entry for entry in all_entries if _floor_key(index_format, entry) <= target]
            assert reader.floor(target) == (expected[-1] if expected else None)

    def test_after_finds_the_first_entry_at_or_above(self, index_format: IndexFormat[Any]) -> None:
        """``after`` returns the entry that a linear search finds: the first entry at or above the target."""
        reader = index_format.reader(self.built(index_format, self.batches(50)), BASE)
        all_entries = list(reader)
        for target in _targets(_after_key(index_format, entry) for entry in all_entries):
            expected = [entry for entry in all_entries if _after_key(index_format, entry) >= target]
            assert reader.after(target) == (expected[0] if expected else None)

    def test_around_is_the_floor_and_what_follows_it(self, index_format: IndexFormat[Any]) -> None:
        """``around`` returns the entry of ``floor`` and the next two entries, or None for one or both of these two."""
        entries = self.built(index_format, self.batches(50))
        reader = index_format.reader(entries, BASE)
        all_entries = list(reader)
        for target in _targets(_floor_key(index_format, entry) for entry in all_entries):
            count = sum(_floor_key(index_format, entry) <= target for entry in all_entries)
            first, *next_entries = index_format.around(entries, BASE, target)
            assert first == (all_entries[count - 1] if count else None)
            for entry, following in zip_longest(next_entries, all_entries[count : count + 2]):
                assert entry in (None, following)

    # --- damaged indexes ---------------------------------------------------------------------------------------------

    def test_check_accepts_what_was_built(self, index_format: IndexFormat[Any]) -> None:
        """``check`` accepts the entries that were built for the segment."""
        batches = self.batches(50)
        index_format.reader(self.built(index_format, batches), BASE).check(*_end(batches))

    def test_check_refuses_a_partial_entry(self, index_format: IndexFormat[Any]) -> None:
        """``check`` raises CorruptIndexError for a partial entry; the error's position is the start of this entry."""
        batches = self.batches(50)
        entries = self.built(index_format, batches)[:-1]
        with pytest.raises(CorruptIndexError) as caught:
            index_format.reader(entries, BASE).check(*_end(batches))
        assert caught.value.position == len(entries) // index_format.entry_bytes * index_format.entry_bytes

    def test_check_refuses_entries_out_of_order(self, index_format: IndexFormat[Any]) -> None:
        """``check`` refuses an index whose first two entries are swapped; the error has the second entry's position."""
        batches, size = self.batches(50), index_format.entry_bytes
        entries = self.built(index_format, batches)
        swapped = entries[size : 2 * size] + entries[:size] + entries[2 * size :]
        with pytest.raises(CorruptIndexError) as caught:
            index_format.reader(swapped, BASE).check(*_end(batches))
        assert caught.value.position == size

    def test_check_refuses_reserved_space(self, index_format: IndexFormat[Any]) -> None:
        """``check`` raises CorruptIndexError for zeros after the entries, which a crash can leave in reserved space."""
        batches = self.batches(50)
        entries = self.built(index_format, batches) + bytes(4096 // index_format.entry_bytes * index_format.entry_bytes)
        with pytest.raises(CorruptIndexError):
            index_format.reader(entries, BASE).check(*_end(batches))

    def test_check_refuses_entries_past_the_segment(self, index_format: IndexFormat[Any]) -> None:
        """``check`` raises CorruptIndexError for entries above the end of a truncated segment."""
        batches = self.batches(50)
        reader = index_format.reader(self.built(index_format, batches), BASE)
        with pytest.raises(CorruptIndexError):
            reader.check(*_end(batches[:20]))

    def test_any_bytes_are_searched_or_refused(self, index_format: IndexFormat[Any]) -> None:
        """Searches in random bytes return an entry or None, or raise CorruptIndexError. They raise no other error."""
        chance = random.Random(14)  # noqa: S311 - the same bytes in every run
        for size in range(0, 40 * index_format.entry_bytes, 7):
            entries = chance.randbytes(size)
            reader = index_format.reader(entries, BASE)
            searches = (
                reader.floor,
                reader.after,
                lambda end, checked_reader=reader: checked_reader.check(end, 1),
                partial(index_format.around, entries, BASE),
            )
            for search in searches:
                with contextlib.suppress(CorruptIndexError):
                    search(BASE + 5)
            assert 0 <= index_format.kept_bytes(entries, BASE, BASE + 5) <= size

    # --- truncation --------------------------------------------------------------------------------------------------

    def test_kept_bytes_keeps_entries_below_the_end(self, index_format: IndexFormat[Any]) -> None:
        """``kept_bytes`` counts exactly the entries with an offset below the new end."""
        batches = self.batches(50)
        entries = self.built(index_format, batches)
        all_entries = list(index_format.reader(entries, BASE))
        offsets = [_offset(index_format, entry) for entry in all_entries]
        for end in sorted({0, BASE, 1 << 40, *offsets, *(offset + 1 for offset in offsets)}):
            kept_bytes = index_format.kept_bytes(entries, BASE, end)
            assert kept_bytes == sum(offset < end for offset in offsets) * index_format.entry_bytes


def _batch(index: int) -> RecordBatch:
    base, stamp = BASE + index * OFFSETS_A_BATCH, 1_700_000_000_000 + index
    last = base + OFFSETS_A_BATCH - 1
    return RecordBatch(
        2, index * BATCH_BYTES, BATCH_BYTES, base, last, stamp, stamp, 0, -1, -1, -1, OFFSETS_A_BATCH, 0, 0
    )


def _row_of(batch: RecordBatch) -> BatchTable:
    return BatchTable.from_rows(batch.magic, [astuple(batch)[1:]], ScanStop.END, batch.position + batch.size_bytes)


def _add(builder: IndexBuilder, batch: RecordBatch) -> bytes:
    """Add a batch with the marker of an aborted transaction; return the bytes that the builder returns."""
    aborted = AbortedTransaction(7, batch.base_offset, batch.last_offset, batch.next_offset)
    return builder.add(PreparedBatches(_row_of(batch)), 0, {batch.last_offset: aborted})


def _table(chance: random.Random, count: int) -> BatchTable:
    """Return adjacent batches of random sizes, with gaps between offsets and with unordered timestamps."""
    rows, position, offset = list[tuple[int, ...]](), 100, BASE
    for _ in range(count):
        size, base = chance.randrange(61, 3 * BATCH_BYTES), offset + chance.choice((0, 0, 5))
        offset = base + chance.randrange(1, OFFSETS_A_BATCH)
        stamp = chance.choice((-1, 1000 + chance.randrange(200)))
        rows.append((position, size, base, offset - 1, stamp, stamp, 0, -1, -1, -1, offset - base, 0, 0))
        position += size
    return BatchTable.from_rows(2, rows, ScanStop.END, position)


def _end(batches: Sequence[RecordBatch]) -> tuple[int, int]:
    return batches[-1].last_offset + 1, batches[-1].position + BATCH_BYTES


def _targets(keys: Iterable[int]) -> list[int]:
    """Return every key, its two neighbours, and keys far beyond both ends."""
    around = {key + shift for key in keys for shift in (-1, 0, 1)}
    return sorted(around | {-(1 << 62), 0, 1 << 62})


def _floor_key(index_format: IndexFormat[Any], entry: Any) -> int:
    return cast(int, entry.timestamp_ms) if index_format.role is IndexRole.TIME else _offset(index_format, entry)


def _after_key(index_format: IndexFormat[Any], entry: Any) -> int:
    if index_format.role is IndexRole.OFFSET:
        return cast(int, entry.position)
    return _floor_key(index_format, entry)


def _offset(index_format: IndexFormat[Any], entry: Any) -> int:
    return cast(int, entry.last_offset if index_format.role is IndexRole.TRANSACTION else entry.offset)
