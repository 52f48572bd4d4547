"""Tables of Spark's catalog, ``CREATE TABLE ... USING stratalog``.

Spark hands the options of a table to a Python data source once, when the table is made. A later read or write of the table
gets none of them. So the source stores them in the metadata of the table's columns, which Spark keeps in the catalog and
hands to each reader. It is not used for writes: columns of one table that are inserted into another keep their metadata, and
the rows would go to the wrong topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from stratalog import open_reader
from stratalog.errors import ConfigError, LogDirNotFoundError
from stratalog_spark.columns import TYPES, check_names
from stratalog_spark.options import SINK_NAMES, STREAM_NAMES, TIER_PREFIX, Options

METADATA: Final = "stratalog"  # persistent: the key of the metadata in catalogs
_OPTION: Final = "option."  # Spark's prefix for what stands in OPTIONS
_ONLY_WRITTEN: Final = frozenset(name.lower() for name in SINK_NAMES) - {"path", "config"}
_HEADER: Final = StructType().add("key", StringType()).add("value", BinaryType())
_SPARK_TYPES: Final[Mapping[str, DataType]] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "array<struct<key:string,value:binary>>": ArrayType(_HEADER),
}
_SAY_IT: Final = (
    "say it in the statement, INSERT INTO t WITH (path = 'PATH', topic = 'TOPIC'), or as .option(...) of the writer"
)


def is_table(given: Mapping[str, str]) -> bool:
    """True if these are the properties of a table that is being made."""
    return any(name.lower() == "provider" for name in given)


def table_schema(given: Mapping[str, str]) -> StructType:
    """The columns of a table that is being made, with its options in their metadata.

    Args:
        given: the properties of the table, as Spark hands them on.

    Raises:
        ConfigError: there is no location, or an option cannot be kept in a table.
        UnknownSettingError: there is no such option.
    """
    kept = {name[len(_OPTION) :].lower(): value for name, value in given.items() if name.lower().startswith(_OPTION)}
    location = next((given[name] for name in given if name.lower() in {"location", "path"}), None)
    if location is None:
        raise ConfigError("say where the logs of the table are: CREATE TABLE ... LOCATION 'PATH'")
    for name in kept:
        if name.startswith(TIER_PREFIX):
            raise ConfigError(
                f"option {name} is not kept in a table, where all who see the table see it: give it in the environment, or as "
                f"an option of each query, t WITH (`{name}` = '...')"
            )
        if name in _ONLY_WRITTEN:
            raise ConfigError(f"option {name} is of writes, which get no options of a table from Spark: {_SAY_IT}")
    kept["path"] = location
    schema, metadata = StructType(), {METADATA: kept}
    for column in check_names(Options(kept, streaming=None).shown):
        schema.add(column, _SPARK_TYPES[TYPES[column]], nullable=True, metadata=metadata)
    return schema


def with_table(given: Mapping[str, str], schema: StructType, *, streaming: bool) -> Mapping[str, str]:
    """The options of a read, with those of the table that is read; those of the read count.

    Args:
        given: the options of the read. With a path among them, they are not of a table.
        schema: of the read.
        streaming: False leaves out options of the table that are for streams alone.

    Raises:
        ConfigError: the metadata is not what ``table_schema`` made.
    """
    names = {name.lower() for name in given}
    kept = None if "path" in names else _kept(schema)
    if kept is None:
        return given
    limits = () if streaming else tuple(name.lower() for name in STREAM_NAMES)
    chosen = {name: value for name, value in kept.items() if name not in names and name not in limits}
    return {**chosen, "path": located(kept["path"]), **given}


def is_kept(schema: StructType) -> bool:
    """True if columns with the options of a table are among these."""
    return any(METADATA in field.metadata for field in schema.fields)


def _kept(schema: StructType) -> dict[str, str] | None:
    for field in schema.fields:
        kept = field.metadata.get(METADATA)
        if kept is None:
            continue
        if (
            not isinstance(kept, dict)
            or "path" not in kept
            or not all(isinstance(value, str) for value in kept.values())
        ):
            raise ConfigError(f"the metadata of column {field.name!r} are no options of a table: make the table again")
        return dict(kept)
    return None


def located(location: str) -> str:
    """A location as it was before Spark made ``file:/data`` of ``/data`` and of ``file:///data``: a path, or a tier's URI."""
    if not location.startswith("file:/") or location.startswith("file://"):
        return location
    path = location.removeprefix("file:")
    return path if _has_logs(path) else f"file://{path}"


def _has_logs(path: str) -> bool:
    try:
        with open_reader(path) as reader:
            return bool(reader.partitions())
    except LogDirNotFoundError:
        return False
