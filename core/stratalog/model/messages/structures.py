"""Kafka's versioned structures: a dataclass declares the fields and the versions that have them.

Versions from ``flexible_from`` on are flexible (KIP-482): sizes of strings, bytes and arrays are varints, and each
structure, including nested ones, ends with tagged fields. In older versions, sizes are fixed-size integers. Unknown
tags and bytes after the structure are ignored.

Source: apache/kafka generator MessageDataGenerator, StructRegistry; KIP-482.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from struct import Struct
from typing import Any, Final, Generic, TypeVar, dataclass_transform

from stratalog.errors import InvalidRecordError
from stratalog.model.messages import schema
from stratalog.model.messages.schema import SchemaReader

T = TypeVar("T")
_KIND: Final = "stratalog.kind"
_STRING_SIZE: Final = Struct(">h")  # sizes in versions that are not flexible
_LIST_SIZE: Final = Struct(">i")  # of bytes and arrays
_UUID_BYTES: Final = 16
_LAST_VERSION: Final = (1 << 15) - 1


@dataclass(frozen=True, slots=True)
class Form:
    """One version of a structure: its number, and True if the version is flexible (KIP-482)."""

    version: int
    flexible: bool


@dataclass(frozen=True, slots=True)
class FieldKind(Generic[T]):
    """The type of a field: the functions that decode and encode its values."""

    read: Callable[[SchemaReader, Form], T]
    write: Callable[[T, Form], bytes]


def _number(code: str) -> FieldKind[int]:
    """Return the kind of a big-endian integer; ``code`` is its character in formats of ``struct``."""
    layout = Struct(f">{code}")
    return FieldKind(lambda reader, _: reader.number(layout), lambda value, _: layout.pack(value))


INT8: Final = _number("b")
INT16: Final = _number("h")
UINT16: Final = _number("H")
INT32: Final = _number("i")
INT64: Final = _number("q")
UUID: Final = FieldKind(lambda reader, _: uuid.UUID(bytes=reader.take(_UUID_BYTES)), lambda value, _: value.bytes)
VERSION: Final[FieldKind[int]] = FieldKind(lambda _, form: form.version, lambda _version, _form: b"")
"""The kind of an attribute that is the version of its structure; the structure does not store it again."""


def _read_size(reader: SchemaReader, form: Form, layout: Struct) -> int:
    """Read a size or a count, with ``layout`` unless the form is flexible; a negative result means null."""
    return reader.uvarint() - 1 if form.flexible else reader.number(layout)


def _encode_size(count: int, form: Form, layout: Struct) -> bytes:
    return schema.uvarint(count + 1) if form.flexible else layout.pack(count)


def _not_null(read: Callable[[SchemaReader, Form], T | None], kind: str) -> Callable[[SchemaReader, Form], T]:
    def read_not_null(reader: SchemaReader, form: Form) -> T:
        value = read(reader, form)
        if value is None:
            raise InvalidRecordError(f"{reader.name}: {kind} is null")
        return value

    return read_not_null


def _read_string(reader: SchemaReader, form: Form) -> str | None:
    size = _read_size(reader, form, _STRING_SIZE)
    return None if size < 0 else reader.take(size).decode("utf-8", "replace")


def _write_string(value: str | None, form: Form) -> bytes:
    raw = b"" if value is None else value.encode()
    return _encode_size(-1 if value is None else len(raw), form, _STRING_SIZE) + raw


def _read_bytes(reader: SchemaReader, form: Form) -> bytes | None:
    size = _read_size(reader, form, _LIST_SIZE)
    return None if size < 0 else reader.take(size)


def _write_bytes(value: bytes | None, form: Form) -> bytes:
    return _encode_size(-1 if value is None else len(value), form, _LIST_SIZE) + (value or b"")


NULLABLE_STRING: Final[FieldKind[str | None]] = FieldKind(_read_string, _write_string)
STRING: Final[FieldKind[str]] = FieldKind(_not_null(_read_string, "a string"), _write_string)
NULLABLE_BYTES: Final[FieldKind[bytes | None]] = FieldKind(_read_bytes, _write_bytes)
BYTES: Final[FieldKind[bytes]] = FieldKind(_not_null(_read_bytes, "a field of bytes"), _write_bytes)


def nullable_array_of(item: FieldKind[T]) -> FieldKind[tuple[T, ...] | None]:
    """Return the kind of an array that may be null. A wrong count does not make the reader allocate memory."""

    def read(reader: SchemaReader, form: Form) -> tuple[T, ...] | None:
        count = _read_size(reader, form, _LIST_SIZE)
        return None if count < 0 else tuple(item.read(reader, form) for _ in range(count))

    def write(values: tuple[T, ...] | None, form: Form) -> bytes:
        head = _encode_size(-1 if values is None else len(values), form, _LIST_SIZE)
        return head + b"".join(item.write(value, form) for value in values or ())

    return FieldKind(read, write)


def array_of(item: FieldKind[T]) -> FieldKind[tuple[T, ...]]:
    """Return the kind of an array that must not be null: the reader raises InvalidRecordError for null."""
    nullable = nullable_array_of(item)
    return FieldKind(_not_null(nullable.read, "an array"), nullable.write)


def nested(declared: type[T]) -> FieldKind[T]:
    """Return the kind of a field whose value is a structure. The inner structure has the version of the outer one."""
    plan = _plans(declared)
    return FieldKind(lambda reader, form: plan(form).read(reader), lambda value, form: plan(form).write(value))


def nullable_nested(declared: type[T]) -> FieldKind[T | None]:
    """Return the kind of a structure in a tagged field that may be null: a varint, 0 for null, precedes it."""
    plan = _plans(declared)

    def read(reader: SchemaReader, form: Form) -> T | None:
        return plan(form).read(reader) if reader.uvarint() else None

    def write(value: T | None, form: Form) -> bytes:
        return schema.uvarint(0) if value is None else schema.uvarint(1) + plan(form).write(value)

    return FieldKind(read, write)


def with_tags(kind: FieldKind[T]) -> FieldKind[T]:
    """Return the kind of the last field of a nested structure that has no class of its own: tagged fields follow it."""

    def read(reader: SchemaReader, form: Form) -> T:
        value = kind.read(reader, form)
        if form.flexible:
            reader.tags()
        return value

    def write(value: T, form: Form) -> bytes:
        return kind.write(value, form) + (schema.uvarint(0) if form.flexible else b"")

    return FieldKind(read, write)


@dataclass(frozen=True, slots=True)
class _Stored:
    """The arguments of ``stored`` for one field."""

    kind: FieldKind[Any]  # Any: a structure has fields of many kinds
    since: int
    until: int
    tag: int | None


def stored(
    kind: FieldKind[Any], *, since: int = 0, until: int = _LAST_VERSION, tag: int | None = None, default: Any = MISSING
) -> Any:  # Any: the result type of dataclasses.field
    """Declare a field of a structure.

    Args:
        kind: type of the field.
        since: the first version with the field.
        until: the last version with the field.
        tag: tag number of a tagged field; None for other fields. Only flexible versions have tagged fields.
        default: value in versions without the field. A tagged field needs a default, and is written only if its value
            differs from the default.
    """
    return field(default=default, metadata={_KIND: _Stored(kind, since, until, tag)})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(stored,))
def structure(declared: type[T]) -> type[T]:
    """Decorate a class whose fields are all ``stored``: return it as a frozen dataclass with keyword arguments."""
    return dataclass(frozen=True, slots=True, kw_only=True)(declared)


class _Plan(Generic[T]):
    """Reader and writer of one version of a structure."""

    def __init__(self, declared: type[T], form: Form) -> None:
        self._declared, self._form = declared, form
        self._untagged: list[tuple[str, FieldKind[Any]]] = []
        self._tagged: dict[int, tuple[str, FieldKind[Any], object]] = {}
        for attribute in fields(declared):  # type: ignore[arg-type]  # every structure is a dataclass
            declaration: _Stored = attribute.metadata[_KIND]
            if not declaration.since <= form.version <= declaration.until:
                continue
            if declaration.tag is None:
                self._untagged.append((attribute.name, declaration.kind))
            elif form.flexible:
                self._tagged[declaration.tag] = (attribute.name, declaration.kind, attribute.default)

    def read(self, reader: SchemaReader) -> T:
        values = {name: kind.read(reader, self._form) for name, kind in self._untagged}
        for tag, data in reader.tags().items() if self._form.flexible else ():
            if tag in self._tagged:
                name, kind, _ = self._tagged[tag]
                values[name] = kind.read(SchemaReader(data, reader.name), self._form)
        return self._declared(**values)

    def write(self, value: T) -> bytes:
        parts = [kind.write(getattr(value, name), self._form) for name, kind in self._untagged]
        if self._form.flexible:
            parts.append(self._tags(value))
        return b"".join(parts)

    def _tags(self, value: T) -> bytes:
        encoded = [
            (tag, kind.write(getattr(value, name), self._form))
            for tag, (name, kind, default) in sorted(self._tagged.items())
            if getattr(value, name) != default
        ]
        tags = (schema.uvarint(tag) + schema.uvarint(len(data)) + data for tag, data in encoded)
        return schema.uvarint(len(encoded)) + b"".join(tags)


def _plans(declared: type[T]) -> Callable[[Form], _Plan[T]]:
    """Return a cached function that returns the plan for a form."""
    return cache(lambda form: _Plan(declared, form))


class Schema(Generic[T]):
    """A structure with its version (int16) before it, as Kafka stores it in keys and values of records.

    Args:
        declared: a ``structure``.
        name: name of the structure, for errors.
        versions: range of the known versions.
        flexible_from: the first flexible version (KIP-482); above the last version if no version is flexible.
        later_as_last: True to parse later versions as the last known version, as the classic consumer protocol does.
    """

    def __init__(
        self, declared: type[T], name: str, versions: range, flexible_from: int, *, later_as_last: bool = False
    ) -> None:
        self.declared, self.name, self.versions = declared, name, versions
        self._flexible_from, self._later_as_last = flexible_from, later_as_last
        self._plan = _plans(declared)

    def parse(self, data: bytes) -> tuple[T, int]:
        """Return the structure in ``data``, and the version number at the start of ``data``.

        Raises:
            InvalidRecordError: the version is unknown, the bytes end early, or a field is null that must not be null.
        """
        reader = SchemaReader(data, self.name)
        version = reader.version()
        layout_version = self.versions[-1] if self._later_as_last and version > self.versions[-1] else version
        return self._plan(self._form(layout_version)).read(reader), version

    def encode(self, value: T, version: int) -> bytes:
        """Return the version number and the bytes of a structure, without fields that the version does not have.

        Raises:
            InvalidRecordError: the version is unknown, or a number or text does not fit its field.
        """
        form = self._form(version)
        try:
            return schema.VERSION_NUMBER.pack(version) + self._plan(form).write(value)
        except (struct.error, UnicodeEncodeError) as error:
            raise InvalidRecordError(f"{self.name} cannot be written: {error}") from error

    def _form(self, version: int) -> Form:
        if version not in self.versions:
            raise InvalidRecordError(f"{self.name} has the unknown version {version}")
        return Form(version, version >= self._flexible_from)
