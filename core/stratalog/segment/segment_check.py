"""Check of a segment: every batch, its index entries, and its records. The segment is read once, by chunks."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Final

from stratalog.env.progress import OnBytes, uncounted
from stratalog.errors import CorruptBatchError, CorruptIndexError, StorageError
from stratalog.model.batches import CONTROL_BIT, NO_TIMESTAMP, BatchTable, Buffer, RecordBatch, ScanStop
from stratalog.model.messages.control import ControlType, EndMarker
from stratalog.model.offsets import OffsetPosition, TimestampOffset
from stratalog.model.records import Fields, RecordColumns
from stratalog.model.segment_info import AbortedTransaction
from stratalog.segment.components import Components
from stratalog.segment.control_batches import read_control
from stratalog.segment.finding import Finding, FindingKind
from stratalog.segment.framing import FRAME, FRAME_BYTES, MAX_RELATIVE_OFFSET, MIN_SIZE, OVERHEAD_BYTES, Chunk, walk
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.recover import Replay
from stratalog.segment.segment import Segment
from stratalog.spi.indexes import IndexReader, IndexRole

_OVERLAP_BYTES: Final = FRAME_BYTES - 1
_HAS_BOUNDS: Final = 2  # the first magic with a first offset and a count in its headers
_NO_INDEXES: Final[Mapping[IndexRole, StoredIndex]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StoredIndex:
    """An index as it is stored, right or wrong.

    Attributes:
        place: path of the file, or key of the object.
        entries: the stored entries.
        problem: the reason why the entries cannot be compared; "" if they can be.
        name: start of the text of a finding, for an object that holds several indexes.
    """

    place: str
    entries: Buffer = b""
    problem: str = ""
    name: str = ""


@dataclass(slots=True)
class SegmentReport:
    """Content of a segment up to the first damaged batch, and the findings.

    Attributes:
        end_offset: exclusive end offset of the good batches.
        valid_bytes: size of the good batches.
        batches: number of good batches.
        largest_ms: largest timestamp of the good batches, -1 if none has one.
        records: number of good records; 0 unless records were checked.
        findings: findings about batches and indexes.
        bad_records: findings of batches whose records cannot be decoded.
    """

    end_offset: int
    valid_bytes: int = 0
    batches: int = 0
    largest_ms: int = NO_TIMESTAMP
    records: int = 0
    findings: list[Finding] = field(default_factory=list)
    bad_records: list[Finding] = field(default_factory=list)


def read_stored_indexes(
    segment: Segment, components: Components, names: Collection[str]
) -> dict[IndexRole, StoredIndex]:
    """Return the index files of a local segment as they are stored, by role. ``names`` are the files in the folder.

    An index has a ``problem`` if its file is too large, or if it is the missing offset index of a segment with bytes.
    """
    indexes = dict[IndexRole, StoredIndex]()
    for role in _CHECKS:
        name = segment.file_name(components.indexes[role].suffix)
        place = segment.files.path(name)
        try:
            is_missing = role is IndexRole.OFFSET and segment.size_bytes and name not in names
            indexes[role] = StoredIndex(
                place, segment.stored_entries(role), "the index is missing" if is_missing else ""
            )
        except CorruptIndexError as error:
            indexes[role] = StoredIndex(place, problem=error.reason)
    return indexes


def check_segment(
    segment: ReadableSegment,
    components: Components,
    *,
    indexes: Mapping[IndexRole, StoredIndex] = _NO_INDEXES,
    records: bool = False,
    replay: Replay | None = None,
    is_last: bool = False,
    on_bytes: OnBytes = uncounted,
) -> SegmentReport:
    """Check a segment of a log folder or of a tier: framing, CRCs, ascending offsets, indexes and records.

    The check ends at the first damaged batch. The indexes are then not compared, unless the damage is a torn write.

    Args:
        segment: the segment. Unless ``is_last``, no batch may have its ``end_offset`` or a higher offset.
        components: the log's components.
        indexes: the indexes to compare with the batches.
        records: True to decompress and decode every record.
        replay: receives the good batches, as in recovery, and returns the entries that the transaction index must have.
            None if the state of the producers is unknown; then no transaction counts as missing in the index.
        is_last: True for the log's last segment, where damage without a good batch after it is a torn write.
        on_bytes: called with the number of bytes that were checked since the last call.
    """
    report = SegmentReport(segment.base_offset)
    checks = [_CHECKS[role](segment, components, stored_index) for role, stored_index in indexes.items()]
    chunks = walk(segment, 0, components, offset_limit=None if is_last else segment.end_offset)
    while True:
        try:
            chunk = next(chunks, None)
        except CorruptBatchError as error:
            is_torn = is_last and good_batch_after(segment, error.position, report.end_offset, components) is None
            kind = FindingKind.TORN if is_torn else FindingKind.DAMAGE
            report.findings.append(Finding(kind, segment.label, error.position, error.reason))
            break
        if chunk is None:
            break
        for table in chunk.tables:
            if records:
                count, bad_records = _check_records(chunk, table, segment.label, components)
                report.records += count
                report.bad_records += bad_records
            aborted = replay(chunk, table) if replay is not None else {}
            for check in checks:
                check.table(chunk, table, aborted)
            report.batches += len(table)
            largest_ms = max(table.max_timestamp_ms)
            report.largest_ms = max(report.largest_ms, largest_ms)
        on_bytes(chunk.end_position - report.valid_bytes)
        report.valid_bytes, report.end_offset = chunk.end_position, chunk.tables[-1].last_offset[-1] + 1
    if not report.findings or report.findings[0].kind is FindingKind.TORN:  # batches after damage cannot be compared
        for check in checks:
            report.findings.extend(check.finish(report))
    return report


def good_batch_after(segment: ReadableSegment, position: int, end_offset: int, components: Components) -> int | None:
    """Return the position (bytes) of the next good batch after ``position``; None if there is none.

    A good batch has a good CRC. Its offsets are at or above ``end_offset``, and at most 2^31 - 1 above the base offset.
    """
    low, high = end_offset, segment.base_offset + MAX_RELATIVE_OFFSET
    # offsets at both ends of the range begin with the same bytes, which narrow the search
    ends = [offset.to_bytes(8, "big") for offset in (low, high)]
    shared_bytes = next((index for index in range(8) if ends[0][index] != ends[1][index]), 8)
    pattern = re.compile(
        b"(?=" + re.escape(ends[0][:shared_bytes]) + b".{%d}[\\x00-\\x02])" % (16 - shared_bytes), re.DOTALL
    )
    search_position, size = position + 1, segment.size_bytes
    while size - search_position >= FRAME_BYTES:
        data = segment.read(search_position, components.limits.read_bytes)
        for match in pattern.finditer(data):
            start = search_position + match.start()
            offset, length, _, magic = FRAME.unpack_from(data, match.start())
            total = length + OVERHEAD_BYTES
            if (
                not low <= offset <= high
                or length < MIN_SIZE
                or total > min(size - start, components.limits.batch_bytes)
            ):
                continue
            record_format = components.formats.get(magic)
            if record_format is None:
                continue
            entry = segment.read(start, total)  # fewer bytes if the file is truncated meanwhile
            table = record_format.scan(entry, 0, len(entry), check_crc=True)
            if len(table) == 1 and table.stop is ScanStop.END and low <= table.base_offset[0] <= table.last_offset[0]:
                return start
        if len(data) <= _OVERLAP_BYTES:
            break
        search_position += len(data) - _OVERLAP_BYTES
    return None


# --- records ---------------------------------------------------------------------------------------------------------


def _check_records(chunk: Chunk, table: BatchTable, label: str, components: Components) -> tuple[int, list[Finding]]:
    """Decode batches whose framing and CRC are good; return the number of good records, and the findings."""
    records, findings = 0, list[Finding]()
    for row, batch in enumerate(table):
        try:
            count, problem = _check_batch(chunk, table.take(row, row + 1), batch, components)
        except StorageError as error:
            count, problem = 0, getattr(error, "reason", "") or str(error)
        if problem:
            text = f"the records of the batch that ends at offset {batch.last_offset} are wrong: {problem}"
            findings.append(Finding(FindingKind.DAMAGE, label, chunk.position + batch.position, text))
        else:
            records += count
    return records, findings


def _check_batch(chunk: Chunk, row: BatchTable, batch: RecordBatch, components: Components) -> tuple[int, str]:
    """Return the number of records of a batch, and the problem with them; "" if they are good."""
    record_format = components.formats.of(batch.magic, "", 0)
    limit_bytes = components.limits.decompressed_bytes
    count = 0
    for columns in record_format.decode(chunk.data, row, fields=Fields.ALL, limit_bytes=limit_bytes):
        for problem in _find_offset_problems(columns, batch):
            return count, problem
        count += columns.count
    if batch.magic >= _HAS_BOUNDS and count != batch.record_count:
        return count, f"the header has {batch.record_count} records, the batch has {count}"
    return count, ""


def _find_offset_problems(columns: RecordColumns, batch: RecordBatch) -> Iterator[str]:
    offsets = columns.offset.tolist()
    first = batch.base_offset if batch.magic >= _HAS_BOUNDS else 0
    if offsets and not first <= offsets[0] <= offsets[-1] <= batch.last_offset:
        yield f"offsets {offsets[0]} to {offsets[-1]} in a batch of {first} to {batch.last_offset}"
    if any(later <= before for before, later in pairwise(offsets)):
        yield "offsets do not ascend"


# --- indexes ---------------------------------------------------------------------------------------------------------


class _IndexCheck(ABC):
    """Check of one index: compares its entries in order with the batches. Only the first wrong entry is reported."""

    role: IndexRole

    def __init__(self, segment: ReadableSegment, components: Components, stored_index: StoredIndex) -> None:
        self.components, self.base_offset = components, segment.base_offset
        self.stored_index, self.problem = stored_index, stored_index.problem
        self.entry_bytes = components.indexes[self.role].entry_bytes
        self.next = 0
        self.reader: IndexReader[object] = components.indexes[self.role].reader(
            stored_index.entries, segment.base_offset
        )

    @abstractmethod
    def table(self, chunk: Chunk, table: BatchTable, aborted: Mapping[int, AbortedTransaction]) -> None:
        """Compare index entries with the next batches. ``aborted`` has the ended transactions, by row of the marker."""

    def report_problem(self, text: str) -> None:
        """Record that the current entry is wrong, with the problem ``text``. Only the first problem is kept."""
        self.problem = self.problem or text

    def finish(self, report: SegmentReport) -> Iterator[Finding]:
        """Yield the finding about the index, if there is one, after all batches were compared."""
        position = self.next * self.entry_bytes
        if not self.problem:
            try:
                self.reader.check(report.end_offset, report.valid_bytes)
            except CorruptIndexError as error:
                self.problem, position = error.reason, error.position
        if self.problem:
            yield Finding(FindingKind.INDEX, self.stored_index.place, position, self.stored_index.name + self.problem)


class _OffsetCheck(_IndexCheck):
    """Check that a batch starts at each entry's position, and that earlier batches have only lower offsets."""

    role = IndexRole.OFFSET

    def __init__(self, segment: ReadableSegment, components: Components, stored_index: StoredIndex) -> None:
        super().__init__(segment, components, stored_index)
        self._last_offset = segment.base_offset - 1

    def table(self, chunk: Chunk, table: BatchTable, aborted: Mapping[int, AbortedTransaction]) -> None:
        """Compare the index entries whose positions are in the table with the table's batches."""
        del aborted
        end = chunk.position + table.position[-1] + table.size_bytes[-1]
        while not self.problem and self.next < len(self.reader):
            entry = self.reader[self.next]
            assert isinstance(entry, OffsetPosition)
            if entry.position >= end:
                break
            row = bisect_left(table.position, entry.position - chunk.position)
            if row == len(table) or chunk.position + table.position[row] != entry.position:
                self.report_problem(f"no batch starts at position {entry.position}")
                return
            before = table.last_offset[row - 1] if row else self._last_offset
            if not before < entry.offset:
                self.report_problem(f"offset {entry.offset} is before position {entry.position}")
                return
            self.next += 1
        self._last_offset = table.last_offset[-1]


