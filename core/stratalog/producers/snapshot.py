"""Producer snapshots, ``<offset>.snapshot``: the state of all producers below an offset.

Source: apache/kafka ProducerStateManager (version 1).
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from stratalog.errors import CorruptSnapshotError

VERSION: Final = 1
_HEAD: Final = Struct(">hIi")
_ENTRY: Final = Struct(">qhiqiqiq")
_CHECKED_FROM: Final = 6


class ProducerEntry(NamedTuple):
    """One producer in a snapshot. -1 means "none"; ``offset_delta`` is the last minus the first offset of a batch."""

    producer_id: int
    producer_epoch: int = -1
    last_sequence: int = -1
    last_offset: int = -1
    offset_delta: int = 0
    last_timestamp_ms: int = -1
    coordinator_epoch: int = -1
    transaction_first_offset: int = -1


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """Return the bytes of a snapshot file with these entries."""
    body = b"".join(_ENTRY.pack(*entry) for entry in entries)
    count = (len(body) // _ENTRY.size).to_bytes(4, "big")
    return VERSION.to_bytes(2, "big") + crc32c(count + body).to_bytes(4, "big") + count + body


def decode_snapshot(data: bytes, file: str) -> list[ProducerEntry]:
    """Return the entries of a snapshot file. ``file`` is its path, for errors.

    Raises:
        CorruptSnapshotError: the version is unknown, the size does not fit the count, or the CRC is wrong.
    """
    if len(data) < _HEAD.size:
        raise CorruptSnapshotError(
            f"a snapshot has at least {_HEAD.size} bytes, this file has {len(data)}", file, len(data)
        )
    version, crc, count = _HEAD.unpack_from(data)
    if version != VERSION:
        raise CorruptSnapshotError(f"snapshot version {version} is unknown", file, 0).advised(
            "install the release that wrote the file"
        )
    if count < 0 or len(data) != _HEAD.size + count * _ENTRY.size:
        raise CorruptSnapshotError(f"{len(data)} bytes do not fit {count} entries", file, _CHECKED_FROM)
    if crc32c(data[_CHECKED_FROM:]) != crc:
        raise CorruptSnapshotError("the CRC does not match", file, 2)
    return [ProducerEntry(*fields) for fields in _ENTRY.iter_unpack(data[_HEAD.size :])]
