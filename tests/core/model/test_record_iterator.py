"""Iteration over records, which reuses a record object if nothing else refers to it."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from record_columns import columns_of
from stratalog.model.records import Record

Keep = Callable[[Record], Any]  # Any: a record, or one of its fields
KEEPS: dict[str, Keep] = {
    "nothing": lambda _: None,
    "record": lambda record: record,
    "key": lambda record: record.key,
    "value": lambda record: record.value,
    "view": lambda record: None if record.value is None else memoryview(record.value),
    "header": lambda record: record.headers[0][1] if record.headers else None,
    "hash": lambda record: hash((record.key, record.value)),  # a bytes object keeps its hash
}
SIZES = (0, 1, 2, 14, 15, 16, 30, 31, 32, 500)  # sizes around the limits at which Python allocates memory differently
blobs = (
    st.none()
    | st.binary(max_size=40)
    | st.sampled_from(SIZES).flatmap(lambda size: st.binary(min_size=size, max_size=size))
)
rows = st.tuples(blobs, blobs, st.sampled_from([(), (("h", b"x" * 5),)]), st.sampled_from(sorted(KEEPS)))


def _listed(drawn: list[tuple[Any, ...]]) -> list[Record]:  # Any: the fields of a record
    return [
        Record(offset=number, key=key, value=value, headers=headers, partition=3)
        for number, (key, value, headers, _) in enumerate(drawn)
    ]


@given(drawn=st.lists(rows, max_size=12))
@example(
    drawn=[(bytes([n]) * size, bytes([n]) * size, (), keep) for size in SIZES for n in (1, 2, 3) for keep in KEEPS]
)
def test_a_kept_record_stays_unchanged_while_iteration_continues(
    twin: ModuleType, drawn: list[tuple[Any, ...]]
) -> None:
    originals = _listed(drawn)
    pairs = []
    for record, expected, row in zip(twin.iterator_of(columns_of(originals), 3), originals, drawn, strict=True):
        assert tuple(record) == tuple(expected)
        assert hash(tuple(record)) == hash(tuple(expected))
        pairs.append((KEEPS[row[3]](record), KEEPS[row[3]](expected)))
    for part, original_part in pairs:
        assert part == original_part


@pytest.mark.parametrize("size", SIZES)
def test_numbers_in_text_end_where_their_value_does(twin: ModuleType, size: int) -> None:
    """``int`` reads until a zero byte, which must follow each value, even if the value replaced a longer one."""
    originals = [Record(value=b"1" * length, partition=3) for length in (size + 3, size + 2, size + 1)]
    for record, expected in zip(twin.iterator_of(columns_of(originals), 3), originals, strict=True):
        assert int(record.value) == int(expected.value or b"")
