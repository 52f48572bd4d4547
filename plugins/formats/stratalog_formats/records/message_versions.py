"""The record formats of magic 0 and 1.

Source: apache/kafka LegacyRecord, AbstractLegacyRecordBatch.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from struct import Struct
from typing import ClassVar, Final

from stratalog.errors import CorruptBatchError
from stratalog.spi import NO_TIMESTAMP, PreparedBatches, RecordBatch
from stratalog_formats.kernels.layout import INT64
from stratalog_formats.records.message_set import offset_distance, read_messages
from stratalog_formats.records.messages import MessageFormat

_HEAD_V0: Final = Struct(">bbi")  # magic, attributes, size of the key
_HEAD_V1: Final = Struct(">bbqi")  # with the timestamp before the size


class MessageFormatV0(MessageFormat):
    """Record format of magic 0: no timestamps, and absolute offsets inside a wrapper."""

    magic: ClassVar[int] = 0

    def _encode_heads(self, attributes: int, stamps: Iterable[int], key_sizes: Iterable[int]) -> Iterable[bytes]:
        del stamps
        return map(partial(_HEAD_V0.pack, 0, attributes), key_sizes)

    def _shift(self, wrapper: RecordBatch, last_field: int) -> int:
        del wrapper, last_field
        return 0

    def assign(self, batches: PreparedBatches, base_offset: int, leader_epoch: int, append_time_ms: int | None) -> None:
        """Set the offsets of the entries. ``leader_epoch`` and ``append_time_ms`` are ignored.

        The messages in a wrapper contain absolute offsets. Therefore each wrapper is decompressed and compressed again,
        which can change the size of ``batches.data``.
        """
        data, table = batches.data, batches.table
        if not any(batch.codec_id for batch in table):
            super().assign(batches, base_offset, leader_epoch, append_time_ms)
            return
        start, end, new_bytes = table.position[0], table.position[-1] + table.size_bytes[-1], bytearray()
        for batch in table:
            if batch.codec_id:
                piece, last_offset = self._move_wrapper(data, batch, base_offset)
            else:
                piece, last_offset = data[batch.position : batch.position + batch.size_bytes], base_offset
                INT64.pack_into(piece, 0, last_offset)
            new_bytes += piece
            base_offset = last_offset + 1
        data[start:end] = new_bytes
        batches.replace_table(self.scan(data, start, start + len(new_bytes), check_crc=False))

    def _move_wrapper(self, data: bytearray, wrapper: RecordBatch, base_offset: int) -> tuple[bytearray, int]:
        """Return a copy of a wrapper whose first message gets ``base_offset``, and the offset of the last message."""
        arena = bytearray(self._decompress_wrapper(data, wrapper, self._limit_bytes))
        tables = read_messages(self._kernels, arena, self.magic, wrapper.position)
        first, offset = tables[0].last_offset[0], base_offset
        for table in tables:
            for position, field in zip(table.position, table.last_offset, strict=True):
                offset = base_offset + offset_distance(first, field, wrapper)
                INT64.pack_into(arena, position, offset)
        codec = self._codecs.by_id(wrapper.codec_id)
        compressed = codec.compress(arena[: tables[-1].stop_position], level=None, magic=self.magic)
        return self._messages([offset], [NO_TIMESTAMP], [None], [compressed], codec.id), offset


class MessageFormatV1(MessageFormat):
    """Record format of magic 1: timestamps, and inner offsets relative to the wrapper's offset.

    A wrapper has the offset of its last message.
    """

    magic: ClassVar[int] = 1

    def _encode_heads(self, attributes: int, stamps: Iterable[int], key_sizes: Iterable[int]) -> Iterable[bytes]:
        return map(partial(_HEAD_V1.pack, 1, attributes), stamps, key_sizes)

    def _shift(self, wrapper: RecordBatch, last_field: int) -> int:
        """Return the number to add to the offset field of each message in a wrapper, to get the message's offset.

        Raise CorruptBatchError if the wrapper's offset is not 0, and is below ``last_field``.
        """
        if wrapper.last_offset == 0:  # old librdkafka versions wrote such wrappers, with absolute offsets
            return 0
        if wrapper.last_offset < last_field:
            raise CorruptBatchError(
                "the offset of a compressed message is below its last inner offset", "", wrapper.position
            )
        return wrapper.last_offset - last_field
