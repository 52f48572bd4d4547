"""Object stores: immutable objects under keys, which are written as a whole.

A deadline is a time of the monotonic clock in nanoseconds (``Env.clock.monotonic_ns``). A store makes one attempt per
call. The core retries requests, limits the retries, and verifies results.
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
    """Abilities of a store beyond the minimum. A store declares them; the core tests CREATE before it relies on it.

    CREATE: ``create`` is atomic; of several concurrent calls, one succeeds. LIST_AFTER: the store itself evaluates the
    argument ``after`` of ``list``. BATCH_DELETE: ``delete`` sends many keys in one request. CHECKSUM: the store
    verifies a checksum of each upload. NEAR: objects are files on this machine, so the operating system caches them,
    and a read costs no request. If the reader has no disk cache, and ``is_cached`` of a NEAR store returns True for
    some bytes, the core does not prefetch or cache these bytes.
    """

    NONE = 0
    CREATE = auto()
    LIST_AFTER = auto()
    BATCH_DELETE = auto()
    CHECKSUM = auto()
    NEAR = auto()


class Created(Enum):
    """The result of ``ObjectStore.create``.

    CREATED: the object was written. EXISTS: the key existed, and its object is unchanged. UNKNOWN: the reply was lost;
    only a read of the object shows if it was written.
    """

    CREATED = "created"
    EXISTS = "exists"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object. ``etag`` is "" if the store has no ETags; ``modified_ms`` is 0 if the store returns no time."""

    key: str
    size_bytes: int
    etag: str = ""
    modified_ms: int = 0


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """An upload that was started but neither completed nor aborted.

    ``upload_id`` is the store's id of the upload. ``begun_ms`` is the time of its start, 0 if the store returns no
    time.
    """

    key: str
    upload_id: str
    begun_ms: int = 0


class ByteSource(Protocol):
    """Bytes to upload. They can be read several times, because a retry reads them from the start."""

    @property
    def size_bytes(self) -> int:
        """Total size of the bytes that ``chunks`` yields."""

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        """Yield all bytes from the start, in pieces of at most ``chunk_bytes``."""


class BytesSource:
    """A source over bytes in memory."""

    def __init__(self, data: Buffer) -> None:
        self._data = memoryview(data)

    @property
    def size_bytes(self) -> int:
        """Total size of the bytes that ``chunks`` yields."""
        return len(self._data)

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        """Yield all bytes from the start, in pieces of at most ``chunk_bytes``."""
        for start in range(0, len(self._data), chunk_bytes):
            yield self._data[start : start + chunk_bytes]


class ObjectStore(Closeable):
    """A store of objects. Thread-safe, and a context manager. Keys are relative to the store's URI and use ``/``.

    All methods that send requests raise StorageError for an invalid key, and after ``close``. ``is_cached`` and
    ``read_cached`` never raise. A key is invalid if it is empty or longer than 1,024 bytes, contains a control
    character, or if one of its parts between slashes is empty, ``.`` or ``..``. A call whose deadline has passed raises
    StoreTimeoutError and sends no request; ``delete`` may return this error for each key instead. If the store was
    opened for reading, each change raises ReadOnlyError. A store cannot be pickled.
    """

    @property
    @abstractmethod
    def capabilities(self) -> Capability:
        """The abilities that the store declares."""

    @property
    @abstractmethod
    def uri(self) -> str:
        """The store's URI without secrets, with ``://``, for error texts."""

    @abstractmethod
    def put_file(self, key: str, source: ByteSource, *, deadline_ns: int) -> ObjectInfo:
        """Upload an object, and return its key and size. An existing object is replaced.

        Readers see the object completely or not at all, even after an error. An object may be empty. If the source
        raises an error, or has more or fewer bytes than its ``size_bytes``, the call raises an error and writes no new
        object.

        With the default of ``tier.verify``, the engine reads each object back before it deletes local data, if the
        store does not come with stratalog.
        """

    @abstractmethod
    def create(self, key: str, data: Buffer, *, deadline_ns: int) -> Created:
        """Write a small object only if the key does not exist. Atomic if ``Capability.CREATE`` is declared.

        If the key exists, the result is ``Created.EXISTS``, and the object is unchanged, whichever method wrote it.
        After ``delete``, the key can be created. The call raises StoreError only if certainly nothing was written. If
        the reply was lost, the result is ``Created.UNKNOWN``.
        """

    @abstractmethod
    def read(self, key: str, start: int | None = None, end: int | None = None, *, deadline_ns: int) -> bytes:
        """Return the bytes [start, end) of an object, with one request; an empty range needs no request.

        If ``start`` is None, the range begins at the start of the object. If ``end`` is None, it ends at the object's
        end. The result is shorter only if the object ends before ``end``. It is empty if ``start`` is at or after
        ``end`` or the end of the object.

        Raises:
            ObjectNotFoundError: the object does not exist. If the range is empty, the result may be ``b""`` instead.
        """

    @abstractmethod
    def list(self, prefix: str, *, after: str = "", limit: int = 1000, deadline_ns: int) -> Sequence[ObjectInfo]:
        """Return up to ``limit`` objects whose key starts with ``prefix`` and is above ``after``, in ascending order.

        The keys are ordered by their UTF-8 bytes. ``prefix`` may be "" or end at any character: ``/`` has no special
        meaning. The result shows the effect of every earlier call. No object needs to have the key ``after``. A result
        with fewer than ``limit`` objects means that no further objects exist.
        """

    @abstractmethod
    def delete(self, keys: Sequence[str], *, deadline_ns: int) -> Mapping[str, StoreError]:
        """Delete objects, and return an error for each key that could not be deleted; {} if all were deleted.

        A missing object is not an error. ``keys`` may be empty.
        """

    def unfinished(self, prefix: str, *, deadline_ns: int) -> Sequence[UnfinishedUpload]:
        """Return the uploads to keys with this prefix that were neither completed nor aborted. Default: none.

        The parts that such an upload has stored cost money, but are not visible as an object. Uploads in progress are
        included. The result is empty if a store keeps no such parts or deletes them by itself.
        """
        del prefix, deadline_ns
        return ()

    def abort(self, upload: UnfinishedUpload, *, deadline_ns: int) -> None:
        """Delete the stored parts of an upload that ``unfinished`` returned. The upload can then no longer complete.

        If the upload no longer exists, do nothing.
        """
        del upload, deadline_ns

    def is_cached(self, key: str, start: int, end: int) -> bool:
        """Return True if the operating system has the bytes [start, end) of an object in memory. Default: False.

        The method must not wait for a disk. If the store cannot determine the result, it returns False. The method is
        called only for NEAR stores, and never raises an error.
        """
        del key, start, end
        return False

    def read_cached(self, key: str, start: int, into: memoryview) -> bool:
        """Copy a range from the page cache to ``into``, and return True; return False if not all bytes are in it.

        The range begins at ``start`` of the object and is as long as ``into``. If the store cannot determine the
        result, or the object ends inside the range, the method returns False. Then the contents of ``into`` are
        undefined. Default: False. The method is called only for NEAR stores, and never raises an error.
        """
        del key, start, into
        return False

    def sent(self) -> Mapping[str, int]:
        """Return the number of requests of each kind since the store was opened. The store names the kinds.

        The numbers never decrease. A store implements this method if one of its calls can send several requests, such
        as a multipart upload. The default result is empty, for stores whose calls send one request each. Retries inside
        a client library are not counted if the store cannot see them.
        """
        return {}

    @abstractmethod
    def close(self) -> None:
        """Close the store's connections. A second call does nothing."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an object store cannot be sent to another process: send its URI and options, and open it there"
        )
