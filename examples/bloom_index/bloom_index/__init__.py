"""Example of a plugin: an extra index that shows which keys a segment certainly does not contain."""

from __future__ import annotations

from collections.abc import Iterable

from bloom_index.settings import BloomSection
from stratalog.spi import ExtraIndex, OpenContext, Provider, hookimpl


@hookimpl
def stratalog_extra_indexes() -> Iterable[Provider[ExtraIndex]]:
    """Return the provider of the extra index ``bloom_index``."""
    return (
        Provider(name="bloom_index", open=_open, topic_section=BloomSection, capabilities=("Bloom filter of keys",)),
    )


def _open(context: OpenContext) -> ExtraIndex:
    from bloom_index.index import BloomIndex  # noqa: PLC0415 - a provider imports when it opens

    del context
    return BloomIndex()
