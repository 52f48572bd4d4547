"""Spark's base classes for sinks, and conversion of rows to Arrow for streams of Spark 4.0, which passes no Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ArrowStreamWriter", "ArrowWriter", "WriterCommitMessage", "as_arrow"]

ArrowWriter = DataSourceArrowWriter
ArrowStreamWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter)
"""An Arrow writer from Spark 4.1 on."""

_ROWS: Final = 10_000  # the number that Spark puts into a batch


def as_arrow(given: Iterable[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the input of a sink as Arrow batches. Rows are converted."""
    import pyarrow as pa  # noqa: PLC0415 - comes with Spark's extra

    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    kinds: dict[str, pa.DataType] = {
        "binary": pa.binary(),
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "array<struct<key:string,value:binary>>": pa.list_(header),
    }
    wanted = pa.schema([(field.name, kinds[field.dataType.simpleString()]) for field in schema.fields])
    rest = iter(given)
    while taken := list(islice(rest, 1)):
        if isinstance(taken[0], pa.RecordBatch):
            yield taken[0]
            continue
        taken.extend(islice(rest, _ROWS - 1))
        yield pa.RecordBatch.from_pylist([_plain(row.asDict(recursive=True)) for row in taken], schema=wanted)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose timestamp has a time zone. Spark passes local time without one."""
    stamp = row.get("timestamp")
    return row if stamp is None else {**row, "timestamp": stamp.astimezone()}
