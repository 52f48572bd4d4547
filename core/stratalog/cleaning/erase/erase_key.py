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
from dataclasses import replace
from typing import Final

from stratalog.cleaning.compact.segment_range import RewriteStoppedError
from stratalog.cleaning.compact.tier_range import CommittedPublisher, TierRange, TierSource, Traffic
from stratalog.cleaning.erase.erasure_report import ErasedSegment, EraseResult, Remnant
from stratalog.cleaning.erase.key_removal import records_of, without_key
from stratalog.env.progress import OnBytes, uncounted
from stratalog.errors import CorruptionError, SegmentGoneError, StorageError
from stratalog.log.log import Log
from stratalog.segment.build import copy_batches
from stratalog.segment.segment import Segment
from stratalog.tier.commit.replace_change import SegmentSwap
from stratalog.tier.manifest.root import ChangeKind, object_keys
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upkeep.collect import GRACE_MS

_HASHED_BYTES: Final = 1 << 20
_REASON: Final = "erasure of a key"


def searched_bytes(log: Log, tier: TierLog | None) -> int:
    """Return the number of bytes that an erasure searches: in the tier, and in local segments above the tier's end."""
    view = log.view()
    local_bytes = sum(segment.size_bytes for segment in view.segments if segment.end_offset > view.remote_end)
    return local_bytes + (0 if tier is None else tier.known_bytes())


def erase(
    log: Log,
    key: bytes,
    tier: TierLog | None = None,
    *,
    dry_run: bool = False,
    on_bytes: OnBytes = uncounted,
) -> EraseResult:
    """Erase the records of a key below the present log end from one log, and return the result.

    An error that ends the erasure early is in the result. The active segment is rolled first if it contains the key.
    The call waits for a running compaction round or offload of the log. If the log is a follower, its segments in the
    tier are only searched.

    Args:
        log: the log.
        key: the whole key.
        tier: the log's part in a tier; None if the log has no tier.
        dry_run: search and report, but change nothing; ``sha256_after`` in the result is then "".
        on_bytes: called with the size of each segment that was searched.
    """
    end = log.offsets().log_end
    done, remnants = list[ErasedSegment](), list[Remnant]()
    error: StorageError | None = None
    with log.maintenance.cleaning.tier_busy:
        try:
            with log.maintenance.cleaning.busy:
                if not log.maintenance.settle_remote():
                    raise StorageError(  # noqa: TRY301 - reported in the result
                        f"it is unknown if the last commit to the tier of {log.name} took effect: offload, then erase "
                        "again"
                    )
                if not dry_run and _active_holds(log, key):
                    log.roll()
                _erase_locally(log, key, end, done, remnants, on_bytes, dry_run=dry_run)
            if tier is not None:
                if not log.is_leader:
                    remnants += _in_tier(log, key, on_bytes)
                else:
                    _erase_in_tier(log, tier, key, done, remnants, on_bytes, dry_run=dry_run)
        except StorageError as wrong:
            error = wrong
        except RewriteStoppedError as stopped:
            error = StorageError(f"{stopped}: erase again")
            error.__cause__ = stopped
    remnants += [Remnant("deleted file", path, until_ms) for path, until_ms in log.maintenance.pending_deletes()]
    return EraseResult(log.name, end, tuple(done), tuple(remnants), error, log.components.env.clock.now_ms())


def _erase_locally(
    log: Log,
    key: bytes,
    end: int,
    done: list[ErasedSegment],
    remnants: list[Remnant],
    on_bytes: OnBytes,
    *,
    dry_run: bool,
) -> None:
    """Erase the key from the local segments that end above the tier's end.

    The first of these segments may begin below the tier's end, because earlier leaders may have had other segment
    bounds. Rewritten segments are added to ``done``, and damaged segments to ``remnants``, even before an error is
    raised.
    """
    view = log.view()
    for segment in view.segments:
        if segment.end_offset <= view.remote_end or segment.base_offset >= end:
            continue
        try:
            if count := records_of(log, segment, key):
                done.append(_local_result(segment, count) if dry_run else _erased(log, segment, key, count))
        except CorruptionError as wrong:
            remnants.append(Remnant("damaged segment", segment.label, reason=str(wrong)))
        on_bytes(segment.size_bytes)


