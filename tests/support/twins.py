"""Both twins of the kernels (the Python and the compiled implementation), and comparable results of their functions."""

from __future__ import annotations

from dataclasses import fields as fields_of
from typing import Final

import pytest

from requirement import Requirement, is_required, missing
from stratalog import RecordColumns
from stratalog.errors import CorruptBatchError, DecompressedSizeError, InvalidRecordError, UnsupportedCompressionError
from stratalog.extensions import absence
from stratalog.model.prepared import PreparedBatches
from stratalog.spi import BatchHeader, Buffer, Codec, CodecTable, Fields, RecordFormat, ScanStop
from stratalog_formats.codecs.gzip import GzipCodec
from stratalog_formats.codecs.lz4 import Lz4Codec
from stratalog_formats.codecs.snappy import SnappyCodec
from stratalog_formats.codecs.zstd import ZstdCodec
from stratalog_formats.kernels import EXTENSIONS
from stratalog_formats.kernels.dispatch import COMPILED, PYTHON, Kernels
from stratalog_formats.records.batches import BatchFormat
from stratalog_formats.records.message_versions import MessageFormatV0, MessageFormatV1

CODECS: Final[dict[str, Codec]] = {
    "gzip": GzipCodec(),
    "snappy": SnappyCodec(),
    "lz4": Lz4Codec(),
    "zstd": ZstdCodec(),
}
TABLE: Final = CodecTable(CODECS.items())
TWINS: Final = ("python", "compiled")
TYPED: Final = (CorruptBatchError, DecompressedSizeError, UnsupportedCompressionError)
SCANNED: Final = 4  # parts of a verdict without records
COLUMN_NAMES: Final = tuple(field.name for field in fields_of(RecordColumns))[2:]

Verdict = tuple[object, ...]
"""What a format makes of bytes: stop, its position and reason, the table's columns, the chunks, and the error's class
and position, if one ended them."""


def kernels_of(name: str) -> Kernels:
    """Return the twin of this name; skip or fail the test without the compiled one, as ``requirement.missing`` does."""
    if name == "python":
        return PYTHON
    if COMPILED is None:
        missing(Requirement.KERNELS, _absence())
    return COMPILED


def twins() -> list[Kernels]:
    """Return the available twins, the Python twin first. Fail if the compiled twin is required and missing."""
    if COMPILED is None and is_required(Requirement.KERNELS):
        pytest.fail(_absence())
    return [PYTHON] if COMPILED is None else [PYTHON, COMPILED]


def _absence() -> str:
    reasons = ", ".join(f"{module} is {reason}" for module in EXTENSIONS if (reason := absence(module)))
    return reasons or "the compiled Record is missing"


def formats(kernels: Kernels) -> dict[str, RecordFormat]:
    """Return the record formats by name, with the kernels of one twin."""
    return {
        "v0": MessageFormatV0(TABLE, kernels=kernels),
        "v1": MessageFormatV1(TABLE, kernels=kernels),
        "v2": BatchFormat(TABLE, kernels),
    }


def codecs_of(name: str) -> list[Codec]:
    """Return the codecs that a record format supports."""
    return [codec for codec in CODECS.values() if name == "v2" or codec.id < 4]


def columns_as_lists(columns: RecordColumns) -> list[object]:
    """Return the arena and every column as lists, to compare them."""
    return [bytes(columns.arena), columns.count, *(getattr(columns, name).tolist() for name in COLUMN_NAMES)]


def judged(
    form: RecordFormat, data: Buffer, *, check_crc: bool, limit_bytes: int, fields: Fields = Fields.ALL
) -> Verdict:
    """Scan and decode ``data``; return the results and a typed error. Other errors are raised."""
    table = form.scan(data, 0, len(data), check_crc=check_crc)
    scan_verdict: Verdict = (
        table.stop,
        table.stop_position,
        table.reason,
        [column.tolist() for column in table.columns],
    )
    if not len(table):
        return scan_verdict
    chunks = list[list[object]]()
    error: tuple[object, ...] = ()
    try:
        for columns in form.decode(data, table, fields=fields, limit_bytes=limit_bytes):
            chunks.append(columns_as_lists(columns))
    except TYPED as refused:
        error = (type(refused).__name__, str(refused))
    return (*scan_verdict, chunks, error)


def arrowed(form: RecordFormat, data: Buffer, *, check_crc: bool, limit_bytes: int) -> tuple[object, ...]:
    """Scan ``data`` and decode it to Arrow. Return the batches, and the type and text of the error that ended them."""
    table = form.scan(data, 0, len(data), check_crc=check_crc)
    batches = list[object]()
    try:
        for batch in form.decode_arrow(data, table, partition=3, limit_bytes=limit_bytes):
            batch.validate(full=True)
            batches.append(batch)
    except TYPED as refused:
        return (batches, type(refused), str(refused))
    return (batches,)


def rewritten(
    form: RecordFormat, data: bytes, *, check_crc: bool, limit_bytes: int, stamp_ms: int | None
) -> list[object]:
    """Return the bytes that a format writes for valid bytes.

    The list has the bytes after ``assign`` changed them in place, and the bytes that are encoded from columns.
    """
    copy, results = bytearray(data), list[object]()
    table = form.scan(copy, 0, len(copy), check_crc=check_crc)
    try:
        if len(table):
            batches = PreparedBatches(table, copy)
            form.assign(batches, 1000, 9, stamp_ms)
            results += [bytes(copy), [column.tolist() for column in batches.table.columns]]
    except (CorruptBatchError, DecompressedSizeError, InvalidRecordError) as refused:
        results.append((type(refused).__name__, str(refused)))
    header = BatchHeader(base_offset=5)
    for columns in form.decode(data, table, limit_bytes=limit_bytes):
        for keep_offsets in (False, True):
            try:
                results.append(form.encode(columns, header, None, None, keep_offsets=keep_offsets))
            except InvalidRecordError as refused:
                results.append((type(refused).__name__, str(refused)))
    return results


def check_sense(verdict: Verdict, size: int) -> None:
    """Check that a result of ``judged`` is plausible for ``size`` bytes.

    The scan must stop inside the bytes, with a reason only if they are corrupt, and all fields must be inside the
    arena.
    """
    stop, position, reason = verdict[:3]
    assert isinstance(position, int)
    assert 0 <= position <= size
    assert bool(reason) is (stop is ScanStop.CORRUPT)
    if len(verdict) == SCANNED:
        return
    chunks = verdict[SCANNED]
    assert isinstance(chunks, list)
    for arena, count, *columns in chunks:
        columns_by_name = dict(zip(COLUMN_NAMES, columns, strict=True))
        assert {len(column) for column in columns[:10]} <= {0, count}
        for field in ("key", "value", "header_key", "header_value"):
            for start, length in zip(
                columns_by_name[f"{field}_position"], columns_by_name[f"{field}_size"], strict=True
            ):
                assert length == -1 or 0 <= start <= start + length <= len(arena)
        total = len(columns_by_name["header_key_size"])
        for first, headers in zip(columns_by_name["header_first"], columns_by_name["header_count"], strict=True):
            assert 0 <= first <= first + headers <= total
