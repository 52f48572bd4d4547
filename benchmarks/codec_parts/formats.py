"""The record format and the codecs of stratalog, and the kernels (compiled or pure Python) that this process uses."""

from __future__ import annotations

from typing import Final

from stratalog.config.engine_settings import Limits
from stratalog.extensions import absence
from stratalog.spi import Codec, CodecTable, Env, HandlePool, OpenContext, RecordFormat
from stratalog_formats import codecs, records
from stratalog_formats.kernels import EXTENSIONS
from stratalog_formats.kernels.dispatch import COMPILED, KERNELS

NAME: Final = "stratalog"
PURE_NAME: Final = "stratalog, pure Python"
LIMIT_BYTES: Final = Limits().decompressed_bytes


def _context(table: CodecTable) -> OpenContext:
    env = Env()
    return OpenContext(env=env, limits=Limits(), handles=HandlePool(env.files, 8), codecs=table)


def _codecs() -> dict[str, Codec]:
    codec_by_name = {provider.name: provider.open(_context(CodecTable())) for provider in codecs.PROVIDERS}
    return dict(sorted(codec_by_name.items(), key=lambda item: item[1].id))


_PROVIDER: Final = next(provider for provider in records.PROVIDERS if provider.name == "v2")
CODECS: Final = _codecs()  # by name, sorted by codec id
BATCHES: Final[RecordFormat] = _PROVIDER.open(_context(CodecTable(CODECS.items())))


def absences() -> list[str]:
    """Return a sentence for each unusable compiled kernel; empty if this process uses the compiled kernels."""
    if KERNELS is COMPILED:
        return []
    return [f"{name}: {reason}" for name in EXTENSIONS if (reason := absence(name))] or [
        "the twins do not fit together"
    ]


def name_here() -> str:
    """Return the name of the side for the kernels of this process."""
    return NAME if KERNELS is COMPILED else PURE_NAME
