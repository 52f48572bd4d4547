"""Messages of magic 1: timestamps, and inner offsets relative to the wrapper's offset.

Source: apache/kafka LegacyRecord, AbstractLegacyRecordBatch.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from struct import Struct
from typing import ClassVar, Final

from stratalog.errors import CorruptBatchError
from stratalog.spi import RecordBatch
from stratalog_formats.records.messages import MessageFormat

_HEAD: Final = Struct(">bbqi")  # magic, attributes, timestamp, size of the key


class MessageFormatV1(MessageFormat):
    """Record format of magic 1: timestamps, and inner offsets relative to the wrapper's offset.

    A wrapper has the offset of its last message.
    """

    magic: ClassVar[int] = 1

    def _encode_heads(self, attributes: int, stamps: Iterable[int], key_sizes: Iterable[int]) -> Iterable[bytes]:
        return map(partial(_HEAD.pack, 1, attributes), stamps, key_sizes)

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
