"""Batches that claim too large sizes or decompress to more than the limit. Their CRC matches, so decoders read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from crc32c import crc32c

from codec_parts.formats import BATCHES, CODECS
from stratalog import Record
from stratalog.spi import BatchHeader

_BOMB_TIMES: Final = 4
_CRC, _ATTRIBUTES, _LAST_DELTA, _COUNT, _RECORDS = 17, 21, 23, 57, 61
_MOST: Final = (1 << 31) - 1
_MOST_VARINT: Final = b"\xfe\xff\xff\xff\x0f"  # 2**31 - 1
_SMALLEST_RECORD: Final = bytes((12, 0, 0, 0, 1, 1, 0))  # six bytes, no key, no value, no headers


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of harmful batch.

    Attributes:
        name: name of the case, for ``--only``.
        title: description for people.
        make: returns the batch, given the limit for decompressed bytes.
        hostile: False if the batch is valid. The decoded columns of a valid batch may need more memory than the limit.
    """

    name: str
    title: str
    make: Callable[[int], bytes]
    hostile: bool = True


def healthy() -> bytes:
    """Return valid batches, one for each codec and one without compression, concatenated."""
    records = [Record(timestamp_ms=number, key=b"key", value=b"value" * 20) for number in range(100)]
    encoded = [BATCHES.encode(records, BatchHeader(), codec, None) for codec in (None, *CODECS.values())]
    return b"".join(encoded)


def _bomb(codec: str, limit_bytes: int) -> bytes:
    value = bytes(_BOMB_TIMES * limit_bytes)
    return bytes(BATCHES.encode([Record(timestamp_ms=0, value=value)], BatchHeader(), CODECS[codec], None))


def _patched_batch(limit_bytes: int, patch: Callable[[bytearray], None]) -> bytes:
    del limit_bytes
    data = BATCHES.encode([Record(timestamp_ms=0, key=b"key", value=b"value")], BatchHeader(), None, None)
    patch(data)
    return _seal(data)


def _seal(data: bytearray) -> bytes:
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[_CRC:_ATTRIBUTES] = crc32c(data[_ATTRIBUTES:]).to_bytes(4, "big")
    return bytes(data)


def _claim_count(data: bytearray) -> None:
    data[_LAST_DELTA : _LAST_DELTA + 4] = (_MOST - 1).to_bytes(4, "big")
    data[_COUNT : _COUNT + 4] = _MOST.to_bytes(4, "big")


def _claim_record_size(data: bytearray) -> None:
    data[_RECORDS : _RECORDS + 1] = _MOST_VARINT


def _claim_headers(data: bytearray) -> None:
    record = bytes((0, 0, 0, 1, 1)) + _MOST_VARINT
    data[_RECORDS:] = bytes((2 * len(record),)) + record


def _claim_contents(codec_id: int, stream: bytes, limit_bytes: int) -> bytes:
    """Return a compressed batch whose stream claims a large content, but is empty."""

    def patch(data: bytearray) -> None:
        data[_ATTRIBUTES + 1] = codec_id
        data[_RECORDS:] = stream

    return _patched_batch(limit_bytes, patch)


def _dense(limit_bytes: int) -> bytes:
    """Return a valid batch with the largest number of records that fits the limit.

    The records have no key, no value and no headers.
    """
    count = limit_bytes // len(_SMALLEST_RECORD)
    data = BATCHES.encode([Record(timestamp_ms=0)], BatchHeader(), None, None)
    compressed = CODECS["zstd"].compress(_SMALLEST_RECORD * count, level=None, magic=2)
    data[_ATTRIBUTES + 1] = CODECS["zstd"].id
    data[_LAST_DELTA : _LAST_DELTA + 4] = (count - 1).to_bytes(4, "big")
    data[_COUNT : _COUNT + 4] = count.to_bytes(4, "big")
    data[_RECORDS:] = compressed
    return _seal(data)


_ZSTD_CLAIM: Final = b"\x28\xb5\x2f\xfd\xa0" + _MOST.to_bytes(4, "little") + b"\x01\x00\x00"
_SNAPPY_CLAIM: Final = b"\xff\xff\xff\xff\x07" + bytes(8)
_LZ4_BLOCK: Final = b"\x04\x22\x4d\x18\x60\x40\x82"
KINDS: Final = (
    *(Kind(f"bomb-{name}", f"{name} of four times the limit", partial(_bomb, name)) for name in CODECS),
    Kind("count", "claims 2**31 - 1 records", lambda limit: _patched_batch(limit, _claim_count)),
    Kind("record-size", "a record claims 2 GiB", lambda limit: _patched_batch(limit, _claim_record_size)),
    Kind("headers", "a record claims 2**31 - 1 headers", lambda limit: _patched_batch(limit, _claim_headers)),
    Kind("zstd-claim", "a zstd frame claims 2 GiB", partial(_claim_contents, 4, _ZSTD_CLAIM)),
    Kind("snappy-claim", "a snappy block claims 2 GiB", partial(_claim_contents, 2, _SNAPPY_CLAIM)),
    Kind("lz4-cut", "an lz4 frame without blocks", partial(_claim_contents, 3, _LZ4_BLOCK)),
    Kind("dense", "no lie: the smallest records that fit", _dense, hostile=False),
)
