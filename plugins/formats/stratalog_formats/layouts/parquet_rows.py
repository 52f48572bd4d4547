"""Conversion of record batches to the rows and frames of layout ``parquet``, and of rows to Arrow batches.

A piece is either a record batch whose records are rows, or bytes of the log that are stored unchanged. A frame
describes one piece. docs/formats/parquet.md describes columns and frames.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from stratalog.errors import PluginImportError, StorageError
from stratalog.spi import (
    CODEC_MASK,
    CONTROL_BIT,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    ArrowBuffers,
    BatchTable,
    Buffer,
    CodecTable,
    RecordFormat,
    ScanStop,
)
from stratalog_formats.kernels.dispatch import KERNELS, Kernels
from stratalog_formats.kernels.layout import BATCH_CRC_POSITION, BATCH_HEADER_BYTES, FRAME_BYTES
from stratalog_formats.kernels.rebuild import BATCH_PIECE, BYTES_HEAD, BYTES_PIECE, RowBuffers
from stratalog_formats.records.batches import BatchFormat
from stratalog_formats.records.message_versions import MessageFormatV0, MessageFormatV1

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - only for type checkers

BATCH_MAGIC: Final = 2
REBUILT_COLUMNS: Final = ("offset", "timestamp", "key", "value", "headers", "producer_timestamp")
"""Names of the columns from which log bytes are rebuilt."""
_PLAIN: Final = "uncompressed batch"  # kinds of batches, see ``_kind``
_DECODED: Final = "other batch with records"
_OPAQUE: Final = "batch without data records"
_MAX_PIECE_BYTES: Final = (1 << 32) - 1
_MAX_ROW_BYTES: Final = (1 << 31) - 1  # limit of all rows of a group, because positions in an Arrow array have 32 bits
_NOTHING: Final = bytes(8)  # buffer of an array without values


def import_pyarrow() -> Any:
    """Import pyarrow with its modules ``compute`` and ``parquet``, and return pyarrow."""
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra
        import pyarrow.compute  # noqa: PLC0415 - the same
        import pyarrow.parquet  # noqa: PLC0415 - the same
    except ImportError as error:
        raise PluginImportError("pyarrow is not installed", "formats", "stratalog[arrow]") from error
    return pa


@dataclass(frozen=True, slots=True)
class Group:
    """Consecutive bytes of the log as rows and frames.

    Attributes:
        log_bytes: number of bytes of the log.
        frames: concatenated frames: one for each batch of rows, and one for each piece of unchanged bytes.
        rows: the rows; None if there are none.
        is_complete: True if each data record is a row.
    """

    log_bytes: int
    frames: bytes
    rows: pyarrow.Table | None
    is_complete: bool


@dataclass(slots=True)
class _Pieces:
    """Pieces of a group that is being created: frames, positions in the group's bytes, and numbers of rows."""

    frames: list[bytes] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)  # start and end of each piece in the group's bytes
    rows: list[int] = field(default_factory=list)
    tables: list[pyarrow.Table] = field(default_factory=list)
    row_bytes: int = 0
    is_complete: bool = True

    def add_rows(self, rows: pyarrow.Table) -> None:
        """Add rows. Raise StorageError if the rows of the group would exceed 2 GiB."""
        if self.row_bytes + rows.nbytes > _MAX_ROW_BYTES:
            raise StorageError(f"the rows of a group would have more than {_MAX_ROW_BYTES} bytes")
        self.row_bytes += rows.nbytes
        self.tables.append(rows)


