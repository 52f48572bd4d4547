"""A note that its own reader would refuse is not stored."""

import pytest

from stratalog.errors import CorruptCheckpointError, StorageError
from stratalog.model.notes import readable


def parse(data: bytes, place: str) -> None:
    if data != b"good":
        raise CorruptCheckpointError("no note", place)


def test_bytes_that_the_parser_takes_are_returned() -> None:
    assert readable(b"good", parse, "file") == b"good"


def test_bytes_that_the_parser_refuses_are_reported_with_the_reason_and_the_place() -> None:
    with pytest.raises(StorageError, match=r"a note was not stored, .* no note file=/a/b position=0"):
        readable(b"bad", parse, "/a/b")
