"""Rebuild of a log's manifest from the footers of its objects, for a bucket whose manifests are lost.

Without a manifest, it is unknown which objects belong to the log. Some were replaced or expired, and are not deleted
yet. Others were uploaded by a writer that was fenced before it could commit them. The rebuild searches for a chain of
segments. The search begins with the last segment, which has the highest offset of the highest leader epoch. Each
segment of the chain must end where the next segment begins, and must not have a higher leader epoch than the next
segment. Nothing is deleted.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from stratalog.errors import CorruptionError, StorageError
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.offsets import next_epoch
from stratalog.spi.layouts import StoredSegment, TierLayout, Unauthenticated
from stratalog.spi.objects import ObjectInfo
from stratalog.tier.manifest.json_fields import canonical
from stratalog.tier.manifest.manifest_checks import entry_contradiction
from stratalog.tier.manifest.page_codec import entry_from_json, entry_to_json
from stratalog.tier.manifest.root import PAGE_ITEMS, Change, ChangeKind, Root
from stratalog.tier.store.object_keys import log_prefix, parse_segment_key, segments_prefix, upload_time_ms
from stratalog.tier.store.store import TierStore


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """Result of the rebuild of one log; in a dry run nothing was written.

    Attributes:
        start_offset: base offset of the first segment, which becomes the log start. The lost log start may be higher.
        end_offset: exclusive end offset of the last segment.
        segments: the number of segments.
        size_bytes: size of their ``.log`` files.
        leader_epoch: leader epoch of the new roots; above all epochs in the objects.
        ignored: keys of unused objects, each with the reason.
    """

    log: TopicPartition
    topic_id: TopicId
    start_offset: int
    end_offset: int
    segments: int
    size_bytes: int
    leader_epoch: int
    ignored: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _FoundSegment:
    """A segment that was found by the footer of its object. ``packed`` is its compressed manifest entry."""

    base_offset: int
    end_offset: int
    first_epoch: int
    last_epoch: int
    writer_epoch: int
    uploaded_ms: int
    size_bytes: int
    key: str
    packed: bytes
    is_authentic: bool

    @property
    def rank(self) -> tuple[int, int, int, int, int, str]:
        """Sort key of segments, newer last: by the leader epochs of writer and records, then by upload time.

        If two segments have the same upload time, the one that compaction made is newer: it has more offsets, or fewer
        bytes.
        """
        wide, small = -self.base_offset, -self.size_bytes
        return self.writer_epoch, self.last_epoch, self.uploaded_ms, wide, small, self.key


class Rebuilder:
    """Finds the segments of one log by the footers of its objects.

    Args:
        start: ignore objects whose keys have a lower base offset.
        end: ignore objects whose keys have this base offset or a higher one; None ignores none.
        authentic_only: True to use only segments that a key authenticates. If False, other segments are used, too,
            unless a key authenticates at least one segment of the log.
    """

    def __init__(
        self,
        store: TierStore,
        layouts: Sequence[TierLayout],
        log: TopicPartition,
        topic_id: TopicId,
        *,
        start: int = 0,
        end: int | None = None,
        authentic_only: bool = False,
    ) -> None:
        self._authentic_only = authentic_only
        self._start, self._end = start, end
        self._store, self._layouts, self._log, self._topic_id = store, layouts, log, topic_id
        self._prefix = log_prefix(log, topic_id)
        self._ignored: dict[str, str] = {}
        self._chain: list[_FoundSegment] = []
        self.seen_epoch = 0  # the highest leader epoch of any writer or record

    def run(self) -> RebuildReport:
        """Read the footers of all objects, and return a report about the chain of segments; ``batches`` then yields it.

        Raises:
            StorageError: no object describes a segment.
            EpochsExhaustedError: an object has the last possible leader epoch.
        """
        segments = self._read_trusted()
        if not segments:
            raise StorageError(
                f"no object under {segments_prefix(self._prefix)} describes a segment, so nothing can be rebuilt"
            )
        self._chain = chain_of(segments)
        chain_keys = {segment.key for segment in self._chain}
        for segment in segments:
            if segment.key not in chain_keys:
                span = f"[{segment.base_offset}, {segment.end_offset}) of epoch {segment.writer_epoch}"
                self._ignored[segment.key] = f"{span}: replaced, or uploaded but never committed"
        return RebuildReport(
            log=self._log,
            topic_id=self._topic_id,
            start_offset=self._chain[0].base_offset,
            end_offset=self._chain[-1].end_offset,
            segments=len(self._chain),
            size_bytes=sum(segment.size_bytes for segment in self._chain),
            leader_epoch=next_epoch(self.seen_epoch, self._log),
            ignored=tuple(sorted(self._ignored.items())),
        )

    def batches(self) -> Iterator[tuple[StoredSegment, ...]]:
        """Yield the entries of the chain that ``run`` found, ascending, in groups of at most 256 entries."""
        for start in range(0, len(self._chain), PAGE_ITEMS):
            yield tuple(self._unpack(segment) for segment in self._chain[start : start + PAGE_ITEMS])

    def chain(self) -> list[StoredSegment]:
        """Read the footers of all objects, and return the entries of the chain of segments, ascending.

        The result is empty if no object describes a segment.
        """
        return [self._unpack(segment) for segment in chain_of(self._read_trusted())]

    def entries(self) -> list[StoredSegment]:
        """Read the footers of all objects, and return all entries, even replaced and untrusted ones, in any order."""
        return [self._unpack(segment) for segment in self._read_segments()]

    # --- footers -------------------------------------------------------------------------------------------------

    def _read_trusted(self) -> list[_FoundSegment]:
        """Return the segments that may be used: all, or, if a key is needed, only those that a key authenticates."""
        segments = list(self._read_segments())
        needs_key = self._authentic_only or any(segment.is_authentic for segment in segments)
        if not needs_key or self._accepts_any():
            return segments
        for segment in segments:
            if not segment.is_authentic:
                self._ignored[segment.key] = (
                    "no key authenticates it, but a key authenticates other segments of the log"
                )
        return [segment for segment in segments if segment.is_authentic]

    def _accepts_any(self) -> bool:
        """Return True if the settings of a layout that authenticates also accept unauthenticated segments."""
        authenticators = (layout.authenticator() for layout in self._layouts)
        return any(
            authenticator is not None and authenticator.unauthenticated is Unauthenticated.ACCEPT
            for authenticator in authenticators
        )

    def _read_segments(self) -> Iterator[_FoundSegment]:
        objects = {
            info.key: info for info in self._store.list_all(segments_prefix(self._prefix)) if self._is_in_range(info)
        }
        for segment in self._parse_segments(objects):
            self.seen_epoch = max(self.seen_epoch, segment.writer_epoch, segment.last_epoch)
            yield segment

    def _is_in_range(self, info: ObjectInfo) -> bool:
        parsed_key = parse_segment_key(self._prefix, info.key)
        if parsed_key is None:
            return self._start == 0 and self._end is None
        return self._start <= parsed_key.base_offset and (self._end is None or parsed_key.base_offset < self._end)

    def _parse_segments(self, objects: Mapping[str, ObjectInfo]) -> Iterator[_FoundSegment]:
        for _, group in groupby(objects.values(), lambda info: parse_segment_key(self._prefix, info.key)):
            infos = list(group)  # an encrypted segment may have several footers
            claimed_keys = set[str]()
            for entry, is_authentic in self._discover_each(infos):
                claimed_keys |= entry.keys
                defect = self._defect(entry, objects)
                key = min(entry.keys)
                if defect:
                    self._ignored[key] = defect
                else:
                    uploaded_ms = max(_uploaded_ms(objects[name]) for name in entry.keys)
                    yield self._pack(entry, uploaded_ms, is_authentic=is_authentic)
            for info in infos:
                if info.key not in claimed_keys and info.key not in self._ignored:
                    self._ignored[info.key] = "no readable segment ends with it"

    def _discover_each(self, infos: Sequence[ObjectInfo]) -> list[tuple[StoredSegment, bool]]:
        """Return the segments that these objects contain, each with True if a key authenticates it, otherwise False."""
        try:
            return self._discover(infos)
        except CorruptionError:
            entries = list[tuple[StoredSegment, bool]]()
            for info in infos:
                try:
                    entries += self._discover([info])
                except CorruptionError as error:
                    self._ignored[info.key] = f"damaged: {error}"
            return entries

    def _discover(self, infos: Sequence[ObjectInfo]) -> list[tuple[StoredSegment, bool]]:
        for layout in self._layouts:
            entries = list(layout.discover(infos, self._store.read_exactly))
            if entries:
                is_authentic = layout.authenticator() is not None
                return [(entry, is_authentic) for entry in entries]
        return []

    def _defect(self, entry: StoredSegment, objects: Mapping[str, ObjectInfo]) -> str:
        info = entry.info
        if (info.log, info.topic_id) != (self._log, self._topic_id):
            return f"describes another log, {info.log} {info.topic_id}"
        for place in entry.slices.values():
            object_info = objects.get(place.key)
            if object_info is None or object_info.size_bytes < place.position + place.size_bytes:
                return f"a part of the segment is missing: {place.key}"
        if not info.leader_epochs:
            return "has no leader epoch"
        return entry_contradiction(self._prefix, entry)

    def _pack(self, entry: StoredSegment, uploaded_ms: int, *, is_authentic: bool) -> _FoundSegment:
        info, key = entry.info, min(entry.keys)
        writer = parse_segment_key(self._prefix, key)
        return _FoundSegment(
            base_offset=info.base_offset,
            end_offset=info.end_offset,
            first_epoch=info.leader_epochs[0].epoch,
            last_epoch=info.leader_epochs[-1].epoch,
            writer_epoch=writer.leader_epoch if writer else 0,
            uploaded_ms=uploaded_ms,
            size_bytes=info.size_bytes,
            key=key,
            packed=zlib.compress(canonical(entry_to_json(entry))),
            is_authentic=is_authentic,
        )

    def _unpack(self, segment: _FoundSegment) -> StoredSegment:
        return entry_from_json(json.loads(zlib.decompress(segment.packed)), self._log, self._topic_id)


def _uploaded_ms(info: ObjectInfo) -> int:
    """Return the upload time in an object's key; without one, the store's time, which a copy of the bucket changes."""
    started_ms = upload_time_ms(info.key)
    return info.modified_ms if started_ms is None else started_ms


def chain_of(segments: Iterable[_FoundSegment]) -> list[_FoundSegment]:
    """Return the chain of segments, ascending, without gap or overlap. The module's docstring describes the chain.

    If several segments fit before another segment, the chain has the one with which it begins at the lowest offset; of
    several such segments, it has the newest.
    """
    ascending = sorted(segments, key=lambda segment: (segment.base_offset, segment.end_offset))
    by_end: dict[int, list[_FoundSegment]] = defaultdict(list)
    previous: dict[str, _FoundSegment | None] = {}
    start_by_key: dict[str, int] = {}
    for segment in ascending:
        candidates = [
            candidate for candidate in by_end[segment.base_offset] if candidate.last_epoch <= segment.first_epoch
        ]
        best = max(candidates, key=lambda candidate: (-start_by_key[candidate.key], candidate.rank), default=None)
        previous[segment.key] = best
        start_by_key[segment.key] = segment.base_offset if best is None else start_by_key[best.key]
        by_end[segment.end_offset].append(segment)
    last = max(
        ascending,
        key=lambda segment: (segment.last_epoch, segment.end_offset, -start_by_key[segment.key], segment.rank),
        default=None,
    )
    chain = list[_FoundSegment]()
    while last is not None:
        chain.append(last)
        last = previous[last.key]
    return chain[::-1]


REASON: Final = "rebuilt from the footers of the objects"


def rebuild_change(
    root: Root | None, entries: tuple[StoredSegment, ...], log_start: int, end_offset: int
) -> Change | None:
    """Return the change that appends the rebuilt entries that ``root``, the latest root, lacks; None if it lacks none.

    ``log_start`` and ``end_offset`` are the bounds of the complete manifest. Until the manifest is complete, its high
    watermark is above its end offset, and bulk writers refuse the log.
    """
    end = root.end_offset if root is not None and root.segments else log_start
    missing = tuple(entry for entry in entries if entry.info.base_offset >= end)
    if not missing:
        return None
    high = max(missing[-1].info.end_offset, end_offset, root.high_watermark if root else 0)
    return Change(kind=ChangeKind.REBUILD, reason=REASON, log_start=log_start, high_watermark=high, added=missing)
