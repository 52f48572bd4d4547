"""Parsers from JSON and Avro values to Arrow structs. They report each value that they cannot parse."""

from __future__ import annotations

import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from stratalog.errors import ConfigError, PluginImportError

Parsed: TypeAlias = "tuple[Any, list[int]]"
"""Result of a parser: a struct array, and the numbers of the rows that could not be parsed.

These rows are null in the array. The array is typed as Any, because pyarrow's type stubs are incomplete.
"""

CONFLUENT_BYTES: Final = 5  # a zero byte and the id of the writer's schema
SAMPLE_ROWS: Final = 1_000
_COLUMN: Final = "v"
_BEFORE, _AFTER = b'{"v":[', b"]}"  # before and after a JSON value: the result is a line with the column _COLUMN
_MAY_END_ARRAY: Final = re.compile(rb"\}\s*\]\s*,")  # in a text that ends the array of its line, and adds another field


class JsonValues:
    """Parser of JSON objects.

    Args:
        fields: a ``pyarrow.Schema`` of the fields that become columns; other fields are dropped.
    """

    def __init__(self, fields: Any) -> None:
        self.type = pa.struct(list(fields))

    def parse(self, values: Any) -> Parsed:
        """Parse a column of binaries.

        Return structs, and the row numbers of bad values. Null and bad values become null.
        """
        texts = [b"{}" if value is None else value.replace(b"\n", b" ") for value in values.to_pylist()]
        parts: list[Any] = []
        bad_rows: list[int] = []
        self._parse(texts, 0, parts, bad_rows)
        structs = pa.concat_arrays(parts)
        return pc.if_else(values.is_valid(), structs, pa.scalar(None, self.type)), bad_rows

    def _parse(self, texts: Sequence[bytes], first: int, parts: list[Any], bad_rows: list[int]) -> None:
        """Parse all texts at once. If that fails, parse each half in this way, until each bad text is isolated."""
        structs = self._try_parse(texts)
        if structs is not None:
            parts.append(structs)
        elif len(texts) == 1:
            bad_rows.append(first)
            parts.append(pa.nulls(1, self.type))
        else:
            middle = len(texts) // 2
            self._parse(texts[:middle], first, parts, bad_rows)
            self._parse(texts[middle:], first + middle, parts, bad_rows)

    def _try_parse(self, texts: Sequence[bytes]) -> Any:
        """Return the structs of all texts; None if a text is not exactly one JSON object that fits the schema.

        Each text becomes the only element of an array in a line. Without the array, pyarrow would accept two wrong
        inputs: two objects in one text if another text is empty, and an object that begins in one text and ends in the
        next. It would crash on the text ``null``.
        """
        if not texts:
            return pa.array([], self.type)
        try:
            lists = _read_lines(texts, _BEFORE, _AFTER, pa.list_(self.type))
            structs = lists.flatten()
            structs.validate(full=True)  # pyarrow's parser accepts strings that are not UTF-8
            if any(map(_MAY_END_ARRAY.search, texts)):
                _read_lines(texts, b'{"v":', b"}", self.type)  # raises an error for a text that ends the array
        except pa.ArrowInvalid:
            return None
        if len(lists) != len(texts) or lists.value_lengths().unique().to_pylist() != [1] or structs.null_count:
            return None
        return structs


def _read_lines(texts: Sequence[bytes], before: bytes, after: bytes, kind: Any) -> Any:
    """Return the column ``_COLUMN``, of the type ``kind``, of the lines that contain the texts.

    Raise ArrowInvalid if a line is not valid.
    """
    data = before + (after + b"\n" + before).join(texts) + after
    blocks = pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    schema = pa.schema([pa.field(_COLUMN, kind)])
    options = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    table = pyarrow.json.read_json(io.BytesIO(data), read_options=blocks, parse_options=options)
    column: Any = table.column(_COLUMN).combine_chunks()  # pyarrow's type stubs have no lists here
    return column


