"""Simulated object store in memory with injected faults: not applied, reply lost, late, throttled, cut short.

A ``SimBucket`` contains the objects. Each ``SimObjectStore`` is one client's connection to a bucket, with faults of its
own. Everything is deterministic: faults come from a script or from a seeded ``random.Random``. A deadline is compared
with the bucket's clock only at the start of a call, so a request that takes longer may still succeed.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from hashlib import sha256
from typing import Final, TypeAlias

from stratalog.env import Clock
from stratalog.env.clock import ManualClock
from stratalog.errors import (
    BucketNotFoundError,
    ClosedError,
    ConfigError,
    ObjectNotFoundError,
    StoreError,
    StorePermissionError,
    StoreThrottledError,
    StoreTimeoutError,
)
from stratalog.model.batches import Buffer
from stratalog.spi.objects import ByteSource, Capability, Created, ObjectInfo, ObjectStore, UnfinishedUpload

ALL_CAPABILITIES: Final = Capability.CREATE | Capability.LIST_AFTER | Capability.BATCH_DELETE
_CHUNK_BYTES: Final = 1 << 20
_MAX_KEY_BYTES: Final = 1024


class ObjectFault(Enum):
    """Outcome of one request.

    For a client, NOT_APPLIED and REPLY_LOST look the same: a time-out, or UNKNOWN for a create. LATE is applied when
    ``SimBucket.deliver`` is called. CUT_SHORT loses the second half of the bytes read.
    """

    NONE = auto()
    NOT_APPLIED = auto()
    REPLY_LOST = auto()
    LATE = auto()
    THROTTLED = auto()
    DENIED = auto()
    CUT_SHORT = auto()


@dataclass(frozen=True, slots=True)
class SimRequest:
    """One request of a store.

    Attributes:
        kind: name of the method (put_file, create, read, list, delete, unfinished, abort).
        key: key or prefix of the request; for delete, the first key.
        number: number of the request of this store, from 0.
    """

    kind: str
    key: str
    number: int


Faults: TypeAlias = Callable[[SimRequest], ObjectFault]


def no_faults(request: SimRequest) -> ObjectFault:
    """Return NONE: every request succeeds."""
    del request
    return ObjectFault.NONE


def random_faults(chance: random.Random, share: float, among: Sequence[ObjectFault]) -> Faults:
    """Return a function that lets a ``share`` (0 to 1) of the requests fail, each in one of the given ways."""

    def fault(request: SimRequest) -> ObjectFault:
        del request
        return chance.choice(among) if chance.random() < share else ObjectFault.NONE

    return fault


def scripted_faults(script: Mapping[int, ObjectFault]) -> Faults:
    """Return a function that lets the requests with these numbers fail."""

    def fault(request: SimRequest) -> ObjectFault:
        return script.get(request.number, ObjectFault.NONE)

    return fault


@dataclass(slots=True)
class SimBucket:
    """Shared state of all clients. Thread-safe through its stores.

    Attributes:
        clock: source of the modification times.
        objects: bytes and modification time (ms), by key.
        exists: if False, each request raises BucketNotFoundError.
        atomic: if False, ``create`` overwrites an existing object, as a store does that ignores the condition.
        history: key and bytes of each write that was applied, in order.
        unfinished: uploads that were begun and neither completed nor aborted.
        late: writes that are not applied yet.
    """

    clock: Clock = field(default_factory=ManualClock)
    objects: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    exists: bool = True
    atomic: bool = True
    history: list[tuple[str, bytes]] = field(default_factory=list)
    unfinished: list[UnfinishedUpload] = field(default_factory=list)
    late: list[Callable[[], None]] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys with this prefix in ascending order."""
        with self.lock:
            return sorted(key for key in self.objects if key.startswith(prefix))

    def write(self, key: str, data: bytes) -> None:
        """Write an object directly, without a store and its faults."""
        with self.lock:
            self.objects[key] = (data, self.clock.now_ms())
            self.history.append((key, data))

    def leave(self, key: str) -> UnfinishedUpload:
        """Begin an upload that its client never completes."""
        with self.lock:
            self.unfinished.append(UnfinishedUpload(key, f"upload-{len(self.unfinished)}", self.clock.now_ms()))
            return self.unfinished[-1]

    def deliver(self) -> int:
        """Apply the late writes; return their number."""
        with self.lock:
            late, self.late = self.late, []
            for write in late:
                write()
            return len(late)


