"""Kafka's compression codecs, by the names of ``compression.type``."""

from __future__ import annotations

from stratalog.spi import Codec, Provider
from stratalog_formats.openers import opener_of

PROVIDERS: tuple[Provider[Codec], ...] = tuple(
    Provider(name=name, open=opener_of(f"codecs.{name}", codec, lambda _: ()))
    for name, codec in (("gzip", "GzipCodec"), ("snappy", "SnappyCodec"), ("lz4", "Lz4Codec"), ("zstd", "ZstdCodec"))
)
