"""One look over records says what decoding them says, or nothing at all."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import twins
from drawn_batches import PLAIN, records
from stratalog import Record
from stratalog.errors import CorruptBatchError
from stratalog.spi import BatchHeader, BatchSurvey, BatchTable
from stratalog_formats.records.batches import BatchFormat

LIMIT_BYTES = 1 << 20


@pytest.fixture(scope="module")
def form() -> BatchFormat:
    return BatchFormat(twins.TABLE, twins.kernels_of("compiled"))


def written(batches: list[list[Record]], codec: str | None = None) -> bytearray:
    data, base = bytearray(), 0
    for batch in batches:
        data += PLAIN.encode(batch, BatchHeader(base_offset=base, leader_epoch=0), twins.CODECS.get(codec or ""), None)
        base += len(batch)
    return data


def scanned(data: bytearray) -> BatchTable:
    return PLAIN.scan(data, 0, len(data), check_crc=False)


def decoded(data: bytearray, table: BatchTable) -> BatchSurvey | None:
    """What decoding says; None where it finds something wrong, or offsets that are not 0, 1, 2, ... in each batch."""
    least, largest, has_null_key, is_stamped, attributes = [], [], False, True, 0
    try:
        for row, batch in enumerate(table):
            (columns,) = PLAIN.decode(data, table.take(row, row + 1), limit_bytes=LIMIT_BYTES)
            base = batch.base_offset
            if batch.last_offset - base + 1 != columns.count or not columns.count:
                return None
            if columns.offset.tolist() != list(range(base, base + columns.count)):
                return None
            least.append(min(columns.timestamp_ms))
            largest.append(max(columns.timestamp_ms))
            has_null_key |= min(columns.key_size) < 0
            is_stamped &= batch.max_timestamp_ms == max(largest[-1], -1)
            attributes |= batch.attributes
    except CorruptBatchError:
        return None
    return BatchSurvey(attributes, min(least), max(largest), has_null_key, is_stamped)


@given(st.lists(records, min_size=1, max_size=3))
@pytest.mark.long
def test_it_says_what_decoding_says(form: BatchFormat, batches: list[list[Record]]) -> None:
    data = written(batches)
    found = form.survey(bytes(data), scanned(data))
    assert found is not None
    assert found == decoded(data, scanned(data))


def test_compressed_batches_and_none_at_all_take_a_closer_look(form: BatchFormat) -> None:
    data = written([[Record(value=b"x" * 100)]], "gzip")
    assert form.survey(data, scanned(data)) is None
    assert form.survey(b"", scanned(bytearray())) is None


def test_without_the_kernel_it_says_nothing() -> None:
    data = written([[Record(value=b"x")]])
    assert PLAIN.survey(data, scanned(data)) is None


def test_whatever_is_wrong_is_left_to_decoding(form: BatchFormat) -> None:
    """Every byte of two batches is changed: lengths, counts, deltas, what headers say of what follows."""
    chance = random.Random(5)  # noqa: S311 - the same bytes in every run
    good = written(
        [
            [Record(timestamp_ms=1000 + at, key=b"k", value=b"v" * at, headers=(("h", b"x"),)) for at in range(3)],
            [Record(timestamp_ms=50, value=b"y")],
        ]
    )
    refused = 0
    for position in range(17, len(good)):
        for value in {0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)}:
            data = bytearray(good)
            data[position] = value
            table = scanned(data)
            if not len(table) or max(table.attributes) & 0x0F:
                continue
            found, expected = form.survey(data, table), decoded(data, table)
            assert found == expected or found is None, (position, value)
            refused += found is None
            assert found is not None or expected is None, (position, value)
    assert refused > 100
