"""Independent decoding of fetched bytes and Arrow tables, to check the library's own reads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Final

import pyarrow as pa

from stored_batches import batches_in
from stratalog import LogReader, Record, TimestampType
from stratalog.model.segment_info import AbortedTransaction
from stratalog.segment.components import Components

_CONTROL_KEY: Final = Struct(">hh")  # version, type
_ABORT: Final = 0


def fetched_records(log: LogReader, max_bytes: int, isolation: str, components: Components) -> list[Record]:
    """Return all records that a consumer gets from a log by repeated fetches, from the log start on."""
    records: list[Record] = []
    offset = log.offsets().log_start
    while True:
        with log.fetch(offset, max_bytes, isolation) as fetched:
            if not fetched.size_bytes:
                assert fetched.next_offset == offset
                return records
            assert fetched.next_offset > offset
            visible_records = _shown(fetched.read(), fetched.aborted_transactions, components)
            records += [r._replace(partition=log.name.partition) for r in visible_records if r.offset >= offset]
            offset = fetched.next_offset


def _shown(data: bytes, aborted: tuple[AbortedTransaction, ...], components: Components) -> Iterator[Record]:
    """Yield the records of fetched batches that a consumer returns. Source: apache/kafka CompletedFetch."""
    waiting = sorted(aborted, key=lambda transaction: transaction.first_offset)
    producers: set[int] = set()
    for batch, records in batches_in(data, components):
        while waiting and waiting[0].first_offset <= batch.last_offset:
            producers.add(waiting.pop(0).producer_id)
        if batch.is_control:
            if records and _CONTROL_KEY.unpack_from(records[0].key or b"")[1] == _ABORT:
                producers.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in producers):
            yield from records


def from_arrow(table: pa.Table) -> list[Record]:
    """Return the records of a table, equal to those of ``records()``."""
    stamps = table["timestamp"].cast(pa.int64()).to_pylist()
    return [
        Record(
            offset=row["offset"],
            timestamp_ms=-1 if stamp is None else stamp // 1000,
            timestamp_type=TimestampType(row["timestamp_type"]),
            key=row["key"],
            value=row["value"],
            headers=tuple((header["key"], header["value"]) for header in row["headers"]),
            leader_epoch=row["leader_epoch"],
            partition=row["partition"],
        )
        for row, stamp in zip(table.drop_columns(["timestamp"]).to_pylist(), stamps, strict=True)
    ]


def hashes(folder: Path) -> dict[str, tuple[int, str]]:
    """Return the modification time (ns) and SHA-256 of everything below a folder, by path.

    Two results are equal only if nothing was written in between.
    """
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in sorted(folder.rglob("*"))
    }
