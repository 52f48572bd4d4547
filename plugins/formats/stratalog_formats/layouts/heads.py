"""Metadata of encrypted objects. It is in the manifest entry of the segment, and in a head at the end of each object.

::

    encrypted chunks | head: JSON, ASCII | head size: 8 bytes, big-endian | magic: 8 bytes

Readers need only the manifest entry. Heads are needed only if a bucket has lost its manifests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from stratalog.errors import CorruptObjectError
from stratalog.spi import FileKind, ObjectInfo, ObjectSlice, RangeReader, StoredSegment
from stratalog_formats.layouts.pieces import read_trailed, with_trailer
from stratalog_formats.layouts.sealed import FIRST_VERSION, VERSION, Envelope, Identity, stored_bytes, stored_range
from stratalog_formats.layouts.sections import MAX_CHUNK_BYTES

NOTES: Final = "encrypted"  # key in ``extra``
MAGIC: Final = b"STLGENC1"  # stored in objects: never change it
MAX_HEAD_BYTES: Final = 16 << 10


class StoredObject(NamedTuple):
    """Number of an object in its segment, and its size in bytes before encryption."""

    number: int
    size_bytes: int


# --- the entry ---------------------------------------------------------------------------------------------------


def wrap_entry(
    inner: StoredSegment, objects: Mapping[str, StoredObject], envelope: Envelope, chunk_bytes: int
) -> StoredSegment:
    """Return the manifest entry of an encrypted segment. Its attribute ``layout`` is "".

    Args:
        inner: manifest entry of the inner layout. Its label is set.
        objects: number and unencrypted size of each object of the segment, by the object's key.
        envelope: the segment's encryption key, in encrypted form.
        chunk_bytes: number of bytes that are encrypted together.
    """
    notes = {
        "chunk_bytes": chunk_bytes,
        "envelope": _envelope_json(envelope),
        "inner": {name: inner.to_json()[name] for name in ("layout", "slices", "requires", "extra")},
        "objects": {key: list(stored_object) for key, stored_object in objects.items()},
    }
    extra: dict[str, object] = {NOTES: notes}
    other_keys = sorted(inner.keys - {place.key for place in inner.slices.values()})
    if other_keys:
        extra["objects"] = other_keys
    slices = {kind: _stored_slice(place, objects[place.key], chunk_bytes) for kind, place in inner.slices.items()}
    return replace(inner, layout="", slices=slices, requires=(inner.layout, *inner.requires), extra=extra)


def _stored_slice(place: ObjectSlice, stored_object: StoredObject, chunk_bytes: int) -> ObjectSlice:
    start, end = stored_range(place.position, place.position + place.size_bytes, stored_object.size_bytes, chunk_bytes)
    return ObjectSlice(place.key, start, end - start)


class Notes:
    """Metadata of an encrypted segment, parsed from its manifest entry and checked.

    Attributes:
        inner: the segment's manifest entry in the inner layout.
        inner_label: label of the inner layout.
        envelope, chunk_bytes, objects: see the arguments of ``wrap_entry``.
        file: key of an object of the segment, for error messages.

    Raises:
        CorruptObjectError: a field is missing or invalid.
    """

    def __init__(self, segment: StoredSegment) -> None:
        self.file = next((place.key for kind, place in segment.slices.items() if kind is FileKind.LOG), "manifest")
        notes = _fields(segment.extra.get(NOTES), {"chunk_bytes", "envelope", "inner", "objects"}, self.file)
        inner = _fields(notes["inner"], {"layout", "slices", "requires", "extra"}, self.file)
        self.inner = StoredSegment.from_json({**segment.to_json(), **inner}, self.file)
        if set(self.inner.slices) != set(segment.slices):
            raise CorruptObjectError("the entry lists other files than the encrypted ones", self.file)
        self.inner_label = self.inner.layout
        self.envelope = _envelope(notes["envelope"], self.file)
        self.chunk_bytes = _integer(notes["chunk_bytes"], self.file, at_least=1, at_most=MAX_CHUNK_BYTES)
        objects = notes["objects"]
        if not isinstance(objects, Mapping):
            raise CorruptObjectError("the entry does not list its encrypted objects", self.file)
        self.objects = {key: _object(value, self.file) for key, value in objects.items()}


def _object(value: object, file: str) -> StoredObject:
    if not isinstance(value, list) or len(value) != len(StoredObject._fields):
        raise CorruptObjectError("an encrypted object must have a number and a size", file)
    return StoredObject(_integer(value[0], file, at_most=(1 << 32) - 1), _integer(value[1], file))


# --- heads -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Head:
    """Head (metadata at the end) of an encrypted object.

    ``key`` is the key of the object; "" for an object outside of its tier, such as a copied file. ``name`` is the last
    part of the key under which the object was stored. ``inner_label`` is the label of the inner layout.
    """

    key: str
    name: str
    inner_label: str
    identity: Identity
    envelope: Envelope
    chunk_bytes: int
    number: int
    size_bytes: int


def object_name(key: str) -> str:
    """Return the part of a key after the last slash: base offset, epoch and upload id, which are unique in the log."""
    return key.rpartition("/")[2]


def encode_head(
    inner_label: str, identity: Identity, envelope: Envelope, chunk_bytes: int, stored_object: StoredObject, name: str
) -> bytes:
    """Return the bytes after the encrypted chunks of an object: the head, the head's size and the magic."""
    fields = {
        "chunk_bytes": chunk_bytes,
        "envelope": _envelope_json(envelope),
        "format": identity.version,
        "identity": identity.text.decode("ascii"),
        "name": name,
        "number": stored_object.number,
        "over": inner_label,
        "size_bytes": stored_object.size_bytes,
    }
    text = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("ascii")
    return with_trailer(text, MAGIC)


