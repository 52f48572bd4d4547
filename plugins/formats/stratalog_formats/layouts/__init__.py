"""Tier layouts, which convert a segment's files to objects and back."""

from __future__ import annotations

from typing import Final

from stratalog.spi import OpenContext, Provider, TierLayout
from stratalog_formats.kernels import EXTENSIONS
from stratalog_formats.layouts import chunked, encrypted, kafka_local, parquet, plain, single


def _open_single(context: OpenContext) -> TierLayout:
    return single.SingleLayout(context.limits.fetch_chunk_bytes)


def _open_plain(context: OpenContext) -> TierLayout:
    return plain.PlainLayout(context.limits.fetch_chunk_bytes)


def _open_kafka_local(context: OpenContext) -> TierLayout:
    return kafka_local.KafkaLocalLayout(context.limits.fetch_chunk_bytes)


PROVIDERS: Final[tuple[Provider[TierLayout], ...]] = (
    Provider(
        name=single.NAME,
        version=single.VERSION,
        open=_open_single,
        capabilities=("one object a segment", "rebuild"),
    ),
    Provider(
        name=plain.NAME,
        version=plain.VERSION,
        open=_open_plain,
        capabilities=("Kafka's files one to one", "rebuild"),
    ),
    Provider(
        name=chunked.NAME,
        version=chunked.VERSION,
        open=chunked.open_chunked,
        engine_section=chunked.ChunkedSection,
        capabilities=("one object a segment", "compressed chunks", "rebuild"),
    ),
    Provider(
        name=encrypted.NAME,
        version=encrypted.VERSION,
        open=encrypted.open_encrypted,
        engine_section=encrypted.EncryptedSection,
        capabilities=("AES-256-GCM over another layout", "rebuild"),
    ),
    Provider(
        name=parquet.NAME,
        version=parquet.VERSION,
        open=parquet.open_parquet,
        engine_section=parquet.ParquetSection,
        capabilities=("one Parquet file a segment", "rebuild"),
        extensions=EXTENSIONS,
    ),
    Provider(
        name=kafka_local.NAME,
        version=kafka_local.VERSION,
        open=_open_kafka_local,
        capabilities=("Kafka's LocalTieredStorage", "read only"),
    ),
)
