"""Example of a plugin: an object store that keeps a tier in one SQLite file."""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.spi import ObjectStore, OpenContext, Provider, hookimpl


@hookimpl
def stratalog_object_stores() -> Iterable[Provider[ObjectStore]]:
    """Return the provider of the store ``sqlite_store``, for URIs like ``sqlite:///home/me/tier.db``."""
    return [
        Provider(
            name="sqlite_store",
            open=_open,
            schemes=frozenset({"sqlite"}),
            capabilities=("atomic create", "listing from a key", "one file"),
        )
    ]


def _open(context: OpenContext) -> ObjectStore:
    from sqlite_store.store import open_store  # noqa: PLC0415 - a component imports when it opens

    return open_store(context)
