"""S3 through obstore: an object store that is no part of stratalog."""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.spi import ObjectStore, OpenContext, Provider, hookimpl


@hookimpl
def stratalog_object_stores() -> Iterable[Provider[ObjectStore]]:
    """Offer the store; obstore is imported when it opens."""
    return (
        Provider(
            name="obstore", open=_open, schemes=frozenset({"s3"}), capabilities=("atomic create", "listing from a key")
        ),
    )


def _open(context: OpenContext) -> ObjectStore:
    from obstore_tier.store import open_store  # noqa: PLC0415 - loads the compiled library

    return open_store(context)
