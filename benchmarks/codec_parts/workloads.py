"""Workloads to decode and encode: about 1 MiB of batches, the same in every run."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

from codec_parts.formats import BATCHES, CODECS, LIMIT_BYTES
from stratalog import Record
from stratalog.spi import BatchHeader, Headers

Row: TypeAlias = tuple[int, int, bytes | None, bytes | None, Headers]  # offset, timestamp, key, value, headers

CODEC_NAMES: Final = ("none", *CODECS)
BUFFER_BYTES: Final = 1 << 20
_QUICK_BYTES: Final = 1 << 13
_FIRST_MS: Final = 1_700_000_000_000
_WORDS: Final = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliet", "kilo")
_OVERHEAD_BYTES: Final = 22  # about the size of a record without its value: lengths, deltas, a key of ten bytes
_HEADER_BYTES: Final = 61


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of workload.

    Attributes:
        value_bytes: size of every value.
        batch_records: number of records in every batch.
        codec: "none", or the name of one of Kafka's codecs.
        headers: number of headers of every record.
    """

    value_bytes: int = 100
    batch_records: int = 1000
    codec: str = "none"
    headers: int = 0

    @property
    def name(self) -> str:
        """Name of the shape in the names of cases and files."""
        name = f"{self.value_bytes}B-{self.batch_records}rec-{self.codec}"
        return f"{name}-{self.headers}headers" if self.headers else name

    @property
    def title(self) -> str:
        """Description of the shape for people."""
        with_headers = f", {self.headers} headers" if self.headers else ""
        return f"{self.value_bytes} B values, batches of {self.batch_records:,}, {self.codec}{with_headers}"


@dataclass(frozen=True)  # without slots, because of the cached properties
class Workload:
    """Concatenated batches, and their rows.

    Attributes:
        data: bytes of the batches.
        batches: rows of each batch; offsets ascend through all batches.
        codec: name of the codec of all batches.
        raw_bytes: uncompressed size of the batches; for every codec, speeds refer to this size.
    """

    data: bytes
    batches: Sequence[Sequence[Row]]
    codec: str
    raw_bytes: int

    @property
    def records(self) -> int:
        """Number of records."""
        return sum(map(len, self.batches))

    @cached_property
    def rows(self) -> bytes:
        """The expected result of decoding, in its canonical form."""
        return canonical(row for rows in self.batches for row in rows)

    @cached_property
    def encoded_rows(self) -> bytes:
        """The expected records of the batches that are encoded from the rows. Offsets begin at 0 in each batch."""
        return canonical((offset, *row[1:]) for rows in self.batches for offset, row in enumerate(rows))

    @cached_property
    def bounds(self) -> bytes:
        """The expected result of a scan, in its canonical form."""
        return canonical_bounds((rows[0][0], rows[-1][0]) for rows in self.batches)


def make(shape: Shape, *, quick: bool) -> Workload:
    """Return the workload of a shape."""
    chance = random.Random(7)  # noqa: S311 - the same bytes in every run
    batch_bytes = _HEADER_BYTES + shape.batch_records * (shape.value_bytes + _OVERHEAD_BYTES)
    count = max(1, (_QUICK_BYTES if quick else BUFFER_BYTES) // batch_bytes)
    batches = [
        [_row(chance, base + index, shape) for index in range(shape.batch_records)]
        for base in range(0, count * shape.batch_records, shape.batch_records)
    ]
    codec = CODECS.get(shape.codec)
    raw = [_encode(rows, None) for rows in batches]
    data = raw if codec is None else [_encode(rows, shape.codec) for rows in batches]
    return Workload(b"".join(data), batches, shape.codec, sum(map(len, raw)))


def load(data: bytes) -> Workload:
    """Return the workload of batches that another process wrote to a file."""
    table = BATCHES.scan(data, 0, len(data), check_crc=True)
    batches: list[list[Row]] = []
    for index in range(len(table)):
        batch = table.take(index, index + 1)
        decoded = BATCHES.decode(data, batch, limit_bytes=LIMIT_BYTES)
        batches.append([row_of(record) for columns in decoded for record in columns.to_records()])
    codec = CODEC_NAMES[table[0].codec_id]
    return Workload(data, batches, codec, len(data))


def row_of(record: Record) -> Row:
    """Return the row of a record."""
    return (record.offset, record.timestamp_ms, record.key, record.value, record.headers)


def canonical(rows: Iterable[Row]) -> bytes:
    """Return rows in a form that any language can write: one line each, bytes in hexadecimal, ``-`` for null."""
    return "".join(
        f"{offset} {stamp} {_hex(key)} {_hex(value)} "
        f"{','.join(f'{_hex(name.encode())}={_hex(header)}' for name, header in headers)}\n"
        for offset, stamp, key, value, headers in rows
    ).encode()


def canonical_bounds(bounds: Iterable[tuple[int, int]]) -> bytes:
    """Return the first and last offsets of batches, one line for each batch."""
    return "".join(f"{first} {last}\n" for first, last in bounds).encode()


def _encode(rows: Sequence[Row], codec: str | None) -> bytes:
    records = [
        Record(offset, stamp, key=key, value=value, headers=headers) for offset, stamp, key, value, headers in rows
    ]
    header = BatchHeader(base_offset=rows[0][0], leader_epoch=0)
    return bytes(BATCHES.encode(records, header, CODECS[codec] if codec else None, None))


def _row(chance: random.Random, offset: int, shape: Shape) -> Row:
    headers = tuple((f"header-{index}", b"%08d" % chance.randrange(10**8)) for index in range(shape.headers))
    key = b"%010d" % chance.randrange(10**10)
    return (offset, _FIRST_MS + 3 * offset + chance.randrange(3), key, _value(chance, shape.value_bytes), headers)


def _value(chance: random.Random, size: int) -> bytes:
    """Return a text like JSON of exactly ``size`` bytes, which compresses like typical values."""
    text = (
        f'{{"id":{chance.randrange(1 << 30)},"user":"{chance.choice(_WORDS)}-{chance.randrange(10**7)}",'
        f'"ts":{_FIRST_MS + chance.randrange(10**9)},"amount":{chance.randrange(10**5) / 100}'
    )
    while len(text) < size:
        text += f',"{chance.choice(_WORDS)}":"{chance.choice(_WORDS)} {chance.randrange(10**5)}"'
    return text[:size].encode()


def _hex(data: bytes | None) -> str:
    return "-" if data is None else data.hex()
