from __future__ import annotations

import pytest

from stratalog.model.names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
)
from stratalog.model.segment_info import FileKind, FileSlice, share_bytes


def test_a_slice_over_memory_has_no_descriptor() -> None:
    with FileSlice.of(b"abc", 7) as file_slice:
        assert bytes(file_slice.data) == b"abc"
        assert (file_slice.size_bytes, file_slice.position, file_slice.fileno()) == (3, 7, None)


def test_a_slice_is_released_once_however_often_it_is_asked() -> None:
    released = list[str]()
    file_slice = FileSlice(memoryview(b"abc"), 0, 4, lambda: released.append("once"))
    assert file_slice.fileno() == 4
    assert released == []
    with file_slice:
        file_slice.release()
    file_slice.release()
    assert released == ["once"]


def test_a_slice_is_released_when_its_block_fails() -> None:
    released = list[str]()

    def fail() -> None:
        with FileSlice(memoryview(b"abc"), 0, 4, lambda: released.append("once")):
            raise RuntimeError("on the way")

    with pytest.raises(RuntimeError):
        fail()
    assert released == ["once"]


def test_a_slice_releases_even_if_that_fails_only_once() -> None:
    calls = list[str]()

    def failing() -> None:
        calls.append("once")
        raise OSError("cannot close")

    file_slice = FileSlice(memoryview(b"abc"), 0, 4, failing)
    with pytest.raises(OSError, match="cannot close"):
        file_slice.release()
    file_slice.release()
    assert calls == ["once"]


def test_kinds_of_files_are_called_as_kafka_calls_them() -> None:
    """These names are stored in manifests."""
    assert {kind.name: kind.value for kind in FileKind} == {
        "LOG": LOG_SUFFIX[1:],
        "OFFSET_INDEX": OFFSET_INDEX_SUFFIX[1:],
        "TIME_INDEX": TIME_INDEX_SUFFIX[1:],
        "TRANSACTION_INDEX": TRANSACTION_INDEX_SUFFIX[1:],
        "SNAPSHOT": SNAPSHOT_SUFFIX[1:],
        "LEADER_EPOCHS": "leader-epochs",
        "EXTRA": "extra",
    }


@pytest.mark.parametrize(
    ("start", "end", "expected"), [(10, 20, 100), (10, 15, 50), (15, 99, 50), (0, 10, 0), (20, 30, 0), (12, 13, 10)]
)
def test_the_share_of_a_segment_is_that_of_its_offsets(start: int, end: int, expected: int) -> None:
    assert share_bytes(100, 10, 20, start, end) == expected


def test_a_segment_without_offsets_has_no_share() -> None:
    assert share_bytes(100, 10, 10, 0, 20) == 0
