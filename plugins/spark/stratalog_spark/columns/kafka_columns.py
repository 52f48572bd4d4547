"""The columns of Spark's own Kafka source, and their conversion from records."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from stratalog import TopicPartition
from stratalog.errors import ConfigError
from stratalog.reading import DamagedRange, Scanned
from stratalog_spark.columns.pushdown import Node, accepted

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - a type alone

TYPES: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
    "corruptFile": "string",
    "corruptPosition": "bigint",
    "corruptReason": "string",
}
_BY_LOWER: Final = {name.lower(): name for name in TYPES}
KAFKA: Final = tuple(TYPES)[:7]
HEADERS: Final = "headers"
CORRUPT: Final = tuple(TYPES)[8:]
COUNT: Final = "count"
COUNTED: Final = "offset"  # the column that a count reads: batch headers have the offsets, so no record is decoded
COUNTED_BY: Final = frozenset({"topic", "partition"})
READ_ONLY: Final = frozenset({"offset", "timestampType", *CORRUPT})  # columns of reads that a write cannot set


def ddl(names: Sequence[str]) -> str:
    """Return the schema with these columns as a DDL string."""
    return ", ".join(f"{name} {TYPES[canonical(name)]}" for name in names)


def canonical(name: str) -> str:
    """Return the declared name of a column; upper and lower case are equal. An unknown name is returned unchanged."""
    return _BY_LOWER.get(name.lower(), name)


def check_names(names: Sequence[str], kinds: Sequence[str | None] = ()) -> tuple[str, ...]:
    """Check the names of columns, and return them unchanged. Upper and lower case are equal.

    Args:
        names: names of columns.
        kinds: wanted type of each column; None: not checked.

    Raises:
        ConfigError: a name is unknown or repeated, or the column does not have the wanted type.
    """
    found = [canonical(name) for name in names]
    for name in found:
        if name not in TYPES:
            near = difflib.get_close_matches(name, TYPES, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f": the columns are {', '.join(TYPES)}"
            raise ConfigError(f"there is no column {name!r}{hint}")
    for name, kind in zip(found, kinds, strict=False):
        if kind is not None and kind != TYPES[name]:
            raise ConfigError(f"column {name!r} is of type {TYPES[name]}, not {kind}: read it as that, and cast")
    if len(set(found)) != len(found):
        raise ConfigError(f"a column is given twice: {', '.join(names)}")
    return tuple(names)


class Rows:
    """Converter of scanned records to Spark's rows.

    Args:
        names: names of the columns, in order. Upper and lower case are equal. The columns of the rows have exactly
            these names.
        pushed: predicate that a row must satisfy; None for all rows.
    """

    def __init__(self, names: Sequence[str], pushed: Node | None = None) -> None:
        import pyarrow as pa  # noqa: PLC0415 - an extra of the core, here when Spark is

        self._pa, self._names, self._pushed = pa, tuple(map(canonical, names)), pushed
        kinds = [_types(pa)[name] for name in self._names]
        self._schema = pa.schema([pa.field(name, kind) for name, kind in zip(names, kinds, strict=True)])

    @property
    def scanned(self) -> list[str]:
        """Names of the columns that a scan must decode for these rows and their predicate; at least one."""
        compared = () if self._pushed is None else [leaf.column for leaf in self._pushed.leaves]
        wanted = {_SCANNED.get(name, name) for name in (*self._names, *compared)}
        return sorted(wanted - _MADE) or [COUNTED]

    def of(self, scanned: Scanned) -> pyarrow.RecordBatch:
        """Return the rows of one scanned batch that satisfy the predicate."""
        if self._pushed is not None:
            mask = accepted(self._pushed, lambda name: _MAKERS[name](self._pa, scanned))
            if mask.true_count < len(mask):
                scanned = scanned._replace(batch=scanned.batch.filter(mask))
        columns = [_MAKERS[name](self._pa, scanned) for name in self._names]
        batch: pyarrow.RecordBatch = self._pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return batch

    def of_damage(self, found: DamagedRange) -> pyarrow.RecordBatch:
        """Return one row for a damaged range that a scan skipped, or no row if the row does not satisfy the predicate.

        The row has the topic, the partition, the first offset that was not read, and the columns for corrupt batches.
        All other columns are null.
        """
        gone = f", offsets {found.start} to {found.end - 1}" if found.start < found.end else ""
        row = {
            "topic": found.log.topic,
            "partition": found.log.partition,
            "offset": found.start,
            "corruptFile": found.file,
            "corruptPosition": found.position,
            "corruptReason": f"{found.reason} ({found.size_bytes} bytes{gone})",
        }
        columns = [self._pa.array([row.get(name)], _types(self._pa)[name]) for name in self._names]
        batch: pyarrow.RecordBatch = self._pa.RecordBatch.from_arrays(columns, schema=self._schema)
        if self._pushed is None:
            return batch
        kinds = _types(self._pa)
        return batch.filter(accepted(self._pushed, lambda name: self._pa.array([row.get(name)], kinds[name])))


def counted(names: Sequence[str], counts: Iterable[tuple[TopicPartition, int]]) -> pyarrow.RecordBatch:
    """Return numbers of rows as one batch.

    The result has one row for each combination of those of the columns ``topic`` and ``partition`` that are in
    ``names``, without combinations that have no rows. If neither is in ``names``, the result is one row with the total.

    Args:
        names: columns of the result; each column besides ``topic`` and ``partition`` contains the number of rows.
        counts: logs and numbers of rows; a log may occur several times.
    """
    import pyarrow as pa  # noqa: PLC0415 - an extra of the core, here when Spark is

    totals: dict[tuple[str | int, ...], int] = {}
    groups = [name for name in names if name in COUNTED_BY]
    if not groups:
        totals[()] = 0
    for log, count in counts:
        group = tuple(getattr(log, name) for name in groups)
        totals[group] = totals.get(group, 0) + count
    found = [
        {**dict(zip(groups, group, strict=True)), COUNT: count}
        for group, count in totals.items()
        if count or not groups
    ]
    kinds = {name: _types(pa)[name] for name in groups}
    arrays = [
        pa.array([row[name if name in groups else COUNT] for row in found], kinds.get(name, pa.int64()))
        for name in names
    ]
    totalled: pyarrow.RecordBatch = pa.RecordBatch.from_arrays(arrays, names=list(names))
    return totalled


@cache
def arrow_types(pa: Any) -> dict[str, Any]:
    """Return the Arrow type of each type in ``TYPES``.

    Spark accepts exactly these types: it refuses another unit, time zone or width, even an equivalent one.
    """
    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    return {
        "binary": pa.binary(),
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        TYPES[HEADERS]: pa.list_(pa.field("element", header)),
    }


@cache
def _types(pa: Any) -> dict[str, Any]:
    """Return the Arrow type of each column."""
    return {name: arrow_types(pa)[kind] for name, kind in TYPES.items()}


def _taken(name: str) -> Callable[[Any, Scanned], Any]:
    return lambda _, scanned: scanned.batch.column(name)


def _topic(pa: Any, scanned: Scanned) -> Any:
    return pa.repeat(pa.scalar(scanned.log.topic, pa.string()), scanned.batch.num_rows)


def _headers(pa: Any, scanned: Scanned) -> Any:
    """Return headers in Spark's type. A record without headers gets null, as in Spark's Kafka source."""
    import pyarrow.compute as pc  # noqa: PLC0415 - an extra of the core, here when Spark is

    kind = _types(pa)[HEADERS]
    lists: Any = scanned.batch.column(HEADERS)  # pyarrow's type stubs have no lists here
    present: Any = pc.greater(pc.list_value_length(lists), pa.scalar(0))
    count = present.true_count
    if not count:
        return pa.nulls(len(lists), kind)
    lists = lists.cast(kind)
    if count == len(lists):
        return lists
    offsets = pc.add(lists.offsets, 0)  # from_arrays does not accept a slice together with a mask
    return pa.ListArray.from_arrays(offsets, lists.values, type=kind, mask=pc.invert(present))


def _nothing(name: str) -> Callable[[Any, Scanned], Any]:
    return lambda pa, scanned: pa.nulls(scanned.batch.num_rows, _types(pa)[name])


_SCANNED: Final = {"timestampType": "timestamp_type"}  # columns that have another name in a scan
_MADE: Final = frozenset({"topic", *CORRUPT})  # columns that a scan does not have
_MAKERS: Final[dict[str, Callable[[Any, Scanned], Any]]] = {
    **{name: _taken(name) for name in ("key", "value", "partition", "offset", "timestamp")},
    **{name: _taken(column) for name, column in _SCANNED.items()},
    "topic": _topic,
    HEADERS: _headers,
    **{name: _nothing(name) for name in CORRUPT},
}
