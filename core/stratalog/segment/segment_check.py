"""Check of a segment against itself: every batch, and the index entries about it. One pass, a chunk at a time."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from typing import Final

from stratalog.errors import CorruptBatchError, CorruptIndexError
from stratalog.model.batches import CONTROL_BIT, NO_TIMESTAMP, BatchTable, ScanStop
from stratalog.model.messages.control import ControlType, EndMarker
from stratalog.model.offsets import OffsetPosition, TimestampOffset
from stratalog.model.segment_info import AbortedTransaction
from stratalog.segment.components import Components
from stratalog.segment.control_batches import read_control
from stratalog.segment.framing import FRAME, FRAME_BYTES, MAX_RELATIVE_OFFSET, MIN_SIZE, OVERHEAD_BYTES, Chunk, walk
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.recover import Progress, Replay
from stratalog.segment.segment import Segment
from stratalog.spi.indexes import IndexReader, IndexRole

_OVERLAP_BYTES: Final = FRAME_BYTES - 1


class ProblemKind(StrEnum):
    """Kind of a problem. All except DAMAGE and BOUNDS can be repaired without losing a good record."""

    DAMAGE = "damage"
    TORN = "torn tail"
    INDEX = "index"
    SNAPSHOT = "snapshot"
    EPOCHS = "epochs"
    BOUNDS = "bounds"
    OVERFLOW = "overflow"
    LEFT = "left over"


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: the file, the position (bytes), and a description."""

    kind: ProblemKind
    file: str
    position: int
    text: str

    @property
    def is_repairable(self) -> bool:
        """True if the problem can be repaired without losing a good record."""
        return self.kind not in {ProblemKind.DAMAGE, ProblemKind.BOUNDS}


@dataclass(slots=True)
class Verified:
    """Content of a segment up to the first bad entry, and the problems found."""

    end_offset: int
    valid_bytes: int = 0
    batches: int = 0
    problems: list[Problem] = field(default_factory=list)


def verify_segment(
    segment: Segment, parts: Components, replay: Replay, progress: Progress, *, is_last: bool, indexed: bool = True
) -> Verified:
    """Check a segment: framing, CRCs, ascending offsets, and each index entry against the batches.

    Args:
        segment: a segment of a log; its ``end_offset`` bounds its offsets unless it is the last.
        parts: the log's components.
        replay: receives the good batches, as in recovery, and returns what the transaction index must hold.
        progress: receives the number of bytes that were checked.
        is_last: True for the log's last segment, where a truncated entry may be a torn write.
        indexed: True to compare the indexes as well.
    """
    found = Verified(segment.base_offset)
    kinds = (_OffsetCheck, _TimeCheck, _TransactionCheck) if indexed else ()
    checks: list[_IndexCheck] = [kind(segment, parts) for kind in kinds]
    chunks = walk(segment, 0, parts, below=None if is_last else segment.end_offset)
    while True:
        try:
            chunk = next(chunks, None)
        except CorruptBatchError as error:
            torn = is_last and good_batch_after(segment, error.position, found.end_offset, parts) is None
            kind = ProblemKind.TORN if torn else ProblemKind.DAMAGE
            found.problems.append(Problem(kind, segment.label, error.position, error.reason))
            break
        if chunk is None:
            break
        for table in chunk.tables:
            aborted = replay(chunk, table)
            for check in checks:
                check.table(chunk, table, aborted)
            found.batches += len(table)
        progress(chunk.end_position - found.valid_bytes)
        found.valid_bytes, found.end_offset = chunk.end_position, chunk.tables[-1].last_offset[-1] + 1
    if not found.problems or found.problems[0].kind is ProblemKind.TORN:  # batches after damage cannot be compared
        for check in checks:
            found.problems.extend(check.finished(found))
    return found


