"""Kafka's compression codecs, by the names of ``compression.type``."""

from __future__ import annotations

from stratalog.spi import Codec, OpenContext, Provider


def _open_gzip(context: OpenContext) -> Codec:
    from stratalog_formats.codecs.gzip import GzipCodec  # noqa: PLC0415 - a provider imports when it opens

    del context
    return GzipCodec()


def _open_snappy(context: OpenContext) -> Codec:
    from stratalog_formats.codecs.snappy import SnappyCodec  # noqa: PLC0415 - the same

    del context
    return SnappyCodec()


def _open_lz4(context: OpenContext) -> Codec:
    from stratalog_formats.codecs.lz4 import Lz4Codec  # noqa: PLC0415 - the same

    del context
    return Lz4Codec()


def _open_zstd(context: OpenContext) -> Codec:
    from stratalog_formats.codecs.zstd import ZstdCodec  # noqa: PLC0415 - the same

    del context
    return ZstdCodec()


PROVIDERS: tuple[Provider[Codec], ...] = (
    Provider(name="gzip", open=_open_gzip),
    Provider(name="snappy", open=_open_snappy),
    Provider(name="lz4", open=_open_lz4),
    Provider(name="zstd", open=_open_zstd),
)
