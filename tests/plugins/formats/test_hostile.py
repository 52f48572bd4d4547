"""Batches that are whole, with a good CRC, and lie about something: only typed errors, and no more memory than allowed."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Iterator
from struct import Struct
from zlib import crc32

import pytest
from crc32c import crc32c

from stratalog.spi import (
    BatchHeader,
    Buffer,
    Codec,
    CodecTable,
    CorruptBatchError,
    DecompressedSizeError,
    Fields,
    Record,
    RecordFormat,
    ScanStop,
    UnsupportedCompressionError,
)
from stratalog_formats.codecs.gzip import GzipCodec
from stratalog_formats.codecs.lz4 import Lz4Codec
from stratalog_formats.codecs.snappy import SnappyCodec
from stratalog_formats.codecs.zstd import ZstdCodec
from stratalog_formats.records.batches import BatchFormat
from stratalog_formats.records.messages import MessageFormatV0, MessageFormatV1

CODECS: dict[str, Codec] = {"gzip": GzipCodec(), "snappy": SnappyCodec(), "lz4": Lz4Codec(), "zstd": ZstdCodec()}
TABLE = CodecTable(CODECS.items())
LIMIT_BYTES = 1 << 20
TYPED = (CorruptBatchError, DecompressedSizeError, UnsupportedCompressionError)
INT32, INT64 = Struct(">i"), Struct(">q")
LIES_32 = (-(1 << 31), -1, 0, 1, 1 << 16, (1 << 31) - 1)
LIES_64 = (-(1 << 63), -1, 0, 1, (1 << 63) - 1)

Seal = Callable[[bytearray], None]


def seal_v2(data: bytearray) -> None:
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")


def seal_message(data: bytearray) -> None:
    data[12:16] = crc32(bytes(data[16:])).to_bytes(4, "big")


FORMATS: dict[str, tuple[RecordFormat, Seal, bool]] = {
    "v0": (MessageFormatV0(TABLE), seal_message, False),
    "v1": (MessageFormatV1(TABLE), seal_message, False),
    "v2": (BatchFormat(TABLE), seal_v2, True),
}


def batches(form: RecordFormat, *, headers: bool) -> Iterator[bytes]:
    pairs = (("h", b"v"), ("n", None)) if headers else ()
    records = [Record(timestamp_ms=1000 + n, key=b"key", value=b"value" * 5, headers=pairs) for n in range(4)]
    for name in (None, "gzip", "snappy", "lz4", "zstd"):
        if name == "zstd" and form.magic < 2:
            continue
        used = records if name else records[:1] if form.magic < 2 else records
        yield bytes(form.encode(used, BatchHeader(base_offset=10), CODECS[name] if name else None, None))


def survives(form: RecordFormat, data: bytes | bytearray) -> None:
    """Scan and decode; what is not a typed error fails the test by itself."""
    table = form.scan(data, 0, len(data), check_crc=True)
    assert 0 <= table.stop_position <= len(data)
    try:
        for columns in form.decode(data, table, fields=Fields.ALL, limit_bytes=LIMIT_BYTES):
            records = columns.to_records()
            assert len(records) == columns.count <= LIMIT_BYTES
    except TYPED:
        pass


@pytest.mark.parametrize("name", list(FORMATS))
def test_every_field_that_lies_is_survived(name: str) -> None:
    """Each place of each batch holds each lie once, 32 and 64 bits wide, with the CRC made right again."""
    form, seal, headers = FORMATS[name]
    tried = 0
    for data in batches(form, headers=headers):
        for pack, lies in ((INT32, LIES_32), (INT64, LIES_64)):
            for at in range(16, min(len(data) - pack.size, 110)):
                for lie in lies:
                    changed = bytearray(data)
                    pack.pack_into(changed, at, lie)
                    changed[16] = form.magic
                    seal(changed)
                    assert form.scan(changed, 0, len(changed), check_crc=True).stop is ScanStop.END
                    survives(form, changed)
                    tried += 1
    assert tried > 1000


@pytest.mark.parametrize("name", list(FORMATS))
def test_random_changes_are_survived(name: str) -> None:
    form, seal, headers = FORMATS[name]
    chance = random.Random(20)  # noqa: S311 - the same changes each time
    for data in batches(form, headers=headers):
        for _ in range(1500):
            changed = bytearray(data)
            for _ in range(chance.randrange(1, 4)):
                changed[chance.randrange(17, len(changed))] = chance.randrange(256)
            if chance.random() < 0.2:
                del changed[chance.randrange(30, len(changed)) :]
                INT32.pack_into(changed, 8, len(changed) - 12)
            seal(changed)
            survives(form, changed)


@pytest.mark.parametrize("codec", list(CODECS))
def test_lies_inside_a_compressed_batch_are_survived(codec: str) -> None:
    """The records section is changed before it is compressed, so that every check of the codec passes."""
    form = BatchFormat(TABLE)
    chance = random.Random(21)  # noqa: S311 - the same changes each time
    plain = next(batches(form, headers=True))
    for _ in range(1500):
        records = bytearray(plain[61:])
        for _ in range(chance.randrange(1, 4)):
            records[chance.randrange(len(records))] = chance.randrange(256)
        data = bytearray(plain[:61]) + CODECS[codec].compress(records, level=None, magic=2)
        INT32.pack_into(data, 8, len(data) - 12)
        data[22] |= CODECS[codec].id
        seal_v2(data)
        survives(form, data)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4"])
@pytest.mark.parametrize("name", ["v0", "v1"])
def test_lies_inside_a_wrapper_are_survived(name: str, codec: str) -> None:
    """The messages are changed before they are compressed."""
    form, _, _ = FORMATS[name]
    chance = random.Random(22)  # noqa: S311 - the same changes each time
    records = [Record(timestamp_ms=1000 + n, key=b"key", value=b"value") for n in range(4)]
    plain = bytes(form.encode(records, BatchHeader(base_offset=10), None, None))
    for _ in range(1500):
        changed = bytearray(plain)
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(len(changed))] = chance.choice((0, 1, 2, 127, 128, 255, chance.randrange(256)))
        wrapper = form.encode(records, BatchHeader(base_offset=10), replacing(CODECS[codec], changed), None)
        survives(form, wrapper)


def replacing(codec: Codec, changed: bytearray) -> Codec:
    """A codec that compresses other bytes than it is given."""

    class Replacing(Codec):
        id = codec.id
        levels = None

        def compress(self, data: Buffer, *, level: int | None, magic: int) -> bytes:
            del data
            return codec.compress(changed, level=level, magic=magic)

        def decompress(self, data: Buffer, *, limit_bytes: int, magic: int) -> memoryview:
            return codec.decompress(data, limit_bytes=limit_bytes, magic=magic)

    return Replacing()


@pytest.mark.parametrize("codec", list(CODECS))
def test_a_bomb_takes_no_more_memory_than_its_limit(codec: str) -> None:
    form = BatchFormat(TABLE)
    data = form.encode([Record(value=bytes(64 << 20))], BatchHeader(), CODECS[codec], None)
    table = form.scan(data, 0, len(data), check_crc=True)
    tracemalloc.start()
    try:
        with pytest.raises(DecompressedSizeError):
            list(form.decode(data, table, fields=Fields.ALL, limit_bytes=LIMIT_BYTES))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < LIMIT_BYTES + len(data) * 2 + (4 << 20)


HUGE = b"\xfe\xff\xff\xff\x0f"  # a varint: 2147483647
RECORDS = {
    "record length": HUGE + b"\0\0\0\1\1\0",
    "key length": b"\x14\0\0\0" + HUGE + b"\1\0",
    "value length": b"\x14\0\0\0\1" + HUGE + b"\0",
    "header count": b"\x14\0\0\0\1\1" + HUGE,
    "header key length": b"\x18\0\0\0\1\1\2" + HUGE + b"\1",
    "header value length": b"\x18\0\0\0\1\1\2\0" + HUGE,
}


@pytest.mark.parametrize("codec", [None, *CODECS])
@pytest.mark.parametrize("lie", list(RECORDS))
def test_a_length_that_lies_allocates_nothing(lie: str, codec: str | None) -> None:
    form = BatchFormat(TABLE)
    body = RECORDS[lie]
    data = form.encode([Record(value=b"v")], BatchHeader(), None, None)[:61]
    data += CODECS[codec].compress(body, level=None, magic=2) if codec else body
    data[22] |= CODECS[codec].id if codec else 0
    INT32.pack_into(data, 8, len(data) - 12)
    seal_v2(data)
    table = form.scan(data, 0, len(data), check_crc=True)
    assert table.stop is ScanStop.END
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatchError):
            list(form.decode(data, table, fields=Fields.ALL, limit_bytes=1 << 29))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_count_that_lies_allocates_nothing() -> None:
    form = BatchFormat(TABLE)
    data = form.encode([Record(value=b"v")], BatchHeader(), None, None)
    INT32.pack_into(data, 57, (1 << 31) - 1)
    INT32.pack_into(data, 23, (1 << 31) - 2)
    seal_v2(data)
    table = form.scan(data, 0, len(data), check_crc=True)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatchError, match="2147483647 records"):
            list(form.decode(data, table, fields=Fields.ALL, limit_bytes=LIMIT_BYTES))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
