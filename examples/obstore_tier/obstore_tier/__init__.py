"""Example of a plugin: an object store on S3 that uses the library obstore."""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.spi import ObjectStore, OpenContext, Provider, hookimpl


@hookimpl
def stratalog_object_stores() -> Iterable[Provider[ObjectStore]]:
    """Return the provider of the store ``obstore``; the library is imported when the store opens."""
    return (
        Provider(
            name="obstore", open=_open, schemes=frozenset({"s3"}), capabilities=("atomic create", "listing from a key")
        ),
    )


def _open(context: OpenContext) -> ObjectStore:
    from obstore_tier.store import open_store  # noqa: PLC0415 - loads the compiled library

    return open_store(context)
