"""Kafka's bytes as plugins: record formats, codecs and indexes, and the layouts of segments in a tier.

The classes of ``stratalog.spi`` describe the methods of the components, with their errors. The docstrings here add only
facts about one component. If a library that a component needs is not installed, its methods raise PluginImportError.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stratalog.spi import Codec, ExtraIndex, IndexFormat, Provider, RecordFormat, TierLayout, hookimpl
from stratalog_formats import codecs, indexes, layouts, records


@hookimpl
def stratalog_record_formats() -> Iterable[Provider[RecordFormat]]:
    """Return the providers of the record formats ``v0``, ``v1`` and ``v2``."""
    return records.PROVIDERS


@hookimpl
def stratalog_codecs() -> Iterable[Provider[Codec]]:
    """Return the providers of the codecs ``gzip``, ``snappy``, ``lz4`` and ``zstd``."""
    return codecs.PROVIDERS


@hookimpl
def stratalog_index_formats() -> Iterable[Provider[IndexFormat[Any]]]:  # Any: entries of three kinds
    """Return the providers of the index formats ``offset``, ``time`` and ``transaction``."""
    return indexes.PROVIDERS


@hookimpl
def stratalog_extra_indexes() -> Iterable[Provider[ExtraIndex]]:
    """Return the provider of the extra index ``bloom``."""
    return indexes.EXTRA_PROVIDERS


@hookimpl
def stratalog_tier_layouts() -> Iterable[Provider[TierLayout]]:
    """Return the providers of all tier layouts in this package."""
    return layouts.PROVIDERS
