"""Columns of a table that ``sync`` writes: a record's properties, such as ``kafka_offset``, and fields of its value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from stratalog.errors import ConfigError
from stratalog_spark.columns.scanned_rows import COLUMN_TYPES

PREFIX: Final = "kafka_"  # not "_", because Iceberg reserves some names such as _partition
KEY: Final = "kafka_key"
PARTITION: Final = "kafka_partition"
OFFSET: Final = "kafka_offset"
TIMESTAMP: Final = "kafka_timestamp"
HEADERS: Final = "kafka_headers"
BUCKET: Final = "kafka_bucket"
DATE: Final = "kafka_date"
HOUR: Final = "kafka_hour"
_RECORD: Final = (KEY, PARTITION, OFFSET, TIMESTAMP, HEADERS)
_QUARANTINED: Final = ("topic", "partition", "offset", "timestamp", "key", "value")
RESERVED: Final = frozenset({*_RECORD, BUCKET, DATE, HOUR})
_WIDER: Final = frozenset({("int32", "int64"), ("float", "double")})  # in the schema, wider in the table


def record_columns(*, bucketed: bool) -> Any:
    """Return the ``pyarrow.Schema`` of the columns for a record's properties.

    If ``bucketed`` is True, add ``kafka_bucket``.
    """
    fields: list[Any] = [pa.field(name, COLUMN_TYPES[name.removeprefix(PREFIX)]) for name in _RECORD]
    return pa.schema([*fields, pa.field(BUCKET, pa.int32())] if bucketed else fields)


def quarantine_columns() -> Any:
    """Return the ``pyarrow.Schema`` of the table of records that could not be parsed."""
    fields: list[Any] = [pa.field(name, COLUMN_TYPES[name]) for name in _QUARANTINED]
    return pa.schema([*fields, pa.field("error", pa.string())])


def raw_columns() -> Any:
    """Return the ``pyarrow.Schema`` for values that are stored unchanged. It has only the column ``value``."""
    return pa.schema([pa.field("value", pa.binary())])


def value_columns(kind: Any) -> Any:
    """Return the ``pyarrow.Schema`` of the columns of a value. ``kind`` is the Arrow struct type of a parsed value.

    Raises:
        ConfigError: a field has the name of a column for the record's properties, such as ``kafka_offset``.
    """
    fields = _storable_fields(kind)
    conflicting = sorted(RESERVED.intersection(field.name for field in fields))
    if conflicting:
        raise ConfigError(f"the value has a field {conflicting[0]!r}, which is the name of a column of the record")
    return pa.schema(fields)


def storable_schema(schema: Any) -> Any:
    """Convert a ``pyarrow.Schema`` to types that Iceberg and Delta can store, and remove its metadata.

    A column of the type null is left out.
    """
    return pa.schema(_storable_fields(schema))


def add_missing_columns(table: Any, needed: Any, name: str) -> Any:
    """Return the ``pyarrow.Schema`` of a table, with the missing columns and nested fields of another schema added.

    ``name`` is the name of the other schema, ``needed``, for the error.

    Raises:
        ConfigError: the type of a column or nested field in ``needed`` does not fit its type in the table.
    """
    return pa.schema(_merge_fields(list(table), list(needed), name, ""))


def _merge_fields(old: list[Any], new: list[Any], name: str, path: str) -> list[Any]:
    old_fields = {field.name: field for field in old}
    new_fields = {field.name: field for field in new}
    merged_fields = {
        field.name: pa.field(field.name, _merge_types(field.type, new_fields[field.name].type, name, path + field.name))
        for field in old
        if field.name in new_fields
    }
    return [
        *(merged_fields.get(field.name, field) for field in old),
        *(field for field in new if field.name not in old_fields),
    ]


def _merge_types(old: Any, new: Any, name: str, path: str) -> Any:
    if old == new or (str(new), str(old)) in _WIDER:
        return old
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return pa.struct(_merge_fields(list(old), list(new), name, f"{path}."))
    if pa.types.is_list(old) and pa.types.is_list(new):
        return pa.list_(pa.field("element", _merge_types(old.value_type, new.value_type, name, f"{path}[]")))
    if pa.types.is_map(old) and pa.types.is_map(new) and old.key_type == new.key_type:
        return pa.map_(old.key_type, _merge_types(old.item_type, new.item_type, name, f"{path}[]"))
    raise ConfigError(
        f"{name} does not fit the table: {path} is {new} in the schema and {old} in the table. Columns are only added: "
        "write to another table, or change the schema"
    )


def _storable_fields(fields: Iterable[Any]) -> list[Any]:
    """Return fields with types that Iceberg and Delta can store. Fields that can only contain null are left out."""
    kinds = [(field.name, _storable_type(field.type)) for field in fields]
    return [pa.field(name, kind) for name, kind in kinds if kind is not None]


def _storable_type(kind: Any) -> Any:
    types = pa.types
    if types.is_null(kind):
        return None
    if types.is_struct(kind):
        fields = _storable_fields(kind)
        return pa.struct(fields) if fields else None
    if types.is_map(kind):
        key, item = _storable_type(kind.key_type), _storable_type(kind.item_type)
        return None if item is None else pa.map_(key, item)
    if types.is_list(kind) or types.is_large_list(kind):
        item = _storable_type(kind.value_type)
        return None if item is None else pa.list_(pa.field("element", item))
    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_time32(kind):
        return pa.time64("us")
    return kind
