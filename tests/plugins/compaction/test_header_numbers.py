from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from compiled_twin import compiled_twin
from stratalog import Record, RecordColumns
from stratalog.spi import Headers
from stratalog_compaction.header_numbers import EXTENSIONS, header_numbers, python_numbers

MISSING = -77
names = st.sampled_from(["v", "vv", "w", "", "\N{REPLACEMENT CHARACTER}", "é"])
texts = st.from_regex(rb"-?[0-9]{0,21}", fullmatch=True)
values = st.one_of(st.none(), st.binary(max_size=9), st.binary(min_size=8, max_size=8), texts)
bounds = [(1 << 63) - 1, 1 << 63, -(1 << 63), -(1 << 63) - 1, 10**20 - 1, 0]


def columns(header_lists: list[Headers]) -> RecordColumns:
    return RecordColumns.from_records(Record(key=b"k", value=b"v", headers=headers) for headers in header_lists)


@given(st.lists(st.lists(st.tuples(names, values), max_size=3).map(tuple), max_size=20), names, st.booleans())
@example([(("v", b"%d" % bound),) for bound in bounds], "v", False)
@pytest.mark.long
def test_twins_agree(listed: list[Headers], name: str, is_int64: bool) -> None:  # noqa: FBT001 - hypothesis gives it
    records, encoding = columns(listed), "int64" if is_int64 else "text"
    expected = list(python_numbers(records, name, encoding, MISSING))
    assert header_numbers(records, name, encoding, MISSING).tolist() == expected


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (b"12", 12),
        (b"-3", -3),
        (b"007", 7),
        (b"-0", 0),
        (b"", None),
        (b"-", None),
        (b"1x", None),
        (b"+1", None),
        (None, None),
    ],
)
def test_text_is_decimal(value: bytes | None, number: int | None) -> None:
    (header_number,) = header_numbers(columns([(("v", value),)]), "v", "text", MISSING)
    assert header_number == (MISSING if number is None else number)


def test_the_last_header_of_the_name_counts() -> None:
    headers = (("v", b"1"), ("w", b"2"), ("v", b"x"))
    assert header_numbers(columns([headers, headers[:2], ()]), "v", "text", MISSING).tolist() == [MISSING, 1, MISSING]


def test_missing_headers_are_refused() -> None:
    compiled_twin(EXTENSIONS[0])
    records = columns([(("v", b"1"),)])
    stray = RecordColumns(records.arena, 1, header_first=records.header_count, header_count=records.header_count)
    text = r"headers \[1, 2\) are not inside the 0 headers of the columns"
    with pytest.raises(IndexError, match=text):
        header_numbers(stray, "v", "text", MISSING)
    with pytest.raises(IndexError, match=text):
        next(python_numbers(stray, "v", "text", MISSING))
    outside = RecordColumns(
        records.arena[:1], 1, header_first=records.header_first, header_count=records.header_count,
        header_key_position=records.header_count, header_key_size=records.header_key_size,
        header_value_position=records.header_value_position, header_value_size=records.header_value_size,
    )  # fmt: skip
    with pytest.raises(IndexError, match="a field of 1 bytes at 1 is not inside the arena"):
        header_numbers(outside, "v", "text", MISSING)
    with pytest.raises(IndexError, match="a field of 1 bytes at 1 is not inside the arena"):
        next(python_numbers(outside, "v", "text", MISSING))
