"""The primitives of Kafka's schema-based structures: numbers, UUIDs and tagged fields.

Source: apache/kafka ByteBufferAccessor, RawTaggedFieldReader; KIP-482.
"""

from __future__ import annotations

import uuid
from struct import Struct
from typing import Final

from stratalog.errors import InvalidRecordError

_INT8: Final = Struct(">b")
_INT16: Final = Struct(">h")
_UINT16: Final = Struct(">H")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")
_UUID_BYTES: Final = 16
_LAST_SHIFT: Final = 28  # an unsigned varint has at most five bytes


class SchemaReader:
    """A cursor over the bytes of one structure. Each method reads one value and moves the cursor after this value.

    Every method raises InvalidRecordError if the bytes end inside the value. A wrong count of elements does not make
    the reader allocate memory.

    Args:
        data: the structure; bytes after it are ignored.
        name: name of the structure, for errors.
    """

    def __init__(self, data: bytes, name: str) -> None:
        self.name = name
        self._data, self._at = data, 0

    def int8(self) -> int:
        """Read a signed integer of 1 byte; raise InvalidRecordError if the bytes end inside it."""
        return self._number(_INT8)

    def int16(self) -> int:
        """Read a signed integer of 2 bytes; raise InvalidRecordError if the bytes end inside it."""
        return self._number(_INT16)

    def uint16(self) -> int:
        """Read an unsigned integer of 2 bytes; raise InvalidRecordError if the bytes end inside it."""
        return self._number(_UINT16)

    def int32(self) -> int:
        """Read a signed integer of 4 bytes; raise InvalidRecordError if the bytes end inside it."""
        return self._number(_INT32)

    def int64(self) -> int:
        """Read a signed integer of 8 bytes; raise InvalidRecordError if the bytes end inside it."""
        return self._number(_INT64)

    def uuid(self) -> uuid.UUID:
        """Read a UUID of 16 bytes; raise InvalidRecordError if the bytes end inside it."""
        return uuid.UUID(bytes=self.take(_UUID_BYTES))

    def uvarint(self) -> int:
        """Read an unsigned varint of 32 bits; as in Kafka, higher bits are dropped.

        Raise InvalidRecordError if the bytes end inside the varint, or if it is longer than five bytes.
        """
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value & 0xFFFF_FFFF
            if shift == _LAST_SHIFT:
                raise InvalidRecordError(f"{self.name}: a varint is longer than five bytes")
            shift += 7

    def tags(self) -> dict[int, bytes]:
        """Read the tagged fields at the end of a structure, and return their bytes by tag number."""
        found: dict[int, bytes] = {}
        for _ in range(self.uvarint()):
            tag, size = self.uvarint(), self.uvarint()
            found[tag] = self.take(size)
        return found

    def take(self, size: int) -> bytes:
        """Read ``size`` bytes; raise InvalidRecordError if there are fewer."""
        end = self._at + size
        if end > len(self._data):
            raise InvalidRecordError(f"{self.name} ends after {len(self._data)} bytes, inside its fields")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def _number(self, form: Struct) -> int:
        return int(form.unpack(self.take(form.size))[0])


def int8(value: int) -> bytes:
    """Encode a signed integer of 1 byte; raise ``struct.error`` if ``value`` does not fit."""
    return _INT8.pack(value)


def int16(value: int) -> bytes:
    """Encode a signed integer of 2 bytes; raise ``struct.error`` if ``value`` does not fit."""
    return _INT16.pack(value)


def uint16(value: int) -> bytes:
    """Encode an unsigned integer of 2 bytes; raise ``struct.error`` if ``value`` does not fit."""
    return _UINT16.pack(value)


def int32(value: int) -> bytes:
    """Encode a signed integer of 4 bytes; raise ``struct.error`` if ``value`` does not fit."""
    return _INT32.pack(value)


def int64(value: int) -> bytes:
    """Encode a signed integer of 8 bytes; raise ``struct.error`` if ``value`` does not fit."""
    return _INT64.pack(value)


def uvarint(value: int) -> bytes:
    """Encode an unsigned varint of up to 32 bits, in as few bytes as possible."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
