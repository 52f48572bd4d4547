"""Schemas of a topic's values, by their ids in a schema registry, and the parsers and Arrow types for these schemas."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa

from stratalog.errors import ConfigError
from stratalog_spark.lake.protobuf import ProtobufValues, compile_proto
from stratalog_spark.parquet.values import CONFLUENT_BYTES, AvroValues, JsonValues

KINDS: Final = ("raw", "json", "avro", "protobuf")
PREFIX_BYTES: Final = CONFLUENT_BYTES
_SUFFIXES: Final = {"json": (".json",), "avro": (".avsc", ".json"), "protobuf": (".proto", ".pb", ".desc")}
_PRIMITIVES: Final[dict[str, Any]] = {
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
}

Schemas: TypeAlias = "Mapping[int | None, object] | Callable[[int], object] | Path | str"
"""Schemas of the values: the argument ``schemas`` of ``sync``, which describes them."""


Parser: TypeAlias = JsonValues | AvroValues | ProtobufValues
"""Parser of the values of one schema, without the prefix of a schema registry."""


class SchemaSet:
    """Schemas from the user. Only the driver uses a SchemaSet, and sends to the tasks the schemas that they need.

    Args:
        kind: ``raw``, ``json``, ``avro`` or ``protobuf``.
        schemas: see ``Schemas``. None for ``raw``.

    Raises:
        ConfigError: the kind is unknown or does not fit the schemas, or a schema is not valid.
        PluginImportError: the library for the schemas is not installed.
    """

    def __init__(self, kind: str, schemas: Schemas | None) -> None:
        if kind not in KINDS:
            raise ConfigError(f"schema={kind!r} is not one of {', '.join(KINDS)}")
        if (kind == "raw") != (schemas is None):
            raise ConfigError("schema='raw' takes no schemas" if kind == "raw" else f"schema={kind!r} needs schemas")
        self.kind = kind
        self._lookup: Callable[[int], object] | None = None
        self._schemas_by_id: dict[int | None, object] = {}
        if callable(schemas):
            self._lookup = schemas
        elif isinstance(schemas, Mapping):
            if None in schemas and len(schemas) > 1:
                raise ConfigError("schemas contains None, for values without prefix: it must be the only schema then")
            if not schemas:
                raise ConfigError("schemas is empty")
            self._schemas_by_id = {
                number: self._parse_schema(schema, f"schema {number}") for number, schema in schemas.items()
            }
        elif schemas is not None:
            self._lookup = self._read_folder(Path(schemas))

    def loaded_schemas(self) -> dict[int | None, object]:
        """Return the schemas that were loaded so far, by id. ``parser_of`` accepts them."""
        return dict(self._schemas_by_id)

    def find(self, ids: Iterable[int]) -> dict[int | None, object]:
        """Return the schemas of ``ids``, by id. ``parser_of`` accepts them. An id without a schema is left out.

        Raises:
            ConfigError: a schema is not valid.
            PluginImportError: the library for the schemas is not installed.
        """
        schemas: dict[int | None, object] = {}
        for number in sorted(ids):
            if number not in self._schemas_by_id and self._lookup is not None:
                try:
                    schema = self._lookup(number)
                except LookupError:
                    continue
                self._schemas_by_id[number] = self._parse_schema(schema, f"schema {number}")
            if number in self._schemas_by_id:
                schemas[number] = self._schemas_by_id[number]
        return schemas

    def _read_folder(self, folder: Path) -> Callable[[int], object]:
        if not folder.is_dir():
            raise ConfigError(f"the folder of schemas {folder} does not exist")

        def read(number: int) -> object:
            for suffix in _SUFFIXES[self.kind]:
                file = folder / f"{number}{suffix}"
                if file.is_file():
                    return file.read_bytes() if suffix in {".pb", ".desc"} else file.read_text(encoding="utf-8")
            raise LookupError(number)

        names = {file.stem for file in folder.iterdir() if file.suffix in _SUFFIXES[self.kind]}
        for number in sorted(int(name) for name in names if name.isdecimal()):
            self._schemas_by_id[number] = self._parse_schema(read(number), f"schema {number} in {folder}")
        return read  # also finds files that are added later

    def _parse_schema(self, schema: object, name: str) -> object:
        """Return a schema in the form for the tasks: parsed JSON, or descriptors of Protobuf."""
        try:
            if self.kind == "protobuf":
                parsed: object = compile_proto(schema) if isinstance(schema, str) else schema
            else:
                parsed = json.loads(schema) if isinstance(schema, str | bytes) else schema
            parser_of(self.kind, parsed, prefixed=False)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error
        except ValueError as error:
            raise ConfigError(f"{name} is not valid JSON: {error}") from None
        return parsed


def parser_of(kind: str, schema: Any, *, prefixed: bool) -> Parser:
    """Return the parser of values of one schema, which ``SchemaSet.find`` returned.

    ``prefixed`` is True if the values have the prefix of a schema registry, which its serializers write.

    Raises:
        ConfigError: the schema is not valid, or a field cannot be a column.
        PluginImportError: the library for the schema is not installed.
    """
    if kind == "json":
        return JsonValues(json_schema_fields(schema))
    if kind == "protobuf":
        return ProtobufValues(schema, indexed=prefixed)
    return AvroValues({None: schema})


def json_schema_fields(schema: Any) -> Any:
    """Return the ``pyarrow.Schema`` for the objects that a parsed JSON Schema describes.

    A string of format ``date-time`` becomes a timestamp. Other strings stay strings. ``oneOf`` and ``anyOf`` of one
    type and null become the one type.

    Raises:
        ConfigError: the schema does not describe an object, or a property cannot be a column.
    """
    kind = _type(schema, schema, (), "value")
    if not pa.types.is_struct(kind):
        raise ConfigError("the JSON Schema of a value must describe an object with properties")
    return pa.schema(list(kind))


def _type(schema: Any, root: Any, references: tuple[str, ...], path: str) -> Any:
    if not isinstance(schema, Mapping):
        raise ConfigError(f"{path} has no type in its JSON Schema")
    if "$ref" in schema:
        reference = str(schema["$ref"])
        if reference in references:
            raise ConfigError(f"{path} cannot be a column, because its JSON Schema contains itself")
        return _type(_resolve_reference(reference, root, path), root, (*references, reference), path)
    for name in ("oneOf", "anyOf"):
        if name in schema:
            arms = [arm for arm in schema[name] if not (isinstance(arm, Mapping) and arm.get("type") == "null")]
            if len(arms) != 1:
                raise ConfigError(f"{path} cannot be a column, because it has {len(arms)} types in its JSON Schema")
            return _type(arms[0], root, references, path)
    return _single_type(_single(schema, path), schema, root, references, path)


def _single_type(kind: str, schema: Mapping[str, Any], root: Any, references: tuple[str, ...], path: str) -> Any:
    if kind == "array":
        return pa.list_(_type(schema.get("items"), root, references, f"{path}[]"))
    if kind == "object":
        fields = schema.get("properties")
        if not fields:
            raise ConfigError(f"{path} cannot be a column, because its JSON Schema lists no properties")
        return pa.struct(
            [
                pa.field(name, _type(property_schema, root, references, f"{path}.{name}"))
                for name, property_schema in fields.items()
            ]
        )
    if kind == "string" and schema.get("format") == "date-time":
        return pa.timestamp("us", tz="UTC")
    if kind not in _PRIMITIVES:
        raise ConfigError(f"{path} has the type {kind!r} in its JSON Schema, which cannot be a column")
    return _PRIMITIVES[kind]


def _single(schema: Mapping[str, Any], path: str) -> str:
    """Return the only type of a schema, not counting null. Raise ConfigError if it has several types, or none."""
    declared = schema.get("type")
    if declared is None and "properties" in schema:
        return "object"
    if declared is None and all(isinstance(value, str) for value in schema.get("enum", [None])):
        return "string"
    kinds = [kind for kind in ([declared] if isinstance(declared, str) else declared or []) if kind != "null"]
    if len(kinds) != 1:
        raise ConfigError(f"{path} cannot be a column, because it has {len(kinds)} types in its JSON Schema")
    return str(kinds[0])


def _resolve_reference(reference: str, root: Any, path: str) -> Any:
    target = root
    for name in reference.removeprefix("#/").split("/") if reference.startswith("#/") else [None]:
        if not isinstance(target, Mapping) or name not in target:
            raise ConfigError(f"{path} refers to {reference!r}, which is not in its JSON Schema")
        target = target[name]
    return target
