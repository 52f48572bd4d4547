"""Control records, which a transaction coordinator or a KRaft quorum writes into a partition.

Source: apache/kafka ControlRecordType, EndTransactionMarker, ControlRecordUtils; the schemas LeaderChangeMessage,
SnapshotHeaderRecord, SnapshotFooterRecord, KRaftVersionRecord, VotersRecord.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import ClassVar, Final, TypeAlias

from stratalog.errors import InvalidRecordError
from stratalog.model.messages.schema import NO_TAGS, SchemaReader, array, int16, int32, int64, string, uint16

_KEY: Final = Struct(">hh")
_END_MARKER: Final = Struct(">hi")
_LEADER_CHANGE_VERSIONS: Final = 2
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

    def value(self) -> bytes:
        """Return the encoded value of the record, in version 0 of its schema."""
        return _END_MARKER.pack(0, self.coordinator_epoch)


@dataclass(frozen=True, slots=True)
class QuorumVoter:
    """A voter in a ``LeaderChange``; version 0 does not store ``directory_id``."""

    voter_id: int
    directory_id: uuid.UUID = NO_DIRECTORY

    def encoded(self, version: int) -> bytes:
        """Return the encoded voter, as an element of the arrays of a ``LeaderChange`` of this version."""
        return int32(self.voter_id) + (self.directory_id.bytes if version else b"") + NO_TAGS


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """A new leader of a quorum, all voters, and the voters that voted for the leader (``granting_voters``)."""

    kind: ClassVar[ControlType] = ControlType.LEADER_CHANGE

    leader_id: int
    voters: tuple[QuorumVoter, ...] = ()
    granting_voters: tuple[QuorumVoter, ...] = ()
    version: int = 0

    def value(self) -> bytes:
        """Return the encoded value of the record, in version ``self.version`` of its schema."""
        lists = b"".join(
            array(voter.encoded(self.version) for voter in voters) for voters in (self.voters, self.granting_voters)
        )
        return int16(self.version) + int32(self.leader_id) + lists + NO_TAGS


@dataclass(frozen=True, slots=True)
class SnapshotHeader:
    """The start of a quorum's snapshot, with the timestamp (ms since 1970) of the newest batch in the snapshot."""

    kind: ClassVar[ControlType] = ControlType.SNAPSHOT_HEADER

    last_contained_log_timestamp_ms: int

    def value(self) -> bytes:
        """Return the encoded value of the record, in version 0 of its schema."""
        return int16(0) + int64(self.last_contained_log_timestamp_ms) + NO_TAGS


@dataclass(frozen=True, slots=True)
class SnapshotFooter:
    """The end of a quorum's snapshot."""

    kind: ClassVar[ControlType] = ControlType.SNAPSHOT_FOOTER

    def value(self) -> bytes:
        """Return the encoded value of the record, in version 0 of its schema."""
        return int16(0) + NO_TAGS


@dataclass(frozen=True, slots=True)
class KraftVersion:
    """The version of the quorum's protocol."""

    kind: ClassVar[ControlType] = ControlType.KRAFT_VERSION

    kraft_version: int

    def value(self) -> bytes:
        """Return the encoded value of the record, in version 0 of its schema."""
        return int16(0) + int16(self.kraft_version) + NO_TAGS


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The name and address of a voter's listener."""

    name: str
    host: str
    port: int

    def encoded(self) -> bytes:
        """Return the encoded endpoint, as an element of the endpoints of a ``KraftVoter``."""
        return string(self.name) + string(self.host) + uint16(self.port) + NO_TAGS


@dataclass(frozen=True, slots=True)
class KraftVoter:
    """A voter with its endpoints and the range of protocol versions that it supports, both ends inclusive."""

    voter_id: int
    directory_id: uuid.UUID
    endpoints: tuple[Endpoint, ...]
    min_version: int
    max_version: int

    def encoded(self) -> bytes:
        """Return the encoded voter, as an element of the voters of a ``KraftVoters``."""
        listed = array(endpoint.encoded() for endpoint in self.endpoints)
        versions = int16(self.min_version) + int16(self.max_version) + NO_TAGS
        return int32(self.voter_id) + self.directory_id.bytes + listed + versions + NO_TAGS


@dataclass(frozen=True, slots=True)
class KraftVoters:
    """The quorum's set of voters."""

    kind: ClassVar[ControlType] = ControlType.KRAFT_VOTERS

    voters: tuple[KraftVoter, ...]

    def value(self) -> bytes:
        """Return the encoded value of the record, in version 0 of its schema."""
        return int16(0) + array(voter.encoded() for voter in self.voters) + NO_TAGS


