"""A test (probe) of an object store: does it create objects atomically? Commits of manifest roots require that."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from stratalog.env import Env
from stratalog.errors import StorePermissionError, StoreTimeoutError
from stratalog.model.names import random_uuid
from stratalog.spi.objects import Capability, Created
from stratalog.tier.store.object_keys import probe_key
from stratalog.tier.store.store import TierStore

_LOGGER: Final = logging.getLogger(__name__)
_TRIES: Final = 4


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Result of a test of a store. ``shared`` is True if several writers may use the store.

    If it is False, ``reason`` is the reason. ``breaks_promise`` is True if the store declares that it creates objects
    atomically, but does not.
    """

    shared: bool
    reason: str = ""
    breaks_promise: bool = False


def probe(store: TierStore, env: Env) -> ProbeResult:
    """Create one key twice, and test if the store refuses the second creation; then delete the object.

    In a store that does not declare CREATE, the key is created once, to test the permissions to write and delete. If
    the store does not answer, the call takes about two times ``store.deadline.ms``.

    Raises:
        StorePermissionError: the credentials do not allow writes or deletes.
        StoreError: the store failed, or its bucket is missing.
    """
    key = probe_key(random_uuid(env.chance))
    _create(store, env, key, b"first")
    try:
        if Capability.CREATE not in store.capabilities:
            return ProbeResult(shared=False, reason="it does not declare that it creates atomically")
        if _create(store, env, key, b"second") is Created.CREATED:
            return _broken("it creates an object that exists, although it declares that it does not")
        if store.read(key) != b"first":
            return _broken("it refuses to create an object that exists, and overwrites it")
        return ProbeResult(shared=True)
    finally:
        _remove(store, key)


def _broken(reason: str) -> ProbeResult:
    return ProbeResult(shared=False, reason=reason, breaks_promise=True)


def _create(store: TierStore, env: Env, key: str, data: bytes) -> Created:
    """Create an object; retry until the result is known. After a lost reply, EXISTS may be due to this call."""
    clock = env.clock
    end_ns = clock.monotonic_ns() + store.deadline_ms * 1_000_000
    for _ in range(_TRIES):
        created = store.create(key, data)
        if created is not Created.UNKNOWN:
            return created
        if clock.monotonic_ns() >= end_ns:
            break
    _remove(store, key)
    raise StoreTimeoutError("the store does not report if it created an object", key)


def _remove(store: TierStore, key: str) -> None:
    failed = store.delete([key]).get(key)
    if isinstance(failed, StorePermissionError):
        raise failed
    if failed is not None:
        _LOGGER.warning("a probe object could not be deleted: key=%s error=%s", key, failed)
