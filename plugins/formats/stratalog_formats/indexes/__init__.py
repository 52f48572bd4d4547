"""Kafka's index formats: ``.index``, ``.timeindex`` and ``.txnindex``; and the extra index ``bloom``."""

from __future__ import annotations

from typing import Any, Final

from stratalog.spi import ExtraIndex, IndexFormat, OpenContext, Provider
from stratalog_formats.indexes.bloom_section import NAME, BloomSection
from stratalog_formats.kernels import EXTENSIONS


def _open_offset(context: OpenContext) -> IndexFormat[Any]:
    from stratalog_formats.indexes.offset import OffsetIndex  # noqa: PLC0415 - a provider imports when it opens

    del context
    return OffsetIndex()


def _open_time(context: OpenContext) -> IndexFormat[Any]:
    from stratalog_formats.indexes.time import TimeIndex  # noqa: PLC0415 - a provider imports when it opens

    del context
    return TimeIndex()


def _open_transaction(context: OpenContext) -> IndexFormat[Any]:
    from stratalog_formats.indexes.transaction import TransactionIndex  # noqa: PLC0415 - the same

    del context
    return TransactionIndex()


def _open_bloom(context: OpenContext) -> ExtraIndex:
    from stratalog_formats.indexes.bloom import BloomIndex  # noqa: PLC0415 - the same

    del context
    return BloomIndex()


PROVIDERS: Final[tuple[Provider[IndexFormat[Any]], ...]] = (  # Any: one tuple for entries of three kinds
    Provider(name="offset", open=_open_offset, capabilities=(".index", "offset to position"), extensions=EXTENSIONS),
    Provider(name="time", open=_open_time, capabilities=(".timeindex", "timestamp to offset"), extensions=EXTENSIONS),
    Provider(name="transaction", open=_open_transaction, capabilities=(".txnindex", "aborted transactions")),
)
EXTRA_PROVIDERS: Final[tuple[Provider[ExtraIndex], ...]] = (
    Provider(
        name=NAME,
        open=_open_bloom,
        topic_section=BloomSection,
        capabilities=("Bloom filter of keys",),
        extensions=EXTENSIONS,
    ),
)
