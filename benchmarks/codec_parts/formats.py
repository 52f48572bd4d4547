"""The format and the codecs of this project, and which twin of its kernels does the work in this process."""

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
    opened = {provider.name: provider.open(_context(CodecTable())) for provider in codecs.PROVIDERS}
    return dict(sorted(opened.items(), key=lambda item: item[1].id))


_PROVIDER: Final = next(provider for provider in records.PROVIDERS if provider.name == "v2")
CODECS: Final = _codecs()  # by name, in the order of their ids
BATCHES: Final[RecordFormat] = _PROVIDER.open(_context(CodecTable(CODECS.items())))


def absences() -> list[str]:
    """Why compiled kernels do not work in this process, a sentence for each that does not; empty if they do."""
    if KERNELS is COMPILED:
        return []
    return [f"{name}: {reason}" for name in EXTENSIONS if (reason := absence(name))] or [
        "the twins do not fit together"
    ]


def name_here() -> str:
    """The name of the side that this process's kernels make."""
    return NAME if KERNELS is COMPILED else PURE_NAME
