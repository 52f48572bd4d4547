"""Batches from a log's file to a socket, by ``sendfile`` where both ends allow it: the bytes never enter the process.

Source: apache/kafka FileRecords.writeTo, TransferableChannel.transferFrom.
"""

from __future__ import annotations

import select
import socket
from bisect import bisect_left
from types import TracebackType
from typing import Final, NamedTuple, Self

from stratalog.env.files import Vfs
from stratalog.errors import CorruptIndexError, CorruptionError, SegmentGoneError
from stratalog.log.again import Again, ViewSource
from stratalog.log.fetch import FetchRequest, fetch, parting
from stratalog.log.view import LogView
from stratalog.model.offsets import EpochEnd, Isolation, LogOffsets
from stratalog.model.segments import AbortedTransaction, FileSlice
from stratalog.segment.components import Components
from stratalog.segment.framing import walk
from stratalog.segment.search import NEAR_BYTES, aborted_transactions, batch_at, find_batch, offset_index
from stratalog.segment.segment import Segment

_COPY_BYTES: Final = 1 << 16
_MS: Final = 1000


class Transfer:
    """Whole batches on their way to a socket; the file stays open until all are sent, or they are released.

    A context manager. Used by one thread at a time. The bytes are those of the file when they are sent: a truncation
    meanwhile, which followers alone see and only above what was committed, changes or ends them.

    Attributes:
        offset: the one asked for.
        next_offset: where to go on after these batches.
        size_bytes: of all batches.
        sent_bytes: how much of it has been sent.
        offsets: all bounds of the log, of the same view.
        aborted_transactions: as ``Fetched``.
        diverging: as ``Fetched``.
    """

    def __init__(
        self,
        asked: FetchRequest,
        offsets: LogOffsets,
        files: Vfs,
        piece: FileSlice | None = None,
        *,
        size_bytes: int = 0,
        next_offset: int | None = None,
        aborted_transactions: tuple[AbortedTransaction, ...] = (),
        diverging: EpochEnd | None = None,
    ) -> None:
        self.offset, self.offsets = asked.offset, offsets
        self.next_offset = asked.offset if next_offset is None else next_offset
        self.size_bytes, self.sent_bytes = size_bytes, 0
        self.aborted_transactions, self.diverging = aborted_transactions, diverging
        self._files, self._piece = files, piece

    @property
    def left_bytes(self) -> int:
        """What has not been sent."""
        return self.size_bytes - self.sent_bytes

    def send(self, to: socket.socket) -> int:
        """Send what the socket takes: all, if it blocks; returns how many bytes that were. Releases after the last one.

        After an error of the socket the transfer can go on, or must be released: ``sent_bytes`` tells how far it came.

        Args:
            to: any socket; those that encrypt, and others that are no plain ones, get copies.

        Raises:
            TimeoutError: the socket's own timeout is over.
            OSError: of the socket.
            SegmentGoneError: the log was truncated meanwhile.
            ValueError: the transfer was released before all was sent.
        """
        before = self.sent_bytes
        while self.left_bytes:
            try:
                sent = self._send_some(to)
            except BlockingIOError:
                timeout = to.gettimeout()
                if timeout == 0:
                    break
                _wait(to, timeout)
                continue
            self.sent_bytes += sent
        if not self.left_bytes:
            self.release()
        return self.sent_bytes - before

    def release(self) -> None:
        """Let go of the file. Twice is fine."""
        piece, self._piece = self._piece, None
        if piece is not None:
            piece.release()

    def _send_some(self, to: socket.socket) -> int:
        piece = self._piece
        if piece is None:
            raise ValueError("the transfer was released")
        descriptor = piece.fileno()
        if descriptor is None:
            return to.send(piece.data[self.sent_bytes :])
        position = piece.position + self.sent_bytes
        if type(to) is socket.socket:
            sent = self._files.send(descriptor, position, self.left_bytes, to.fileno())
        else:
            data = self._files.read(descriptor, position, min(self.left_bytes, _COPY_BYTES))
            sent = to.send(data) if data else 0
        if not sent:
            raise SegmentGoneError("the log was truncated while it was sent", f"offset {self.offset}")
        return sent

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def transfer(views: ViewSource, parts: Components, asked: FetchRequest) -> Transfer:
    """What ``fetch`` would return, ready to be sent: of a local file only the first and last batches are looked at.

    Errors as ``fetch``.
    """
    view, again = views(), Again(views)
    while True:
        view.check_leader_epoch(asked.current_leader_epoch)
        view.check_range(asked.offset)
        if parting(view, asked) is None:
            segment = view.segment_at(asked.offset)
            try:
                made = _of_file(view, segment, parts, asked) if isinstance(segment, Segment) else None
            except (SegmentGoneError, CorruptionError) as error:
                view = again.after(error, view, segment)
                continue
            if made is not None:
                return made
        return _of_memory(views, parts, asked)


