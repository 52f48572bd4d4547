"""Leader epochs of one log, with the start offset of each epoch.

Source: apache/kafka LeaderEpochFileCache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stratalog.errors import ConfigError
from stratalog.model.batches import NO_EPOCH
from stratalog.model.offsets import UNDEFINED_END, EpochEnd, EpochEntry


class EpochCache:
    """Immutable list of leader epochs and their start offsets, ascending in both. Each change returns a new cache."""

    __slots__ = ("entries", "latest")

    entries: tuple[EpochEntry, ...]
    latest: int
    """Highest epoch; -1 if there is none. It is stored because each append reads it."""

    def __init__(self, entries: Iterable[EpochEntry] = ()) -> None:
        assigned: tuple[EpochEntry, ...] = ()
        for entry in entries:
            assigned = _assign(assigned, entry)
        self.entries = assigned
        self.latest = assigned[-1].epoch if assigned else NO_EPOCH

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EpochCache) and self.entries == other.entries

    def __hash__(self) -> int:
        return hash(self.entries)

    def __repr__(self) -> str:
        return f"EpochCache({list(map(tuple, self.entries))})"

    def assign(self, epoch: int, start_offset: int) -> EpochCache:
        """Return a cache with ``epoch`` as the latest epoch. It begins at ``start_offset``.

        Entries with the same or a higher epoch, and entries with the same or a higher start offset, are removed. If
        ``epoch`` is already the latest epoch and begins at or before ``start_offset``, the result is this cache.

        Raises:
            ConfigError: a value is negative.
        """
        if epoch < 0 or start_offset < 0:
            raise ConfigError(f"epoch {epoch} at offset {start_offset}: neither may be negative")
        entries = _assign(self.entries, EpochEntry(epoch, start_offset))
        return self if entries is self.entries else _make_cache(entries)

    def truncate_from_end(self, offset: int) -> EpochCache:
        """Return a cache without the epochs that begin at or after ``offset``."""
        return _make_cache(tuple(entry for entry in self.entries if entry.start_offset < offset))

    def truncate_from_start(self, offset: int) -> EpochCache:
        """Return a cache for the offsets from ``offset`` on.

        Its first entry is the epoch at ``offset``, with ``offset`` as its start offset. If no epoch is known at
        ``offset``, the entries are unchanged.
        """
        up_to_offset = [entry for entry in self.entries if entry.start_offset <= offset]
        later_entries = tuple(entry for entry in self.entries if entry.start_offset > offset)
        return _make_cache(
            (EpochEntry(up_to_offset[-1].epoch, offset), *later_entries) if up_to_offset else later_entries
        )

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch at ``offset``, -1 if none is known."""
        return next((entry.epoch for entry in reversed(self.entries) if entry.start_offset <= offset), NO_EPOCH)

    def entries_between(self, start: int, end: int) -> tuple[EpochEntry, ...]:
        """Return the entries for the offsets [start, end). An epoch that begins earlier is listed from ``start`` on."""
        return self.truncate_from_start(start).truncate_from_end(end).entries

    def end_offset_for(self, epoch: int, log_end: int) -> EpochEnd:
        """Return the exclusive end offset of ``epoch`` in a log with the log end offset ``log_end``.

        Kafka's request OffsetsForLeaderEpoch returns the same result.

        Returns:
            For epoch -1, and for an epoch above all known epochs, the result is ``UNDEFINED_END``. For the latest
            epoch, the result is ``epoch`` and ``log_end``. For any other epoch, the result is the largest known epoch
            at or below ``epoch`` (``epoch`` itself if all known epochs are above it), and the start offset of the first
            known epoch above ``epoch``.
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

    def with_earlier(self, earlier: Iterable[EpochEntry]) -> EpochCache:
        """Return a cache that begins with older entries of ``earlier``, the leader epochs in the log's tier.

        An entry is older if its epoch and its start offset are below those of the first entry of this cache.
        """
        if not self.entries:
            return EpochCache(earlier)
        first = self.entries[0]
        older = [entry for entry in earlier if entry.epoch < first.epoch and entry.start_offset < first.start_offset]
        return EpochCache([*older, *self.entries]) if older else self


def first_divergence(ours: Sequence[EpochEntry], theirs: Sequence[EpochEntry], start: int, end: int) -> int | None:
    """Return the first offset in [start, end) with different leader epochs in two copies of a log, or None.

    Two leaders can write different records at the same offset, but not in the same leader epoch. Both lists ascend. If
    a copy has no epoch for an offset, for example after retention, the offset counts as equal.

    Source: KIP-101, KIP-405; apache/kafka RemoteLogManager.isRemoteSegmentWithinLeaderEpochs.
    """
    our_cache, their_cache = EpochCache(ours), EpochCache(theirs)
    edges = {start, *(entry.start_offset for entry in (*ours, *theirs) if start < entry.start_offset < end)}
    for offset in sorted(edges) if start < end else ():
        known_epochs = {our_cache.epoch_at(offset), their_cache.epoch_at(offset)} - {NO_EPOCH}
        if len(known_epochs) > 1:
            return offset
    return None


def _make_cache(entries: tuple[EpochEntry, ...]) -> EpochCache:
    cache = EpochCache()
    cache.entries, cache.latest = entries, entries[-1].epoch if entries else NO_EPOCH
    return cache


def _assign(entries: tuple[EpochEntry, ...], new: EpochEntry) -> tuple[EpochEntry, ...]:
    if entries and entries[-1].epoch == new.epoch and new.start_offset >= entries[-1].start_offset:
        return entries
    lower_entries = tuple(
        entry for entry in entries if entry.epoch < new.epoch and entry.start_offset < new.start_offset
    )
    return (*lower_entries, new)