# --- finding ---------------------------------------------------------------------------------------------------------


def _active_holds(log: Log, key: bytes) -> bool:
    try:
        return bool(records_of(log, log.view().segments[-1], key))
    except CorruptionError:  # nothing is dropped from the segment, and it is reported as damaged
        return False


def _in_tier(log: Log, key: bytes, on_bytes: OnBytes) -> Iterator[Remnant]:
    """Yield a remnant for each segment in the tier that contains the key or is damaged, and for each local copy.

    This function is for a follower, which must not change the tier.
    """
    view, copies = log.view(), set[str]()
    for segment in () if view.remote is None else view.remote.segments:
        on_bytes(segment.size_bytes)
        try:
            if not records_of(log, segment, key):
                continue
        except CorruptionError as wrong:
            yield Remnant("damaged segment", segment.label, reason=str(wrong))
            continue
        yield Remnant("tier", segment.label, reason="the leader of the log erases it")
        for local in view.segments:
            if local.base_offset < segment.end_offset and segment.base_offset < local.end_offset:
                copies.add(local.label)
                yield Remnant("local copy", local.label, reason="it is a copy of what the tier has")
    for local in _differing_copies(log, key):
        if local.label not in copies:
            yield Remnant("local copy", local.label, reason="it has records that compaction removed from the tier")


# --- rewriting -------------------------------------------------------------------------------------------------------


def _erased(log: Log, segment: Segment, key: bytes, count: int) -> ErasedSegment:
    publisher = log.maintenance.publisher()
    before, size_bytes = _digest(segment), segment.size_bytes
    with publisher.begin(segment.base_offset) as builder:
        copy_batches(segment, builder, log.components, without_key(log, segment, key))
        built = builder.finish(segment.end_offset, segment.modified_ms)
        after = built.sha256()
    if not publisher.replace(built, [segment]):
        raise SegmentGoneError("the log changed while the key was erased", segment.label).advised("erase the key again")
    return ErasedSegment(segment.base_offset, segment.end_offset, count, size_bytes, built.size_bytes, before, after)


def _local_result(segment: Segment, count: int) -> ErasedSegment:
    size_bytes = segment.size_bytes
    return ErasedSegment(segment.base_offset, segment.end_offset, count, size_bytes, size_bytes, _digest(segment), "")


def _digest(segment: Segment) -> str:
    found = hashlib.sha256()
    for position in range(0, segment.size_bytes, _HASHED_BYTES):
        found.update(segment.read(position, _HASHED_BYTES))
    return found.hexdigest()


# --- in the tier -----------------------------------------------------------------------------------------------------


def _erase_in_tier(
    log: Log,
    tier: TierLog,
    key: bytes,
    done: list[ErasedSegment],
    remnants: list[Remnant],
    on_bytes: OnBytes,
    *,
    dry_run: bool,
) -> None:
    """Erase a key from the segments in the tier of a log that is the leader.

    Committed segments are added to ``done``, even before an error is raised. Errors are those of
    ``CommittedPublisher``, such as RewriteStoppedError.
    """
    log.maintenance.refresh_remote()
    if tier.root is None:
        return
    if dry_run:
        done += [
            _tier_result(found, count)
            for found, count in _holding(log, TierRange.of(log, Traffic()), key, remnants, on_bytes)
        ]
        return
    traffic = Traffic()
    publisher = CommittedPublisher.open(log, tier, _REASON, traffic, ChangeKind.ERASE)
    publisher.keeps_placed = True
    part = TierRange.of(log, traffic)
    erased_segments = dict[int, ErasedSegment]()
    try:
        for found, count in _holding(log, part, key, remnants, on_bytes):
            with publisher.begin(found.base_offset) as builder:
                copy_batches(found, builder, log.components, without_key(log, found, key))
                built = builder.finish(found.end_offset, part.modified_ms(found))
                erased = replace(_tier_result(found, count), bytes_after=built.size_bytes, sha256_after=built.sha256())
            erased_segments[found.base_offset] = erased
            publisher.replace(built, [found])
        publisher.commit(always=True)
        _check_placed(tier, erased_segments, publisher.placed)
    finally:
        publisher.abandon()
        for placed in publisher.placed:
            objects = tuple(sorted(placed.new.keys))
            done.append(replace(erased_segments[placed.new.info.base_offset], objects_after=objects))
            tier.fetcher.forget(placed.old[0])
    if all(found.kind != "damaged segment" for found in remnants):  # a copy may be needed for the repair
        _evict_copies(log, key)
    remnants += _left(log, tier, {key for placed in publisher.placed for key in placed.old[0].keys})