ControlRecord: TypeAlias = EndMarker | LeaderChange | SnapshotHeader | SnapshotFooter | KraftVersion | KraftVoters


def control_key(kind: ControlType) -> bytes:
    """Return the encoded key of a control record, in version 0 of its schema."""
    return _KEY.pack(0, kind)


def parse_control(key: bytes | None, value: bytes | None) -> ControlRecord | None:
    """Return the control record with this key and value; None if the type is unknown, because readers skip it.

    As in Kafka, a key or end marker of any later version is read as version 0.

    Raises:
        InvalidRecordError: the key or the value is null or too short, or its version is negative; a value other than
            an end marker has an unknown version, or null where null is not allowed.
    """
    if key is None or len(key) < _KEY.size:
        raise InvalidRecordError(f"the key of a control record has {len(key or b'')} bytes, {_KEY.size} are needed")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise InvalidRecordError(f"the key of a control record has the unknown version {version}")
    if number not in _PARSERS:
        return None
    kind = ControlType(number)
    if value is None:
        raise InvalidRecordError(f"the value of a control record is null kind={kind.name}")
    return _PARSERS[kind](value, kind)


def _end_marker(value: bytes, kind: ControlType) -> EndMarker:
    if len(value) < _END_MARKER.size:
        raise InvalidRecordError(f"an end marker has {len(value)} bytes, {_END_MARKER.size} are needed")
    version, epoch = _END_MARKER.unpack_from(value)
    if version < 0:
        raise InvalidRecordError(f"an end marker has the unknown version {version}")
    return EndMarker(kind, epoch)


def _leader_change(value: bytes, kind: ControlType) -> LeaderChange:
    reader = SchemaReader(value, kind.name)
    version = _version(reader, kind, _LEADER_CHANGE_VERSIONS)

    def voter() -> QuorumVoter:
        found = QuorumVoter(reader.int32(), reader.uuid() if version else NO_DIRECTORY)
        reader.tags()
        return found

    found = LeaderChange(reader.int32(), reader.array(voter), reader.array(voter), version)
    reader.tags()
    return found


def _snapshot_header(value: bytes, kind: ControlType) -> SnapshotHeader:
    reader = SchemaReader(value, kind.name)
    _version(reader, kind)
    found = SnapshotHeader(reader.int64())
    reader.tags()
    return found


def _snapshot_footer(value: bytes, kind: ControlType) -> SnapshotFooter:
    reader = SchemaReader(value, kind.name)
    _version(reader, kind)
    reader.tags()
    return SnapshotFooter()


def _kraft_version(value: bytes, kind: ControlType) -> KraftVersion:
    reader = SchemaReader(value, kind.name)
    _version(reader, kind)
    found = KraftVersion(reader.int16())
    reader.tags()
    return found


def _kraft_voters(value: bytes, kind: ControlType) -> KraftVoters:
    reader = SchemaReader(value, kind.name)
    _version(reader, kind)

    def endpoint() -> Endpoint:
        found = Endpoint(reader.string(), reader.string(), reader.uint16())
        reader.tags()
        return found

    def voter() -> KraftVoter:
        voter_id, directory_id, endpoints = reader.int32(), reader.uuid(), reader.array(endpoint)
        found = KraftVoter(voter_id, directory_id, endpoints, reader.int16(), reader.int16())
        reader.tags()  # tags of the range of versions
        reader.tags()
        return found

    found = KraftVoters(reader.array(voter))
    reader.tags()
    return found


def _version(reader: SchemaReader, kind: ControlType, known: int = 1) -> int:
    """Return the version at the start of a value; raise InvalidRecordError unless it is in [0, known)."""
    version = reader.int16()
    if not 0 <= version < known:
        raise InvalidRecordError(f"{kind.name} has the unknown version {version}")
    return version


_PARSERS: Final[dict[int, Callable[[bytes, ControlType], ControlRecord]]] = {
    ControlType.ABORT: _end_marker,
    ControlType.COMMIT: _end_marker,
    ControlType.LEADER_CHANGE: _leader_change,
    ControlType.SNAPSHOT_HEADER: _snapshot_header,
    ControlType.SNAPSHOT_FOOTER: _snapshot_footer,
    ControlType.KRAFT_VERSION: _kraft_version,
    ControlType.KRAFT_VOTERS: _kraft_voters,
}
