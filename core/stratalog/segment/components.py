"""The components that a log works with, frozen when the log is opened."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from stratalog.config.engine import Limits
from stratalog.env import Env
from stratalog.errors import CorruptBatchError
from stratalog.segment.cache import ByteCache
from stratalog.spi.codecs import CodecTable
from stratalog.spi.extra import ExtraIndex
from stratalog.spi.formats import RecordFormat
from stratalog.spi.indexes import IndexFormat, IndexRole


class FormatTable:
    """The record formats of an engine, by magic."""

    def __init__(self, formats: Iterable[RecordFormat]) -> None:
        self._by_magic = {found.magic: found for found in formats}

    def get(self, magic: int) -> RecordFormat | None:
        """The format of this magic, or None."""
        return self._by_magic.get(magic)

    def of(self, magic: int, file: str, position: int) -> RecordFormat:
        """The format of this magic; CorruptBatchError at ``position`` of ``file`` if none is installed."""
        found = self._by_magic.get(magic)
        if found is None:
            raise CorruptBatchError(f"unknown magic {magic}", file, position)
        return found


class ExtraTable:
    """EXTRA indexes by ``name@version``, opened when they are first used. Thread-safe.

    Args:
        offers: what gives each, the same one each time; asked once, or by each of several threads that come first together.
    """

    def __init__(self, offers: Mapping[str, Callable[[], ExtraIndex]]) -> None:
        self._offers = offers
        self._opened: dict[str, ExtraIndex] = {}
        self.labels = tuple(offers)

    def of(self, label: str) -> ExtraIndex:
        """The index; PluginImportError if it cannot be opened here."""
        found = self._opened.get(label)
        if found is None:
            found = self._opened[label] = self._offers[label]()
        return found


NO_EXTRAS: Final = ExtraTable({})


@dataclass(frozen=True, slots=True)
class Components:
    """What a log needs to read and write; holds no state of any log.

    ``indexes`` has one format a role. ``index_cache`` holds the index entries of closed segments of all logs. ``extras``
    are the EXTRA indexes that a topic names; for who only reads, all that are installed.
    """

    env: Env
    limits: Limits
    formats: FormatTable
    codecs: CodecTable
    indexes: Mapping[IndexRole, IndexFormat[Any]]
    index_cache: ByteCache
    extras: ExtraTable = NO_EXTRAS
