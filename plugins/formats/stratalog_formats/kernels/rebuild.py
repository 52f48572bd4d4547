"""Rebuilding of log bytes from rows and frames of layout ``parquet``, in pure Python.

docs/formats/parquet.md describes the frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from stratalog.spi import TIMESTAMP_TYPE_BIT, Buffer
from stratalog_formats.kernels.layout import BATCH_HEADER, BATCH_HEADER_BYTES, INT32, OVERHEAD_BYTES
from stratalog_formats.kernels.scan import put_crc
from stratalog_formats.kernels.varint import SMALL, varint

BATCH_PIECE: Final = 0  # BATCH_PIECE and BYTES_PIECE are stored in objects: never change them
BYTES_PIECE: Final = 1
BYTES_HEAD: Final = Struct("<BII")  # kind, size, rows
_NULL: Final = varint(-1)
_SIZE_POSITION: Final = 8


class RowBuffers(NamedTuple):
    """Columns of the rows, as buffers of Arrow's columnar format. The value of row 0 is at the start of each buffer.

    ``*_bits`` is a validity bitmap, or None if there are no nulls. ``*_ends`` contains the end positions of the values
    as int32, after a first element 0. ``*_data`` contains the concatenated values. ``header_ends`` contains, for each
    row, the end index of its headers in the columns ``name`` (names of headers) and ``content`` (values of headers).

    ``stamps`` and ``producer_stamps`` contain timestamps (int64, ms); -1 means no timestamp. For batches of magic 2
    with LogAppendTime, ``producer_stamps`` contains the timestamps that the producer set.
    """

    row_count: int
    offsets: Buffer
    stamps: Buffer
    producer_stamps: Buffer
    key_bits: Buffer | None
    key_ends: Buffer
    key_data: Buffer
    value_bits: Buffer | None
    value_ends: Buffer
    value_data: Buffer
    header_ends: Buffer
    name_ends: Buffer
    name_data: Buffer
    content_bits: Buffer | None
    content_ends: Buffer
    content_data: Buffer


def rebuild_pieces(frames: Buffer, rows: RowBuffers, first_row: int, log_bytes: int) -> bytearray:
    """Return the ``log_bytes`` bytes of the log, rebuilt from concatenated frames and from rows.

    A frame contains either the header of a batch whose records are rows, or unchanged bytes of the log. The first record in
    ``frames`` is the row ``first_row``.

    Raises:
        ValueError: the result does not have ``log_bytes`` bytes, a frame is malformed, or frames and rows contradict
            each other.
    """
    if not 0 <= first_row <= rows.row_count or log_bytes < 0:
        raise ValueError(f"row {first_row} of {rows.row_count} rows, or a size of {log_bytes} bytes, is out of bounds")
    reader, log = _Rows(rows), bytearray()
    view, position, row = memoryview(frames).cast("B"), 0, first_row
    while position < len(view):
        if view[position] == BATCH_PIECE and len(view) - position > BATCH_HEADER_BYTES:
            header = bytearray(view[position + 1 : position + 1 + BATCH_HEADER_BYTES])
            position += 1 + BATCH_HEADER_BYTES
            row = reader.append_batch(log, header, row, log_bytes)
        elif view[position] == BYTES_PIECE and len(view) - position >= BYTES_HEAD.size:
            _, size, skipped = BYTES_HEAD.unpack_from(view, position)
            position += BYTES_HEAD.size
            if size > len(view) - position or skipped > rows.row_count - row:
                raise ValueError("a piece is not inside its frames")
            log += view[position : position + size]
            position, row = position + size, row + skipped
        else:
            raise ValueError("a piece is malformed")
        if len(log) > log_bytes:
            raise ValueError(f"the pieces make more than {log_bytes} bytes")
    if len(log) != log_bytes:
        raise ValueError(f"the pieces make {len(log)} bytes, not {log_bytes}")
    return log


class _Rows:
    """Columns of the rows. ``append_batch`` encodes rows as the records of a batch.

    Raises:
        ValueError: a buffer is too small for the number of rows.
    """

    def __init__(self, rows: RowBuffers) -> None:
        count = self._count = rows.row_count
        self._offsets, self._stamps, self._producer_stamps = (
            _take_bytes(column, 8 * count).cast("q") for column in (rows.offsets, rows.stamps, rows.producer_stamps)
        )
        self._header_ends = _take_bytes(rows.header_ends, 4 * (count + 1)).cast("i")
        headers = self._headers_count = self._header_ends[count]
        if headers < 0:
            raise ValueError("the headers have a negative number")
        self._keys = _Values(count, rows.key_bits, rows.key_ends, rows.key_data)
        self._values = _Values(count, rows.value_bits, rows.value_ends, rows.value_data)
        self._names = _Values(headers, None, rows.name_ends, rows.name_data)
        self._contents = _Values(headers, rows.content_bits, rows.content_ends, rows.content_data)

    def append_batch(self, log: bytearray, header: bytearray, row: int, log_bytes: int) -> int:
        """Append a batch to ``log``: ``header``, and the records from ``row`` on. Return the row after the records.

        Raise ValueError if there are too few rows, or if ``log`` would exceed ``log_bytes``.
        """
        base_offset, _, _, _, _, attributes, _, base_ms, *_, count = BATCH_HEADER.unpack(header)
        if not 0 < count <= self._count - row:
            raise ValueError(f"a batch needs {count} rows, but only {self._count - row} are left")
        end: int = row + count
        stamps = self._producer_stamps if attributes & TIMESTAMP_TYPE_BIT else self._stamps
        start = len(log)
        log += header
        for index in range(row, end):
            parts: list[Buffer] = [b"\0", varint(stamps[index] - base_ms), varint(self._offsets[index] - base_offset)]
            parts += [*self._keys.field(index), *self._values.field(index), *self._headers(index)]
            size = sum(map(len, parts))
            log += SMALL[size] if size < len(SMALL) else varint(size)
            log += b"".join(parts)
            if len(log) > log_bytes:
                raise ValueError(f"the pieces make more than {log_bytes} bytes")
        INT32.pack_into(log, start + _SIZE_POSITION, len(log) - start - OVERHEAD_BYTES)
        put_crc(log, start, len(log))
        return end

    def _headers(self, index: int) -> Iterator[Buffer]:
        first, last = self._header_ends[index], self._header_ends[index + 1]
        if not 0 <= first <= last <= self._headers_count:
            raise ValueError("headers are not inside their columns")
        yield varint(last - first)
        for number in range(first, last):
            yield from self._names.field(number)
            yield from self._contents.field(number)


class _Values:
    """The ``count`` values of a column of variable width."""

    def __init__(self, count: int, bits: Buffer | None, ends: Buffer, data: Buffer) -> None:
        self._bits = None if bits is None else _take_bytes(bits, (count + 7) // 8)
        self._ends, self._data = _take_bytes(ends, 4 * (count + 1)).cast("i"), memoryview(data).cast("B")

    def field(self, index: int) -> tuple[Buffer, ...]:
        """Return an encoded field as parts: length (varint) and value. For null, return only the length -1."""
        if self._bits is not None and not self._bits[index >> 3] & 1 << (index & 7):
            return (_NULL,)
        start, end = self._ends[index], self._ends[index + 1]
        if not 0 <= start <= end <= len(self._data):
            raise ValueError("a value is not inside its column")
        return varint(end - start), self._data[start:end]


def _take_bytes(data: Buffer, size: int) -> memoryview:
    """Return the first ``size`` bytes of ``data``. Raise ValueError if ``data`` has fewer bytes."""
    view = memoryview(data).cast("B")
    if len(view) < size:
        raise ValueError(f"a column has {len(view)} bytes, {size} are needed")
    return view[:size]
