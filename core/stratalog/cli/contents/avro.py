"""Conversion of Avro values to JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from io import BytesIO
from pathlib import Path

from stratalog.errors import ConfigError, PluginImportError


def avro_text(file: Path, component: str) -> Callable[[bytes], str | None]:
    """Return a function that converts an Avro record to JSON text, or returns None if the bytes do not fit the schema.

    Raise ConfigError if ``file`` is not a readable schema, and PluginImportError if fastavro is not installed.
    ``component`` is the command that the error names.
    """
    try:
        fastavro = import_module("fastavro")
    except ImportError as error:
        raise PluginImportError("Avro needs fastavro", component, "stratalog[avro]") from error
    try:
        schema = fastavro.parse_schema(json.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"the Avro schema {file} cannot be read: {error.strerror}") from error
    except (ValueError, fastavro.schema.SchemaParseException) as error:
        raise ConfigError(f"{file} is not an Avro schema: {error}") from error

    def text(value: bytes) -> str | None:
        try:
            return json.dumps(fastavro.schemaless_reader(BytesIO(value), schema, None), default=str)
        except Exception:  # noqa: BLE001 - any error: fastavro has no error class for bytes that do not fit the schema
            return None

    return text
