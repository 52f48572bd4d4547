"""Control records, which a transaction coordinator or a KRaft quorum writes into a partition.

Source: apache/kafka ControlRecordType, EndTransactionMarker, ControlRecordUtils; the schemas LeaderChangeMessage,
SnapshotHeaderRecord, SnapshotFooterRecord, KRaftVersionRecord, VotersRecord.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Any, ClassVar, Final, TypeAlias

from stratalog.errors import InvalidRecordError
from stratalog.model.messages.structures import (
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    UUID,
    VERSION,
    Schema,
    array_of,
    nested,
    stored,
    structure,
    with_tags,
)

_KEY: Final = Struct(">hh")
_END_MARKER: Final = Struct(">hi")
NO_DIRECTORY: Final = uuid.UUID(int=0)


class ControlType(IntEnum):
    """Kinds of control records. Kafka defines the numbers, and records contain them: never change them."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


@dataclass(frozen=True, slots=True)
class EndMarker:
    """The marker at the end of a producer's transaction; ``kind`` is ABORT or COMMIT."""

    kind: ControlType
    coordinator_epoch: int


@structure
class QuorumVoter:
    """A voter in a ``LeaderChange``; version 0 does not store ``directory_id``."""

    voter_id: int = stored(INT32)
    directory_id: uuid.UUID = stored(UUID, since=1, default=NO_DIRECTORY)


@structure
class LeaderChange:
    """A new leader of a quorum, all voters, and the voters that voted for the leader (``granting_voters``)."""

    kind: ClassVar[ControlType] = ControlType.LEADER_CHANGE

    leader_id: int = stored(INT32)
    voters: tuple[QuorumVoter, ...] = stored(array_of(nested(QuorumVoter)), default=())
    granting_voters: tuple[QuorumVoter, ...] = stored(array_of(nested(QuorumVoter)), default=())
    version: int = stored(VERSION, default=0)


@structure
class SnapshotHeader:
    """The start of a quorum's snapshot, with the timestamp (ms since 1970) of the newest batch in the snapshot."""

    kind: ClassVar[ControlType] = ControlType.SNAPSHOT_HEADER

    last_contained_log_timestamp_ms: int = stored(INT64)


@structure
class SnapshotFooter:
    """The end of a quorum's snapshot."""

    kind: ClassVar[ControlType] = ControlType.SNAPSHOT_FOOTER


@structure
class KraftVersion:
    """The version of the quorum's protocol."""

    kind: ClassVar[ControlType] = ControlType.KRAFT_VERSION

    kraft_version: int = stored(INT16)


@structure
class Endpoint:
    """The name and address of a voter's listener."""

    name: str = stored(STRING)
    host: str = stored(STRING)
    port: int = stored(UINT16)


@structure
class KraftVoter:
    """A voter with its endpoints and the range of protocol versions that it supports, both ends inclusive.

    In Kafka's schema, the range is a nested structure, which ends with ``max_version``.
    """

    voter_id: int = stored(INT32)
    directory_id: uuid.UUID = stored(UUID)
    endpoints: tuple[Endpoint, ...] = stored(array_of(nested(Endpoint)))
    min_version: int = stored(INT16)
    max_version: int = stored(with_tags(INT16))


@structure
class KraftVoters:
    """The quorum's set of voters."""

    kind: ClassVar[ControlType] = ControlType.KRAFT_VOTERS

    voters: tuple[KraftVoter, ...] = stored(array_of(nested(KraftVoter)))


QuorumRecord: TypeAlias = LeaderChange | SnapshotHeader | SnapshotFooter | KraftVersion | KraftVoters
ControlRecord: TypeAlias = EndMarker | QuorumRecord

_TYPES: Final = frozenset(ControlType)
_SCHEMAS: Final[dict[ControlType, Schema[Any]]] = {  # Any: the schemas of five classes
    declared.kind: Schema[Any](declared, declared.kind.name, range(known), 0)
    for declared, known in (
        (LeaderChange, 2),
        (SnapshotHeader, 1),
        (SnapshotFooter, 1),
        (KraftVersion, 1),
        (KraftVoters, 1),
    )
}


def control_key(kind: ControlType) -> bytes:
    """Return the encoded key of a control record, in version 0 of its schema."""
    return _KEY.pack(0, kind)


def control_value(record: ControlRecord) -> bytes:
    """Return the encoded value of a control record, in version 0 of its schema unless the record has a version."""
    if isinstance(record, EndMarker):
        return _END_MARKER.pack(0, record.coordinator_epoch)
    version = record.version if isinstance(record, LeaderChange) else 0
    return _SCHEMAS[record.kind].encode(record, version)


def parse_control(key: bytes | None, value: bytes | None) -> ControlRecord | None:
    """Return the control record with this key and value; None if the type is unknown, because readers skip it.

    As in Kafka, a key or end marker of any later version is read as version 0.

    Raises:
        InvalidRecordError: the key or the value is null or too short, or its version is negative. Or a value that is
            not an end marker has an unknown version, or a null field that must not be null.
    """
    if key is None or len(key) < _KEY.size:
        raise InvalidRecordError(f"the key of a control record has {len(key or b'')} bytes, {_KEY.size} are needed")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise InvalidRecordError(f"the key of a control record has the unknown version {version}")
    if number not in _TYPES:
        return None
    kind = ControlType(number)
    if value is None:
        raise InvalidRecordError(f"the value of a control record is null (kind={kind.name})")
    if kind in _SCHEMAS:
        record: QuorumRecord = _SCHEMAS[kind].parse(value)[0]
        return record
    return _end_marker(value, kind)


def _end_marker(value: bytes, kind: ControlType) -> EndMarker:
    if len(value) < _END_MARKER.size:
        raise InvalidRecordError(f"an end marker has {len(value)} bytes, {_END_MARKER.size} are needed")
    version, epoch = _END_MARKER.unpack_from(value)
    if version < 0:
        raise InvalidRecordError(f"an end marker has the unknown version {version}")
    return EndMarker(kind, epoch)