def good_batch_after(segment: ReadableSegment, position: int, end_offset: int, parts: Components) -> int | None:
    """Return the start of the next good batch after a bad entry, with a good CRC and possible offsets; otherwise None."""
    low, high = end_offset, segment.base_offset + MAX_RELATIVE_OFFSET
    # offsets at both ends of the range begin with the same bytes, which narrow the search
    ends = [offset.to_bytes(8, "big") for offset in (low, high)]
    shared = next((at for at in range(8) if ends[0][at] != ends[1][at]), 8)
    pattern = re.compile(b"(?=" + re.escape(ends[0][:shared]) + b".{%d}[\\x00-\\x02])" % (16 - shared), re.DOTALL)
    at, size = position + 1, segment.size_bytes
    while size - at >= FRAME_BYTES:
        data = segment.read(at, parts.limits.read_bytes)
        for match in pattern.finditer(data):
            start = at + match.start()
            offset, length, _, magic = FRAME.unpack_from(data, match.start())
            total = length + OVERHEAD_BYTES
            if not low <= offset <= high or length < MIN_SIZE or total > min(size - start, parts.limits.batch_bytes):
                continue
            form = parts.formats.get(magic)
            if form is None:
                continue
            entry = segment.read(start, total)  # fewer bytes if the file is truncated meanwhile
            table = form.scan(entry, 0, len(entry), check_crc=True)
            if len(table) == 1 and table.stop is ScanStop.END and low <= table.base_offset[0] <= table.last_offset[0]:
                return start
        if len(data) <= _OVERLAP_BYTES:
            break
        at += len(data) - _OVERLAP_BYTES
    return None


# --- indexes ---------------------------------------------------------------------------------------------------------


class _IndexCheck(ABC):
    """Check of one index: compares its entries in order with the batches. Only the first wrong entry is reported."""

    role: IndexRole

    def __init__(self, segment: Segment, parts: Components) -> None:
        self.segment, self.parts = segment, parts
        self.file = segment.files.path(segment.file_name(parts.indexes[self.role].suffix))
        self.entry_bytes = parts.indexes[self.role].entry_bytes
        self.next, self.problem = 0, ""
        try:
            entries = segment.stored_entries(self.role)
        except CorruptIndexError as error:
            entries, self.problem = b"", error.reason
        self.reader: IndexReader[object] = parts.indexes[self.role].reader(entries, segment.base_offset)

    @abstractmethod
    def table(self, chunk: Chunk, table: BatchTable, aborted: Mapping[int, AbortedTransaction]) -> None:
        """Compare entries with the next batches; ``aborted`` are the transactions that abort markers end, by row."""

    def wrong(self, text: str) -> None:
        """Note that the current entry is wrong."""
        self.problem = self.problem or text

    def finished(self, found: Verified) -> Iterator[Problem]:
        """Yield the problem of the index, if there is one, after all batches were compared."""
        at = self.next * self.entry_bytes
        if not self.problem:
            try:
                self.reader.check(found.end_offset, found.valid_bytes)
            except CorruptIndexError as error:
                self.problem, at = error.reason, error.position
        if self.problem:
            yield Problem(ProblemKind.INDEX, self.file, at, self.problem)


class _OffsetCheck(_IndexCheck):
    """Check that each entry's position is the start of a batch, and all earlier batches end below the entry's offset."""

    role = IndexRole.OFFSET

    def __init__(self, segment: Segment, parts: Components) -> None:
        super().__init__(segment, parts)
        self._last_offset = segment.base_offset - 1
        there = {file.name for file in segment.files.list()}
        if segment.size_bytes and segment.file_name(parts.indexes[self.role].suffix) not in there:
            self.wrong("the index is missing")

    def table(self, chunk: Chunk, table: BatchTable, aborted: Mapping[int, AbortedTransaction]) -> None:
        """Compare the entries whose positions are in the table."""
        del aborted
        end = chunk.position + table.position[-1] + table.size_bytes[-1]
        while not self.problem and self.next < len(self.reader):
            entry = self.reader[self.next]
            assert isinstance(entry, OffsetPosition)
            if entry.position >= end:
                break
            row = bisect_left(table.position, entry.position - chunk.position)
            if row == len(table) or chunk.position + table.position[row] != entry.position:
                self.wrong(f"no batch starts at position {entry.position}")
                return
            before = table.last_offset[row - 1] if row else self._last_offset
            if not before < entry.offset:
                self.wrong(f"offset {entry.offset} lies before position {entry.position}")
                return
            self.next += 1
        self._last_offset = table.last_offset[-1]


