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
_OVERHEAD_BYTES: Final = 22  # about what a record needs beside its value: lengths, deltas, a key of ten bytes
_HEADER_BYTES: Final = 61


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of workload.

    Attributes:
        value_bytes: of every value.
        batch_records: of every batch.
        codec: "none", or of Kafka's names.
        headers: of every record.
    """

    value_bytes: int = 100
    batch_records: int = 1000
    codec: str = "none"
    headers: int = 0

    @property
    def name(self) -> str:
        """For names of cases and files."""
        name = f"{self.value_bytes}B-{self.batch_records}rec-{self.codec}"
        return f"{name}-{self.headers}headers" if self.headers else name

    @property
    def title(self) -> str:
        """For people."""
        with_headers = f", {self.headers} headers" if self.headers else ""
        return f"{self.value_bytes} B values, batches of {self.batch_records:,}, {self.codec}{with_headers}"


@dataclass(frozen=True)  # no slots: cached properties
class Workload:
    """Batches behind each other, and the rows that are in them.

    Attributes:
        data: the batches' bytes.
        batches: the rows of each; offsets ascend through all of them.
        codec: the name of the codec of all.
        raw_bytes: uncompressed size of the batches; speeds are given in these bytes, for every codec.
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
        """The expected result of decoding, in a form that compares."""
        return canonical(row for rows in self.batches for row in rows)

    @cached_property
    def encoded_rows(self) -> bytes:
        """The expected records of the batches that are encoded from the rows: each of these batches begins at offset 0."""
        return canonical((at, *row[1:]) for rows in self.batches for at, row in enumerate(rows))

    @cached_property
    def bounds(self) -> bytes:
        """The expected result of a scan, in a form that compares."""
        return canonical_bounds((rows[0][0], rows[-1][0]) for rows in self.batches)


def make(shape: Shape, *, quick: bool) -> Workload:
    """The workload of a shape."""
    chance = random.Random(7)  # noqa: S311 - the same bytes in every run
    batch_bytes = _HEADER_BYTES + shape.batch_records * (shape.value_bytes + _OVERHEAD_BYTES)
    count = max(1, (_QUICK_BYTES if quick else BUFFER_BYTES) // batch_bytes)
    batches = [
        [_row(chance, base + at, shape) for at in range(shape.batch_records)]
        for base in range(0, count * shape.batch_records, shape.batch_records)
    ]
    codec = CODECS.get(shape.codec)
    raw = [_encoded(rows, None) for rows in batches]
    data = raw if codec is None else [_encoded(rows, shape.codec) for rows in batches]
    return Workload(b"".join(data), batches, shape.codec, sum(map(len, raw)))


def load(data: bytes) -> Workload:
    """The workload that is in a file, as a worker finds it."""
    table = BATCHES.scan(data, 0, len(data), check_crc=True)
    batches: list[list[Row]] = []
    for index in range(len(table)):
        one = table.take(index, index + 1)
        decoded = BATCHES.decode(data, one, limit_bytes=LIMIT_BYTES)
        batches.append([row_of(record) for columns in decoded for record in columns.to_records()])
    codec = CODEC_NAMES[table[0].codec_id]
    return Workload(data, batches, codec, len(data))


def row_of(record: Record) -> Row:
    """A record's row."""
    return (record.offset, record.timestamp_ms, record.key, record.value, record.headers)


def canonical(rows: Iterable[Row]) -> bytes:
    """Rows in a form that any language can write: one line each, bytes in hexadecimal, ``-`` for null."""
    return "".join(
        f"{offset} {stamp} {_hex(key)} {_hex(value)} "
        f"{','.join(f'{_hex(name.encode())}={_hex(found)}' for name, found in headers)}\n"
        for offset, stamp, key, value, headers in rows
    ).encode()


def canonical_bounds(bounds: Iterable[tuple[int, int]]) -> bytes:
    """First and last offsets of batches, one line each."""
    return "".join(f"{first} {last}\n" for first, last in bounds).encode()


def _encoded(rows: Sequence[Row], codec: str | None) -> bytes:
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
    """Something like JSON, exactly so long: it compresses as what people send does."""
    text = (
        f'{{"id":{chance.randrange(1 << 30)},"user":"{chance.choice(_WORDS)}-{chance.randrange(10**7)}",'
        f'"ts":{_FIRST_MS + chance.randrange(10**9)},"amount":{chance.randrange(10**5) / 100}'
    )
    while len(text) < size:
        text += f',"{chance.choice(_WORDS)}":"{chance.choice(_WORDS)} {chance.randrange(10**5)}"'
    return text[:size].encode()


def _hex(data: bytes | None) -> str:
    return "-" if data is None else data.hex()
