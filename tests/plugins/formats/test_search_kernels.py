"""Binary search in the entries of an index has the result of a linear search, in both kernels."""

from __future__ import annotations

from struct import Struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

import twins
from stratalog.spi import OffsetPosition
from stratalog_formats.kernels.dispatch import Kernels

OFFSET, TIME = Struct(">ii"), Struct(">qi")
INT32, INT64 = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
targets = st.integers(-(1 << 70), 1 << 70) | st.integers(-5, 50)


@pytest.fixture(params=twins.TWINS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return twins.kernels_of(request.param)


@given(st.lists(INT64 | st.integers(0, 40)), targets)
def test_keys_of_64_bits(keys: list[int], target: int) -> None:
    entries = b"".join(TIME.pack(key, 7) for key in sorted(keys)) + b"\0" * 11
    for kernels in twins.twins():
        assert kernels.entries_up_to(entries, 12, 0, 8, target) == sum(key <= target for key in keys)


@given(st.lists(INT32 | st.integers(0, 40)), targets)
def test_keys_of_32_bits_anywhere_in_an_entry(keys: list[int], target: int) -> None:
    entries = b"".join(OFFSET.pack(-1, key) for key in sorted(keys))
    for kernels in twins.twins():
        assert kernels.entries_up_to(memoryview(entries), 8, 4, 4, target) == sum(key <= target for key in keys)


@given(st.binary(max_size=200), targets, st.integers(0, 1 << 62))
def test_the_twins_agree_on_anything(entries: bytes, target: int, base_offset: int) -> None:
    answers = [
        (kernels.entries_up_to(entries, 8, 0, 4, target), kernels.offsets_around(entries, base_offset, target))
        for kernels in twins.twins()
    ]
    assert answers[1:] in ([], answers[:1])


def test_the_entries_around_an_offset(kernels: Kernels) -> None:
    index_entries = [OffsetPosition(100 + 3 * n, 10 * n) for n in range(5)]
    entries = b"".join(OFFSET.pack(offset - 100, position) for offset, position in index_entries) + b"\0"
    for offset in range(95, 120):
        entry_count = sum(entry.offset <= offset for entry in index_entries)
        padded = [None, *index_entries, None, None]
        assert kernels.offsets_around(entries, 100, offset) == tuple(padded[entry_count : entry_count + 3])
        assert all(
            entry is None or type(entry) is OffsetPosition for entry in kernels.offsets_around(entries, 100, offset)
        )
    assert kernels.offsets_around(b"", 100, 100) == (None, None, None)


@pytest.mark.parametrize(("size", "position", "key_bytes"), [(8, 5, 4), (8, -1, 4), (8, 0, 2), (4, 0, 8)])
def test_keys_that_cannot_be_are_refused(kernels: Kernels, size: int, position: int, key_bytes: int) -> None:
    with pytest.raises(ValueError, match="no key"):
        kernels.entries_up_to(bytes(64), size, position, key_bytes, 0)
