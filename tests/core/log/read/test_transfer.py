from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from log_bed import LogBed, records
from stratalog.config.topic import TopicConfig
from stratalog.env import PosixVfs
from stratalog.errors import OffsetOutOfRangeError, SegmentGoneError, StaleLeaderEpochError
from stratalog.log.log import Log
from stratalog.log.read.fetch import Fetched
from stratalog.log.read.transfer import Transfer
from stratalog.model.offsets import EpochEnd, Isolation, LogOffsets, Watermark
from stratalog.segment.components import Components
from stratalog.testing.faults import FaultyVfs
from stratalog_formats.kernels.dispatch import KERNELS

COUNT = 24
LARGE = 1 << 20


class CopyingSocket(socket.socket):
    """Socket class that is no plain socket, like those that encrypt: data must pass through its ``send``."""


@pytest.fixture
def log(bed: LogBed, files: FaultyVfs) -> Log:
    """Return a log with batches of one to three records of several sizes, several batches in each segment.

    The high watermark is below the last two records.
    """
    assert files.rule is None
    bed.topic = TopicConfig(segment_bytes=700, index_interval_bytes=200, file_delete_delay_ms=0)
    bed.watermark = Watermark.EXTERNAL
    new_log = bed.open(high_watermark=0)
    while new_log.offsets().log_end < COUNT:
        end = new_log.offsets().log_end
        new_log.append(records(min(1 + end % 3, COUNT - end), start=end, value_bytes=end * 7 % 90))
    new_log.set_high_watermark(COUNT - 2)
    assert len(new_log.segments()) > 2
    return new_log


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    sender, receiver = socket.socketpair()
    with sender, receiver:
        yield sender, receiver


def received(receiver: socket.socket, size_bytes: int) -> bytes:
    data = b""
    while len(data) < size_bytes:
        data += receiver.recv(size_bytes - len(data))
    return data


# --- sent bytes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", Isolation)
@pytest.mark.parametrize("max_bytes", [0, 150, 400, 700, LARGE])
def test_a_transfer_sends_the_bytes_that_a_fetch_returns(
    log: Log, files: FaultyVfs, ends: tuple[socket.socket, socket.socket], isolation: str, max_bytes: int
) -> None:
    sender, receiver = ends
    for offset in range(COUNT + 1):
        with log.fetch(offset, max_bytes, isolation) as fetched:
            sent = log.send_to(sender, offset, max_bytes, isolation)
            assert (sent.next_offset, sent.size_bytes) == (fetched.next_offset, fetched.size_bytes)
            assert (sent.sent_bytes, sent.left_bytes, sent.offsets) == (sent.size_bytes, 0, fetched.offsets)
            assert received(receiver, sent.size_bytes) == fetched.read()
    assert bool(files.names("send")) == (max_bytes == LARGE)  # small ranges are read and then sent, which costs less


def test_only_the_ends_are_read(bed: LogBed, files: FaultyVfs, monkeypatch: pytest.MonkeyPatch) -> None:
    log = bed.open()
    for index in range(300):
        log.append(records(10, start=index * 10, value_bytes=300))
    sizes = list[int]()
    read = files.read

    def counted(descriptor: int, position: int, size_bytes: int) -> bytes:
        sizes.append(size_bytes)
        return read(descriptor, position, size_bytes)

    monkeypatch.setattr(files, "read", counted)
    with log.transfer(1234, 400_000) as ready:
        assert ready.size_bytes > 390_000
    assert sum(sizes) < 60_000


