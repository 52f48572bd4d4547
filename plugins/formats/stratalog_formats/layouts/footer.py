"""The footer of a segment object: a copy of the manifest entry, from which a lost manifest can be rebuilt.

::

    ... the files of the segment ... | footer: JSON, ASCII | footer size: 8 bytes, big-endian | magic: 8 bytes

The JSON is ``{"entry": ..., "format": 1, "sha256": ...}``: the entry in the form of ``StoredSegment.to_json``, and the
hash of the entry's canonical bytes (sorted keys, no spaces), which detects damage.
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Final, NoReturn

from stratalog.errors import CorruptObjectError, StorageError
from stratalog.spi import StoredSegment

MAGIC: Final = b"STLGSEG1"  # stored in objects: never change it
FORMAT: Final = 1  # stored in objects; readers refuse a greater number
MAX_FOOTER_BYTES: Final = 16 << 20
TRAILER_BYTES: Final = 16
_TRAILER: Final = struct.Struct(">Q8s")


def encode_footer(segment: StoredSegment) -> bytes:
    """Return the footer with the manifest entry ``segment``, and the trailer: the footer's size and the magic.

    The size of the result does not depend on the value of the hash ``segment.sha256``.

    Raises:
        StorageError: the footer would be larger than 16 MiB, which readers refuse.
    """
    entry = segment.to_json()
    footer = _canonical({"entry": entry, "format": FORMAT, "sha256": _hash(entry)})
    if len(footer) > MAX_FOOTER_BYTES:
        raise StorageError(f"the footer would have {len(footer)} bytes, above the limit of {MAX_FOOTER_BYTES}")
    return footer + _TRAILER.pack(len(footer), MAGIC)


def footer_start(trailer: bytes, file: str, size_bytes: int) -> int | None:
    """Return the footer's position in an object of ``size_bytes`` bytes; None if the object has no footer.

    ``trailer`` contains the last 16 bytes of the object.

    Raises:
        CorruptObjectError: the size in the trailer is impossible.
    """
    footer_bytes, magic = _TRAILER.unpack(trailer)
    if magic != MAGIC:
        return None
    start: int = size_bytes - TRAILER_BYTES - footer_bytes
    if footer_bytes > MAX_FOOTER_BYTES or start < 0:
        raise CorruptObjectError(f"a footer cannot have {footer_bytes} bytes", file, size_bytes - TRAILER_BYTES)
    return start


def decode_footer(footer: bytes, file: str, position: int) -> StoredSegment:
    """Return the manifest entry in a footer.

    For errors: ``file`` is the object's key, ``position`` the footer's position.

    Raises:
        CorruptObjectError: the bytes are not a footer, are damaged, or contain no valid entry.
    """
    try:
        value = json.loads(footer.decode("ascii"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise CorruptObjectError("the footer is not valid JSON", file, position) from error
    if not isinstance(value, dict) or set(value) != {"entry", "format", "sha256"} or value["format"] != FORMAT:
        raise CorruptObjectError("the footer has an unknown format", file, position)
    try:
        genuine = value["sha256"] == _hash(value["entry"])
    except RecursionError as error:
        raise CorruptObjectError("the footer is nested too deep", file, position) from error
    if not genuine:
        raise CorruptObjectError("the footer's hash is wrong", file, position)
    return StoredSegment.from_json(value["entry"], file)


def _hash(entry: object) -> str:
    return hashlib.sha256(_canonical(entry)).hexdigest()


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not allowed as a number")
