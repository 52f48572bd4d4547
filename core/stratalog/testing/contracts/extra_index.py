"""Contract tests of extra indexes."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from stratalog.config.topic import TopicConfig
from stratalog.errors import CorruptIndexError
from stratalog.model.records import Fields, Record, RecordColumns, int32_column, int64_column
from stratalog.spi.extra import ExtraIndex, ExtraIndexReader

_ABSENT_KEY = b"a key that no record has"


class ExtraIndexContract:
    """Contract of an extra index: subclass it, name the class ``Test...``, and override the fixture ``extra_index``.

    The tests check the bytes that a builder makes and the results of a reader. The core decides where and when it
    builds indexes, and handles indexes that are missing, damaged or stale.
    """

    @pytest.fixture
    def extra_index(self) -> ExtraIndex:
        """Return the index to check; overridden by the subclass."""
        raise NotImplementedError("a subclass of ExtraIndexContract must define the fixture extra_index")

    # --- test data ---------------------------------------------------------------------------------------------------

    @staticmethod
    def config() -> TopicConfig:
        """Return topic settings without settings for the index. Override the method if the index has settings."""
        return TopicConfig()

    @staticmethod
    def records(count: int = 500) -> list[Record]:
        """Return records of a segment. Override the method for special records.

        The keys have many lengths; some keys are repeated and some are null.
        """
        chance = random.Random(7)  # noqa: S311 - the same records in every run
        keys = [None, b"", b"\0", b"a" * 5000, *(b"key %d" % chance.randrange(count) for _ in range(count - 4))]
        return [
            Record(
                offset=10 + 2 * number,
                timestamp_ms=1_700_000_000_000 + chance.randrange(1000),
                key=key,
                value=None if number % 7 == 0 else chance.randbytes(number % 50),
                headers=((f"h{number % 3}", b"x" * (number % 5)),) if number % 2 else (),
            )
            for number, key in enumerate(keys[:count])
        ]

    def built(self, index: ExtraIndex, records: Sequence[Record], cuts: Sequence[int] = ()) -> bytes:
        """Return the bytes of the index of these records. The method calls the builder in the same way as the core.

        ``cuts`` contains the row numbers at which a call of ``add`` ends. After each call, the memory of its records is
        overwritten, because the core reuses such memory.
        """
        builder = index.builder(self.config())
        for start, end in pairwise([0, *cuts, len(records)]):
            columns = RecordColumns.from_records(records[start:end])
            arena = bytearray(columns.arena)
            builder.add(_only(replace(columns, arena=arena), index.fields | Fields.OFFSET))
            arena[:] = bytes(len(arena))
        return bytes(builder.finish())

    # --- the rules ---------------------------------------------------------------------------------------------------

    def test_says_what_it_looks_at(self, extra_index: ExtraIndex) -> None:
        """``fields`` is a ``Fields`` value; the core may decode only these record fields."""
        assert isinstance(extra_index.fields, Fields)

    def test_no_key_that_is_there_is_denied(self, extra_index: ExtraIndex) -> None:
        """``may_hold_key`` returns True for each key in the segment, because a reader skips the segment after False."""
        records = self.records()
        for reader in _readers(extra_index, self.built(extra_index, records, (1, 2, 2, 300))):
            denied = [
                record.key
                for record in records
                if record.key is not None and reader.may_hold_key(record.key) is not True
            ]
            assert denied == []

    def test_answers_are_true_or_false(self, extra_index: ExtraIndex) -> None:
        """``may_hold_key`` returns a bool.

        The core skips a segment only if the result is ``False``. It does not skip a segment if the result is None or 0.
        """
        for reader in _readers(extra_index, self.built(extra_index, self.records())):
            for key in (b"", b"key 1", _ABSENT_KEY):
                assert type(reader.may_hold_key(key)) is bool

    def test_one_record_is_enough(self, extra_index: ExtraIndex) -> None:
        """``may_hold_key`` of an index over one record returns True for the record's key."""
        for record in self.records(12):
            for reader in _readers(extra_index, self.built(extra_index, [record])):
                assert record.key is None or reader.may_hold_key(record.key)

    def test_nothing_comes_of_no_records(self, extra_index: ExtraIndex) -> None:
        """A segment without data records (only markers) has an index that a reader accepts, or ``b""``."""
        for reader in _readers(extra_index, self.built(extra_index, [])):
            assert isinstance(reader.may_hold_key(_ABSENT_KEY), bool)

    def test_made_again_it_is_the_same(self, extra_index: ExtraIndex) -> None:
        """The same records give the same bytes, however they are divided into calls of ``add``."""
        records = self.records()
        index_bytes = self.built(extra_index, records)
        assert self.built(extra_index, records, (3, 4, 250)) == index_bytes
        assert self.built(extra_index, records, range(1, len(records))) == index_bytes

    def test_requests_of_other_callers_change_no_answer(self, extra_index: ExtraIndex) -> None:
        """Additional decoded fields do not change the index. Another index of the topic may need these fields."""
        records = self.records()
        builder = extra_index.builder(self.config())
        builder.add(RecordColumns.from_records(records))
        assert bytes(builder.finish()) == self.built(extra_index, records)

    def test_builders_know_nothing_of_each_other(self, extra_index: ExtraIndex) -> None:
        """Builders share no state: the core may build indexes of many segments at the same time."""
        records = self.records()
        halves = records[::2], records[1::2]
        expected = [self.built(extra_index, half) for half in halves]
        builders = [extra_index.builder(self.config()) for _ in halves]
        for start in range(0, len(records), 100):
            for builder, half in zip(builders, halves, strict=True):
                builder.add(_only(RecordColumns.from_records(half[start : start + 100]), extra_index.fields))
        assert [bytes(builder.finish()) for builder in builders] == expected

    def test_reads_any_buffer_and_changes_none(self, extra_index: ExtraIndex) -> None:
        """A reader accepts bytes, a memoryview and a bytearray, returns the same results, and changes no buffer."""
        index_bytes = self.built(extra_index, self.records())
        if index_bytes:
            buffer = bytearray(index_bytes)
            answers = {
                tuple(extra_index.reader(data).may_hold_key(b"key %d" % number) for number in range(1000))
                for data in (index_bytes, memoryview(index_bytes), buffer)
            }
            assert len(answers) == 1
            assert bytes(buffer) == index_bytes

    def test_any_bytes_are_answered_from_or_refused(self, extra_index: ExtraIndex) -> None:
        """For random, cut and changed bytes, a reader returns a bool or raises CorruptIndexError."""
        chance = random.Random(14)  # noqa: S311 - the same bytes in every run
        index_bytes = self.built(extra_index, self.records())
        hostile = [chance.randbytes(size) for size in range(1, 100)]
        hostile += [
            index_bytes[:size]
            for size in (*range(1, min(len(index_bytes), 40)), len(index_bytes) - 1, len(index_bytes) // 2)
            if size > 0
        ]
        hostile += [index_bytes + b"\0", bytes(64), b"\xff" * 64]
        for _ in range(100 if index_bytes else 0):
            changed = bytearray(index_bytes)
            changed[chance.randrange(min(len(index_bytes), 64))] = chance.randrange(256)
            hostile.append(bytes(changed))
        for data in hostile:
            with contextlib.suppress(CorruptIndexError):
                reader = extra_index.reader(data)
                for key in (b"", b"key 1", _ABSENT_KEY):
                    assert isinstance(reader.may_hold_key(key), bool)


def _readers(index: ExtraIndex, index_bytes: bytes) -> Iterator[ExtraIndexReader]:
    """Yield a reader of the index, unless ``index_bytes`` is empty."""
    if index_bytes:
        yield index.reader(index_bytes)


def _only(columns: RecordColumns, fields: Fields) -> RecordColumns:
    """Return a copy of the columns in which the columns of all other fields are empty, as after ``decode``."""
    longs, ints = int64_column(), int32_column()
    if not fields & Fields.OFFSET:
        columns = replace(columns, offset=longs, leader_epoch=ints)
    if not fields & Fields.TIMESTAMP:
        columns = replace(columns, timestamp_ms=longs, timestamp_type=ints)
    if not fields & Fields.KEY:
        columns = replace(columns, key_position=ints, key_size=ints)
    if not fields & Fields.VALUE:
        columns = replace(columns, value_position=ints, value_size=ints)
    if not fields & Fields.HEADERS:
        columns = replace(columns, header_first=ints, header_count=ints)
    return columns
