from __future__ import annotations

import struct
from random import Random

import pytest

from stratalog_gateway.wire.frames import Frames
from stratalog_gateway.wire.primitives import MalformedRequestError

LIMIT = 8 << 20


def fed(frames: Frames, data: bytes, chunk: int) -> list[bytes]:
    """Return all frames in ``data``, which is received in pieces of at most ``chunk`` bytes."""
    received_frames, position = [], 0
    while position < len(data):
        room = frames.room()
        assert len(room) > 0
        count = min(len(room), chunk, len(data) - position)
        room[:count] = data[position : position + count]
        frames.add_received(count)
        position += count
        while (api := frames.next_api()) is not None:
            received_frames.append(bytes(frames.next()))
            assert api == int.from_bytes(received_frames[-1][:2], "big", signed=True)
    return received_frames


@pytest.mark.parametrize("chunk", [1, 7, 4096, 1 << 20])
def test_frames_arrive_whole_whatever_the_stream_is_cut_into(chunk: int) -> None:
    chance = Random(5)  # noqa: S311 - the same bytes in each run
    sizes = [2, 5, 4092, 4096, 5000, 3, 2] if chunk < 4096 else [2, 4096, 70_000, 3 << 20, 2, 5 << 20, 9, 9, 9]
    expected = [chance.randbytes(size) for size in sizes]
    stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in expected)
    assert fed(Frames(LIMIT), stream, chunk) == expected


@pytest.mark.parametrize("size", [0, -1, 1, LIMIT + 1, 0x48545450])
def test_a_size_that_is_not_allowed_is_refused(size: int) -> None:
    with pytest.raises(MalformedRequestError, match="limit"):
        fed(Frames(LIMIT), struct.pack(">i", size) + b"xx", 100)


def test_an_announced_frame_takes_memory_only_when_it_arrives() -> None:
    frames = Frames(100 << 20)
    fed(frames, struct.pack(">i", 100 << 20) + b"some", 100)
    assert len(frames.room()) <= 1 << 20


def test_the_buffer_of_a_large_frame_is_given_up_with_the_next_small_one() -> None:
    frames = Frames(LIMIT)
    fed(frames, struct.pack(">i", 5 << 20) + bytes(5 << 20), 1 << 20)
    fed(frames, struct.pack(">i", 4) + b"tiny", 100)
    assert len(frames.room()) <= 8 << 10
