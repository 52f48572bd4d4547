"""Tables of Spark's catalog, ``CREATE TABLE ... USING stratalog``.

Spark passes the options of a table to a Python data source only when the table is created, not to later reads and
writes. The source therefore stores them in the metadata of the table's columns. Spark keeps this metadata in the
catalog, and passes it to each reader. Writes do not use the metadata: if rows are inserted from one table into another,
the columns keep the metadata of the first table, so the rows would be written to the wrong topic.
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
from stratalog_spark.columns.kafka_columns import TYPES, canonical, check_names
from stratalog_spark.options.read_options import Options
from stratalog_spark.options.spark_options import SINK_NAMES, STREAM_NAMES, TIER_PREFIX

METADATA: Final = "stratalog"  # key of the metadata; catalogs store it, so it must not change
_OPTION: Final = "option."  # Spark's prefix for options in OPTIONS
_WRITE_ONLY: Final = frozenset(name.lower() for name in SINK_NAMES) - {"path", "config"}
_HEADER: Final = StructType().add("key", StringType()).add("value", BinaryType())
SPARK_TYPES: Final[Mapping[str, DataType]] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "array<struct<key:string,value:binary>>": ArrayType(_HEADER),
}
_WRITE_ADVICE: Final = (
    "set it in the statement, INSERT INTO t WITH (path = 'PATH', topic = 'TOPIC'), or with .option(...) of the writer"
)


def is_table(properties: Mapping[str, str]) -> bool:
    """Return True if ``properties`` belong to a table that is being created."""
    return any(name.lower() == "provider" for name in properties)


def table_schema(properties: Mapping[str, str]) -> StructType:
    """Return the columns of a table that is being created, with the table's options in their metadata.

    Raises:
        ConfigError: there is no location, or an option cannot be kept in a table.
        UnknownSettingError: there is no such option.
    """
    table_options = {
        name[len(_OPTION) :].lower(): value for name, value in properties.items() if name.lower().startswith(_OPTION)
    }
    location = next((properties[name] for name in properties if name.lower() in {"location", "path"}), None)
    if location is None:
        raise ConfigError("the table has no location: use CREATE TABLE ... LOCATION 'PATH'")
    for name in table_options:
        if name.startswith(TIER_PREFIX):
            raise ConfigError(
                f"option {name} is not stored in a table, because everyone who can see the table could read it: set it "
                f"in the environment, or as an option of each query, t WITH (`{name}` = '...')"
            )
        if name in _WRITE_ONLY:
            raise ConfigError(
                f"option {name} is for writes, and Spark passes no options of a table to writes: {_WRITE_ADVICE}"
            )
    table_options["path"] = location
    schema, metadata = StructType(), {METADATA: table_options}
    for column in check_names(Options(table_options, streaming=None).column_names):
        schema.add(column, SPARK_TYPES[TYPES[canonical(column)]], nullable=True, metadata=metadata)
    return schema


def merge_table_options(options: Mapping[str, str], schema: StructType, *, streaming: bool) -> Mapping[str, str]:
    """Return the options of a read and of its table, combined. Options of the read override options of the table.

    If the options contain a path, or if the read is not of a table, the options are returned unchanged. If the read is
    of a table, the metadata of a column in ``schema`` contains the table's options. Unless ``streaming`` is True, options
    of the table that are only for streams are omitted.

    Raises:
        ConfigError: ``table_schema`` did not create the metadata.
    """
    names = {name.lower() for name in options}
    table_options = None if "path" in names else _table_options(schema)
    if table_options is None:
        return options
    limits = () if streaming else tuple(name.lower() for name in STREAM_NAMES)
    inherited = {name: value for name, value in table_options.items() if name not in names and name not in limits}
    return {**inherited, "path": restore_location(table_options["path"]), **options}


def has_table_options(schema: StructType) -> bool:
    """Return True if the metadata of a column contains the options of a table."""
    return any(METADATA in field.metadata for field in schema.fields)


def _table_options(schema: StructType) -> dict[str, str] | None:
    for field in schema.fields:
        table_options = field.metadata.get(METADATA)
        if table_options is None:
            continue
        if (
            not isinstance(table_options, dict)
            or "path" not in table_options
            or not all(isinstance(value, str) for value in table_options.values())
        ):
            raise ConfigError(
                f"the metadata of column {field.name!r} are not options of a table: create the table again"
            )
        return dict(table_options)
    return None


def restore_location(location: str) -> str:
    """Return the location in the form that the user wrote: a path, or the URI of a tier.

    Spark converts both ``/data`` and ``file:///data`` to ``file:/data``. For ``file:/data``, the result is ``/data`` if
    this folder is a log directory with partitions. Otherwise the result is ``file:///data``.
    """
    if not location.startswith("file:/") or location.startswith("file://"):
        return location
    path = location.removeprefix("file:")
    try:
        with open_reader(path) as reader:
            has_logs = bool(reader.partitions())
    except LogDirNotFoundError:
        has_logs = False
    return path if has_logs else f"file://{path}"