@pytest.mark.parametrize("batch_bytes", [100, 2_000, 20_000, 200_000])
@pytest.mark.parametrize("magic", [1, 2])
def test_a_range_is_that_of_a_fetch_wherever_it_begins_and_however_large_its_batches_are(
    bed: LogBed, batch_bytes: int, magic: int
) -> None:
    bed.topic = TopicConfig(record_version=magic)
    log, value_bytes = bed.open(), batch_bytes // 3
    while log.view().segments[-1].size_bytes < 1_200_000 * (batch_bytes > 1000) + 60_000:
        log.append(records(3, start=log.offsets().log_end, value_bytes=value_bytes))
    end = log.offsets().log_end
    for offset in sorted({*range(0, end, end // 7 + 1), 1, end - 1, end}):
        for max_bytes in (0, 1000, 16_000, 70_000, LARGE, 1 << 40):
            with log.fetch(offset, max_bytes) as fetched, log.transfer(offset, max_bytes) as ready:
                assert (ready.next_offset, ready.size_bytes) == (fetched.next_offset, fetched.size_bytes)
                assert ready.read() == fetched.read()


@pytest.mark.parametrize("batch_bytes", [100, 20_000, 1_000_000])
def test_a_range_is_found_by_a_few_small_reads(bed: LogBed, files: FaultyVfs, batch_bytes: int) -> None:
    """An earlier version read whole batches to find the range: 1 MiB for a header, and others for their CRC."""
    log = bed.open()
    while log.view().segments[-1].size_bytes < 4_000_000:
        log.append(records(1, start=log.offsets().log_end, value_bytes=batch_bytes) * max(1, 2000 // batch_bytes))
    end = log.offsets().log_end
    for offset in range(0, end, end // 3):
        log.transfer(offset, LARGE).release()  # this call opens the files, which then stay open
        sizes = list[int]()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(files, "read", counted_reads(files, sizes))
            log.transfer(offset, LARGE).release()
        if KERNELS.select is not None:
            assert len(sizes) <= 5
            assert sum(sizes) <= 80_000


def counted_reads(files: FaultyVfs, sizes: list[int]) -> Callable[[int, int, int], bytes]:
    read = files.read

    def counted(descriptor: int, position: int, size_bytes: int) -> bytes:
        sizes.append(size_bytes)
        return read(descriptor, position, size_bytes)

    return counted


def test_epochs_are_compared_as_in_a_fetch(log: Log, ends: tuple[socket.socket, socket.socket]) -> None:
    log.lead(3)
    with pytest.raises(StaleLeaderEpochError):
        log.transfer(0, current_leader_epoch=2)
    with pytest.raises(OffsetOutOfRangeError):
        log.send_to(ends[0], COUNT + 1)
    log.append(records(1, start=COUNT))
    with log.transfer(COUNT + 1, isolation="log_end", last_fetched_epoch=2) as parted:
        assert (parted.diverging, parted.size_bytes, parted.send(ends[0])) == (EpochEnd(0, COUNT), 0, 0)


@given(cuts=st.lists(st.integers(1, 300), max_size=30))
def test_bytes_in_memory_are_sent_from_where_it_stopped(cuts: list[int]) -> None:
    """Bytes of a tier are sent to a socket that accepts only a part of them in each call."""
    data, sent_data = os.urandom(1000), b""

    class Slow(socket.socket):
        def send(self, buffer: Any, flags: int = 0, /) -> int:
            assert not flags
            nonlocal sent_data
            if not cuts:
                raise BlockingIOError
            piece = bytes(buffer[: cuts.pop()])
            sent_data += piece
            return len(piece)

    fetched = Fetched(memoryview(data), 9, LogOffsets(0, 0, 0, 0, 0, 9), 0, cast(Components, None))
    transfer = Transfer(fetched, PosixVfs())
    with Slow() as sink:
        sink.setblocking(False)
        assert transfer.send(sink) == transfer.sent_bytes == len(sent_data)
    assert sent_data == data[: len(sent_data)]
    transfer.release()


# --- sockets ---------------------------------------------------------------------------------------------------------


def test_a_socket_that_is_no_plain_one_gets_copies(log: Log, files: FaultyVfs) -> None:
    sender_end, receiver = socket.socketpair()
    with CopyingSocket(sender_end.family, sender_end.type, sender_end.proto, sender_end.detach()) as sender, receiver:
        sent = log.send_to(sender, 0)
        assert received(receiver, sent.size_bytes) == log.fetch(0).read()
    assert not files.names("send")


@pytest.mark.parametrize("kind", [socket.socket, CopyingSocket])
def test_a_socket_that_does_not_wait_takes_what_it_can(bed: LogBed, kind: Callable[..., socket.socket]) -> None:
    log = bed.open()
    for index in range(40):
        log.append(records(1, start=index, value_bytes=50_000))
    sender_end, receiver = socket.socketpair()
    with kind(sender_end.family, sender_end.type, sender_end.proto, sender_end.detach()) as sender, receiver:
        sender.setblocking(False)
        sent, data = log.send_to(sender, 0, 4 * LARGE), b""
        assert 0 < sent.sent_bytes < sent.size_bytes
        while sent.left_bytes:
            data += receiver.recv(LARGE)
            sent.send(sender)
        data += received(receiver, sent.size_bytes - len(data))
        assert data == log.fetch(0, 4 * LARGE).read()
        assert sent.send(sender) == 0


def test_a_socket_with_a_timeout_waits_for_its_reader(bed: LogBed, ends: tuple[socket.socket, socket.socket]) -> None:
    log = bed.open()
    for index in range(40):
        log.append(records(1, start=index, value_bytes=50_000))
    sender, receiver = ends
    sender.settimeout(60)
    ready, received_bytes = log.transfer(0, 4 * LARGE), list[bytes]()
    reader = threading.Thread(target=lambda: received_bytes.append(received(receiver, ready.size_bytes)))
    reader.start()
    assert ready.send(sender) == ready.size_bytes
    reader.join()
    assert received_bytes == [log.fetch(0, 4 * LARGE).read()]


def test_a_blocking_socket_with_a_limit_of_its_own_does_not_block_longer(
    bed: LogBed, ends: tuple[socket.socket, socket.socket]
) -> None:
    log = bed.open()
    for index in range(40):
        log.append(records(1, start=index, value_bytes=50_000))
    sender, _ = ends
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", 0, 1000))
    with log.transfer(0, 4 * LARGE) as ready:
        with pytest.raises(TimeoutError):
            ready.send(sender)
        assert 0 < ready.sent_bytes < ready.size_bytes


def test_the_transfer_shows_a_timeout_or_a_closed_end(
    bed: LogBed, files: FaultyVfs, ends: tuple[socket.socket, socket.socket]
) -> None:
    log = bed.open()
    for index in range(40):
        log.append(records(1, start=index, value_bytes=50_000))
    sender, receiver = ends
    sender.settimeout(0.001)
    with log.transfer(0, 4 * LARGE) as ready:
        with pytest.raises(TimeoutError):
            ready.send(sender)
        assert 0 < ready.sent_bytes < ready.size_bytes
        receiver.close()
        with pytest.raises(OSError, match=r"pipe|reset"):
            ready.send(sender)
    with pytest.raises(ValueError, match="released"):
        ready.send(sender)
    assert files.rule is None


# --- files that are deleted ------------------------------------------------------------------------------------------


def test_a_segment_that_is_deleted_meanwhile_is_sent_all_the_same(
    log: Log, ends: tuple[socket.socket, socket.socket]
) -> None:
    expected = log.fetch(0).read()
    with log.transfer(0) as ready:
        log.delete_records(12)
        log.maintenance.evict(12)
        log.maintenance.delete_expired()
        assert ready.send(ends[0]) == len(expected)
    assert received(ends[1], len(expected)) == expected


def test_a_log_that_is_truncated_meanwhile_ends_the_transfer(
    log: Log, ends: tuple[socket.socket, socket.socket]
) -> None:
    start = log.segments()[-1].base_offset
    with log.transfer(start, isolation="log_end") as ready:
        log.truncate_to(start)
        with pytest.raises(SegmentGoneError, match="truncated"):
            ready.send(ends[0])


def test_the_file_is_released_when_all_bytes_are_sent(
    bed: LogBed, log: Log, files: FaultyVfs, ends: tuple[socket.socket, socket.socket]
) -> None:
    log.send_to(ends[0], 0)
    with log.transfer(0):
        pass
    bed.close()
    assert not [path for path in files.open_paths if path.endswith(".log")]
