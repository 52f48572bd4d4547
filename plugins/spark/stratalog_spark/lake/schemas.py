"""Schemas of a topic's values, by their ids in a schema registry, and the parsers for these schemas."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from stratalog.errors import ConfigError
from stratalog_spark.lake.json_schema import json_schema_fields
from stratalog_spark.lake.protobuf import ProtobufValues, compile_proto
from stratalog_spark.parquet.values import CONFLUENT_BYTES, AvroValues, JsonValues

KINDS: Final = ("raw", "json", "avro", "protobuf")
PREFIX_BYTES: Final = CONFLUENT_BYTES
_SUFFIXES: Final = {"json": (".json",), "avro": (".avsc", ".json"), "protobuf": (".proto", ".pb", ".desc")}

Schemas: TypeAlias = "Mapping[int | None, object] | Callable[[int], object] | Path | str"
"""Schemas of the values.

One of: a mapping from ids to schemas; a folder with one file ``ID.avsc``, ``ID.json``, ``ID.proto`` or ``ID.pb`` for
each id; a function that returns the schema of an id, and raises LookupError if the id has none. The key None of a
mapping is for values without the prefix of a schema registry.
"""


Parser: TypeAlias = JsonValues | AvroValues | ProtobufValues
"""Parser of the values of one schema, without the prefix of a schema registry."""


class SchemaSet:
    """Schemas from the user. Only the driver uses a SchemaSet, and sends to the tasks the schemas that they need.

    Args:
        kind: ``raw``, ``json``, ``avro`` or ``protobuf``.
        schemas: schemas by id, or a folder or function that provides them (see ``Schemas``). None for ``raw``.

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
    """Return the parser of values of one schema.

    Args:
        kind: ``json``, ``avro`` or ``protobuf``.
        schema: a schema that ``SchemaSet.find`` returned.
        prefixed: True if the values have the prefix of a schema registry, which its serializers write.

    Raises:
        ConfigError: the schema is not valid, or a field cannot be a column.
        PluginImportError: the library for the schema is not installed.
    """
    if kind == "json":
        return JsonValues(json_schema_fields(schema))
    if kind == "protobuf":
        return ProtobufValues(schema, indexed=prefixed)
    return AvroValues({None: schema})
