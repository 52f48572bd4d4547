"""Layout of batches and messages in bytes: positions, sizes, structs.

Source: apache/kafka LegacyRecord, DefaultRecordBatch, DefaultRecord.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

OVERHEAD_BYTES: Final = 12  # fields offset and size; the size field contains the number of bytes after it
FRAME_BYTES: Final = 17  # size of the fields up to and including the magic
MIN_ENTRY_SIZE: Final = 14  # the smallest value of the size field: an empty message of magic 0

# base offset, size, leader epoch, magic, CRC | attributes, last offset delta, base and max timestamp,
# producer id, producer epoch, base sequence, record count
BATCH_HEADER: Final = Struct(">qiibIhiqqqhii")
BATCH_HEADER_BYTES: Final = 61
BATCH_CRC_POSITION: Final = 17
BATCH_CHECKED_FROM: Final = 21
MIN_RECORD_BYTES: Final = 7
MAX_ARENA_BYTES: Final = (1 << 31) - 1  # positions in columns have 32 bits

# offset, size, CRC, magic, attributes
MESSAGE_HEADER: Final = Struct(">qiIbb")
MESSAGE_HEADER_BYTES: Final = 18
MESSAGE_CRC_POSITION: Final = 12
MESSAGE_CHECKED_FROM: Final = 16
INT32: Final = Struct(">i")
INT64: Final = Struct(">q")
