"""The components that a log works with: formats, codecs, indexes, limits and caches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from stratalog.config.engine_settings import Limits
from stratalog.env import Env
from stratalog.env.cache import Cache
from stratalog.errors import CorruptBatchError, StorageError, UnknownComponentError
from stratalog.model.numbered_components import NumberedComponents
from stratalog.registry.guard import Guard
from stratalog.spi.codecs import CodecTable
from stratalog.spi.extra import ExtraIndex
from stratalog.spi.formats import RecordFormat
from stratalog.spi.indexes import IndexFormat, IndexRole

MAGICS: Final = range(128)
_LOGGER: Final = logging.getLogger(__name__)
_KAFKA_MAGICS: Final = range(3)


class FormatTable:
    """The record formats of an engine, by magic. Thread-safe.

    Args:
        formats: formats that are already open.
        offers: formats that are opened when one of them is first needed.

    Attributes:
        opened_by_magic: the formats that are open already, by magic; replaced as a whole.
    """

    def __init__(
        self, formats: Iterable[RecordFormat] = (), offers: NumberedComponents[RecordFormat] | None = None
    ) -> None:
        self.opened_by_magic: Mapping[int, RecordFormat] = {
            record_format.magic: record_format for record_format in formats
        }
        self._offers = offers or NumberedComponents[RecordFormat]("record format", "magic", MAGICS)

    def get(self, magic: int) -> RecordFormat | None:
        """Return the format of this magic; None if no format has it.

        Raises:
            PluginClashError: several formats have this magic.
            UnknownComponentError: the magic is Kafka's and its format is not installed, or a format that may have it is
                in quarantine. Bytes that another engine can read are not damage, so recovery must not truncate them.
        """
        record_format = self.opened_by_magic.get(magic)
        return record_format if record_format is not None else self._look_up(magic)

    def of(self, magic: int, file: str, position: int) -> RecordFormat:
        """Return the format of this magic.

        Raises:
            CorruptBatchError: no format has this magic. The error has ``file`` and ``position``.
            The errors of ``get``.
        """
        record_format = self.opened_by_magic.get(magic) or self.get(magic)
        if record_format is None:
            raise CorruptBatchError(f"unknown magic {magic}", file, position)
        return record_format

    def for_version(self, version: int | str) -> RecordFormat:
        """Return the format that a topic's ``record.version`` selects, by its magic or by its name.

        Raises:
            UnknownComponentError: no such format is installed.
            PluginError: the format cannot be opened, or has the same magic as another format.
        """
        if isinstance(version, int):
            record_format = self.get(version)
        else:
            opened_formats = self._offers.open_all()
            opened_formats.check(version)
            record_format = opened_formats.by_name.get(version)
        if record_format is None:
            raise UnknownComponentError(f"no record format {version!r} is installed, which record.version names")
        return record_format

    def _look_up(self, magic: int) -> RecordFormat | None:
        opened_formats = self._offers.open_all()
        if not opened_formats.by_number.keys() <= self.opened_by_magic.keys():
            self.opened_by_magic = {**opened_formats.by_number, **self.opened_by_magic}
        if magic in self.opened_by_magic:
            return self.opened_by_magic[magic]
        if magic in opened_formats.clashes:
            raise opened_formats.clashes[magic].with_traceback(None)
        if opened_formats.failures or magic in _KAFKA_MAGICS:
            advice = opened_formats.absence() or "; install a plugin that provides it, or remove it from plugins.block"
            raise UnknownComponentError(f"no record format with magic {magic} is installed{advice}")
        return None


class ExtraTable:
    """Extra indexes by label (``name@version``), opened when they are first used. Thread-safe.

    Args:
        offers: functions that open an index, by label. Each function returns the same object each time, because several
            threads may call it.
        guards: guards of the calls into each index, by label.

    Attributes:
        labels: labels of all indexes.
        failures: the first failure of each method that broke the contract, by label and method.
    """

    def __init__(
        self, offers: Mapping[str, Callable[[], ExtraIndex]], guards: Mapping[str, Guard] | None = None
    ) -> None:
        self._offers, self._guards = offers, guards or {}
        self._indexes: dict[str, ExtraIndex] = {}
        self.labels = tuple(offers)
        self.failures: dict[tuple[str, str], StorageError] = {}

    def of(self, label: str) -> ExtraIndex:
        """Return the index with this label, one of ``labels``; raise PluginError if the index cannot be opened."""
        index = self._indexes.get(label)
        if index is None:
            index = self._indexes[label] = self._offers[label]()
        return index

    def guard(self, label: str) -> Guard:
        """Return the ``Guard`` that checks the calls into an index and its readers."""
        return self._guards.get(label) or Guard(f"extra index {label}", "")

    def note_failure(self, label: str, method: str, where: str, error: StorageError) -> None:
        """Record that a method of an index or its reader broke the contract. Only a method's first failure is logged.

        ``where`` names the segment, which is read without this index.
        """
        if self.failures.setdefault((label, method), error) is error:
            _LOGGER.error(
                "extra index %s of %s is not used; more of the same index are not reported: %s",
                label,
                where,
                error,
                exc_info=error,
            )


NO_EXTRAS: Final = ExtraTable({})


@dataclass(frozen=True, slots=True)
class Components:
    """Components that a log needs to read and write; holds no state of any log.

    ``indexes`` has one format for each role. ``index_cache`` holds the index entries of closed segments of all logs.
    ``extras`` are the extra indexes that a topic names; a reader without an engine has all installed extra indexes.
    """

    env: Env
    limits: Limits
    formats: FormatTable
    codecs: CodecTable
    indexes: Mapping[IndexRole, IndexFormat[Any]]
    index_cache: Cache[bytes]
    extras: ExtraTable = NO_EXTRAS
