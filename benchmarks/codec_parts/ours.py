"""The side of stratalog, with the kernels (compiled or pure Python) of this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from codec_parts.formats import BATCHES, CODECS, LIMIT_BYTES, name_here
from codec_parts.operations import Operation
from codec_parts.peer import Maker, Peer, arrow_rows, encode_job, gathered_job, objects_job
from codec_parts.workloads import Workload, canonical, canonical_bounds, row_of
from harness import Job
from stratalog import Record, RecordColumns
from stratalog.model.arrow import arrow_table
from stratalog.spi import BatchHeader, BatchTable

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - a type alone


class Stratalog(Peer):
    """The side of stratalog, which calls the public API of the record format with the whole buffer."""

    name = name_here()
    distribution = "stratalog"

    def makers(self) -> dict[Operation, Maker]:
        """Return a function that makes the job, for each operation."""
        return {
            Operation.COLUMNS: _columns_job,
            Operation.GATHERED: lambda workload: gathered_job(_columns_job(workload)),
            Operation.ARROW: _arrow_job,
            Operation.OBJECTS: _objects_job,
            Operation.TOUCHED: _touched_job,
            Operation.SCAN: _scan_job,
            Operation.ENCODE: _encode_job,
            Operation.ENCODE_COLUMNS: _encode_columns_job,
        }


def _scan(data: bytes) -> BatchTable:
    return BATCHES.scan(data, 0, len(data), check_crc=True)


def _columns(data: bytes) -> Iterator[RecordColumns]:
    return BATCHES.decode(data, _scan(data), limit_bytes=LIMIT_BYTES)


def _table(data: bytes) -> pyarrow.Table:
    return arrow_table(BATCHES.decode_arrow(data, _scan(data), partition=0, limit_bytes=LIMIT_BYTES))


def _records(data: bytes) -> Iterator[Iterator[Record]]:
    for columns in _columns(data):
        yield columns.iter_records(0)


def _touch(data: bytes) -> None:
    for records in _records(data):
        for record in records:
            record.offset, record.timestamp_ms, record.key, record.value, record.headers  # noqa: B018 - reading is the work


def _columns_job(workload: Workload) -> Job:
    data = workload.data
    return Job(
        lambda: list(_columns(data)),
        lambda: canonical(row_of(record) for columns in _columns(data) for record in columns.to_records()),
    )


def _arrow_job(workload: Workload) -> Job:
    data = workload.data
    return Job(lambda: _table(data), lambda: arrow_rows(_table(data)))


def _objects_job(workload: Workload) -> Job:
    return objects_job(lambda: _records(workload.data), row_of)


def _touched_job(workload: Workload) -> Job:
    return Job(lambda: _touch(workload.data), _objects_job(workload).outcome)


def _scan_job(workload: Workload) -> Job:
    data = workload.data
    return Job(lambda: _scan(data), lambda: canonical_bounds(zip(*_scan(data).columns[2:4], strict=True)))


def _encode_job(workload: Workload) -> Job:
    codec, header = CODECS.get(workload.codec), BatchHeader()
    batches = [
        [Record(timestamp_ms=stamp, key=key, value=value, headers=headers) for _, stamp, key, value, headers in rows]
        for rows in workload.batches
    ]
    return encode_job(lambda records: BATCHES.encode(records, header, codec, None), batches)


def _encode_columns_job(workload: Workload) -> Job:
    codec, header = CODECS.get(workload.codec), BatchHeader()
    table = _scan(workload.data)
    batches = [
        list(BATCHES.decode(workload.data, table.take(row, row + 1), limit_bytes=LIMIT_BYTES))
        for row in range(len(table))
    ]
    return encode_job(lambda columns: BATCHES.encode(columns[0], header, codec, None), batches)
