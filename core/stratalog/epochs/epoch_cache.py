"""Leader epochs of one log, with the start offset of each epoch.

Source: apache/kafka LeaderEpochFileCache.
"""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.errors import ConfigError
from stratalog.model.batches import NO_EPOCH
from stratalog.model.offsets import UNDEFINED_END, EpochEnd, EpochEntry


class EpochCache:
    """Immutable list of epoch entries, which ascend in epoch and start offset. Each change returns another cache."""

    __slots__ = ("entries", "latest")

    entries: tuple[EpochEntry, ...]
    latest: int
    """Highest epoch; -1 if there is none. It is stored because each append reads it."""

    def __init__(self, entries: Iterable[EpochEntry] = ()) -> None:
        kept: tuple[EpochEntry, ...] = ()
        for entry in entries:
            kept = _assigned(kept, entry)
        self.entries = kept
        self.latest = kept[-1].epoch if kept else NO_EPOCH

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EpochCache) and self.entries == other.entries

    def __hash__(self) -> int:
        return hash(self.entries)

    def __repr__(self) -> str:
        return f"EpochCache({list(map(tuple, self.entries))})"

    def assign(self, epoch: int, start_offset: int) -> EpochCache:
        """Return a cache that ends with ``epoch`` from ``start_offset`` on.

        Entries whose epoch or start offset is not below that of the new entry are dropped. If ``epoch`` is already the
        latest epoch and begins at or before ``start_offset``, the result is this cache.

        Raises:
            ConfigError: a value is negative.
        """
        if epoch < 0 or start_offset < 0:
            raise ConfigError(f"epoch {epoch} at offset {start_offset}: neither may be negative")
        entries = _assigned(self.entries, EpochEntry(epoch, start_offset))
        return self if entries is self.entries else _cache(entries)

    def truncate_from_end(self, offset: int) -> EpochCache:
        """Return a cache without the epochs that begin at or after ``offset``."""
        return _cache(tuple(entry for entry in self.entries if entry.start_offset < offset))

    def truncate_from_start(self, offset: int) -> EpochCache:
        """Return a cache for the offsets from ``offset`` on. In it, the epoch at ``offset`` begins at ``offset``."""
        below = [entry for entry in self.entries if entry.start_offset <= offset]
        above = tuple(entry for entry in self.entries if entry.start_offset > offset)
        return _cache((EpochEntry(below[-1].epoch, offset), *above) if below else above)

    def at(self, offset: int) -> int:
        """Return the epoch at ``offset``, -1 if none is known."""
        return next((entry.epoch for entry in reversed(self.entries) if entry.start_offset <= offset), NO_EPOCH)

    def between(self, start: int, end: int) -> tuple[EpochEntry, ...]:
        """Return the entries for the offsets [start, end). The epoch at ``start`` is listed as if it began there."""
        return self.truncate_from_start(start).truncate_from_end(end).entries

    def end_offset_for(self, epoch: int, log_end: int) -> EpochEnd:
        """Return the end of ``epoch`` in a log that ends at ``log_end``.

        Returns:
            ``UNDEFINED_END`` for epoch -1, and for an epoch above all known epochs. For the latest epoch, the log end.
            Otherwise the largest epoch at or below ``epoch`` (or ``epoch`` itself, if all known epochs are above it),
            with the start offset of the next epoch.
        """
        if epoch == NO_EPOCH:
            return UNDEFINED_END
        if epoch == self.latest:
            return EpochEnd(epoch, log_end)
        higher = next((entry for entry in self.entries if entry.epoch > epoch), None)
        if higher is None:
            return UNDEFINED_END
        floor = max((entry.epoch for entry in self.entries if entry.epoch <= epoch), default=epoch)
        return EpochEnd(floor, higher.start_offset)

    def after(self, earlier: Iterable[EpochEntry]) -> EpochCache:
        """Return this cache, preceded by the entries of ``earlier`` that are below its first entry in epoch and offset.

        ``earlier`` are the epochs of the log's tier.
        """
        if not self.entries:
            return EpochCache(earlier)
        first = self.entries[0]
        older = [found for found in earlier if found.epoch < first.epoch and found.start_offset < first.start_offset]
        return EpochCache([*older, *self.entries]) if older else self


def _cache(entries: tuple[EpochEntry, ...]) -> EpochCache:
    made = EpochCache()
    made.entries, made.latest = entries, entries[-1].epoch if entries else NO_EPOCH
    return made


def _assigned(entries: tuple[EpochEntry, ...], new: EpochEntry) -> tuple[EpochEntry, ...]:
    if entries and entries[-1].epoch == new.epoch and new.start_offset >= entries[-1].start_offset:
        return entries
    kept = tuple(entry for entry in entries if entry.epoch < new.epoch and entry.start_offset < new.start_offset)
    return (*kept, new)
