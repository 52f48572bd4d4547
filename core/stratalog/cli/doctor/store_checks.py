"""Checks of an object store: all kinds of requests of a tier, and the guarantees, clock and latency of the store."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Final

from stratalog.cli.doctor.diagnosis import Checks, Diagnosis, Outcome
from stratalog.env import Env
from stratalog.model.names import random_uuid
from stratalog.spi.objects import BytesSource, Capability, Created
from stratalog.tier.store.object_keys import probe_key
from stratalog.tier.store.probe import probe
from stratalog.tier.store.store import TierStore

_OBJECT_BYTES: Final = 1 << 16
_RANGE: Final = (1000, 3000)
_TIMES: Final = 5
_SLOW_MS: Final = 500
_LEEWAY_MS: Final = 5_000  # allowed difference of the clocks, because stores round times to seconds
_REFUSED_MS: Final = 900_000  # S3 refuses requests if the clocks differ by more than 15 minutes


class StoreChecks:
    """Checks of one store. ``close`` deletes the objects that the checks wrote, but does not close the store."""

    def __init__(self, store: TierStore, env: Env) -> None:
        self._store, self._env = store, env
        self._small, self._large = self._key(), self._key()
        self._content = env.chance.getrandbits(8 * _OBJECT_BYTES).to_bytes(_OBJECT_BYTES, "little")
        self._written_keys: set[str] = set()
        self._skew_ms: int | None = None

    def checks(self) -> Checks:
        """Return the checks. If the first check fails, no other check runs."""
        return {
            "list": self._list,
            "create": self._create,
            "conditional create": self._conditional,
            "upload": self._upload,
            "ranged read": self._read,
            "list after a write": self._list_again,
            "clock": self._clock,
            "checksums": self._checksums,
            "unfinished uploads": self._unfinished_uploads,
            "latency": self._latency,
            "delete": self._delete,
        }

    def close(self) -> None:
        """Delete the objects that the checks wrote and that still exist."""
        if self._written_keys:
            self._store.delete(sorted(self._written_keys))

    def _key(self) -> str:
        return probe_key(random_uuid(self._env.chance))

    # --- the checks ---------------------------------------------------------------------------------------------------

    def _list(self) -> Diagnosis:
        self._store.list("", limit=1)
        return Diagnosis(Outcome.OK, f"{self._store.uri} can be listed")

    def _create(self) -> Diagnosis:
        self._written_keys.add(self._small)
        result = self._store.create(self._small, b"stratalog doctor")
        if result is Created.CREATED:
            return Diagnosis(Outcome.OK, "a small object was written")
        return Diagnosis(Outcome.WRONG, f"a new key: the answer is {result.value}", "try again")

    def _conditional(self) -> Diagnosis:
        result = probe(self._store, self._env)
        if result.shared:
            return Diagnosis(Outcome.OK, "the second creation of a key is refused: several writers may share the tier")
        if result.breaks_promise:
            advice = "upgrade the server, or let one engine at a time write to this tier"
            return Diagnosis(Outcome.WRONG, f"one writer only: {result.reason}", advice)
        return Diagnosis(
            Outcome.NOTE, f"one writer only: {result.reason}", "let one engine at a time write to this tier"
        )

    def _upload(self) -> Diagnosis:
        self._written_keys.add(self._large)
        before_ms = self._env.clock.now_ms()
        self._store.put(self._large, BytesSource(self._content))
        after_ms = self._env.clock.now_ms()
        info = next(iter(self._store.list(self._large, limit=1)), None)
        if info is not None and info.modified_ms:
            self._skew_ms = min(info.modified_ms - before_ms, 0) + max(info.modified_ms - after_ms, 0)
        return Diagnosis(Outcome.OK, f"an object of {_OBJECT_BYTES} bytes was written")

    def _read(self) -> Diagnosis:
        start, end = _RANGE
        data = self._store.read(self._large, start, end)
        if data == self._content[start:end]:
            return Diagnosis(Outcome.OK, f"bytes [{start}, {end}) are those that were written")
        text = f"{len(data)} bytes were read for [{start}, {end}), and they are not those that were written"
        return Diagnosis(Outcome.WRONG, text, "use a server or proxy that answers the header Range")

    def _list_again(self) -> Diagnosis:
        keys = {info.key for key in (self._small, self._large) for info in self._store.list(key)}
        if {self._small, self._large} <= keys:
            return Diagnosis(Outcome.OK, "new objects are listed at once")
        return Diagnosis(Outcome.WRONG, "a new object is not listed", "use a store whose lists are consistent")

    def _clock(self) -> Diagnosis:
        if self._skew_ms is None:
            return Diagnosis(Outcome.SKIPPED, "the store returns no time of its objects")
        text = f"the store's clock differs by {self._skew_ms / 1000:.1f} s"
        if abs(self._skew_ms) <= _LEEWAY_MS:
            return Diagnosis(Outcome.OK, text)
        outcome = Outcome.WRONG if abs(self._skew_ms) > _REFUSED_MS else Outcome.NOTE
        return Diagnosis(outcome, text, "synchronise the clocks of this machine and of the store (NTP)")

    def _checksums(self) -> Diagnosis:
        if Capability.CHECKSUM in self._store.capabilities:
            return Diagnosis(Outcome.OK, "the store verifies a checksum of each upload")
        if Capability.NEAR in self._store.capabilities:
            return Diagnosis(Outcome.OK, "the files are on this machine: no network is between")
        text = "the store verifies no checksum of an upload"
        return Diagnosis(Outcome.NOTE, text, 'set tier.verify = "always" to read back each upload')

    def _unfinished_uploads(self) -> Diagnosis:
        uploads = self._store.unfinished("")
        text = f"{len(uploads)} are listed" if uploads else "none is left"
        return Diagnosis(Outcome.OK, text)

    def _latency(self) -> Diagnosis:
        writes, reads = list[float](), list[float]()
        for _ in range(_TIMES):
            key = self._key()
            self._written_keys.add(key)
            writes.append(self._measure_ms(partial(self._store.create, key, b"stratalog doctor")))
            reads.append(self._measure_ms(partial(self._store.read, key)))
        text = (
            f"median of {_TIMES}: {statistics.median(writes):.1f} ms a create, {statistics.median(reads):.1f} ms a read"
        )
        if max(statistics.median(writes), statistics.median(reads)) <= _SLOW_MS:
            return Diagnosis(Outcome.OK, text)
        return Diagnosis(Outcome.NOTE, text, "use a store in the region of this machine")

    def _measure_ms(self, step: Callable[[], object]) -> float:
        began_ns = self._env.clock.monotonic_ns()
        step()
        return (self._env.clock.monotonic_ns() - began_ns) / 1e6

    def _delete(self) -> Diagnosis:
        self._store.delete_or_raise(sorted(self._written_keys))
        self._written_keys.clear()
        if self._store.list(self._small) or self._store.list(self._large):
            return Diagnosis(
                Outcome.WRONG, "a deleted object is still listed", "use a store whose lists are consistent"
            )
        return Diagnosis(Outcome.OK, "all objects of this check are gone")
