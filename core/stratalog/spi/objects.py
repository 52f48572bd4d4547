"""Object stores: whole, immutable objects under keys.

Deadlines are moments of the monotonic clock in nanoseconds (``Env.clock.monotonic_ns``). A store makes one try a
call; retrying, budgets and verification are the core's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, Flag, auto
from typing import NoReturn, Protocol

from stratalog.env.closing import Closeable
from stratalog.errors import StoreError
from stratalog.model.batches import Buffer


class Capability(Flag):
    """What a store can do beyond the minimum. Declared here, and probed by the core before it trusts CREATE.

    CREATE: ``create`` is atomic, one of several racers wins. LIST_AFTER: ``list(after=)`` is done by the store.
    BATCH_DELETE: ``delete`` takes many keys in one request. CHECKSUM: uploads carry a checksum the store verifies.
    NEAR: objects are files of this system, which keeps what was read and charges nothing for a read: what
    ``is_at_hand`` is neither read ahead nor kept in memory above it.
    """

    NONE = 0
    CREATE = auto()
    LIST_AFTER = auto()
    BATCH_DELETE = auto()
    CHECKSUM = auto()
    NEAR = auto()


class Created(Enum):
    """How a create-only-if-absent ended. UNKNOWN: the reply was lost; read back to find out."""

    CREATED = "created"
    EXISTS = "exists"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object. ``etag`` is "" where the store has none; ``modified_ms`` is 0 where it tells no time."""

    key: str
    size_bytes: int
    etag: str = ""
    modified_ms: int = 0


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """An upload that was begun and neither ended nor aborted; ``upload_id`` is the store's own name of it.

    ``begun_ms`` is 0 where the store tells no time.
    """

    key: str
    upload_id: str
    begun_ms: int = 0


class ByteSource(Protocol):
    """Bytes to upload, readable again and again: a retry reads them from the start."""

    @property
    def size_bytes(self) -> int:
        """How many there are."""

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        """All bytes from the start, in pieces of at most ``chunk_bytes``."""


class BytesSource:
    """Bytes in memory, to upload."""

    def __init__(self, data: Buffer) -> None:
        self._data = memoryview(data)

    @property
    def size_bytes(self) -> int:
        """How many there are."""
        return len(self._data)

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        """All bytes from the start, in pieces of at most ``chunk_bytes``."""
        for start in range(0, len(self._data), chunk_bytes):
            yield self._data[start : start + chunk_bytes]


class ObjectStore(Closeable):
    """Keys are relative to the store's URI and use ``/``. A context manager; thread-safe."""

    @property
    @abstractmethod
    def capabilities(self) -> Capability:
        """What it declares."""

    @property
    @abstractmethod
    def uri(self) -> str:
        """Where it is, without secrets, for error texts."""

    @abstractmethod
    def put_file(self, key: str, source: ByteSource, *, deadline_ns: int) -> ObjectInfo:
        """Upload in pieces; the object is visible whole or not at all, also when this raises."""

    @abstractmethod
    def create(self, key: str, data: Buffer, *, deadline_ns: int) -> Created:
        """Write a small object only if the key is free. Atomic if CREATE is declared.

        Raises StoreError only when it is certain that nothing was written; a lost reply is UNKNOWN.
        """

    @abstractmethod
    def read(self, key: str, start: int | None = None, end: int | None = None, *, deadline_ns: int) -> bytes:
        """Bytes [start, end) of an object, in exactly one request; None is the start or the end of the object.

        Fewer bytes come back only if the object ends before ``end``.

        Raises:
            ObjectNotFoundError: no such object.
        """

    @abstractmethod
    def list(self, prefix: str, *, after: str = "", limit: int = 1000, deadline_ns: int) -> Sequence[ObjectInfo]:
        """Up to ``limit`` objects whose key starts with ``prefix`` and is above ``after``.

        Ascending by the key's bytes, strongly consistent. Fewer than ``limit`` means that there are no more.
        """

    @abstractmethod
    def delete(self, keys: Sequence[str], *, deadline_ns: int) -> Mapping[str, StoreError]:
        """Delete objects; a missing one is success. Returns what went wrong, by key."""

    def unfinished(self, prefix: str, *, deadline_ns: int) -> Sequence[UnfinishedUpload]:
        """Uploads under keys with this prefix of which parts are stored, and paid for, but no object is visible.

        Those under way are among them. Empty where a store keeps no such parts, or clears them away by itself.
        """
        del prefix, deadline_ns
        return ()

    def abort(self, upload: UnfinishedUpload, *, deadline_ns: int) -> None:
        """Delete the parts of an upload that ``unfinished`` told of; it can not end any more. One that is gone is fine."""
        del upload, deadline_ns

    def is_at_hand(self, key: str, start: int, end: int) -> bool:
        """Whether the system has bytes [start, end) in memory, as far as a look that waits for nothing can tell.

        Only asked of stores that are NEAR. Never raises.
        """
        del key, start, end
        return False

    def read_at_hand(self, key: str, start: int, into: memoryview) -> bool:
        """Fill ``into`` with the bytes of an object from ``start`` on, if the system has them in memory.

        Returns:
            False if it has not, or if that cannot be told: ``into`` may then hold anything.

        Only asked of stores that are NEAR. Never raises.
        """
        del key, start, into
        return False

    def sent(self) -> Mapping[str, int]:
        """Requests sent since it was opened, by the store's own names of them; empty if each call is one request.

        What a call costs is not always one request: an upload in parts is many. Retries of a library below that a store
        cannot see are not counted.
        """
        return {}

    @abstractmethod
    def close(self) -> None:
        """Let go of connections. Twice is fine."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("an object store stays in its process: ship its URI and options, and open it there")