def ddl_fields(text: str) -> Any:
    """Return the ``pyarrow.Schema`` of columns in Spark's DDL: ``user string, amount double``. Needs a Spark session.

    Raises:
        ConfigError: Spark cannot parse the text, or Arrow has no such type.
    """
    try:
        return to_arrow_schema(StructType.fromDDL(text))
    except PySparkException as error:
        raise ConfigError(f"the fields {text!r} are not valid: {error}") from None


def json_fields(values: Sequence[bytes | None]) -> Any:
    """Return the ``pyarrow.Schema`` that pyarrow infers from a sample of JSON values.

    Values that are not objects are ignored. If a field has different types in the objects, the most frequent types are
    used. A field that is always null is left out.

    Raises:
        ConfigError: there are no JSON objects among the values.
    """
    shapes: dict[str, list[bytes]] = {}  # objects, grouped by the types of their fields
    for value in values:
        try:
            parsed = None if value is None else json.loads(value)
        except (ValueError, RecursionError):
            continue
        if isinstance(parsed, dict):
            shape = str(sorted((name, type(field).__name__) for name, field in parsed.items()))
            shapes.setdefault(shape, []).append(json.dumps(parsed).encode())
    accepted, schema = list[bytes](), None
    for objects in sorted(shapes.values(), key=len, reverse=True):
        inferred = _infer_schema([*accepted, *objects])
        if inferred is not None:
            accepted, schema = [*accepted, *objects], inferred
    if schema is None:
        raise ConfigError("no value of the sample is a JSON object: add --fields, or export with --schema raw")
    return pa.schema([field for field in schema if not pa.types.is_null(field.type)])


def _infer_schema(objects: Sequence[bytes]) -> Any:
    data = b"\n".join(objects)
    try:
        return pyarrow.json.read_json(io.BytesIO(data), pyarrow.json.ReadOptions(block_size=len(data) + 1)).schema
    except pa.ArrowInvalid:
        return None


class ValueParser(ABC):
    """Parser that parses values one by one.

    ``type`` is the Arrow type of a value, a struct.
    """

    type: Any

    def parse(self, values: Any) -> Parsed:
        """Parse a column of binaries.

        Return structs, and the row numbers of bad values. Null and bad values become null. A value is bad if it cannot
        be parsed, or if its fields do not fit ``type``.
        """
        rows, bad_rows = list[object](), set[int]()
        for number, value in enumerate(values.to_pylist()):
            row = None if value is None else self._parse_value(value)
            if value is not None and row is None:
                bad_rows.add(number)
            rows.append(row)
        misfits = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)
        try:
            return pa.array(rows, self.type), sorted(bad_rows)
        except misfits:
            parts = []
            for number, row in enumerate(rows):
                try:
                    parts.append(pa.array([row], self.type))
                except misfits:
                    bad_rows.add(number)
                    parts.append(pa.nulls(1, self.type))
            return pa.concat_arrays(parts), sorted(bad_rows)

    @abstractmethod
    def _parse_value(self, value: bytes) -> object:
        """Return the fields of a value, or None if the value cannot be parsed."""


class AvroValues(ValueParser):
    """Parser of Avro records.

    Args:
        schemas: writers' schemas by id. Each value begins with a prefix of Confluent of five bytes, which contains the
            id. For values without the prefix: one schema with the key None. The fields of the schema with the greatest
            id become columns.

    Raises:
        ConfigError: a schema is not valid, the schema with the greatest id is not a record, or a field cannot be a
            column.
        PluginImportError: fastavro is not installed.
    """

    def __init__(self, schemas: Mapping[int | None, object]) -> None:
        try:
            fastavro = import_module("fastavro")
        except ImportError as error:
            raise PluginImportError("Avro needs fastavro", "spark", "stratalog[avro]") from error
        try:
            self._writers = {
                number: fastavro.parse_schema(_strip_logical_types(schema)) for number, schema in schemas.items()
            }
        except (fastavro.schema.SchemaParseException, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"the Avro schema is not valid: {type(error).__name__}: {error}") from None
        self._reader = self._writers[max(self._writers, key=lambda number: -1 if number is None else number)]
        self._read: Callable[..., Any] = fastavro.schemaless_reader
        self.type = _parse_avro_type(self._reader, {})
        if not pa.types.is_struct(self.type):
            raise ConfigError("the Avro schema must be a record")

    def _parse_value(self, value: bytes) -> object:
        """Return a record, or None if the value matches none of the schemas or has trailing bytes."""
        writer, start = self._writers.get(None), 0
        if writer is None:
            writer = self._writers.get(int.from_bytes(value[1:CONFLUENT_BYTES], "big")) if value[:1] == b"\0" else None
            start = CONFLUENT_BYTES
        if writer is None:
            return None
        stream = io.BytesIO(value[start:])
        try:
            record: object = self._read(stream, writer, self._reader)
        except Exception:  # noqa: BLE001 - hostile bytes may raise any error
            return None
        return record if stream.tell() == len(value) - start else None


