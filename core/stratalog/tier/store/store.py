"""Access of a tier to its object store, with deadlines, retries and checks of results."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NoReturn, TypeVar

from stratalog.config.engine_settings import EngineConfig, Limits
from stratalog.env import Env
from stratalog.env.forks import ends_with_fork
from stratalog.errors import CorruptObjectError, ObjectNotFoundError, PluginError, StorageError, StoreError
from stratalog.model.batches import Buffer
from stratalog.registry.guard import Guard
from stratalog.registry.guarded_parts import guarded_part
from stratalog.spi.objects import ByteSource, Capability, Created, ObjectInfo, ObjectStore, UnfinishedUpload
from stratalog.tier.store.requests import Requests, StoreMetrics

LIST_LIMIT: Final = 1000  # keys in one page of a listing, as in S3
DELETE_LIMIT: Final = 1000  # keys in one request, as in S3
UPLOAD_STEP_BYTES: Final = 64 << 20  # for each 64 MiB, the deadline of an upload is longer by ``store.deadline.ms``
_LOGGER: Final = logging.getLogger(__name__)
_SLACK: Final = 16  # a layout may store 1/16 more than the bytes of a file, for example for authentication tags

_AUTO: Final = "auto"  # values of ``tier.verify``
_ALWAYS: Final = "always"
_NEVER: Final = "never"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ChunkSource:
    """A ByteSource whose ``chunks`` is a function."""

    size_bytes: int
    chunks: Callable[[int], Iterator[Buffer]]


class _ShortReadError(StoreError):
    """A read returned another number of bytes than requested. A broken connection can cause this error."""

    retriable: ClassVar[bool] = True


class Verification:
    """Decides by the setting ``tier.verify`` which objects of a tier are read back. Thread-safe.

    Args:
        mode: ``always`` or ``never`` for all objects; ``first`` reads back the objects of a kind until one was correct;
            ``auto`` reads back all objects that a plugin writes or stores; it never reads back other objects if
            ``trusts_store`` is True, and treats them like ``first`` if it is False.
        is_bundled: True if the store comes with stratalog, and is not a plugin.
        trusts_store: True if the store comes with stratalog, and either verifies checksums of uploads or keeps files on
            this machine.
    """

    def __init__(self, mode: str, *, is_bundled: bool, trusts_store: bool) -> None:
        self._mode, self._is_bundled, self._trusts_store = mode, is_bundled, trusts_store
        self._verified = set[str]()  # under _lock
        self._lock = threading.Lock()

    def is_due(self, kind: str, *, is_bundled: bool) -> bool:
        """Return True if the next object of a kind must be read back after its upload.

        Args:
            kind: the label of the layout that writes the object, or another name, such as "manifest page".
            is_bundled: True if the component that writes the object comes with stratalog.
        """
        if self._mode == _AUTO and not (is_bundled and self._is_bundled):
            return True
        if self._mode == _AUTO and self._trusts_store:
            return False
        if self._mode in {_ALWAYS, _NEVER}:
            return self._mode == _ALWAYS
        with self._lock:
            return kind not in self._verified

    def record_success(self, kind: str) -> None:
        """Record that an object of this kind was read back and was correct.

        With ``first``, no further object of this kind is read back.
        """
        with self._lock:
            self._verified.add(kind)


class TierStore:
    """Access of a tier to its object store, with deadlines, retries and checks of results. Owns the store. Thread-safe.

    If a store of another plugin breaks the plugin interface, all methods except ``is_cached`` and ``read_cached`` raise
    PluginError.

    Args:
        store: the object store; ``close`` closes it.
        config: ``store.deadline.ms`` limits one call with its retries, ``store.retries`` the number of its retries.
        limits: limit the size of one read, because a size in a manifest or footer may be wrong; None for the defaults.
        guard: guards the calls, unless the store comes with stratalog. With None, the store is checked like a store of
            another plugin, but on the caller's thread.

    Attributes:
        deadline_ms: deadline of one call with its retries, in milliseconds. For each full 64 MiB, the deadline of an
            upload is longer by this time.
        limits: the argument, or the defaults.
        guard: the argument, or the guard that replaces None.
        verification: decides which objects are read back after a write.
        uri: the store's location, without secrets.
        capabilities: the capabilities that the store declares.
    """

    def __init__(
        self,
        store: ObjectStore,
        env: Env,
        config: EngineConfig,
        limits: Limits | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.limits = limits or Limits()
        index_bytes = self.limits.index_bytes
        self._read_bytes = max(index_bytes + index_bytes // _SLACK, 2 * self.limits.fetch_chunk_bytes)
        self.guard = guard or Guard(f"object store {store.uri}", "")
        self._store: ObjectStore = guarded_part(store, ObjectStore, self.guard)
        self.uri, self.capabilities = self._store.uri, self._store.capabilities
        trusted = Capability.CHECKSUM | Capability.NEAR  # a new file is read from the page cache
        trusts_store = self.guard.is_bundled and bool(self.capabilities & trusted)
        self.verification = Verification(
            config.tier_verify, is_bundled=self.guard.is_bundled, trusts_store=trusts_store
        )
        self._requests = Requests(self.uri, env, config, self.guard)
        self.deadline_ms = self._requests.deadline_ms
        self._reported_methods = set[str]()  # optional methods whose failure was logged
        ends_with_fork(self)

    def metrics(self) -> StoreMetrics:
        """Return the counts of requests since the store was opened."""
        return self._requests.metrics()

    def sent(self) -> Mapping[str, int]:
        """Return ``ObjectStore.sent``: the numbers of requests that the store has sent, by the store's own names."""
        return self._store.sent()

    def put(self, key: str, source: ByteSource) -> ObjectInfo:
        """Upload an object under a new key.

        Raises:
            CorruptObjectError: the store read or stored another number of bytes than ``source`` has.
            StoreError: the store failed or refused, also after retries; the object may be stored.
        """
        most_bytes = 0  # the largest number of bytes that one iteration has yielded

        def chunks(chunk_bytes: int) -> Iterator[Buffer]:
            nonlocal most_bytes
            yielded_bytes = 0
            for chunk in source.chunks(chunk_bytes):
                yielded_bytes += len(chunk)
                most_bytes = max(most_bytes, yielded_bytes)
                yield chunk

        counted_source = ChunkSource(source.size_bytes, chunks)

        def request(deadline_ns: int) -> ObjectInfo:
            return self._store.put_file(key, counted_source, deadline_ns=deadline_ns)

        deadlines = 1 + source.size_bytes // UPLOAD_STEP_BYTES
        info = self._requests.send("puts", "put_file", key, request, lambda _: source.size_bytes, deadlines=deadlines)
        if info.key != key:
            self.guard.refuse("put_file", f"stored {key!r} as {info.key!r}")
        if info.size_bytes != source.size_bytes:
            raise CorruptObjectError(
                f"{source.size_bytes} bytes were uploaded, but {self.guard} has {info.size_bytes}", key
            )
        if most_bytes != source.size_bytes:
            raise CorruptObjectError(
                f"{self.guard} read {most_bytes} of {source.size_bytes} bytes, but reports that it has all", key
            )
        return info

    def check_kept(self, method: str, kind: str, key: str, data: Buffer) -> None:
        """Read a small object back after its write and compare it with ``data``, if ``tier.verify`` requires that.

        Args:
            method: name of the method that wrote the object, for errors.
            kind: kind of the object, for ``Verification.is_due``.
            key: key of the object.
            data: the bytes that were written.

        Raises:
            PluginError: the store returns other bytes.
            ObjectNotFoundError: the object is missing; call ``refuse_lost`` unless another process may have deleted it.
        """
        if not self.verification.is_due(kind, is_bundled=True):
            return
        if self.read(key, 0, len(data) + 1) != data:
            self.guard.refuse(method, f"stored other bytes under {key!r} than it was given, or read returns others")
        self.verification.record_success(kind)

    def refuse_lost(self, method: str, key: str) -> NoReturn:
        """Raise a PluginError: the store does not have the object ``key``, although ``method`` reported success."""
        self.guard.refuse(method, f"did not store {key!r}, although it reported success")

    def create(self, key: str, data: Buffer) -> Created:
        """Create an object only if the key does not exist; return ``Created.UNKNOWN`` if the reply was lost.

        Raises:
            StoreError: the store failed or refused; nothing was written.
        """

        def request(deadline_ns: int) -> Created:
            return self._store.create(key, data, deadline_ns=deadline_ns)

        return self._requests.send("creates", "create", key, request, lambda _: len(data), overdue=Created.UNKNOWN)

    def read(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return bytes [start, end) of an object, fewer if the object ends before ``end``.

        ``start`` None means the start of the object, ``end`` None its end.

        Raises:
            ObjectNotFoundError: the object does not exist.
        """

        def request(deadline_ns: int) -> bytes:
            return self._store.read(key, start, end, deadline_ns=deadline_ns)

        return self._requests.send("reads", "read", key, request, len)

    def read_exactly(self, key: str, start: int, end: int) -> bytes:
        """Return exactly the bytes [start, end) of an object; ``b""`` if the range is empty.

        Raises:
            CorruptObjectError: the object ends before ``end``, or the range is longer than ``limits`` allow.
            ObjectNotFoundError: the object does not exist.
        """
        if start >= end:
            return b""
        if end - start > self._read_bytes:
            raise CorruptObjectError(
                f"the manifest or footer names a file of {end - start} bytes, above "
                f"limits.index.bytes={self.limits.index_bytes}: raise the limit if the size is right",
                key,
                start,
            )

        def request(deadline_ns: int) -> bytes:
            data = self._store.read(key, start, end, deadline_ns=deadline_ns)
            if len(data) != end - start:
                raise _ShortReadError(f"{end - start} bytes were requested, but {len(data)} were received", key)
            return data

        try:
            return self._requests.send("reads", "read", key, request, len)
        except _ShortReadError as error:
            raise CorruptObjectError(error.reason, key, start) from error

    def is_cached(self, key: str, start: int, end: int) -> bool:
        """Return the result of ``ObjectStore.is_cached``; after an error, log it once and return False."""
        return self._call_optional("is_cached", lambda: self._store.is_cached(key, start, end))

    def read_cached(self, key: str, start: int, buffer: memoryview) -> bool:
        """Return the result of ``ObjectStore.read_cached``; after an error, log it once and return False.

        A successful read is counted as a request.
        """
        if not self._call_optional("read_cached", lambda: self._store.read_cached(key, start, buffer)):
            return False
        self._requests.count("reads", len(buffer))
        return True

    def list(self, prefix: str, *, after: str = "", limit: int = LIST_LIMIT) -> Sequence[ObjectInfo]:
        """Return up to ``limit`` objects with this prefix and keys above ``after``, ascending by key.

        A result with fewer than ``limit`` objects contains the last object with this prefix.

        Raises:
            StoreError: the store failed or refused, or it returned a last key that is not above ``after``.
        """

        def request(deadline_ns: int) -> Sequence[ObjectInfo]:
            return self._store.list(prefix, after=after, limit=limit, deadline_ns=deadline_ns)

        objects = self._requests.send("lists", "list", prefix, request, lambda _: 0)
        if objects and objects[-1].key <= after:
            reason = (
                f"the store lists {objects[-1].key!r} for a request of keys above {after!r}: use another store, or "
                "correct this one"
            )
            raise StoreError(reason, prefix)
        return objects

    def list_all(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """Yield all objects with this prefix and keys above ``after``, ascending.

        Each request lists up to 1,000 objects, when the first of them is consumed.
        """
        while True:
            page = self.list(prefix, after=after)
            yield from page
            if len(page) < LIST_LIMIT:
                return
            after = page[-1].key

    def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """Delete objects; return by key the errors that remain after retries. A missing object is not an error.

        The method raises no StoreError.
        """
        failed: dict[str, StoreError] = {}
        for first in range(0, len(keys), DELETE_LIMIT):
            failed.update(self._delete_page(keys[first : first + DELETE_LIMIT]))
        return failed

    def delete_or_raise(self, keys: Sequence[str]) -> None:
        """Call ``delete``, and raise the first of the errors that it returns."""
        for error in self.delete(keys).values():
            raise error

    def unfinished(self, prefix: str) -> Sequence[UnfinishedUpload]:
        """Return the uploads under this prefix that were neither completed nor aborted."""

        def request(deadline_ns: int) -> Sequence[UnfinishedUpload]:
            return self._store.unfinished(prefix, deadline_ns=deadline_ns)

        return self._requests.send("lists", "unfinished", prefix, request, lambda _: 0)

    def abort(self, upload: UnfinishedUpload) -> None:
        """Delete the uploaded parts of an unfinished upload; a missing upload is not an error."""

        def request(deadline_ns: int) -> None:
            self._store.abort(upload, deadline_ns=deadline_ns)

        self._requests.send("deletes", "abort", upload.key, request, lambda _: 0)

    def close(self) -> None:
        """Close the store. A second call does nothing."""
        self.guard.call("close", self._store.close, wait_ms=self.deadline_ms)

    def _call_optional(self, method: str, work: Callable[[], bool]) -> bool:
        """Return the result of ``work``, a call of an optional method; after an error, log it once and return False."""
        try:
            return work()
        except PluginError as error:
            if method not in self._reported_methods:
                self._reported_methods.add(method)
                _LOGGER.warning("objects are read without it: %s", error)
            return False

    def _delete_page(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        remaining_keys = list(keys)
        failed: dict[str, StoreError] = {}

        def request(deadline_ns: int) -> None:
            answer = self._store.delete(remaining_keys, deadline_ns=deadline_ns)
            failed.update({key: error for key, error in answer.items() if not error.retriable})
            retriable_errors = {key: error for key, error in answer.items() if error.retriable}
            remaining_keys[:] = retriable_errors
            if retriable_errors:
                raise next(iter(retriable_errors.values()))

        try:
            self._requests.send("deletes", "delete", keys[0], request, lambda _: 0)
        except StoreError as error:
            failed.update(dict.fromkeys(remaining_keys, error))
        return failed


def is_of_store(error: StorageError) -> bool:
    """Return True if ``error`` concerns the whole store: it is a StoreError, but not an ObjectNotFoundError."""
    return isinstance(error, StoreError) and not isinstance(error, ObjectNotFoundError)
