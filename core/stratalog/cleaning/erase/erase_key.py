"""Erasure of a key: each segment with records of the key, on local disk and in the tier, is rewritten without them.

Offsets, batch headers, transaction markers and the producers' state stay. A batch that loses all of its records stays
as a header without records. A crash leaves each segment either unchanged or without the key, and a second call
continues the erasure.

In the tier, the commit of the erasure also ends the history. Objects that only older manifest roots refer to stay in
the bucket for the collector's grace time, because readers may be using these objects. New readers cannot reach these
objects: ``as_of`` raises an error for a time before the erasure, even if ``tier.history.ms`` is longer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from stratalog.cleaning.compact.segment_range import RewriteStoppedError, S, SegmentPublisher
from stratalog.cleaning.compact.tier_range import CommittedPublisher, CommittedSegment, TierRange, Traffic
from stratalog.cleaning.erase.erasure_report import ErasedSegment, EraseResult, Remnant
from stratalog.cleaning.erase.key_removal import count_records, without_key
from stratalog.env.progress import OnBytes, uncounted
from stratalog.errors import CorruptionError, SegmentGoneError, StorageError
from stratalog.log.log import Log
from stratalog.segment.build import BuiltSegment, copy_batches
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.segment import Segment
from stratalog.tier.commit.replace_change import SegmentSwap
from stratalog.tier.manifest.root import ChangeKind, object_keys
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upkeep.collect import GRACE_MS

_HASHED_BYTES: Final = 1 << 20
_REASON: Final = "erasure of a key"


def searched_bytes(log: Log, tier: TierLog | None) -> int:
    """Return the number of bytes that an erasure searches: in the tier, and in local segments with later records."""
    view = log.view()
    local_bytes = sum(segment.size_bytes for segment in view.segments if segment.end_offset > view.remote_end)
    return local_bytes + (0 if tier is None else tier.known_bytes())


def erase(
    log: Log, key: bytes, tier: TierLog | None = None, *, dry_run: bool = False, on_bytes: OnBytes = uncounted
) -> EraseResult:
    """Erase the records of a key from one log, up to the current log end, and return the result.

    An error that ends the erasure early is in the result. The active segment is rolled first if it contains the key.
    The call waits for a running compaction round or offload of the log.

    Args:
        log: the log. If it is a follower, its segments in the tier are only searched.
        key: the whole key.
        tier: the tier part of the log; None if the log has no tier.
        dry_run: search and report, but change nothing; ``sha256_after`` in the result is then "".
        on_bytes: called with the size of each segment that was searched.
    """
    erasure = _Erasure(log, key, tier, on_bytes, log.offsets().log_end, dry_run=dry_run)
    error: StorageError | None = None
    with log.maintenance.cleaning.tier.busy:
        try:
            erasure.run()
        except StorageError as storage_error:
            error = storage_error
        except RewriteStoppedError as stopped:
            error = StorageError(f"{stopped}: erase again")
            error.__cause__ = stopped
    pending = [Remnant("deleted file", path, until_ms) for path, until_ms in log.maintenance.pending_deletes()]
    now_ms = log.components.env.clock.now_ms()
    segments = tuple(sorted(erasure.segments, key=lambda segment: (segment.part, segment.base_offset)))
    return EraseResult(log.name, erasure.end, segments, (*erasure.remnants, *pending), error, now_ms)


@dataclass(slots=True)
class _Erasure:
    """Erasure of one key from one log. ``segments`` and ``remnants`` are valid even after an error.

    Attributes:
        end: log end offset when the erasure began.
        segments: the rewritten segments.
        remnants: files and objects that may still contain the key.
    """

    log: Log
    key: bytes
    tier: TierLog | None
    on_bytes: OnBytes
    end: int
    dry_run: bool = field(kw_only=True)
    segments: list[ErasedSegment] = field(default_factory=list)
    remnants: list[Remnant] = field(default_factory=list)

    def run(self) -> None:
        """Erase the key in the tier, then on local disk; raise an error that ends the erasure early.

        In this order, the newest record of the key is erased last. Otherwise, an error in between could leave an older
        record of a key that a tombstone on local disk has deleted.
        """
        log, searched_end = self.log, -1
        while not self._erase_above(searched_end):
            assert self.tier is not None
            log.maintenance.refresh_remote()
            start, searched_end = max(searched_end, 0), log.view().remote_end
            self._erase_in_tier(self.tier, start, searched_end)
        if self.tier is not None and (searched_end < 0 or not log.is_leader):
            self._search_tier()

    def _erase_above(self, searched_end: int) -> bool:
        """Erase the key on local disk, and return True if nothing below the end of the tier must be erased before.

        ``searched_end`` is the exclusive end of the offsets that were erased in the tier; -1 if there are none.
        """
        log = self.log
        with log.maintenance.cleaning.local.busy:
            if not self.dry_run and self._active_holds_key():  # the tier may have these offsets in other segments
                log.roll()
            if self.tier is not None and log.is_leader and searched_end < min(log.view().remote_end, self.end):
                return False
            if not log.maintenance.settle_remote():  # the erasure in the tier ends with a commit, which settles this
                raise StorageError(
                    f"it is unknown if the last commit to the tier of {log.name} took effect: offload, then erase again"
                )
            self._erase_locally()
            return True

    # --- on local disk -------------------------------------------------------------------------------------------

    def _active_holds_key(self) -> bool:
        try:
            return bool(self._count_records(self.log.view().segments[-1]))
        except CorruptionError:  # nothing is dropped from the segment, and it is reported as damaged
            return False

    def _erase_locally(self) -> None:
        """Erase the key from the local segments whose end offset (exclusive) is above the tier's end offset.

        The first of these segments may begin below the tier's end offset, because earlier leaders may have had other
        segment bounds.
        """
        view = self.log.view()
        for segment in view.segments:
            if segment.end_offset <= view.remote_end or segment.base_offset >= self.end:
                continue
            try:
                if count := self._count_records(segment):
                    self.segments.append(self._erase_segment(segment, count))
            except CorruptionError as damage:
                self._note_damage(segment, damage)
            self.on_bytes(segment.size_bytes)

    def _erase_segment(self, segment: Segment, count: int) -> ErasedSegment:
        """Rewrite a local segment without its ``count`` records of the key, unless this is a dry run."""
        size_bytes, old_sha256 = segment.size_bytes, _sha256(segment)
        result = ErasedSegment(segment.base_offset, segment.end_offset, count, size_bytes, size_bytes, old_sha256, "")
        if self.dry_run:
            return result
        publisher = self.log.maintenance.publisher()
        new_segment, new_sha256 = self._build_without_key(segment, publisher, segment.modified_ms)
        if not publisher.replace(new_segment, [segment]):
            raise SegmentGoneError("the log changed while the key was erased", segment.label).advised(
                "erase the key again"
            )
        return replace(result, bytes_after=new_segment.size_bytes, sha256_after=new_sha256)

    # --- in the tier ---------------------------------------------------------------------------------------------

    def _erase_in_tier(self, tier: TierLog, start: int, end: int) -> None:
        """Erase the key from the segments with offsets in [start, end) in the tier of a log that is the leader.

        Committed segments are added to ``segments``, even before an error is raised. Raises the errors of
        ``CommittedPublisher``, such as RewriteStoppedError.
        """
        log = self.log
        if tier.root is None:
            return
        traffic = Traffic()
        if self.dry_run:
            part = TierRange.of(log, traffic)
            self.segments += [_tier_result(segment, count) for segment, count in self._holding_key(part, start, end)]
            return
        publisher = CommittedPublisher.open(log, tier, _REASON, traffic, ChangeKind.ERASE)
        publisher.keeps_swaps = True
        part = TierRange.of(log, traffic)
        erased = dict[int, ErasedSegment]()
        try:
            for segment, count in self._holding_key(part, start, end):
                new_segment, new_sha256 = self._build_without_key(segment, publisher, part.modified_ms(segment))
                result = replace(
                    _tier_result(segment, count), bytes_after=new_segment.size_bytes, sha256_after=new_sha256
                )
                erased[segment.base_offset] = result
                publisher.replace(new_segment, [segment])
            publisher.commit(always=True)
            _check_committed(tier, erased, publisher.committed_swaps)
        finally:
            publisher.abandon()
            for swap in publisher.committed_swaps:
                objects = tuple(sorted(swap.new.keys))
                self.segments.append(replace(erased[swap.new.info.base_offset], objects_after=objects))
                tier.fetcher.forget(swap.old[0])
        if all(remnant.kind != "damaged segment" for remnant in self.remnants):  # a copy may be needed for the repair
            # also removes all local segments below the copies
            log.maintenance.evict(max((copy.end_offset for copy in self._differing_copies()), default=0))
        replaced_keys = {key for swap in publisher.committed_swaps for key in swap.old[0].keys}
        listed = {remnant.where for remnant in self.remnants}
        self.remnants += (item for item in _list_unreferenced(log, tier, replaced_keys) if item.where not in listed)

    def _holding_key(self, part: TierRange, start: int, end: int) -> Iterator[tuple[CommittedSegment, int]]:
        """Yield each committed segment in [start, end) that has the key, with the number of records of the key."""
        for segment in part.from_offset(start):
            if not isinstance(segment, CommittedSegment) or segment.base_offset >= end:
                return
            try:
                count = self._count_records(segment)
            except CorruptionError as damage:
                self._note_damage(segment, damage)
                continue
            finally:
                self.on_bytes(segment.size_bytes)
            if count:
                yield segment, count

    def _search_tier(self) -> None:
        """Add a remnant for each segment in the tier that contains the key or is damaged, and for each local copy.

        This method is for a follower, which must not change the tier.
        """
        view, copies = self.log.view(), set[str]()
        for segment in () if view.remote is None else view.remote.segments:
            self.on_bytes(segment.size_bytes)
            try:
                if not self._count_records(segment):
                    continue
            except CorruptionError as damage:
                self._note_damage(segment, damage)
                continue
            self.remnants.append(Remnant("tier", segment.label, reason="the leader of the log erases it"))
            for local in view.segments:
                if local.base_offset < segment.end_offset and segment.base_offset < local.end_offset:
                    copies.add(local.label)
                    self.remnants.append(Remnant("local copy", local.label, reason="it is a copy of what the tier has"))
        for local in self._differing_copies():
            if local.label not in copies:
                reason = "it has records that compaction removed from the tier"
                self.remnants.append(Remnant("local copy", local.label, reason=reason))

    def _differing_copies(self) -> Iterator[Segment]:
        """Yield the local segments that contain the key, and differ from the tier's segments with these offsets.

        A replica has such segments if the leader of an earlier epoch has compacted the tier. A damaged segment that
        differs is yielded, too.
        """
        view = self.log.view()
        if view.remote is None:
            return
        tiered = {
            (segment.base_offset, segment.end_offset, segment.size_bytes)
            for segment in view.remote.segments.from_offset(view.segments[0].base_offset)
        }
        for segment in view.segments[:-1]:
            bounds = (segment.base_offset, segment.end_offset, segment.size_bytes)
            if segment.end_offset > view.remote_end or bounds in tiered:
                continue
            try:
                if not self._count_records(segment):
                    continue
            except CorruptionError:
                pass
            yield segment

    # --- both ----------------------------------------------------------------------------------------------------

    def _count_records(self, segment: ReadableSegment) -> int:
        return count_records(self.log, segment, self.key)

    def _build_without_key(
        self, segment: S, publisher: SegmentPublisher[S], modified_ms: int
    ) -> tuple[BuiltSegment, str]:
        """Build the segment without the key; return it, and the hash of its batches."""
        with publisher.begin(segment.base_offset) as builder:
            copy_batches(segment, builder, self.log.components, without_key(self.log, segment, self.key))
            new_segment = builder.finish(segment.end_offset, modified_ms)
            return new_segment, new_segment.sha256()

    def _note_damage(self, segment: ReadableSegment, error: CorruptionError) -> None:
        self.remnants.append(Remnant("damaged segment", segment.label, reason=str(error)))


def _sha256(segment: Segment) -> str:
    digest = hashlib.sha256()
    for position in range(0, segment.size_bytes, _HASHED_BYTES):
        digest.update(segment.read(position, _HASHED_BYTES))
    return digest.hexdigest()


def _check_committed(tier: TierLog, erased: Mapping[int, ErasedSegment], swaps: Iterable[SegmentSwap]) -> None:
    """Raise StorageError unless all rewritten segments above the log start were committed."""
    committed_bases, log_start = {swap.new.info.base_offset for swap in swaps}, tier.view().log_start
    if any(base not in committed_bases and segment.end_offset > log_start for base, segment in erased.items()):
        raise StorageError(f"the segments of {tier.name} in the tier changed during the erasure: erase again")


def _tier_result(segment: CommittedSegment, count: int) -> ErasedSegment:
    entry = segment.entry
    size_bytes, objects = segment.size_bytes, tuple(sorted(entry.keys))
    bounds = (segment.base_offset, segment.end_offset)
    return ErasedSegment(*bounds, count, size_bytes, size_bytes, entry.sha256, "", "tier", objects)


def _list_unreferenced(log: Log, tier: TierLog, replaced: set[str]) -> Iterator[Remnant]:
    """Yield a remnant for each object that the newest root does not refer to; remove the objects from caches."""
    until_ms = log.components.env.clock.now_ms() + GRACE_MS
    referenced = object_keys(tier.entries(0, log.offsets().log_end, tier.root))
    unreferenced = sorted(tier.stored_keys() - referenced)
    tier.fetcher.forget_objects(unreferenced)
    for key in unreferenced:
        reason = "it held the key" if key in replaced else "of an older root or never committed: not checked"
        yield Remnant("object", key, until_ms, reason)
