"""Tier layouts, which convert a segment's files to objects and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from stratalog.spi import OpenContext, Provider, TierLayout
from stratalog_formats.kernels import EXTENSIONS
from stratalog_formats.layouts.sections import ChunkedSection, EncryptedSection, ParquetSection
from stratalog_formats.openers import opener_of


def _sized_opener(module: str, layout: str) -> Callable[[OpenContext], TierLayout]:
    """Return a function that opens a layout whose argument is the size of a read."""
    return opener_of(module, layout, lambda context: (context.limits.fetch_chunk_bytes,))


# One entry for each layout, not one line for each argument:
# fmt: off
PROVIDERS: Final[tuple[Provider[TierLayout], ...]] = (
    Provider(name="single", open=_sized_opener("layouts.single", "SingleLayout"),
        capabilities=("one object a segment", "rebuild")),
    Provider(name="plain", open=_sized_opener("layouts.plain", "PlainLayout"),
        capabilities=("Kafka's files one to one", "rebuild")),
    Provider(name="chunked", open=opener_of("layouts.chunked", "open_chunked"), engine_section=ChunkedSection,
        capabilities=("one object a segment", "compressed chunks", "rebuild")),
    Provider(name="encrypted", version=2, open=opener_of("layouts.encrypted", "open_encrypted"),
        engine_section=EncryptedSection, capabilities=("AES-256-GCM over another layout", "rebuild")),
    Provider(name="parquet", open=opener_of("layouts.parquet", "open_parquet"), engine_section=ParquetSection,
        capabilities=("one Parquet file a segment", "rebuild"), extensions=EXTENSIONS),
    Provider(name="kafka_local_tiered", open=_sized_opener("layouts.kafka_local", "KafkaLocalLayout"),
        capabilities=("Kafka's LocalTieredStorage", "read only")),
)
# fmt: on
