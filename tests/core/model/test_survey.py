from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.model import record_py

FIELDS = st.tuples(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.none() | st.binary(max_size=20),
    st.none() | st.binary(max_size=200),
    st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2),
)


def made(twin: ModuleType, rows: list[tuple[Any, ...]]) -> list[Any]:
    return [twin.Record(timestamp_ms=ms, key=key, value=value, headers=headers) for ms, key, value, headers in rows]


def test_groups_hold_all_records_and_keep_the_limit(twin: ModuleType) -> None:
    records = made(twin, [(number, b"k", bytes(number % 90), ()) for number in range(100)])
    start = 0
    while start < len(records):
        result = twin.survey(records, start, 500, 30)
        group = records[start : result.end]
        sizes = [30 + 1 + len(record.value) for record in group]
        assert len(group) == 1 or sum(sizes) <= 500
        assert result.end == 100 or sum(sizes) + 31 + result.end % 90 > 500
        assert (result.least_ms, result.largest_ms, result.null_key) == (start, result.end - 1, False)
        start = result.end
    assert start == 100


def test_a_record_above_the_limit_has_a_group_of_its_own(twin: ModuleType) -> None:
    records = made(twin, [(1, None, bytes(1000), ()), (2, b"k", b"v", ())])
    assert tuple(twin.survey(records, 0, 100, 30)) == (1, 1, 1, True)
    assert tuple(twin.survey(records, 1, 100, 30)) == (2, 2, 2, False)


def test_bytes_that_are_no_record_are_refused(twin: ModuleType) -> None:
    with pytest.raises(TypeError):
        twin.survey([*made(twin, [(1, None, None, ())]), (1, 2)], 0, 100, 30)
    with pytest.raises(IndexError):
        twin.survey(made(twin, [(1, None, None, ())]), -1, 100, 30)


@given(rows=st.lists(FIELDS, min_size=1, max_size=20), data=st.data())
def test_twins_see_the_same(record_c: ModuleType, rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(rows) - 1))
    limit = data.draw(st.integers(0, 2000))
    actual, expected = (tuple(twin.survey(made(twin, rows), start, limit, 30)) for twin in (record_c, record_py))
    assert actual == expected