class RowMaker:
    """Converter of log bytes to groups.

    ``codecs`` convert the rows of compressed batches, whose decompressed size is at most ``limit_bytes``.
    """

    def __init__(self, codecs: CodecTable, limit_bytes: int, kernels: Kernels = KERNELS) -> None:
        self._limit_bytes, self._kernels, self._pa = limit_bytes, kernels, import_pyarrow()
        self._schema = row_schema()
        self._formats: dict[int, RecordFormat] = {
            0: MessageFormatV0(codecs, limit_bytes=limit_bytes, kernels=kernels),
            1: MessageFormatV1(codecs, limit_bytes=limit_bytes, kernels=kernels),
            BATCH_MAGIC: BatchFormat(codecs, kernels),
        }

    def scan_whole_batches(self, data: Buffer) -> tuple[list[BatchTable], bool]:
        """Return the tables of the complete batches at the start of ``data``, and True if a batch may follow them.

        The flag is False if the bytes after these batches cannot be the start of a batch.
        """
        tables, position, end = list[BatchTable](), 0, len(data)
        while end - position >= FRAME_BYTES:
            record_format = self._formats.get(data[position + FRAME_BYTES - 1])
            if record_format is None:
                return tables, False
            table = record_format.scan(data, position, end, check_crc=False)
            if len(table):
                tables.append(table)
            if table.stop is ScanStop.CORRUPT:
                return tables, False
            if table.stop is not ScanStop.OTHER_MAGIC:
                return tables, True
            position = table.stop_position
        return tables, True

    def group(self, data: bytes, tables: Sequence[BatchTable], partition: int) -> Group:
        """Return a group from which exactly ``data`` can be rebuilt.

        ``tables`` contains the complete batches at the start of ``data``. Three kinds of bytes are stored unchanged:
        bytes after these batches, batches that cannot be decoded, and batches whose rows would exceed 2 GiB together
        with the earlier rows.
        """
        pieces = _Pieces()
        for table in tables:
            for start, end, kind in _runs(table):
                self._add_run(pieces, data, table.take(start, end), kind, partition)
        end = tables[-1].stop_position if tables else 0
        if end < len(data):
            _add_bytes(pieces, data, end, len(data), 0)
            pieces.is_complete = False
        rows = self._pa.concat_tables(pieces.tables).combine_chunks() if pieces.tables else None
        frames = b"".join(pieces.frames)
        if rows is not None:
            frames = self._correct_frames(pieces, frames, rows, data)
        return Group(len(data), frames, rows, pieces.is_complete)

    # --- rows ------------------------------------------------------------------------------------------------------

    def _add_run(self, pieces: _Pieces, data: bytes, run: BatchTable, kind: str, partition: int) -> None:
        start, end = run.position[0], run.position[-1] + run.size_bytes[-1]
        if kind == _OPAQUE:
            _add_bytes(pieces, data, start, end, 0)
            return
        try:
            rows = self._rows(data, run, partition)
            pieces.add_rows(rows)
        except StorageError:
            if len(run) == 1:
                _add_bytes(pieces, data, start, end, 0)
                pieces.is_complete = False
            else:
                for row in range(len(run)):
                    self._add_run(pieces, data, run.take(row, row + 1), kind, partition)
            return
        if kind == _DECODED:
            _add_bytes(pieces, data, start, end, rows.num_rows)
            return
        for position, size, count in zip(run.position, run.size_bytes, run.record_count, strict=True):
            header = bytearray(data[position : position + BATCH_HEADER_BYTES])
            header[8:12] = header[BATCH_CRC_POSITION : BATCH_CRC_POSITION + 4] = bytes(4)
            pieces.frames.append(bytes((BATCH_PIECE,)) + header)
            pieces.spans.append((position, position + size))
            pieces.rows.append(count)

    def _rows(self, data: bytes, run: BatchTable, partition: int) -> pyarrow.Table:
        """Return the rows of a run of batches. Raise StorageError if a batch is damaged or cannot be decoded."""
        pa, record_format = self._pa, self._formats[run.magic]
        end = run.position[-1] + run.size_bytes[-1]
        if record_format.scan(data, run.position[0], end, check_crc=True).stop_position != end:
            raise StorageError("a batch is damaged")

        def decode(table: BatchTable, columns: list[str] | None = None) -> pyarrow.Table:
            batches = record_format.decode_arrow(
                data, table, partition=partition, limit_bytes=self._limit_bytes, columns=columns
            )
            rows: pyarrow.Table = pa.Table.from_batches(list(batches), schema=ArrowBuffers.schema(columns))
            return rows

        rows = decode(run)
        milliseconds = _milliseconds(pa)
        stamps = rows["timestamp"].cast(milliseconds)
        producers: Any = pa.nulls(rows.num_rows, milliseconds)
        if run.magic == BATCH_MAGIC and run.attributes[0] & TIMESTAMP_TYPE_BIT:
            producers = decode(_set_create_time(run), ["timestamp"])["timestamp"].cast(milliseconds)
        is_transactional = run.magic == BATCH_MAGIC and bool(run.attributes[0] & TRANSACTIONAL_BIT)
        columns = {name: rows[name] for name in rows.column_names}
        columns["timestamp"], columns["producer_timestamp"] = stamps, producers
        columns["transactional"] = pa.repeat(pa.scalar(is_transactional), rows.num_rows)
        converted: pyarrow.Table = pa.table(columns, schema=self._schema)
        return converted

    # --- bytes -----------------------------------------------------------------------------------------------------

    def _correct_frames(self, pieces: _Pieces, frames: bytes, rows: pyarrow.Table, data: bytes) -> bytes:
        """Return frames that rebuild exactly ``data``.

        If a frame would change its batch, unchanged bytes replace the frame.
        """
        buffers = row_buffers(rows)
        if self._can_rebuild(frames, buffers, 0, data):
            return frames
        row = 0
        for number, (start, end) in enumerate(pieces.spans):
            frame = pieces.frames[number]
            if frame[0] == BATCH_PIECE and not self._can_rebuild(frame, buffers, row, data[start:end]):
                pieces.frames[number] = BYTES_HEAD.pack(BYTES_PIECE, end - start, pieces.rows[number]) + data[start:end]
            row += pieces.rows[number]
        return b"".join(pieces.frames)

    def _can_rebuild(self, frames: bytes, buffers: RowBuffers, first_row: int, data: bytes) -> bool:
        try:
            return self._kernels.rebuild_pieces(frames, buffers, first_row, len(data)) == data
        except ValueError:
            return False


