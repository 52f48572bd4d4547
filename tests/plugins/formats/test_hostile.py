"""Complete entries with a valid CRC and one wrong field, and single flipped bits.

These cases are complete; ``tests/fuzz`` has random mutants.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

import pytest

import twins
from entry_parts import entries_of, seal
from stratalog import Record
from stratalog.errors import CorruptBatchError, InvalidRecordError
from stratalog.model.prepared import PreparedBatches
from stratalog.spi import BatchHeader, Buffer, Codec, RecordFormat, ScanStop
from stratalog_formats.kernels.dispatch import PYTHON

LIMIT_BYTES = 1 << 20
INT32, INT64 = Struct(">i"), Struct(">q")
LIES_32 = (-(1 << 31), -1, 0, 1, 1 << 16, (1 << 31) - 1)
LIES_64 = (-(1 << 63), -1, 0, 1, (1 << 63) - 1)
LAST_HEADER_BYTE = 110  # end of the header and the first record of a batch, or of a wrapper's fields
# Offset and leader epoch, which the CRC does not cover.
NO_CRC = {"v0": range(8), "v1": range(8), "v2": (*range(8), *range(12, 16))}
SIZE = range(8, 12)


def named_codecs(name: str) -> list[str | None]:
    return [None, *(label for label, codec in twins.CODECS.items() if name == "v2" or codec.id < 4)]


PAIRS = [(name, label) for name in ("v0", "v1", "v2") for label in named_codecs(name)]


def entry(name: str, label: str | None) -> bytes:
    """Return one entry of several records, if the format supports that; else an entry of one record."""
    pairs = (("h", b"v"), ("n", None)) if name == "v2" else ()
    count = 4 if label or name == "v2" else 1
    records = [Record(timestamp_ms=1000 + n, key=b"key", value=b"value" * 5, headers=pairs) for n in range(count)]
    form, codec = twins.formats(PYTHON)[name], twins.CODECS[label] if label else None
    return bytes(form.encode(records, BatchHeader(base_offset=10, leader_epoch=3), codec, None))


# --- wrong fields ----------------------------------------------------------------------------------------------------


def lies(data: bytes) -> Iterator[bytearray]:
    """Yield copies with one wrong field and a corrected CRC.

    Each position of the header gets each wrong number, with 32 and with 64 bits.
    """
    for pack, numbers in ((INT32, LIES_32), (INT64, LIES_64)):
        for position in range(17, min(len(data) - pack.size, LAST_HEADER_BYTE)):
            for number in numbers:
                changed = bytearray(data)
                pack.pack_into(changed, position, number)
                seal(changed)
                yield changed


@pytest.mark.parametrize(("name", "label"), PAIRS)
def test_both_twins_survive_each_wrong_field_alike(name: str, label: str | None) -> None:
    forms = [twins.formats(kernels)[name] for kernels in twins.twins()]
    outcomes = set()
    for changed in lies(entry(name, label)):
        verdict, *other_verdicts = [
            twins.judged(form, changed, check_crc=True, limit_bytes=LIMIT_BYTES) for form in forms
        ]
        assert all(other_verdict == verdict for other_verdict in other_verdicts)
        twins.check_sense(verdict, len(changed))
        assert verdict[0] in {ScanStop.END, ScanStop.CORRUPT}
        outcomes.add(len(verdict) > twins.SCANNED and not verdict[-1])
    assert outcomes == {True, False}


@pytest.mark.parametrize("twin", twins.TWINS)
@pytest.mark.parametrize(("name", "label"), [(name, label) for name, label in PAIRS if label and name != "v2"])
@pytest.mark.parametrize("field", [*LIES_64, 1 << 31])
def test_wrappers_with_wrong_offsets_get_no_offsets(name: str, label: str, field: int, twin: str) -> None:
    """In an earlier release, any inner offset was accepted.

    Such a wrapper got an offset that does not fit into the entry, and raised an untyped error.
    """
    form = twins.formats(twins.kernels_of(twin))[name]
    messages = entries_of(bytes(form.encode([Record()] * 3, BatchHeader(), None, None)))
    contents = b"".join([*messages[:2], INT64.pack(field) + messages[2][8:]])
    data = form.encode([Record()], BatchHeader(base_offset=100), replacing(twins.CODECS[label], contents), None)
    before, batches = bytes(data), PreparedBatches(form.scan(data, 0, len(data), check_crc=True), data)
    if field in {0, 1}:  # an earlier message has the same offset, which a read accepts
        form.assign(batches, 70, 0, None)
        assert batches.last_offset == 70 + field
        return
    with pytest.raises(CorruptBatchError) as caught:
        form.assign(batches, 70, 0, None)
    assert (caught.value.position, bytes(data)) == (0, before)
    with pytest.raises((InvalidRecordError, CorruptBatchError)):
        encoded_again(form, data)


def encoded_again(form: RecordFormat, data: bytearray) -> None:
    table = form.scan(data, 0, len(data), check_crc=True)
    for columns in form.decode(data, table, limit_bytes=LIMIT_BYTES):
        form.encode(columns, BatchHeader(), None, None, keep_offsets=True)


def replacing(codec: Codec, contents: bytes) -> Codec:
    """Return a codec that compresses ``contents`` instead of its input."""

    class Replacing(Codec):
        id = codec.id
        levels = None

        def compress(self, data: Buffer, *, level: int | None, magic: int) -> bytes:
            del data
            return codec.compress(contents, level=level, magic=magic)

        def decompress(self, data: Buffer, *, limit_bytes: int, magic: int) -> memoryview:
            return codec.decompress(data, limit_bytes=limit_bytes, magic=magic)

    return Replacing()


# --- bits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("twin", twins.TWINS)
@pytest.mark.parametrize(("name", "label"), PAIRS)
def test_every_flipped_bit_is_found_or_harmless(name: str, label: str | None, twin: str) -> None:
    """The scan finds each changed bit, except in the offset and the leader epoch.

    Kafka changes these two fields in place, so the CRC does not cover them. They have no effect on other fields.
    """
    form, data = twins.formats(twins.kernels_of(twin))[name], entry(name, label)
    intact = contents(form, data * 2, ScanStop.END)
    for bit in range(8 * len(data)):
        position, damaged = bit // 8, bytearray(data * 2)
        damaged[position] ^= 1 << bit % 8
        if position in NO_CRC[name]:
            assert without_place(read_harmless(form, damaged)) in (without_place(intact), [])
            continue
        table = form.scan(damaged, 0, len(damaged), check_crc=True)
        expected = {ScanStop.OTHER_MAGIC} if position == 16 else {ScanStop.CORRUPT}
        assert table.stop in expected | ({ScanStop.PARTIAL} if position in SIZE else set())
        assert (len(table), table.stop_position) == (0, 0)


def read_harmless(form: RecordFormat, damaged: bytearray) -> list[Record]:
    """Return the records.

    If a wrapper's offset is below those of its messages, the read raises an error, and the result is empty.
    """
    try:
        return contents(form, damaged, ScanStop.END)
    except CorruptBatchError as error:
        assert (form.magic, error.position) == (1, 0)  # noqa: PT017 - or records
        return []


def contents(form: RecordFormat, data: bytes | bytearray, stop: ScanStop) -> list[Record]:
    table = form.scan(data, 0, len(data), check_crc=True)
    assert table.stop is stop
    chunks = form.decode(data, table, limit_bytes=LIMIT_BYTES)
    return [record for columns in chunks for record in columns.to_records()]


def without_place(records: list[Record]) -> list[Record]:
    """Return the records without their offsets and leader epochs."""
    return [record._replace(offset=0, leader_epoch=0) for record in records]


@pytest.mark.parametrize("twin", twins.TWINS)
@pytest.mark.parametrize(("name", "label"), PAIRS)
def test_an_entry_that_is_cut_anywhere_is_partial(name: str, label: str | None, twin: str) -> None:
    form, data = twins.formats(twins.kernels_of(twin))[name], entry(name, label)
    for size in range(len(data)):
        table = form.scan(data[:size], 0, size, check_crc=True)
        assert table.stop is (ScanStop.PARTIAL if size else ScanStop.END)
        assert (len(table), table.stop_position) == (0, 0)
