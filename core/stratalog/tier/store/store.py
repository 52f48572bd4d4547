"""The layer between the tier and an object store: deadlines, retries, retry budget, size checks, counters.

A store makes one try for each call. This layer gives each call a deadline from the engine's settings, retries it if
that can help, and counts it. All calls share a retry budget: when a store is down, it prevents retries from multiplying
the load.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol, TypeVar

from stratalog.config.engine_settings import EngineConfig, Limits
from stratalog.env import Env
from stratalog.env.deadlines import OverdueError
from stratalog.env.forks import ends_with_fork
from stratalog.env.watch import REQUEST_KINDS
from stratalog.errors import (
    CorruptObjectError,
    ObjectNotFoundError,
    PluginError,
    StorageError,
    StoreError,
    StoreThrottledError,
    StoreTimeoutError,
)
from stratalog.model.batches import Buffer
from stratalog.registry.guard import Guard
from stratalog.spi.objects import ByteSource, Capability, Created, ObjectInfo, ObjectStore, UnfinishedUpload
from stratalog.tier.store.read_back import Verification
from stratalog.tier.store.request_metrics import RequestCounter, StoreMetrics

LIST_LIMIT: Final = 1000  # keys a page, as in S3
DELETE_LIMIT: Final = 1000  # keys a request, as in S3
UPLOAD_STEP_BYTES: Final = 64 << 20  # each begun step gives an upload one more deadline
_SLACK: Final = 16  # a layout may store 1/16 more than the bytes of a file, for example for authentication tags
_FIRST_PAUSE_MS: Final = 50
_LONGEST_PAUSE_MS: Final = 5_000
_GRACE_MS: Final = 1_000  # for a store that keeps its deadline while its thread is late
_BUDGET_RETRIES: Final = 32.0
_BUDGET_REFILL: Final = 0.1

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class _Request(Protocol[T_co]):
    def __call__(self, *, deadline_ns: int) -> T_co: ...


class _ShortReadError(StoreError):
    """A read returned fewer or more bytes than asked for; retried, because a broken connection looks like this."""

    retriable: ClassVar[bool] = True


class RetryBudget:
    """Retries that all calls of a store share: each retry uses one, each success adds a tenth. Thread-safe."""

    def __init__(self, retries: float = _BUDGET_RETRIES) -> None:
        self._most = self._left = retries
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Use one retry; return False if none is left."""
        with self._lock:
            if self._left < 1:
                return False
            self._left -= 1
            return True

    def succeeded(self) -> None:
        """Add a tenth of a retry."""
        with self._lock:
            self._left = min(self._most, self._left + _BUDGET_REFILL)


