"""Tier layouts, which convert a segment's files to objects and back."""

from __future__ import annotations

from typing import Final

from stratalog.spi import OpenContext, Provider, TierLayout
from stratalog_formats.kernels import EXTENSIONS
from stratalog_formats.layouts.sections import ChunkedSection, EncryptedSection, ParquetSection


def _open_single(context: OpenContext) -> TierLayout:
    from stratalog_formats.layouts.single import SingleLayout  # noqa: PLC0415 - a provider imports when it opens

    return SingleLayout(context.limits.fetch_chunk_bytes)


def _open_plain(context: OpenContext) -> TierLayout:
    from stratalog_formats.layouts.plain import PlainLayout  # noqa: PLC0415 - the same

    return PlainLayout(context.limits.fetch_chunk_bytes)


def _open_chunked(context: OpenContext) -> TierLayout:
    from stratalog_formats.layouts.chunked import open_chunked  # noqa: PLC0415 - the same

    return open_chunked(context)


def _open_encrypted(context: OpenContext) -> TierLayout:
    from stratalog_formats.layouts.encrypted import open_encrypted  # noqa: PLC0415 - the same

    return open_encrypted(context)


def _open_parquet(context: OpenContext) -> TierLayout:
    from stratalog_formats.layouts.parquet import open_parquet  # noqa: PLC0415 - the same

    return open_parquet(context)


def _open_kafka_local(context: OpenContext) -> TierLayout:
    from stratalog_formats.layouts.kafka_local import KafkaLocalLayout  # noqa: PLC0415 - the same

    return KafkaLocalLayout(context.limits.fetch_chunk_bytes)


PROVIDERS: Final[tuple[Provider[TierLayout], ...]] = (
    Provider(name="single", open=_open_single, capabilities=("one object a segment", "rebuild")),
    Provider(name="plain", open=_open_plain, capabilities=("Kafka's files one to one", "rebuild")),
    Provider(
        name="chunked",
        open=_open_chunked,
        engine_section=ChunkedSection,
        capabilities=("one object a segment", "compressed chunks", "rebuild"),
    ),
    Provider(
        name="encrypted",
        version=2,
        open=_open_encrypted,
        engine_section=EncryptedSection,
        capabilities=("AES-256-GCM over another layout", "rebuild"),
    ),
    Provider(
        name="parquet",
        open=_open_parquet,
        engine_section=ParquetSection,
        capabilities=("one Parquet file a segment", "rebuild"),
        extensions=EXTENSIONS,
    ),
    Provider(
        name="kafka_local_tiered", open=_open_kafka_local, capabilities=("Kafka's LocalTieredStorage", "read only")
    ),
)
