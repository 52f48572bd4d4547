"""The columns of Spark's Kafka source and sink: names, types, and checks. Does not import pyarrow."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pyspark.sql.types import StructType

from stratalog.errors import ConfigError

TYPES: Final = {
    "key": "binary", "value": "binary", "topic": "string", "partition": "int", "offset": "bigint",
    "timestamp": "timestamp", "timestampType": "int", "headers": "array<struct<key:string,value:binary>>",
    "corruptFile": "string", "corruptPosition": "bigint", "corruptReason": "string",
}  # fmt: skip
_BY_LOWER: Final = {name.lower(): name for name in TYPES}
KAFKA: Final = tuple(TYPES)[:7]
HEADERS: Final = "headers"
CORRUPT: Final = tuple(TYPES)[8:]
COUNTED: Final = "offset"  # a count reads this column: offsets are in the batch headers, so no record is decoded
COUNTED_BY: Final = frozenset({"topic", "partition"})
READ_ONLY: Final = frozenset({"offset", "timestampType", *CORRUPT})  # columns of reads that a write cannot set
_BYTES_OR_TEXT: Final = ("binary", "string")
WRITTEN: Final[Mapping[str, tuple[str, ...]]] = {
    "key": _BYTES_OR_TEXT, "value": _BYTES_OR_TEXT, HEADERS: (TYPES[HEADERS],), "topic": ("string",),
    "partition": ("int",), "timestamp": ("timestamp",),
}  # fmt: skip


def ddl(names: Sequence[str]) -> str:
    """Return the schema with these columns as a DDL string."""
    return ", ".join(f"{name} {TYPES[canonical(name)]}" for name in names)


def canonical(name: str) -> str:
    """Return the declared name of a column. Names are case-insensitive. An unknown name is returned unchanged."""
    return _BY_LOWER.get(name.lower(), name)


def check_names(names: Sequence[str], kinds: Sequence[str] = ()) -> tuple[str, ...]:
    """Check the names of columns, and return them unchanged. Names are case-insensitive.

    ``kinds`` contains the expected type of each column. If it is empty, the types are not checked.

    Raises:
        ConfigError: a name is unknown or repeated, or the column does not have the expected type.
    """
    canonical_names = [canonical(name) for name in names]
    for name in canonical_names:
        if name not in TYPES:
            similar = difflib.get_close_matches(name, TYPES, n=1)
            hint = f"; did you mean {similar[0]!r}?" if similar else f": the columns are {', '.join(TYPES)}"
            raise ConfigError(f"there is no column {name!r}{hint}")
    for name, kind in zip(canonical_names, kinds, strict=False):
        if kind != TYPES[name]:
            text = f"column {name!r} is of type {TYPES[name]}, not {kind}: read it as {TYPES[name]}, then cast it"
            raise ConfigError(text)
    if len(set(canonical_names)) != len(canonical_names):
        raise ConfigError(f"a column is given twice: {', '.join(names)}")
    return tuple(names)


def check_schema(schema: StructType, topic: str | None) -> None:
    """Raise ConfigError unless rows of this schema can be written. If ``topic`` is None, require a column ``topic``."""
    types_by_name = dict[str, str]()
    for field in schema.fields:
        name, kind = canonical(field.name), field.dataType.simpleString()
        if name not in WRITTEN:
            continue
        if name in types_by_name:
            raise ConfigError(f"two columns are called {name!r}; names are not case-sensitive")
        if kind not in WRITTEN[name]:
            raise ConfigError(f"column {name!r} must be of type {' or '.join(WRITTEN[name])}, not {kind}: cast it")
        types_by_name[name] = kind
    if "value" not in types_by_name:
        raise ConfigError(f"the column 'value' is missing; the columns are {', '.join(schema.names) or 'none'}")
    if topic is None and "topic" not in types_by_name:
        raise ConfigError("no topic is given: add option topic, or a column 'topic'")


def written_names(names: Iterable[str]) -> dict[str, str]:
    """Return a mapping from the names in the rows to the declared names, for the columns that are written.

    Other columns are ignored, as in Spark's Kafka sink (apache/spark KafkaWriter).
    """
    return {name: canonical(name) for name in names if canonical(name) in WRITTEN}