class SimObjectStore(ObjectStore):
    """One client of a bucket; ``counts`` has the number of its requests by kind, ``next_number`` that of the next one.

    Args:
        bucket: bucket, which may be shared with other clients.
        faults: called once for each request; returns its fault.
        before: called before each request, for example to let other clients work in between.
        capabilities: capabilities that the store declares.
        uri: URI of the store.
    """

    def __init__(
        self,
        bucket: SimBucket | None = None,
        *,
        faults: Faults = no_faults,
        before: Callable[[SimRequest], None] | None = None,
        capabilities: Capability = ALL_CAPABILITIES,
        uri: str = "sim://bucket",
    ) -> None:
        self.bucket = bucket or SimBucket()
        self.faults, self.before = faults, before
        self.counts: Counter[str] = Counter()
        self.closed = False
        self.next_number = 0
        self._capabilities, self._uri = capabilities, uri

    @property
    def capabilities(self) -> Capability:
        """Declared capabilities."""
        return self._capabilities

    @property
    def uri(self) -> str:
        """URI of the store."""
        return self._uri

    def put_file(self, key: str, source: ByteSource, *, deadline_ns: int) -> ObjectInfo:
        """Upload an object completely or not at all."""
        fault = self._begin("put_file", _checked(key), deadline_ns)
        data = b"".join(source.chunks(_CHUNK_BYTES))
        if len(data) != source.size_bytes:
            raise StoreError(f"a source of {source.size_bytes} bytes gave {len(data)}", key)
        with self.bucket.lock:
            self._write(fault, lambda: self.bucket.write(key, data))
            if fault in _UNANSWERED:
                raise StoreTimeoutError("simulated time-out", key)
            return self._info(key)

    def create(self, key: str, data: Buffer, *, deadline_ns: int) -> Created:
        """Write the object only if the key is free."""
        fault = self._begin("create", _checked(key), deadline_ns)
        content = bytes(data)
        creations: list[bool] = []

        def apply() -> None:
            creations.append(key not in self.bucket.objects or not self.bucket.atomic)
            if creations[-1]:
                self.bucket.write(key, content)

        with self.bucket.lock:
            self._write(fault, apply)
            if fault in _UNANSWERED:
                return Created.UNKNOWN
            return Created.CREATED if creations[-1] else Created.EXISTS

    def read(self, key: str, start: int | None = None, end: int | None = None, *, deadline_ns: int) -> bytes:
        """Return bytes [start, end) of an object."""
        fault = self._begin("read", _checked(key), deadline_ns)
        with self.bucket.lock:
            stored_object = self.bucket.objects.get(key)
        if fault in _UNANSWERED:
            raise StoreTimeoutError("simulated time-out", key)
        if stored_object is None:
            raise ObjectNotFoundError("no such object", key)
        data = stored_object[0][start:end]
        return data[: len(data) // 2] if fault is ObjectFault.CUT_SHORT else data

    def list(self, prefix: str, *, after: str = "", limit: int = 1000, deadline_ns: int) -> Sequence[ObjectInfo]:
        """Return one page of keys."""
        fault = self._begin("list", prefix, deadline_ns)
        if fault in _UNANSWERED:
            raise StoreTimeoutError("simulated time-out", prefix)
        with self.bucket.lock:
            keys = [key for key in self.bucket.keys(prefix) if key > after]
            return [self._info(key) for key in keys[:limit]]

    def delete(self, keys: Sequence[str], *, deadline_ns: int) -> Mapping[str, StoreError]:
        """Delete objects; a fault applies to all keys of the request."""
        deleted_keys = tuple(keys)
        fault = self._begin("delete", deleted_keys[0] if deleted_keys else "", deadline_ns)

        def apply() -> None:
            for key in deleted_keys:
                self.bucket.objects.pop(key, None)

        with self.bucket.lock:
            self._write(fault, apply)
        if fault in _UNANSWERED:
            return {key: StoreTimeoutError("simulated time-out", key) for key in deleted_keys}
        return {}

    def unfinished(self, prefix: str, *, deadline_ns: int) -> Sequence[UnfinishedUpload]:
        """Return the uploads that ``SimBucket.leave`` began."""
        if self._begin("unfinished", prefix, deadline_ns) in _UNANSWERED:
            raise StoreTimeoutError("simulated time-out", prefix)
        with self.bucket.lock:
            return [upload for upload in self.bucket.unfinished if upload.key.startswith(prefix)]

    def abort(self, upload: UnfinishedUpload, *, deadline_ns: int) -> None:
        """Abort one upload."""
        fault = self._begin("abort", _checked(upload.key), deadline_ns)

        def apply() -> None:
            if upload in self.bucket.unfinished:
                self.bucket.unfinished.remove(upload)

        with self.bucket.lock:
            self._write(fault, apply)
        if fault in _UNANSWERED:
            raise StoreTimeoutError("simulated time-out", upload.key)

    def close(self) -> None:
        """Refuse further requests."""
        self.closed = True

    def _begin(self, kind: str, key: str, deadline_ns: int) -> ObjectFault:
        if self.closed:
            raise ClosedError("the store is closed")
        if self.bucket.clock.monotonic_ns() > deadline_ns:
            raise StoreTimeoutError("the deadline has passed", key)
        request = SimRequest(kind, key, self.next_number)
        self.next_number += 1
        self.counts[kind] += 1
        if self.before is not None:
            self.before(request)
        if not self.bucket.exists:
            raise BucketNotFoundError("no such bucket", self._uri)
        fault = self.faults(request)
        if fault is ObjectFault.THROTTLED:
            raise StoreThrottledError("simulated slow-down", key)
        if fault is ObjectFault.DENIED:
            raise StorePermissionError("simulated refusal", key)
        return fault

    def _write(self, fault: ObjectFault, apply: Callable[[], None]) -> None:
        if fault is ObjectFault.LATE:
            self.bucket.late.append(apply)
        elif fault is not ObjectFault.NOT_APPLIED:
            apply()

    def _info(self, key: str) -> ObjectInfo:
        data, modified_ms = self.bucket.objects[key]
        return ObjectInfo(key, len(data), sha256(data).hexdigest(), modified_ms)


def _checked(key: str) -> str:
    parts = key.split("/")
    if len(key.encode()) > _MAX_KEY_BYTES or not key.isprintable() or not {"", ".", ".."}.isdisjoint(parts):
        raise ConfigError(f"object key {key[:64]!r} is not allowed")
    return key


_UNANSWERED: Final = frozenset({ObjectFault.NOT_APPLIED, ObjectFault.REPLY_LOST, ObjectFault.LATE})