def _of_memory(views: ViewSource, parts: Components, asked: FetchRequest) -> Transfer:
    """Of a tier, of a store without descriptors, or of nothing at all."""
    fetched = fetch(views, parts, asked)
    piece = fetched.slices[0] if fetched.slices else None
    if piece is not None:
        piece.descriptor = None  # its bytes are here already, and were checked
    return Transfer(
        asked,
        fetched.offsets,
        parts.env.files,
        piece,
        size_bytes=fetched.size_bytes,
        next_offset=fetched.next_offset,
        aborted_transactions=fetched.aborted_transactions,
        diverging=fetched.diverging,
    )


class _Range(NamedTuple):
    position: int
    end_position: int
    last_offset: int


def _of_file(view: LogView, segment: Segment, parts: Components, asked: FetchRequest) -> Transfer | None:
    found = _range(segment, parts, asked, view.bound(asked.isolation))
    piece = None if found is None else segment.slice(found.position, 0)
    if found is None or piece is None:
        return None
    try:
        aborted: tuple[AbortedTransaction, ...] = ()
        if asked.isolation is Isolation.READ_COMMITTED:
            readable = view.readable_from(asked.offset)
            aborted = aborted_transactions(readable, asked.offset, found.last_offset + 1, parts)
    except BaseException:
        piece.release()
        raise
    if piece.fileno() is None:
        piece.release()
        return None
    return Transfer(
        asked,
        view.offsets,
        parts.env.files,
        piece,
        size_bytes=found.end_position - found.position,
        next_offset=found.last_offset + 1,
        aborted_transactions=aborted,
    )


def _range(segment: Segment, parts: Components, asked: FetchRequest, bound: int) -> _Range | None:
    """The whole batches from the one that holds the offset, below the bound and of at most ``max_bytes``."""
    size = segment.size_bytes  # before the search for the bound: what is appended from now on is above it
    found = find_batch(segment, asked.offset, parts, read_bytes=NEAR_BYTES)
    if found is None or found[1].last_offset >= bound:
        return None
    position, first = found
    if first.size_bytes > asked.max_bytes and not asked.min_one_batch:
        return None
    limit = min(size, position + max(asked.max_bytes, first.size_bytes))
    end, last_offset = position + first.size_bytes, first.last_offset
    near = _last_indexed(segment, parts, end, limit, bound)
    for chunk in walk(segment, near, parts, check_crc=False, read_bytes=NEAR_BYTES) if near < limit else ():
        for table in chunk.tables:
            for start, size_bytes, last in zip(table.position, table.size_bytes, table.last_offset, strict=True):
                if chunk.position + start + size_bytes > limit or last >= bound:
                    return _Range(position, end, last_offset)
                end, last_offset = chunk.position + start + size_bytes, last
    return _Range(position, end, last_offset)


def _last_indexed(segment: Segment, parts: Components, start: int, limit: int, bound: int) -> int:
    """The last position of a batch in [start, limit) and below ``bound`` that the index knows; else ``start``."""
    try:
        entries = offset_index(segment, parts)
        row = min(
            bisect_left(entries, bound, key=lambda entry: entry.offset),
            bisect_left(entries, limit, key=lambda entry: entry.position),
        )
    except CorruptIndexError:
        return start
    while row > 0 and entries[row - 1].position > start:
        row -= 1
        batch = batch_at(segment, entries[row].position, parts)
        if batch is not None and entries[row].position + batch.size_bytes <= limit and batch.last_offset < bound:
            return entries[row].position
    return start


def _wait(to: socket.socket, timeout_s: float | None) -> None:
    poll = select.poll()
    poll.register(to.fileno(), select.POLLOUT)
    if not poll.poll(None if timeout_s is None else timeout_s * _MS):
        raise TimeoutError("timed out")
