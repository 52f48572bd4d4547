"""The primitives of Kafka's schema-based structures: numbers, varints and tagged fields.

Source: apache/kafka ByteBufferAccessor, RawTaggedFieldReader; KIP-482.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from stratalog.errors import InvalidRecordError

VERSION_NUMBER: Final = Struct(">h")  # the number before a structure
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

    def version(self) -> int:
        """Read the version number at the start of a structure."""
        return self.number(VERSION_NUMBER)

    def number(self, layout: Struct) -> int:
        """Read an integer of fixed size; ``layout`` has one field."""
        return int(layout.unpack(self.take(layout.size))[0])

    def uvarint(self) -> int:
        """Read an unsigned varint of 32 bits; as in Kafka, higher bits are dropped.

        Raise InvalidRecordError if the varint is longer than five bytes.
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
        fields: dict[int, bytes] = {}
        for _ in range(self.uvarint()):
            tag, size = self.uvarint(), self.uvarint()
            fields[tag] = self.take(size)
        return fields

    def take(self, size: int) -> bytes:
        """Read ``size`` bytes."""
        end = self._at + size
        if end > len(self._data):
            raise InvalidRecordError(f"{self.name} ends after {len(self._data)} bytes, inside its fields")
        value = self._data[self._at : end]
        self._at = end
        return value


def uvarint(value: int) -> bytes:
    """Encode an unsigned varint of up to 32 bits, in as few bytes as possible."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
