"""Settings of the tier layouts. They are not in the modules of the layouts, which are imported only when needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from stratalog.spi import Section, Unauthenticated, key

MAX_CHUNK_BYTES: Final = 16 << 20  # readers refuse larger chunks: never lower it


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedSection(Section):
    """Settings of ``[plugins.chunked]``."""

    title: ClassVar[str] = "Tier layout chunked"

    # One entry for each setting, not one line for each argument:
    # fmt: off
    chunk_bytes: int = key("chunk.bytes", 256 << 10, at_least=4 << 10, at_most=MAX_CHUNK_BYTES,
        doc="Bytes of a log that are compressed together.")
    level: int = key("level", 3, at_least=1, at_most=22, doc="Level for zstd.")
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptedSection(Section):
    """Settings of ``[plugins.encrypted]``."""

    title: ClassVar[str] = "Tier layout encrypted"

    # One entry for each setting, not one line for each argument:
    # fmt: off
    keys_file: str = key("keys.file", "",
        doc="Path of the file with the key-encryption keys. No other user may have access to the file (chmod 600). If "
        "root owns the file, its group may read it.")
    over: str = key("over", "single", check=lambda name: "must be another layout" if name == "encrypted" else "",
        doc="Name of the layout whose objects are encrypted.")
    chunk_bytes: int = key("chunk.bytes", 64 << 10, at_least=1 << 10, at_most=MAX_CHUNK_BYTES,
        doc="Bytes that are encrypted together.")
    unauthenticated: str = key("manifest.unauthenticated", "warn", choices=tuple(Unauthenticated),
        doc="Treatment of logs whose manifest has no MAC. refuse: no such log is read. warn and accept: such logs are "
        "read, except logs with segments of encrypted@2, which need a MAC. If a log has segments of encrypted@1, warn "
        "refuses its unencrypted segments, and accept reads them.")
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetSection(Section):
    """Settings of ``[plugins.parquet]``."""

    title: ClassVar[str] = "Tier layout parquet"

    # One entry for each setting, not one line for each argument:
    # fmt: off
    row_group_bytes: int = key("row.group.bytes", 4 << 20, at_least=4 << 10, at_most=256 << 20,
        doc="Approximate number of bytes of a log in one row group, which is fetched and rebuilt together. A log above "
        "64 MiB can have larger row groups, with about one 16,384th of its size.")
    compressed_batches: str = key("compressed.batches", "rewrite", choices=("rewrite", "keep"),
        doc="Batches that producers compressed: rewrite stores their records alone, and readers get uncompressed "
        "batches; keep also stores the batches as they are.")
    level: int = key("level", 3, at_least=1, at_most=22, doc="Level for zstd.")
    # fmt: on
