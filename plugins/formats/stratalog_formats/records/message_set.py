"""The fields of messages of magic 0 and 1, and the messages inside a wrapper (a compressed message).

Source: apache/kafka LegacyRecord, AbstractLegacyRecordBatch.DeepRecordsIterator.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stratalog.errors import CorruptBatchError
from stratalog.spi import CODEC_MASK, BatchTable, Buffer, RecordBatch, ScanStop
from stratalog_formats.kernels.columns import ColumnBuilder
from stratalog_formats.kernels.dispatch import Kernels
from stratalog_formats.kernels.layout import FRAME_BYTES, INT32, MESSAGE_HEADER_BYTES, OVERHEAD_BYTES

KEY_POSITIONS: Final = {0: MESSAGE_HEADER_BYTES, 1: MESSAGE_HEADER_BYTES + 8}  # position of the key's length, by magic
_MOST_OFFSETS: Final = 1 << 31  # maximum number of offsets in a segment, because its indexes store offsets in 32 bits


def add_fields(builder: ColumnBuilder, arena: Buffer, messages: BatchTable, entry: int = -1) -> None:
    """Add the positions of the keys and values of ``messages``. Bytes after the value of a message are ignored.

    Args:
        builder: gets the positions.
        arena: bytes that contain the messages.
        messages: messages of one magic.
        entry: position in errors. If it is -1, errors have the position of the wrong message.

    Raises:
        CorruptBatchError: a field exceeds its message.
    """
    positions, unpack, first = list[int](), INT32.unpack_from, KEY_POSITIONS[messages.magic] + 4
    for position, size in zip(messages.position, messages.size_bytes, strict=True):
        end = position + size
        key_at = value_at = position + first
        if key_at + 4 > end:
            raise CorruptBatchError("a message ends inside its fields", "", position if entry < 0 else entry)
        (key_size,) = unpack(arena, key_at - 4)
        if key_size > 0:
            value_at += key_size
        value_at += 4
        if value_at > end:
            text = f"a key of {key_size} bytes reaches past its message"
            raise CorruptBatchError(text, "", position if entry < 0 else entry)
        (value_size,) = unpack(arena, value_at - 4)
        if value_size > end - value_at:
            text = f"a value of {value_size} bytes reaches past its message"
            raise CorruptBatchError(text, "", position if entry < 0 else entry)
        positions += (key_at, key_size if key_size >= 0 else -1, value_at, value_size if value_size >= 0 else -1, 0, 0)
    builder.positions.fromlist(positions)


def read_messages(kernels: Kernels, arena: Buffer, magic: int, entry: int) -> list[BatchTable]:
    """Return the messages in a decompressed message set, as one table for each run of messages of equal magic.

    An incomplete message at the end of the set is ignored. ``magic`` is the magic of the wrapper, and ``entry`` is its
    position, for errors.

    Raises:
        CorruptBatchError: there is no message, or a message is too small, compressed, or of magic 2 or above.
    """
    tables = list(_runs(kernels, arena, magic, entry))
    if not tables:
        raise CorruptBatchError("a compressed message contains no messages", "", entry)
    for table in tables:
        for attributes in table.attributes:
            if attributes & CODEC_MASK:
                raise CorruptBatchError("a compressed message is inside another one", "", entry)
    return tables


def _runs(kernels: Kernels, arena: Buffer, magic: int, entry: int) -> Iterator[BatchTable]:
    position = 0
    while True:
        table = kernels.scan_messages(magic, arena, position, len(arena), False)
        if len(table):
            yield table
        position = table.stop_position
        if table.stop is ScanStop.CORRUPT:
            raise CorruptBatchError(f"inside a compressed message: {table.reason}", "", entry)
        if table.stop is not ScanStop.OTHER_MAGIC or _is_cut(arena, position):
            return
        magic = arena[position + FRAME_BYTES - 1]
        if magic not in KEY_POSITIONS:
            raise CorruptBatchError(f"a message of magic {magic} is inside a message of magic {table.magic}", "", entry)


def _is_cut(arena: Buffer, position: int) -> bool:
    return int(INT32.unpack_from(arena, position + 8)[0]) > len(arena) - position - OVERHEAD_BYTES


def offset_distance(first: int, later: int, wrapper: RecordBatch) -> int:
    """Return ``later - first``: the offset of a message, relative to the first message in its wrapper.

    Raises:
        CorruptBatchError: the result would be negative, or at least 2^31, so one segment cannot contain both offsets.
    """
    if not 0 <= later - first < _MOST_OFFSETS:
        raise CorruptBatchError(
            f"offsets {first} and {later} cannot be in one compressed message", "", wrapper.position
        )
    return later - first
