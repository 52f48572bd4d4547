"""Segments say which keys they certainly do not have: an extra index that is no part of stratalog."""

from __future__ import annotations

from collections.abc import Iterable

from bloom_index.settings import BloomSection
from stratalog.spi import ExtraIndex, OpenContext, Provider, hookimpl


@hookimpl
def stratalog_extra_indexes() -> Iterable[Provider[ExtraIndex]]:
    """Offer the index."""
    return (
        Provider(name="bloom_index", open=_open, topic_section=BloomSection, capabilities=("Bloom filter of keys",)),
    )


def _open(context: OpenContext) -> ExtraIndex:
    from bloom_index.index import BloomIndex  # noqa: PLC0415 - a provider imports when it opens

    del context
    return BloomIndex()