class _TimeCheck(_IndexCheck):
    """Check that each entry's timestamp is the largest up to the batch that holds the entry's offset."""

    role = IndexRole.TIME

    def __init__(self, segment: Segment, parts: Components) -> None:
        super().__init__(segment, parts)
        self._top = NO_TIMESTAMP

    def table(self, chunk: Chunk, table: BatchTable, aborted: Mapping[int, AbortedTransaction]) -> None:
        """Compare the entries whose offsets are in the table."""
        del chunk, aborted
        tops: list[int] | None = None
        while not self.problem and self.next < len(self.reader):
            entry = self.reader[self.next]
            assert isinstance(entry, TimestampOffset)
            if entry.offset > table.last_offset[-1]:
                break
            if tops is None:
                tops = list(accumulate(table.max_timestamp_ms, max, initial=self._top))
            largest = tops[bisect_left(table.last_offset, entry.offset) + 1]
            if entry.timestamp_ms != largest:
                self.wrong(f"timestamp {entry.timestamp_ms} at offset {entry.offset}, the largest there is {largest}")
                return
            self.next += 1
        self._top = max(self._top, *table.max_timestamp_ms)

    def finished(self, found: Verified) -> Iterator[Problem]:
        """Check also that the last entry has the segment's largest timestamp, as after an orderly close."""
        if self.next == len(self.reader):
            last = self.reader[-1] if self.next else TimestampOffset(NO_TIMESTAMP, self.segment.base_offset)
            if isinstance(last, TimestampOffset) and last.timestamp_ms < self._top:
                self.wrong(f"the last entry has timestamp {last.timestamp_ms}, the segment {self._top}")
        yield from super().finished(found)


class _TransactionCheck(_IndexCheck):
    """Check that each entry belongs to an abort marker, and every known aborted transaction has an entry."""

    role = IndexRole.TRANSACTION

    def __init__(self, segment: Segment, parts: Components) -> None:
        super().__init__(segment, parts)
        self._markers: dict[int, int] = {}  # producer ids, by offset
        self._expected: list[AbortedTransaction] = []

    def table(self, chunk: Chunk, table: BatchTable, aborted: Mapping[int, AbortedTransaction]) -> None:
        """Note the abort markers."""
        self._expected.extend(aborted.values())
        if table.magic < 2:
            return
        for row, attributes in enumerate(table.attributes):
            if attributes & CONTROL_BIT:
                control = read_control(chunk.data, table[row], self.parts)
                if isinstance(control, EndMarker) and control.kind is ControlType.ABORT:
                    self._markers[table.last_offset[row]] = table.producer_id[row]

    def finished(self, found: Verified) -> Iterator[Problem]:
        """Compare the entries with the markers."""
        stored = set[tuple[int, int, int]]()
        try:
            for entry in () if self.problem else self.reader:
                assert isinstance(entry, AbortedTransaction)
                if self._markers.get(entry.last_offset) != entry.producer_id:
                    self.wrong(f"producer {entry.producer_id} has no abort marker at offset {entry.last_offset}")
                    break
                stored.add((entry.producer_id, entry.first_offset, entry.last_offset))
                self.next += 1
        except CorruptIndexError as error:
            self.wrong(error.reason)
        for entry in self._expected:
            if (entry.producer_id, entry.first_offset, entry.last_offset) not in stored:
                self.wrong(
                    f"the transaction that producer {entry.producer_id} aborted at {entry.last_offset} is missing"
                )
        yield from super().finished(found)