class _TimeCheck(_IndexCheck):
    """Check that each entry's timestamp is the largest up to the batch that holds the entry's offset."""

    role = IndexRole.TIME

    def __init__(self, segment: ReadableSegment, components: Components, stored_index: StoredIndex) -> None:
        super().__init__(segment, components, stored_index)
        self._top = NO_TIMESTAMP

    def table(self, chunk: Chunk, table: BatchTable, aborted: Mapping[int, AbortedTransaction]) -> None:
        """Compare the index entries whose offsets are in the table with the table's batches."""
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
            if table.magic == 0 and entry.timestamp_ms > largest:  # the time of an append with LogAppendTime
                self._top = entry.timestamp_ms
            elif entry.timestamp_ms != largest:
                self.report_problem(
                    f"timestamp {entry.timestamp_ms} at offset {entry.offset}, but the largest timestamp there is "
                    f"{largest}"
                )
                return
            self.next += 1
        self._top = max(self._top, *table.max_timestamp_ms)

    def finish(self, report: SegmentReport) -> Iterator[Finding]:
        """Yield the finding. After a clean close, the last entry has the segment's largest timestamp."""
        if self.next == len(self.reader):
            last = self.reader[-1] if self.next else TimestampOffset(NO_TIMESTAMP, self.base_offset)
            if isinstance(last, TimestampOffset) and last.timestamp_ms < self._top:
                self.report_problem(
                    f"the last entry has timestamp {last.timestamp_ms}, but the segment has {self._top}"
                )
        yield from super().finish(report)