def row_schema() -> pyarrow.Schema:
    """Return the Arrow schema of the rows: the columns of ``ArrowBuffers.schema``, with ``timestamp`` in milliseconds.

    The additional columns are ``transactional`` and ``producer_timestamp``.
    """
    pa = import_pyarrow()
    schema = ArrowBuffers.schema()
    schema = schema.set(schema.get_field_index("timestamp"), pa.field("timestamp", _milliseconds(pa)))
    schema = schema.append(pa.field("transactional", pa.bool_(), nullable=False))
    with_producer_timestamp: pyarrow.Schema = schema.append(pa.field("producer_timestamp", _milliseconds(pa)))
    return with_producer_timestamp


def row_buffers(rows: pyarrow.Table | None) -> RowBuffers:
    """Return the buffers of the columns in ``REBUILT_COLUMNS``. ``rows`` is None for a group without rows.

    Raises:
        ValueError: a column does not begin at the start of its buffers.
    """
    pa = import_pyarrow()
    rows = row_schema().empty_table() if rows is None else rows
    rows = rows.select(REBUILT_COLUMNS).combine_chunks()

    def only(name: str) -> Any:
        column = rows[name]
        return column.chunk(0) if column.num_chunks else pa.array([], column.type)

    def stamps(name: str) -> Buffer:
        timestamps = pa.compute.fill_null(only(name).cast(pa.int64()), NO_TIMESTAMP)
        return _data(timestamps, 1)

    headers = only("headers")
    pairs = headers.values
    names, contents = pairs.field(0), pairs.field(1)
    return RowBuffers(
        rows.num_rows,
        _data(only("offset"), 1),
        stamps("timestamp"),
        stamps("producer_timestamp"),
        *_variable(only("key")),
        *_variable(only("value")),
        _data(headers, 1),
        _data(names, 1),
        _data(names, 2),
        *_variable(contents),
    )


def _variable(array: Any) -> tuple[Buffer | None, Buffer, Buffer]:
    bits = array.buffers()[0] if array.null_count else None
    return (None if bits is None else memoryview(bits)), _data(array, 1), _data(array, 2)


def _data(array: Any, index: int) -> Buffer:
    """Return buffer ``index`` of an array. Raise ValueError if the array does not begin at the start of its buffers."""
    if array.offset:
        raise ValueError(f"an array has the offset {array.offset} in its buffers, not 0")
    buffer = array.buffers()[index]
    return _NOTHING if buffer is None or not buffer.size else memoryview(buffer)


def _milliseconds(pa: Any) -> Any:
    return pa.timestamp("ms", tz="UTC")


def _set_create_time(run: BatchTable) -> BatchTable:
    """Return the batches with CreateTime instead of LogAppendTime. A decoder then returns the producers' timestamps."""
    rows = [list(row) for row in zip(*run.columns, strict=True)]
    index = run.column_names.index("attributes")
    for row in rows:
        row[index] &= ~TIMESTAMP_TYPE_BIT
    return BatchTable.from_rows(run.magic, map(tuple, rows), run.stop, run.stop_position, run.reason)


def _runs(table: BatchTable) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and kind of each run of rows with equal kind, timestamp type and transactional bit."""

    def shape(row: int) -> tuple[str, int]:
        attributes = table.attributes[row]
        return _kind(table.magic, attributes, table.record_count[row]), attributes & (
            TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT
        )

    for (kind, _), rows in groupby(range(len(table)), shape):
        run_rows = list(rows)
        yield run_rows[0], run_rows[-1] + 1, kind


def _kind(magic: int, attributes: int, record_count: int) -> str:
    if magic != BATCH_MAGIC:
        return _DECODED
    if attributes & CONTROL_BIT or record_count <= 0:
        return _OPAQUE
    return _DECODED if attributes & CODEC_MASK else _PLAIN


def _add_bytes(pieces: _Pieces, data: bytes, start: int, end: int, rows: int) -> None:
    while True:  # split the run, because a piece's size has 32 bits
        stop = min(end, start + _MAX_PIECE_BYTES)
        pieces.frames.append(BYTES_HEAD.pack(BYTES_PIECE, stop - start, rows) + data[start:stop])
        pieces.spans.append((start, stop))
        pieces.rows.append(rows)
        if stop == end:
            return
        start, rows = stop, 0


# --- reading ---------------------------------------------------------------------------------------------------------


def select_rows(
    rows: pyarrow.Table, span: range, schema: pyarrow.Schema, partition: int
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows with offsets in ``span`` as Arrow batches of ``schema``. The offsets of ``rows`` must ascend."""
    pa = import_pyarrow()
    compute: Any = pa.compute
    offsets = rows["offset"]
    is_inside = compute.and_(compute.greater_equal(offsets, span.start), compute.less(offsets, span.stop))
    first = compute.index(is_inside, True).as_py()
    if first < 0:
        return
    rows = rows.slice(first, compute.sum(is_inside).as_py())
    columns = {
        name: pa.repeat(pa.scalar(partition, pa.int32()), rows.num_rows)
        if name == "partition"
        else rows[name].cast(schema.field(name).type)
        for name in schema.names
    }
    table = pa.table(columns, schema=schema) if columns else rows.select([])
    yield from table.combine_chunks().to_batches()
