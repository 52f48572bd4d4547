"""Kafka's index formats: ``.index``, ``.timeindex`` and ``.txnindex``; and the extra index ``bloom``."""

from __future__ import annotations

from typing import Any, Final

from stratalog.spi import ExtraIndex, IndexFormat, Provider
from stratalog_formats.indexes.bloom_section import NAME, BloomSection
from stratalog_formats.kernels import EXTENSIONS
from stratalog_formats.openers import opener_of

# One entry for each index, not one line for each argument:
# fmt: off
PROVIDERS: Final[tuple[Provider[IndexFormat[Any]], ...]] = (  # Any: one tuple for entries of three kinds
    Provider(name="offset", open=opener_of("indexes.offset", "OffsetIndex", lambda _: ()),
        capabilities=(".index", "offset to position"), extensions=EXTENSIONS),
    Provider(name="time", open=opener_of("indexes.time", "TimeIndex", lambda _: ()),
        capabilities=(".timeindex", "timestamp to offset"), extensions=EXTENSIONS),
    Provider(name="transaction", open=opener_of("indexes.transaction", "TransactionIndex", lambda _: ()),
        capabilities=(".txnindex", "aborted transactions")),
)
EXTRA_PROVIDERS: Final[tuple[Provider[ExtraIndex], ...]] = (
    Provider(name=NAME, open=opener_of("indexes.bloom", "BloomIndex", lambda _: ()), topic_section=BloomSection,
        capabilities=("Bloom filter of keys",), extensions=EXTENSIONS),
)
# fmt: on
