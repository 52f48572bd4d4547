"""Conversion of JSON Schemas to Arrow schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from stratalog.errors import ConfigError

_PRIMITIVES: Final[dict[str, Any]] = {
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
}


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
