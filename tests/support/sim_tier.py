"""A bucket in memory as the tier of engines and readers, under ``sim://``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from sim_objects import Faults, SimBucket, SimObjectStore, SimRequest, no_faults
from stratalog.spi import ObjectStore, OpenContext, Provider, hookimpl

URI: Final = "sim://bucket"


class SimTier:
    """A plugin that offers one bucket; ``store`` is the connection that was opened last."""

    def __init__(
        self, bucket: SimBucket, before: Callable[[SimRequest], None] | None = None, faults: Faults = no_faults
    ) -> None:
        self.bucket, self.before, self._faults = bucket, before, faults
        self.store = self.connected()

    def connected(self) -> SimObjectStore:
        """Return a new connection to the bucket."""
        return SimObjectStore(self.bucket, before=self.before, faults=self._faults, uri=URI)

    @hookimpl
    def stratalog_object_stores(self) -> Iterable[Provider[ObjectStore]]:
        def opened(context: OpenContext) -> ObjectStore:
            del context
            self.store = self.connected()
            return self.store

        return (Provider(name="sim", open=opened, schemes=frozenset({"sim"})),)