def read_head(info: ObjectInfo, fetch: RangeReader) -> Head | None:
    """Return the head of an object, fetched in at most two requests; None if the object is not encrypted.

    Raises:
        CorruptObjectError: the object has the magic but no valid head, or is shorter than the size in ``info``.
    """
    trailed = read_trailed("head", MAGIC, MAX_HEAD_BYTES, info.key, info.size_bytes, fetch)
    return None if trailed is None else _head(trailed[0], info.key, trailed[1])


def _head(value: object, key: str, start: int) -> Head:
    names = {"chunk_bytes", "envelope", "format", "identity", "number", "over", "size_bytes"}
    version = value.get("format") if isinstance(value, Mapping) else None
    if version == VERSION:
        names.add("name")
    fields = _fields(value, names, key)
    inner_label, identity, name = fields["over"], fields["identity"], fields.get("name", object_name(key))
    has_known_types = isinstance(inner_label, str) and isinstance(identity, str) and isinstance(name, str)
    if not isinstance(version, int) or version not in (FIRST_VERSION, VERSION) or not has_known_types:
        raise CorruptObjectError("the head has an unknown format", key, start)
    if key and name != object_name(key):
        raise CorruptObjectError(f"the object was stored under another name, {name:.128}", key, start)
    head = Head(
        key=key,
        name=name,
        inner_label=inner_label,
        identity=Identity(version, identity.encode()),
        envelope=_envelope(fields["envelope"], key),
        chunk_bytes=_integer(fields["chunk_bytes"], key, at_least=1, at_most=MAX_CHUNK_BYTES),
        number=_integer(fields["number"], key, at_most=(1 << 32) - 1),
        size_bytes=_integer(fields["size_bytes"], key),
    )
    if stored_bytes(head.size_bytes, head.chunk_bytes) != start:
        raise CorruptObjectError("the head does not describe this object", key, start)
    return head


# --- fields ------------------------------------------------------------------------------------------------------


def _envelope_json(envelope: Envelope) -> dict[str, str]:
    return {"key": envelope.key_id, "wrapped": envelope.wrapped}


def _envelope(value: object, file: str) -> Envelope:
    fields = _fields(value, {"key", "wrapped"}, file)
    key_id, wrapped_key = fields["key"], fields["wrapped"]
    if not isinstance(key_id, str) or not isinstance(wrapped_key, str):
        raise CorruptObjectError("the encrypted data key is damaged", file)
    return Envelope(key_id, wrapped_key)


def _fields(value: object, names: set[str], file: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or set(value) != names:
        raise CorruptObjectError(f"the description of the encryption must have the fields {sorted(names)}", file)
    return value


def _integer(value: object, file: str, *, at_least: int = 0, at_most: int = (1 << 63) - 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not at_least <= value <= at_most:
        raise CorruptObjectError(f"the description of the encryption is out of bounds: {value!r:.32}", file)
    return value
