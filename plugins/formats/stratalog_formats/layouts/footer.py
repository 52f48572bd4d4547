"""The footer of a segment object: a copy of the manifest entry, from which a lost manifest can be rebuilt.

::

    ... the files of the segment ... | footer: JSON, ASCII | footer size: 8 bytes, big-endian | magic: 8 bytes

The JSON is ``{"entry": ..., "format": 1, "sha256": ...}``: the entry in the form of ``StoredSegment.to_json``, and the
hash of the entry's canonical bytes (sorted keys, no spaces), which detects damage.
"""

from __future__ import annotations

import hashlib
import json
from typing import Final

from stratalog.errors import CorruptObjectError, StorageError
from stratalog.spi import ObjectInfo, RangeReader, StoredSegment
from stratalog_formats.layouts.pieces import read_trailed, with_trailer

MAGIC: Final = b"STLGSEG1"  # stored in objects: never change it
FORMAT: Final = 1  # stored in objects; readers refuse a greater number
MAX_FOOTER_BYTES: Final = 16 << 20


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
    return with_trailer(footer, MAGIC)


def read_footer(info: ObjectInfo, fetch: RangeReader, tail_bytes: int = 0) -> tuple[StoredSegment, int] | None:
    """Return the manifest entry in an object's footer, and the footer's position. Return None if there is no footer.

    Raises:
        CorruptObjectError: the object has the magic but no valid footer, or is shorter than the size in ``info``.
    """
    trailed = read_trailed("footer", MAGIC, MAX_FOOTER_BYTES, info.key, info.size_bytes - tail_bytes, fetch)
    if trailed is None:
        return None
    value, position = trailed
    if not isinstance(value, dict) or set(value) != {"entry", "format", "sha256"} or value["format"] != FORMAT:
        raise CorruptObjectError("the footer has an unknown format", info.key, position)
    try:
        genuine = value["sha256"] == _hash(value["entry"])
    except RecursionError as error:
        raise CorruptObjectError("the footer is nested too deep", info.key, position) from error
    if not genuine:
        raise CorruptObjectError("the footer's hash is wrong", info.key, position)
    return StoredSegment.from_json(value["entry"], info.key), position


def _hash(entry: object) -> str:
    return hashlib.sha256(_canonical(entry)).hexdigest()


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
