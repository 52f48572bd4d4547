"""Reads and writes of the pages of a log's manifest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stratalog.env.cache import Cache
from stratalog.errors import CorruptManifestError, ObjectNotFoundError
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.notes import readable
from stratalog.spi.layouts import StoredSegment
from stratalog.spi.objects import BytesSource
from stratalog.tier.manifest.json_fields import sha256_of
from stratalog.tier.manifest.page_codec import encode_page, parse_page
from stratalog.tier.manifest.root import PAGE_ITEMS, PageRef, segment_time_ms
from stratalog.tier.store.object_keys import log_prefix
from stratalog.tier.store.store import TierStore

CACHED_ITEMS: Final = 32 * PAGE_ITEMS  # about 32 MiB
Item = StoredSegment | PageRef


class PageCache(Cache[tuple[Item, ...]]):
    """Cache of parsed pages, by key, with at most ``items`` entries and references. Thread-safe."""

    def __init__(self, items: int = CACHED_ITEMS) -> None:
        super().__init__(items)


class Pages:
    """Reads and writes the manifest pages of one log. Thread-safe.

    Args:
        cache: cache of pages, which may be shared with other logs.
        limit_bytes: size of the largest page to read.
    """

    def __init__(
        self, store: TierStore, log: TopicPartition, topic_id: TopicId, cache: PageCache, *, limit_bytes: int
    ) -> None:
        self.prefix = log_prefix(log, topic_id)
        self._store, self._log, self._topic_id = store, log, topic_id
        self._cache, self._limit_bytes = cache, limit_bytes

    def read(self, ref: PageRef) -> tuple[Item, ...]:
        """Return the contents of a page: entries at level 0, references at a higher level.

        The call sends one request unless the page is cached.

        Raises:
            CorruptManifestError: the page is damaged or too large, or not the one that ``ref`` names.
            ObjectNotFoundError: the page is missing.
        """
        key = ref.key(self.prefix)

        def load() -> tuple[Item, ...]:
            if ref.stored_bytes > self._limit_bytes:
                raise CorruptManifestError(f"manifest page is larger than {self._limit_bytes} bytes", key)
            try:
                data = self._store.read(key, 0, ref.stored_bytes + 1)
            except ObjectNotFoundError as error:
                raise ObjectNotFoundError("a page that the manifest names is missing", key) from error
            with self._store.guard.naming_suspect():
                return parse_page(data, self._log, self._topic_id, ref)

        return self._cache.get_or_load(key, load)

    def entries(self, ref: PageRef) -> tuple[StoredSegment, ...]:
        """Return the entries of a page of level 0."""
        return tuple(item for item in self.read(ref) if isinstance(item, StoredSegment))

    def refs(self, ref: PageRef) -> tuple[PageRef, ...]:
        """Return the references in a page of a level above 0."""
        return tuple(item for item in self.read(ref) if isinstance(item, PageRef))

    def write(self, items: Sequence[Item], leader_epoch: int) -> PageRef:
        """Store a page of entries, or of references of one level, and return the reference to the page.

        ``items`` are ascending and not empty. A repeated call with the same arguments writes the same key and bytes.

        Raises:
            PluginError: the page was read back (``tier.verify``), and the store returned other bytes.
        """
        ref, data = build_page(self._log, self._topic_id, items, leader_epoch)
        key = ref.key(self.prefix)
        self._store.put(key, BytesSource(data))
        try:
            self._store.check_kept("put_file", "manifest page", key, data)
        except ObjectNotFoundError:
            self._store.refuse_lost("put_file", key)
        self._cache.put(key, tuple(items))
        return ref


def build_page(
    log: TopicPartition, topic_id: TopicId, items: Sequence[Item], leader_epoch: int
) -> tuple[PageRef, bytes]:
    """Return the reference to a page, and the bytes of the page.

    ``items`` are entries, or references of one level, ascending and not empty.
    """
    rows = [item if isinstance(item, PageRef) else page_of(item) for item in items]
    level = rows[0].level + 1
    data = encode_page(log, topic_id, level, items)
    ref = PageRef(
        level=level,
        base_offset=rows[0].base_offset,
        end_offset=rows[-1].end_offset,
        segments=sum(row.segments for row in rows),
        size_bytes=sum(row.size_bytes for row in rows),
        oldest_ms=min(row.oldest_ms for row in rows),
        newest_ms=max(row.newest_ms for row in rows),
        stored_bytes=len(data),
        leader_epoch=leader_epoch,
        sha256=sha256_of(data),
    )
    key = ref.key(log_prefix(log, topic_id))
    return ref, readable(data, lambda page_data, _: parse_page(page_data, log, topic_id, ref), key)


def page_of(entry: StoredSegment) -> PageRef:
    """Return the offsets, sizes and times of one entry as a PageRef of level -1; ``build_page`` adds them up."""
    info, time_ms = entry.info, segment_time_ms(entry)
    return PageRef(
        level=-1,
        base_offset=info.base_offset,
        end_offset=info.end_offset,
        segments=1,
        size_bytes=info.size_bytes,
        oldest_ms=time_ms,
        newest_ms=time_ms,
        stored_bytes=0,
        leader_epoch=0,
        sha256="",
    )
