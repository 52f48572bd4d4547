"""Primitive values of Kafka's protocol, in the encodings of flexible (KIP-482) and of older versions of messages."""

from __future__ import annotations

import struct
from typing import Final

I8: Final = struct.Struct(">b")
I16: Final = struct.Struct(">h")
I32: Final = struct.Struct(">i")
I64: Final = struct.Struct(">q")
NO_TAGS: Final = b"\0"  # the end of a message of a flexible version that has no tagged fields
_MAX_VARINT_BITS: Final = 35
_BYTES: Final = tuple(bytes((value,)) for value in range(0x80))


class MalformedRequestError(Exception):
    """A request does not fit its schema, or is not allowed now. The gateway closes the connection, as Kafka does."""


class Reader:
    """Reader of the values of a request, in their order.

    All methods raise MalformedRequestError if a value reaches past the end of the request, or is malformed.

    Args:
        data: the request.
        position: position (bytes) of the first value. The attribute ``position`` is the position of the next value.
        flexible: True if the version of the request is flexible: it has compact lengths and tagged fields.
    """

    __slots__ = ("_data", "_end", "_flexible", "position")

    def __init__(self, data: memoryview, position: int, *, flexible: bool) -> None:
        self._data, self.position, self._flexible, self._end = data, position, flexible, len(data)

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        """Return the next numbers, which have the format ``form``."""
        start = self.position
        end = start + form.size
        if end > self._end:
            raise MalformedRequestError(f"the request ends at {self._end}, inside a number at {start}")
        self.position = end
        return form.unpack_from(self._data, start)

    def number(self, form: struct.Struct) -> int:
        """Return the next number, which has the format ``form``."""
        return self.unpack(form)[0]

    def uvarint(self) -> int:
        """Return the next unsigned varint."""
        position = self.position
        if position < self._end and (value := self._data[position]) < 0x80:  # nearly all varints have one byte
            self.position = position + 1
            return value
        value = shift = 0
        while True:
            if self.position >= self._end or shift > _MAX_VARINT_BITS:
                raise MalformedRequestError(f"a length at {self.position} is not complete")
            byte = self._data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def size(self, form: struct.Struct = I32) -> int:
        """Return the size that precedes a string, bytes or an array; negative for null.

        ``form`` is the format of the size in versions that are not flexible.
        """
        return self.uvarint() - 1 if self._flexible else self.number(form)

    def count(self) -> int:
        """Return the number of elements of an array; 0 for a null array.

        If the number is above the number of remaining bytes, the request is malformed, because each element has at
        least one byte.
        """
        count = self.uvarint() - 1 if self._flexible else self.number(I32)
        if count > self._end - self.position:
            raise MalformedRequestError(f"an array of {count} elements at {self.position} is longer than the request")
        return max(count, 0)

    def raw(self, size: int) -> memoryview:
        """Return a view of the next ``size`` bytes."""
        start = self.position
        if size < 0 or size > self._end - start:
            raise MalformedRequestError(f"{size} bytes at {start} are not inside the request of {self._end} bytes")
        self.position = start + size
        return self._data[start : self.position]

    def string(self) -> str | None:
        """Return the next string; None if it is null."""
        size = self.size(I16)
        if size < 0:
            return None
        try:
            return str(self.raw(size), "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedRequestError(f"a string at {self.position} is not UTF-8") from error

    def skip_tags(self) -> None:
        """Skip the tagged fields of a flexible version. Do nothing in older versions."""
        for _ in range(self.uvarint() if self._flexible else 0):
            self.uvarint()
            self.raw(self.uvarint())


def put_uvarint(value: int) -> bytes:
    """Return ``value`` as an unsigned varint."""
    if value < 0x80:
        return _BYTES[value]
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def put_string(text: str | None, *, flexible: bool) -> bytes:
    """Return a string or null, encoded with its size."""
    if text is None:
        return b"\0" if flexible else b"\xff\xff"
    raw = text.encode()
    return (put_uvarint(len(raw) + 1) if flexible else I16.pack(len(raw))) + raw


def put_count(count: int, *, flexible: bool) -> bytes:
    """Return the encoded number of elements of an array, or the encoded size of bytes. It precedes the content."""
    return put_uvarint(count + 1) if flexible else I32.pack(count)
