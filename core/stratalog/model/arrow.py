"""Records as Arrow tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from stratalog.errors import PluginImportError
from stratalog.model.batches import NO_TIMESTAMP
from stratalog.model.records import RecordColumns

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - inside functions pa is the module at run time

_MAX_ARROW_MS: Final = ((1 << 63) - 1) // 1000
_MIN_ARROW_MS: Final = -_MAX_ARROW_MS


def arrow_schema() -> pyarrow.Schema:
    """The schema of every Arrow table of records. Headers are never null.

    Timestamps are null for "no timestamp", and for those that microseconds in 64 bits cannot hold (beyond the year
    294,246: what a producer sends that takes nanoseconds for milliseconds); ``Record`` has the number.
    """
    pa = _pyarrow()
    header = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
    schema: pyarrow.Schema = pa.schema(
        [
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", pa.timestamp("us", tz="UTC")),
            pa.field("timestamp_type", pa.int32(), nullable=False),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("headers", pa.list_(pa.field("item", header, nullable=False)), nullable=False),
            pa.field("leader_epoch", pa.int32(), nullable=False),
        ]
    )
    return schema


def to_arrow(chunks: Iterable[RecordColumns], partition: int) -> pyarrow.Table:
    """One table with a chunk for each of ``chunks`` (all fields), in ``arrow_schema()``.

    Raises:
        PluginImportError: pyarrow is not installed; the text names the extra.
    """
    pa = _pyarrow()
    schema = arrow_schema()
    batches = [_arrow_batch(chunk, partition, schema) for chunk in chunks if chunk.count]
    table: pyarrow.Table = pa.Table.from_batches(batches, schema=schema)
    return table


def _arrow_batch(chunk: RecordColumns, partition: int, schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    pa = _pyarrow()
    stamps = pa.array(
        [
            ms * 1000 if ms != NO_TIMESTAMP and _MIN_ARROW_MS <= ms <= _MAX_ARROW_MS else None
            for ms in chunk.timestamp_ms
        ],
        type=schema.field("timestamp").type,
    )
    headers = [[{"key": key, "value": value} for key, value in row] for row in chunk.headers()]
    arrays = [
        pa.array([partition] * chunk.count, type=pa.int32()),
        pa.array(chunk.offset.tolist(), type=pa.int64()),
        stamps,
        pa.array(chunk.timestamp_type.tolist(), type=pa.int32()),
        pa.array(chunk.keys(), type=pa.binary()),
        pa.array(chunk.values(), type=pa.binary()),
        pa.array(headers, type=schema.field("headers").type),
        pa.array(chunk.leader_epoch.tolist(), type=pa.int32()),
    ]
    batch: pyarrow.RecordBatch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return batch


def _pyarrow() -> Any:  # the extra is optional: only the public signatures know its types
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra: only who asks for Arrow needs it
    except ImportError as error:
        raise PluginImportError("pyarrow is not installed", "arrow", "stratalog[arrow]") from error
    return pa
