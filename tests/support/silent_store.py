"""A plugin module that settings can name: an object store for ``sim://`` that never responds."""

from __future__ import annotations

from collections.abc import Iterable

from sim_objects import ObjectFault, SimObjectStore
from stratalog.spi import ObjectStore, OpenContext, Provider, hookimpl


def _opened(context: OpenContext) -> ObjectStore:
    return SimObjectStore(faults=lambda _: ObjectFault.NOT_APPLIED, uri=context.location)


@hookimpl
def stratalog_object_stores() -> Iterable[Provider[ObjectStore]]:
    """Offer the store."""
    return (Provider(name="silent", open=_opened, schemes=frozenset({"sim"})),)