_PRIMITIVES: Final[dict[str, Any]] = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "bytes": pa.binary(), "string": pa.string(), "null": pa.null(),
}  # fmt: skip
_LOGICAL_TYPES: Final[dict[tuple[str, str | None], Any]] = {  # by type and logical type
    ("long", "timestamp-millis"): pa.timestamp("us", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
}
# logical types that fastavro converts, and that become columns of the type in which they are stored
_STORED: Final = frozenset({"uuid", "local-timestamp-millis", "local-timestamp-micros"})
_MOST_DIGITS: Final = 38  # maximum for a decimal in Spark and in tables; schemas of Kafka Connect have 64


def _strip_logical_types(schema: Any) -> Any:
    """Return an Avro schema without the logical types for which ``_parse_avro_type`` returns a text or number type."""
    if isinstance(schema, list):
        return [_strip_logical_types(branch) for branch in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        name: value if name == "default" else _strip_logical_types(value)
        for name, value in schema.items()
        if name != "logicalType" or value not in _STORED
    }


def _parse_avro_type(schema: Any, types_by_name: dict[str, Any]) -> Any:
    """Return the Arrow type of an Avro schema that fastavro has parsed.

    Raise ConfigError for a union of several types, and for a record that contains itself: such types cannot be columns.
    """
    if isinstance(schema, list):
        kinds = [kind for kind in schema if kind != "null"]
        if len(kinds) != 1:
            raise ConfigError(f"an Avro union of {len(kinds)} types cannot be a column: {schema!r}")
        return _parse_avro_type(kinds[0], types_by_name)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _PRIMITIVES[schema]
        if types_by_name.get(schema) is None:
            raise ConfigError(f"Avro type {schema!r} cannot be a column, because it is unknown or recursive")
        return types_by_name[schema]
    kind = schema["type"]
    if kind in {"record", "error", "enum", "fixed"}:
        return _parse_named_type(schema, types_by_name)
    logical_type = _logical_type(schema)
    if logical_type is not None:
        return logical_type
    if kind == "array":
        return pa.list_(_parse_avro_type(schema["items"], types_by_name))
    if kind == "map":
        return pa.map_(pa.string(), _parse_avro_type(schema["values"], types_by_name))
    return _parse_avro_type(kind, types_by_name)


def _parse_named_type(schema: Any, types_by_name: dict[str, Any]) -> Any:
    """Return the Arrow type of an Avro record, error, enum or fixed, and add the type to ``types_by_name``."""
    if schema["type"] == "enum":
        arrow_type: Any = pa.string()
    elif schema["type"] == "fixed":
        logical_type = _logical_type(schema)
        arrow_type = pa.binary(schema["size"]) if logical_type is None else logical_type
    else:
        types_by_name[schema["name"]] = None  # the type cannot be used inside itself
        arrow_type = pa.struct(
            [pa.field(field["name"], _parse_avro_type(field["type"], types_by_name)) for field in schema["fields"]]
        )
    types_by_name[schema["name"]] = arrow_type
    return arrow_type


def _logical_type(schema: Any) -> Any:
    """Return the Arrow type of the logical type of an Avro schema; None if there is none."""
    if schema.get("logicalType") == "decimal":
        return pa.decimal128(min(schema["precision"], _MOST_DIGITS), schema.get("scale", 0))
    return _LOGICAL_TYPES.get((str(schema["type"]), schema.get("logicalType")))
