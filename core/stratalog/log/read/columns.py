"""Reads of records, as columns and as Arrow.

Source: apache/kafka CompletedFetch, for the filter of aborted transactions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from stratalog.log.read.read_plan import ReadPlan, plan_read, read_all
from stratalog.log.read.retry_read import ViewSource
from stratalog.log.read.view import ReadRange
from stratalog.model.arrow import arrow_batches, arrow_fields, check_columns
from stratalog.model.batches import CONTROL_BIT, TRANSACTIONAL_BIT, BatchTable
from stratalog.model.records import Fields, RecordColumns
from stratalog.model.segment_info import AbortedTransaction
from stratalog.segment.components import Components
from stratalog.segment.framing import Chunk
from stratalog.segment.read_buffers import ReusedReads
from stratalog.segment.readable import ReadableSegment, StoresArrow
from stratalog.segment.search import chunks_from, decode, decode_arrow, end_position

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - a type alone

ARROW_READS: Final = 4  # reads for each Arrow batch: the cost of a batch does not depend on its size
_STORED_ROWS: Final = 1 << 16  # maximum rows of a batch from a segment that is stored as columns
_SPARED: Final = 8  # extra records, up to an eighth of the returned bytes, may stay in memory

_T = TypeVar("_T")
_Columns: TypeAlias = tuple[RecordColumns, int]
_ArrowBatch: TypeAlias = "tuple[pyarrow.RecordBatch, int]"
DecodeBatches: TypeAlias = Callable[[Chunk, BatchTable, ReadableSegment, range], Iterator[tuple[_T, int]]]
"""Function that decodes the records of batches in a range of offsets. It yields pieces, each with the offset after its
last record."""
ReadStored: TypeAlias = Callable[
    [ReadableSegment, range, Mapping[int, list[AbortedTransaction]]], Iterator[tuple[_T | None, int]] | None
]
"""Function that returns the pieces of a segment's records in a range of offsets, without hidden transactions. It
returns None if the batches of the segment must be decoded."""


def read_columns(
    views: ViewSource, components: Components, start: int, end: int | None, isolation: str, fields: Fields = Fields.ALL
) -> Iterator[RecordColumns]:
    """Yield the data records with offsets in [start, end), as columns.

    ``start`` 0 means the log start. The read ends at the upper bound that ``isolation`` has when iteration begins.
    Control records are omitted. If ``isolation`` is read_committed, aborted records are omitted too. CRCs are checked.
    If a segment is removed during the read, the read continues in the tier or, if the log start has risen, at the new
    log start.

    Raises:
        OffsetOutOfRangeError: ``start`` is below the log start (and not 0) or above the log end.
        CorruptBatchError: a batch is damaged; all records before it have been yielded.
        StorageError: a segment cannot be read from disk or from the tier, or a batch cannot be decompressed.
    """
    fields |= Fields.OFFSET

    def decode_batches(chunk: Chunk, table: BatchTable, segment: ReadableSegment, span: range) -> Iterator[_Columns]:
        for columns in decode(chunk, table, segment, components, fields):
            selected = cut_columns(columns, span)
            if selected.count:
                yield selected, selected.offset[-1] + 1

    return read_pieces(views, components, start, end, isolation, decode_batches, components.limits.read_bytes)


def read_arrow(
    views: ViewSource,
    components: Components,
    start: int,
    end: int | None,
    isolation: str,
    partition: int,
    columns: Sequence[str] | None = None,
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the same records as ``read_columns``, as Arrow batches in ``arrow_schema(columns)``.

    Raises:
        ConfigError: a name in ``columns`` is not the name of a column.
        PluginImportError: pyarrow is not installed; the text names the extra.
        The errors of ``read_columns``.
    """
    plan = plan_read(views, components, start, end, isolation)
    yield from read_planned_arrow(plan, views, components, plan.span, partition, columns)


