"""Segment store ``local``: log directories on local disk, in Kafka's layout."""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.spi import OpenContext, Provider, SegmentStore, hookimpl


def _open_local(context: OpenContext) -> SegmentStore:
    from stratalog_local.store import LocalStore  # noqa: PLC0415 - a provider imports when it opens

    return LocalStore(context)


@hookimpl
def stratalog_segment_stores() -> Iterable[Provider[SegmentStore]]:
    """Return the provider of the store ``local``, which opens paths without a scheme and ``file://`` URIs."""
    return (
        Provider(
            name="local",
            open=_open_local,
            schemes=frozenset({"file"}),
            capabilities=("Kafka's lock", "mapped indexes", "preallocation"),
        ),
    )