class _TransactionCheck(_IndexCheck):
    """Check that each entry belongs to an abort marker, and every known aborted transaction has an entry."""

    role = IndexRole.TRANSACTION

    def __init__(self, segment: ReadableSegment, components: Components, stored_index: StoredIndex) -> None:
        super().__init__(segment, components, stored_index)
        self._last_ends: dict[int, int] = {}  # offset of the last end marker, by producer id
        self._abort_markers: dict[int, tuple[int, int]] = {}  # producer id and its previous end marker, by offset
        self._expected_entries: list[AbortedTransaction] = []

    def table(self, chunk: Chunk, table: BatchTable, aborted: Mapping[int, AbortedTransaction]) -> None:
        """Store the end markers in the table."""
        self._expected_entries.extend(aborted.values())
        if table.magic < 2:
            return
        for row, attributes in enumerate(table.attributes):
            if attributes & CONTROL_BIT:
                control = read_control(chunk.data, table[row], self.components)
                if isinstance(control, EndMarker):
                    offset, producer_id = table.last_offset[row], table.producer_id[row]
                    if control.kind is ControlType.ABORT:
                        self._abort_markers[offset] = producer_id, self._last_ends.get(producer_id, -1)
                    self._last_ends[producer_id] = offset

    def finish(self, report: SegmentReport) -> Iterator[Finding]:
        """Compare the entries with the markers."""
        first_offsets = dict[tuple[int, int], int]()
        try:
            for entry in () if self.problem else self.reader:
                assert isinstance(entry, AbortedTransaction)
                producer_id, previous_end = self._abort_markers.get(entry.last_offset, (None, -1))
                if producer_id != entry.producer_id:
                    self.report_problem(
                        f"producer {entry.producer_id} has no abort marker at offset {entry.last_offset}"
                    )
                    break
                if entry.first_offset <= previous_end:
                    self.report_problem(
                        f"the transaction that producer {entry.producer_id} aborted at {entry.last_offset} begins at "
                        f"{entry.first_offset}, before its previous transaction ends"
                    )
                    break
                first_offsets[entry.producer_id, entry.last_offset] = entry.first_offset
                self.next += 1
        except CorruptIndexError as error:
            self.report_problem(error.reason)
        for entry in self._expected_entries:
            # The entry can have a lower offset: deletion and compaction remove the first batches of a transaction.
            if first_offsets.get((entry.producer_id, entry.last_offset), entry.last_offset) > entry.first_offset:
                self.report_problem(
                    f"the transaction that producer {entry.producer_id} aborted at {entry.last_offset} is missing"
                )
        yield from super().finish(report)


_CHECKS: Final[Mapping[IndexRole, type[_IndexCheck]]] = MappingProxyType(
    {check.role: check for check in (_OffsetCheck, _TimeCheck, _TransactionCheck)}
)
