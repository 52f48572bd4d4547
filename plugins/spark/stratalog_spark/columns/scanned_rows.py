"""Conversion of scanned records to rows of Spark. Only tasks import this module: pyarrow is slow to import."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from stratalog import TopicPartition
from stratalog.reading import DamagedRange, Scanned
from stratalog_spark.columns.kafka_columns import CORRUPT, COUNTED, COUNTED_BY, HEADERS, TYPES, canonical
from stratalog_spark.columns.pushdown import COMPARISONS, Node

_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
# Spark accepts exactly these types. It refuses an equivalent type with another unit, time zone or width.
ARROW_TYPES: Final[dict[str, Any]] = {
    "binary": pa.binary(),
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    TYPES[HEADERS]: pa.list_(pa.field("element", _HEADER)),
}
"""Arrow type of each type in ``TYPES``."""

COLUMN_TYPES: Final[dict[str, Any]] = {name: ARROW_TYPES[kind] for name, kind in TYPES.items()}
"""Arrow type of each column."""

_SCANNED: Final = {"timestampType": "timestamp_type"}  # columns that have another name in a scan
_NOT_SCANNED: Final = frozenset({"topic", *CORRUPT})  # columns that a scan does not have


class Rows:
    """Converter of scanned records to Spark's rows.

    Args:
        names: names of the columns, in order, in the spelling that the rows get. Upper and lower case are not
            distinguished.
        pushed: predicate that a row must satisfy; None returns all rows.
    """

    def __init__(self, names: Sequence[str], pushed: Node | None = None) -> None:
        self._names, self._pushed = tuple(map(canonical, names)), pushed
        kinds = [COLUMN_TYPES[name] for name in self._names]
        self._schema = pa.schema([pa.field(name, kind) for name, kind in zip(names, kinds, strict=True)])

    @property
    def scanned(self) -> list[str]:
        """Names of the columns that a scan must decode for these rows and their predicate; at least one."""
        compared = () if self._pushed is None else [leaf.column for leaf in self._pushed.leaves]
        needed = {_SCANNED.get(name, name) for name in (*self._names, *compared)}
        return sorted(needed - _NOT_SCANNED) or [COUNTED]

    def convert(self, scanned: Scanned) -> pa.RecordBatch:
        """Return the records of one scanned batch as rows, without rows that do not satisfy the predicate."""
        if self._pushed is not None:
            mask = evaluate(self._pushed, lambda name: _column(scanned, name))
            if mask.true_count < len(mask):
                scanned = scanned._replace(batch=scanned.batch.filter(mask))
        return pa.RecordBatch.from_arrays([_column(scanned, name) for name in self._names], schema=self._schema)

    def convert_damage(self, damage: DamagedRange) -> pa.RecordBatch:
        """Return one row for a damaged range that a scan skipped. If it does not satisfy the predicate, return no row.

        The row has the topic, the partition, the first offset that was not read, and the columns for corrupt batches.
        All other columns are null.
        """
        offsets_text = f", offsets {damage.start} to {damage.end - 1}" if damage.start < damage.end else ""
        row = {
            "topic": damage.log.topic,
            "partition": damage.log.partition,
            "offset": damage.start,
            "corruptFile": damage.file,
            "corruptPosition": damage.position,
            "corruptReason": f"{damage.reason} ({damage.size_bytes} bytes{offsets_text})",
        }

        def column(name: str) -> Any:
            return pa.array([row.get(name)], COLUMN_TYPES[name])

        batch = pa.RecordBatch.from_arrays([column(name) for name in self._names], schema=self._schema)
        return batch if self._pushed is None else batch.filter(evaluate(self._pushed, column))


def _column(scanned: Scanned, name: str) -> Any:
    """Return the column ``name`` of Spark's rows, from the columns of a scanned batch."""
    if name == "topic":
        return pa.repeat(pa.scalar(scanned.log.topic, pa.string()), scanned.batch.num_rows)
    if name == HEADERS:
        return _headers(scanned.batch.column(HEADERS))
    if name in CORRUPT:
        return pa.nulls(scanned.batch.num_rows, COLUMN_TYPES[name])
    return scanned.batch.column(_SCANNED.get(name, name))


def _headers(lists: Any) -> Any:
    """Return headers in Spark's type. A record without headers gets null, as in Spark's Kafka source."""
    kind = COLUMN_TYPES[HEADERS]
    present: Any = pc.greater(pc.list_value_length(lists), pa.scalar(0))
    count = present.true_count
    if not count:
        return pa.nulls(len(lists), kind)
    lists = lists.cast(kind)
    if count == len(lists):
        return lists
    offsets = pc.add(lists.offsets, 0)  # from_arrays does not accept a slice together with a mask
    return pa.ListArray.from_arrays(offsets, lists.values, type=kind, mask=pc.invert(present))


def evaluate(node: Node, column: Callable[[str], Any]) -> pa.BooleanArray:
    """Return the value of the predicate for each row by the rules of SQL: true, false, or null if it is unknown.

    ``column`` returns the Arrow array of the column with a given name.
    """
    mask: Any
    if node.parts:
        combine: Any = pc.and_kleene if node.operator == "and" else pc.or_kleene
        mask = reduce(combine, (evaluate(part, column) for part in node.parts))
    elif node.operator == "notnull":
        mask = pc.is_valid(column(node.column))
    else:
        array = column(node.column)
        kind = array.type
        values = [
            pa.scalar(value, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else value for value in node.values
        ]
        compare = getattr(pc, COMPARISONS.get(node.operator, "equal"))
        mask = reduce(pc.or_kleene, (compare(array, value) for value in values))
    result: pa.BooleanArray = mask
    return result


def count_batch(names: Sequence[str], counts: Iterable[tuple[TopicPartition, int]]) -> pa.RecordBatch:
    """Return the result of a count as one batch.

    ``topic`` and ``partition`` in ``names`` group the counts, as ``GROUP BY`` does. The result has one row for each
    group with a count above 0. If ``names`` has neither of them, the result is one row with the total count. Columns
    other than ``topic`` and ``partition`` contain the count. A log may be in several pairs of ``counts``.
    """
    groups = [name for name in names if name in COUNTED_BY]
    totals: dict[tuple[str | int, ...], int] = {} if groups else {(): 0}
    for log, count in counts:
        group = tuple(getattr(log, name) for name in groups)
        totals[group] = totals.get(group, 0) + count
    rows = [(dict(zip(groups, group, strict=True)), count) for group, count in totals.items() if count or not groups]
    arrays: list[Any] = [
        pa.array(
            [group.get(name, count) for group, count in rows], COLUMN_TYPES[name] if name in groups else pa.int64()
        )
        for name in names
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))