def read_planned_arrow(
    plan: ReadPlan,
    views: ViewSource,
    components: Components,
    span: range,
    partition: int,
    columns: Sequence[str] | None = None,
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the Arrow batches of ``read_arrow`` for ``span``, an offset range in the plan.

    Damage at the log's end is raised only if ``span`` ends where the plan ends.
    """
    read_bytes = ARROW_READS * components.limits.read_bytes
    decode_batches, read_stored = (
        _arrow_decoder(components, partition, columns),
        partial(_read_stored_arrow, columns=columns),
    )
    return _read_planned(plan, span, views, components, decode_batches, read_bytes, read_stored=read_stored)


def segment_arrow(
    segment: ReadableSegment,
    chunks: Iterator[Chunk],
    span: range,
    aborted: Sequence[AbortedTransaction],
    components: Components,
    partition: int,
    columns: Sequence[str] | None = None,
) -> Iterator[tuple[pyarrow.RecordBatch | None, int]]:
    """Yield the records of one segment as Arrow batches, for a caller that has planned the read.

    Args:
        segment: the segment of ``chunks``.
        chunks: chunks from a batch at or before ``span.start``; read until ``span.stop`` is reached.
        span: range of offsets.
        aborted: transactions whose records are omitted.
        components: the log's components.
        partition: value of the column ``partition``.
        columns: names of the columns; None means all of ``arrow_schema()``.

    Yields:
        Pairs of a batch, or None if there are no records to show, and the offset at which to continue.
    """
    aborted_by_producer = _group_by_producer(aborted)
    pieces = _read_stored_arrow(segment, span, aborted_by_producer, columns)
    if pieces is not None:
        return pieces
    return _segment_pieces(segment, chunks, span, aborted_by_producer, _arrow_decoder(components, partition, columns))


def _read_stored_arrow(
    segment: ReadableSegment,
    span: range,
    aborted_by_producer: Mapping[int, list[AbortedTransaction]],
    columns: Sequence[str] | None,
) -> Iterator[tuple[pyarrow.RecordBatch | None, int]] | None:
    """Return the result of ``segment_arrow`` from stored columns; None if the segment's batches must be decoded.

    Stored columns also have the records of aborted transactions, so they are not used if such records must be omitted.
    """
    if not isinstance(segment, StoresArrow):
        return None
    stop = min(span.stop, segment.end_offset)
    if any(
        transaction.first_offset < stop and transaction.last_offset >= span.start
        for transactions in aborted_by_producer.values()
        for transaction in transactions
    ):
        return None
    names = check_columns(columns)
    read_names = names if "offset" in names else ("offset", *names)
    batches = segment.stored_arrow(span.start, stop, read_names)
    return None if batches is None else _slice_stored(batches, stop, None if read_names is names else names)


def _slice_stored(
    batches: Iterator[pyarrow.RecordBatch], stop: int, names: Sequence[str] | None
) -> Iterator[tuple[pyarrow.RecordBatch | None, int]]:
    for batch in batches:
        for start in range(0, batch.num_rows, _STORED_ROWS):
            part = batch.slice(start, _STORED_ROWS)
            yield part if names is None else part.select(list(names)), _offsets(part)[-1] + 1
    yield None, stop


def _arrow_decoder(
    components: Components, partition: int, columns: Sequence[str] | None
) -> DecodeBatches[pyarrow.RecordBatch]:
    names = check_columns(columns)
    decoded_names = names if "offset" in names else ("offset", *names)  # the range is cut by offsets
    fields = arrow_fields(decoded_names)

    def decode_batches(chunk: Chunk, table: BatchTable, segment: ReadableSegment, span: range) -> Iterator[_ArrowBatch]:
        for rows, is_whole in _split_batches(table, span):
            if is_whole:
                batches = decode_arrow(chunk, rows, segment, components, partition, decoded_names)
            else:  # a copy of the requested records, not a slice that keeps a whole read in memory
                selections = (
                    cut_columns(records, span) for records in decode(chunk, rows, segment, components, fields)
                )
                batches = (
                    batch for selected in selections for batch in arrow_batches(selected, partition, decoded_names)
                )
            for batch in batches:
                if batch.num_rows:
                    cut_batch, next_offset = _cut_batch(batch, span)
                    if cut_batch.num_rows:
                        result = cut_batch if decoded_names is names else cut_batch.select(list(names))
                        yield result, next_offset

    return decode_batches


def read_pieces(
    views: ViewSource,
    components: Components,
    start: int,
    end: int | None,
    isolation: str,
    decode_batches: DecodeBatches[_T],
    read_bytes: int,
    is_without: Callable[[ReadableSegment], bool] | None = None,
) -> Iterator[_T]:
    """Read the batches with records in [start, end), and yield the pieces that ``decode_batches`` makes of the batches.

    ``read_bytes`` is the size of a read. Closed segments for which ``is_without`` returns True are skipped. Raises the
    same errors as ``read_columns``.
    """
    plan = plan_read(views, components, start, end, isolation)
    yield from _read_planned(plan, plan.span, views, components, decode_batches, read_bytes, is_without)


def _read_planned(
    plan: ReadPlan,
    span: range,
    views: ViewSource,
    components: Components,
    decode_batches: DecodeBatches[_T],
    read_bytes: int,
    is_without: Callable[[ReadableSegment], bool] | None = None,
    read_stored: ReadStored[_T] | None = None,
) -> Iterator[_T]:
    """Yield the pieces of ``span``, an offset range in the plan.

    If ``read_stored`` returns None for a segment, ``decode_batches`` yields the segment's pieces.
    """
    aborted_by_producer = _group_by_producer(plan.aborted)

    def read(part: ReadRange) -> Iterator[tuple[_T | None, int]]:
        segment, start, end, offset_limit = part
        if is_without is not None and offset_limit is not None and is_without(segment):
            return
        pieces = (
            None
            if read_stored is None
            else read_stored(segment, range(start, min(end, span.stop)), aborted_by_producer)
        )
        if pieces is not None:
            yield from pieces
            return
        chunks = chunks_from(
            segment,
            start,
            components,
            offset_limit=offset_limit,
            read_bytes=read_bytes,
            stop_position=end_position(segment, span.stop, components),
            read=reads.of(segment),
        )
        yield from _segment_pieces(segment, chunks, range(start, span.stop), aborted_by_producer, decode_batches)

    with ReusedReads(read_bytes, components.env.spare_buffers) as reads:
        yield from read_all(views, plan.view, span, read)
    damage = plan.view.damage
    if damage is not None and plan.meets_damage and span.stop == plan.span.stop:
        raise damage.with_traceback(None)


def _segment_pieces(
    segment: ReadableSegment,
    chunks: Iterator[Chunk],
    span: range,
    aborted_by_producer: Mapping[int, list[AbortedTransaction]],
    decode_batches: DecodeBatches[_T],
) -> Iterator[tuple[_T | None, int]]:
    """Yield the pieces of one segment with offsets in ``span``, each with the offset at which to continue after it.

    After the pieces of each table, yield None with the offset after the table, to move past batches without records to
    show.
    """
    for chunk in chunks:
        for table in chunk.tables:
            yield from decode_batches(
                chunk, _select_batches(table, span.start, span.stop, aborted_by_producer), segment, span
            )
            next_offset = table.last_offset[-1] + 1
            yield None, min(next_offset, span.stop)
            if next_offset >= span.stop:
                if _leaps(table, span.stop):
                    next(chunks, None)
                return
        del chunk  # the next read may reuse the memory of the chunk


def _leaps(table: BatchTable, stop: int) -> bool:
    """Return True if ``stop`` is in a gap before the last batch of the table."""
    # Compaction leaves gaps. A damaged offset looks like a gap, but then the next batch is out of order.
    row = bisect_left(table.last_offset, stop - 1)
    return row == len(table) - 1 and table.base_offset[row] >= stop


def _group_by_producer(aborted: Sequence[AbortedTransaction]) -> dict[int, list[AbortedTransaction]]:
    by_producer: dict[int, list[AbortedTransaction]] = {}
    for transaction in aborted:
        by_producer.setdefault(transaction.producer_id, []).append(transaction)
    return by_producer


def _select_batches(
    table: BatchTable, start: int, stop: int, aborted_by_producer: Mapping[int, list[AbortedTransaction]]
) -> BatchTable:
    """Return the batches with records to show in [start, stop). Omit control and aborted batches."""
    is_v2 = table.magic == 2
    # a compressed message of magic 0 or 1 stores only its last offset: its first record follows the message before it
    firsts = table.base_offset if is_v2 else [0, *(last + 1 for last in table.last_offset[:-1])]
    attributes = table.attributes
    has_controls = is_v2 and any(attributes) and any(map(CONTROL_BIT.__and__, attributes))  # nearly always, all are 0
    if not aborted_by_producer and not has_controls:
        first, last = bisect_left(table.last_offset, start), bisect_left(firsts, stop)
        return table if (first, last) == (0, len(table)) else table.take(first, max(first, last))  # the usual case
    rows = zip(firsts, table.last_offset, table.attributes, table.producer_id, strict=True)
    return table.keep(
        [
            last >= start
            and first < stop
            and not (is_v2 and attributes & CONTROL_BIT)
            and not (
                is_v2 and attributes & TRANSACTIONAL_BIT and _is_aborted(first, aborted_by_producer.get(producer, ()))
            )
            for first, last, attributes, producer in rows
        ]
    )


def _is_aborted(first_offset: int, transactions: Sequence[AbortedTransaction]) -> bool:
    return any(transaction.first_offset <= first_offset <= transaction.last_offset for transaction in transactions)


def cut_columns(columns: RecordColumns, span: range) -> RecordColumns:
    """Return the records with offsets in ``span``."""
    if columns.count and columns.offset[0] >= span.start and columns.offset[-1] < span.stop:
        return columns
    return columns.take(bisect_left(columns.offset, span.start), bisect_left(columns.offset, span.stop))


def _split_batches(table: BatchTable, span: range) -> Iterator[tuple[BatchTable, bool]]:
    """Yield runs of batches in order, each with True if the whole run is decoded, and its result is then sliced."""
    count = len(table)
    if table.magic < 2:  # a compressed message stores only its last offset
        yield table, False
        return
    first = int(count > 0 and table.base_offset[0] < span.start)
    last = max(first, count - int(count > 0 and table.last_offset[-1] >= span.stop))
    sizes = table.size_bytes
    if last - first < count and _SPARED * (sum(sizes[:first]) + sum(sizes[last:])) <= sum(sizes[first:last]):
        first, last = 0, count
    for begin, end, is_whole in ((0, first, False), (first, last, True), (last, count, False)):
        if begin < end:
            yield (table if end - begin == count else table.take(begin, end)), is_whole


def _cut_batch(batch: pyarrow.RecordBatch, span: range) -> _ArrowBatch:
    """Return the records in the range, and the offset after them."""
    offsets = _offsets(batch)
    if offsets[0] >= span.start and offsets[-1] < span.stop:
        return batch, offsets[-1] + 1
    first, last = bisect_left(offsets, span.start), bisect_left(offsets, span.stop)
    return batch.slice(first, last - first), offsets[last - 1] + 1


def _offsets(batch: pyarrow.RecordBatch) -> memoryview:
    column = batch.column("offset")
    buffer = column.buffers()[1]
    assert buffer is not None  # there are rows
    return memoryview(buffer).cast("q")[column.offset : column.offset + len(column)]