def _evict_copies(log: Log, key: bytes) -> None:
    """Remove the local copies that contain the key although the tier does not, and all local segments below them."""
    log.maintenance.evict(max((segment.end_offset for segment in _differing_copies(log, key)), default=0))


def _differing_copies(log: Log, key: bytes) -> Iterator[Segment]:
    """Yield the local copies of the tier's records that differ from the tier's segments, and contain the key.

    A replica has such copies if the leader of an earlier epoch has compacted the tier. A damaged copy is yielded, too.
    """
    view = log.view()
    if view.remote is None:
        return
    tiered = {
        (found.base_offset, found.end_offset, found.size_bytes)
        for found in view.remote.segments.from_offset(view.segments[0].base_offset)
    }
    for segment in view.segments[:-1]:
        bounds = (segment.base_offset, segment.end_offset, segment.size_bytes)
        if segment.end_offset > view.remote.end_offset or bounds in tiered:
            continue
        try:
            if not records_of(log, segment, key):
                continue
        except CorruptionError:
            pass
        yield segment


def _check_placed(tier: TierLog, erased: Mapping[int, ErasedSegment], placed: Iterable[SegmentSwap]) -> None:
    """Raise StorageError unless all rewritten segments above the log start were committed."""
    done, log_start = {swap.new.info.base_offset for swap in placed}, tier.view().log_start
    if any(base not in done and found.end_offset > log_start for base, found in erased.items()):
        raise StorageError(f"the segments of {tier.log} in the tier changed during the erasure: erase again")


def _holding(
    log: Log, part: TierRange, key: bytes, remnants: list[Remnant], on_bytes: OnBytes
) -> Iterator[tuple[TierSource, int]]:
    """Yield each committed segment with the key, and its number of such records; add damaged ones to ``remnants``."""
    for segment in part.from_offset(0):
        if not isinstance(segment, TierSource):
            continue
        try:
            count = records_of(log, segment, key)
        except CorruptionError as wrong:
            remnants.append(Remnant("damaged segment", segment.label, reason=str(wrong)))
            continue
        finally:
            on_bytes(segment.size_bytes)
        if count:
            yield segment, count


def _tier_result(segment: TierSource, count: int) -> ErasedSegment:
    stored = segment.stored
    size_bytes, objects = segment.size_bytes, tuple(sorted(stored.keys))
    bounds = (segment.base_offset, segment.end_offset)
    return ErasedSegment(*bounds, count, size_bytes, size_bytes, stored.sha256, "", "tier", objects)


def _left(log: Log, tier: TierLog, replaced: set[str]) -> Iterator[Remnant]:
    """Yield a remnant for each object that the newest root does not refer to; remove the objects from caches."""
    until_ms = log.components.env.clock.now_ms() + GRACE_MS
    named = object_keys(tier.entries(0, log.offsets().log_end, tier.root))
    left = sorted(tier.stored_keys() - named)
    tier.fetcher.forget_objects(left)
    for key in left:
        reason = "it held the key" if key in replaced else "of an older root or never committed: not checked"
        yield Remnant("object", key, until_ms, reason)