class _Taken:
    """Bytes to upload, and the most of them that a store has read in one pass."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self.most_bytes = 0

    @property
    def size_bytes(self) -> int:
        """The number of bytes."""
        return self._source.size_bytes

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        """Return all bytes from the start."""
        taken = 0
        for chunk in self._source.chunks(chunk_bytes):
            taken += len(chunk)
            self.most_bytes = max(self.most_bytes, taken)
            yield chunk


@dataclass(slots=True)
class _Call:
    """One call in progress: its end time, and the number of its retries."""

    end_ns: int
    retries: int = 0


class TierStore:
    """An object store as the tier uses it, with deadlines and checked sizes. Owns the store. Thread-safe.

    Args:
        store: makes the requests; closed by ``close``.
        env: clock and chance.
        config: ``store.deadline.ms`` limits one call, ``store.retries`` its retries. An upload gets the deadline once
            more for each 64 MiB.
        limits: bound one exact read, because sizes in manifests and footers may be forged.
        guard: guards the calls into the store; by default that of a store that does not come with stratalog.

    Attributes:
        deadline_ms: of one call.
        guard: same as the argument.
        verification: decides which objects are read back after a write.
    """

    def __init__(
        self,
        store: ObjectStore,
        env: Env,
        config: EngineConfig,
        limits: Limits | None = None,
        guard: Guard | None = None,
    ) -> None:
        self._store, self._env = store, env
        self.limits = limits or Limits()
        index_bytes = self.limits.index_bytes
        self._read_bytes = max(index_bytes + index_bytes // _SLACK, 2 * self.limits.fetch_chunk_bytes)
        self.guard = guard or Guard(f"object store {store.uri}", "")
        keeps = Capability.CHECKSUM | Capability.NEAR  # files would be read back from memory, which proves nothing
        trusts_store = self.guard.is_bundled and bool(store.capabilities & keeps)
        self.verification = Verification(config.tier_verify, trusts_store=trusts_store)
        self.deadline_ms, self._retries = config.store_deadline_ms, config.store_retries
        self._deadline_ns = self.deadline_ms * 1_000_000
        self._budget = RetryBudget()
        self._counters = {kind: RequestCounter() for kind in REQUEST_KINDS}
        ends_with_fork(self)

    @property
    def uri(self) -> str:
        """The store's location, without secrets."""
        return self._store.uri

    @property
    def capabilities(self) -> Capability:
        """The capabilities that the store declares."""
        return self._store.capabilities

    def metrics(self) -> StoreMetrics:
        """Return the counts of requests so far."""
        return StoreMetrics(**{kind: counter.snapshot() for kind, counter in self._counters.items()})

    def sent(self) -> Mapping[str, int]:
        """Return the billed requests by the store's own names, as ``ObjectStore.sent``."""
        return self._store.sent()

    def put(self, key: str, source: ByteSource) -> ObjectInfo:
        """Upload an object under a new key.

        Raises:
            CorruptObjectError: the store kept another number of bytes.
            StoreError: the store failed, also after the last retry; the object may be stored.
        """
        taken = _Taken(source)

        def request(*, deadline_ns: int) -> ObjectInfo:
            return self.guard.typed("put_file", self._store.put_file(key, taken, deadline_ns=deadline_ns), ObjectInfo)

        deadline_ns = self._deadline_ns * (1 + source.size_bytes // UPLOAD_STEP_BYTES)
        info = self._call("puts", "put_file", key, request, lambda _: source.size_bytes, deadline_ns)
        if info.key != key:
            self.guard.refuse("put_file", f"stored {key!r} as {info.key!r}")
        if info.size_bytes != source.size_bytes:
            raise CorruptObjectError(f"uploaded {source.size_bytes} bytes, the store has {info.size_bytes}", key)
        if taken.most_bytes != source.size_bytes:
            raise CorruptObjectError(
                f"the store read {taken.most_bytes} of {source.size_bytes} bytes, but reports that it has all", key
            )
        return info

    def check_kept(self, kind: str, key: str, data: Buffer) -> None:
        """Read a small object back after its write, if ``tier.verify`` says so.

        Raises:
            PluginError: the store returns other bytes.
            StoreError: the store failed.
        """
        if not self.verification.is_due(kind, is_bundled=True):
            return
        if self.read(key, 0, len(data) + 1) != data:
            self.guard.refuse("read", f"returned other bytes than were written: key={key!r}")
        self.verification.passed(kind)

    def create(self, key: str, data: Buffer) -> Created:
        """Create an object only if the key is free. After a lost reply return UNKNOWN, without a retry."""

        def request(*, deadline_ns: int) -> Created:
            return self.guard.typed("create", self._store.create(key, data, deadline_ns=deadline_ns), Created)

        return self._call("creates", "create", key, request, lambda _: len(data), overdue=Created.UNKNOWN)

    def read(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return bytes [start, end) of an object, fewer if it ends before; ObjectNotFoundError if it does not exist."""

        def request(*, deadline_ns: int) -> bytes:
            return self.guard.typed("read", self._store.read(key, start, end, deadline_ns=deadline_ns), bytes)

        return self._call("reads", "read", key, request, len)

    def read_exactly(self, key: str, start: int, end: int) -> bytes:
        """Return all of the bytes [start, end) of an object.

        Raises:
            CorruptObjectError: the object is shorter, also after a retry; or the range is longer than any small file of
                a segment may be.
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

        def request(*, deadline_ns: int) -> bytes:
            data = self.guard.typed("read", self._store.read(key, start, end, deadline_ns=deadline_ns), bytes)
            if len(data) != end - start:
                raise _ShortReadError(f"asked for {end - start} bytes, got {len(data)}", key)
            return data

        try:
            return self._call("reads", "read", key, request, len)
        except _ShortReadError as error:
            raise CorruptObjectError(error.reason, key, start) from error

    def is_cached(self, key: str, start: int, end: int) -> bool:
        """Return the same as ``ObjectStore.is_cached``."""
        return self._store.is_cached(key, start, end)

    def read_cached(self, key: str, start: int, into: memoryview) -> bool:
        """Read as ``ObjectStore.read_cached``; a successful read is counted."""
        if not self._store.read_cached(key, start, into):
            return False
        self._counters["reads"].succeeded(len(into))
        return True

    def list(self, prefix: str, *, after: str = "", limit: int = LIST_LIMIT) -> Sequence[ObjectInfo]:
        """Return one page of objects; fewer than ``limit`` objects mean that it is the last page.

        Raises:
            StoreError: the store failed, or its keys do not ascend above ``after``, which would repeat the same page
                for ever.
        """

        def request(*, deadline_ns: int) -> Sequence[ObjectInfo]:
            page = self._store.list(prefix, after=after, limit=limit, deadline_ns=deadline_ns)
            self.guard.check_type("list", page, Sequence)
            return page

        found = self._call("lists", "list", prefix, request, lambda _: 0)
        if found and found[-1].key <= after:
            wrong = (
                f"the store lists {found[-1].key!r} for a request of keys above {after!r}: use another store, or "
                "correct this one"
            )
            raise StoreError(wrong, prefix)
        return found

    def list_all(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """Return all objects, page by page as they are consumed."""
        while True:
            page = self.list(prefix, after=after)
            yield from page
            if len(page) < LIST_LIMIT:
                return
            after = page[-1].key

    def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """Delete objects; return errors by key. A missing object is success; retriable errors were retried."""
        failed: dict[str, StoreError] = {}
        for first in range(0, len(keys), DELETE_LIMIT):
            failed.update(self._delete_page(keys[first : first + DELETE_LIMIT]))
        return failed

    def unfinished(self, prefix: str) -> Sequence[UnfinishedUpload]:
        """Return uploads under this prefix that were neither completed nor aborted, as ``ObjectStore.unfinished``."""

        def request(*, deadline_ns: int) -> Sequence[UnfinishedUpload]:
            found = self._store.unfinished(prefix, deadline_ns=deadline_ns)
            self.guard.check_type("unfinished", found, Sequence)
            return found

        return self._call("lists", "unfinished", prefix, request, lambda _: 0)

    def abort(self, upload: UnfinishedUpload) -> None:
        """Delete the parts of an upload; a missing upload is success."""

        def request(*, deadline_ns: int) -> None:
            self._store.abort(upload, deadline_ns=deadline_ns)

        self._call("deletes", "abort", upload.key, request, lambda _: 0)

    def close(self) -> None:
        """Close the store. A second call does nothing."""
        self.guard.call("close", self._store.close, wait_ms=self.deadline_ms)

    def _delete_page(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        left = list(keys)
        failed: dict[str, StoreError] = {}

        def request(*, deadline_ns: int) -> None:
            answer = self._store.delete(left, deadline_ns=deadline_ns)
            self.guard.check_type("delete", answer, Mapping)
            failed.update({key: error for key, error in answer.items() if not error.retriable})
            again = {key: error for key, error in answer.items() if error.retriable}
            left[:] = again
            if again:
                raise next(iter(again.values()))

        try:
            self._call("deletes", "delete", keys[0], request, lambda _: 0)
        except StoreError as error:
            failed.update(dict.fromkeys(left, error))
        return failed

    def _call(
        self,
        kind: str,
        method: str,
        key: str,
        request: _Request[T],
        moved: Callable[[T], int],
        deadline_ns: int | None = None,
        overdue: T | None = None,
    ) -> T:
        counter = self._counters[kind]
        call = _Call(self._env.clock.monotonic_ns() + (self._deadline_ns if deadline_ns is None else deadline_ns))
        while True:
            try:
                with self._observed(kind, method, key):
                    answer = self._asked(method, request, self._try_deadline_ns(kind, call), overdue)
            except StoreError as error:
                counter.failed()
                if not error.retriable or not self._may_repeat(call, error):
                    raise
                call.retries += 1
                counter.repeated()
            else:
                counter.succeeded(moved(answer))
                self._budget.succeeded()
                return answer

    def _observed(self, kind: str, method: str, key: str) -> AbstractContextManager[object]:
        attributes = {"stratalog.store": self.uri, "stratalog.request": kind, "stratalog.key": key}
        return self._env.watch.observed(f"store {method}", attributes, lambda latencies: latencies.requests[kind])

    def _asked(self, method: str, request: _Request[T], deadline_ns: int, overdue: T | None) -> T:
        """Make one try; if the store ignores its deadline, return ``overdue`` or raise StoreTimeoutError."""
        wait_ms = (deadline_ns - self._env.clock.monotonic_ns()) / 1_000_000 + _GRACE_MS
        try:
            return self.guard.call(method, lambda: request(deadline_ns=deadline_ns), wait_ms=wait_ms)
        except PluginError as error:
            if not isinstance(error.__cause__, OverdueError):
                raise
            if overdue is not None:
                return overdue
            raise StoreTimeoutError(error.reason, self.uri) from error

    def _try_deadline_ns(self, kind: str, call: _Call) -> int:
        """Return half of the time left, which leaves time for another try; an upload or last try gets all of it."""
        if kind == "puts" or call.retries >= self._retries:
            return call.end_ns
        now = self._env.clock.monotonic_ns()
        return now + max(0, call.end_ns - now) // 2

    def _may_repeat(self, call: _Call, error: StoreError) -> bool:
        """Wait before the next try, at least as long as the store asks for; return False if there is no next try."""
        if call.retries >= self._retries:
            return False
        longest = min(_LONGEST_PAUSE_MS, _FIRST_PAUSE_MS << call.retries)
        pause_ms = round(longest * (0.5 + self._env.chance.random() / 2))
        if isinstance(error, StoreThrottledError):
            pause_ms += error.retry_after_ms
        if self._env.clock.monotonic_ns() + pause_ms * 1_000_000 >= call.end_ns or not self._budget.take():
            return False
        self._env.clock.sleep_ms(pause_ms)
        return True


def is_of_store(error: StorageError) -> bool:
    """Return True if the store as a whole fails, and every other request would fail, too; not one log or object."""
    return isinstance(error, StoreError) and not isinstance(error, ObjectNotFoundError)
