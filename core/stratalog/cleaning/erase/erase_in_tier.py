"""Erasure of a key in a tier: committed segments that hold it are replaced, and the history before the erasure ends.

Objects that older roots name stay in the bucket for the collector's grace time, because readers may be using them. New
readers cannot reach these objects (``as_of`` refuses), even if ``tier.history.ms`` is longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stratalog.cleaning.compact.segment_range import RewriteStoppedError
from stratalog.cleaning.compact.tier_range import CommittedPublisher, TierRange, TierSource, Traffic
from stratalog.cleaning.erase.erasure_report import ErasedSegment, Remnant
from stratalog.cleaning.erase.key_removal import records_of, without_key
from stratalog.errors import CorruptionError, StorageError
from stratalog.log.log import Log
from stratalog.segment.build import copy_batches
from stratalog.tier.manifest.root import ChangeKind, object_keys
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upkeep.collect import GRACE_MS

_REASON = "erasure of a key"


def erase_in_tier(
    log: Log, tier: TierLog, key: bytes, done: list[ErasedSegment], remnants: list[Remnant], *, dry_run: bool
) -> None:
    """Erase a key from the committed part of a log that leads; finished work is reported even after an error.

    Raises:
        FencedEpochError: another writer owns the log. The log no longer accepts appends here.
        StorageError: a segment cannot be written, or the log leads in another epoch now.
        StoreError: the store failed: erase again.
    """
    log.maintenance.refresh_remote()
    if tier.root is None:
        return
    if dry_run:
        done += [_told(found, count) for found, count in _holding(log, TierRange.of(log, Traffic()), key, remnants)]
        return
    traffic = Traffic()
    publisher = CommittedPublisher.open(log, tier, _REASON, traffic, ChangeKind.ERASE)
    publisher.keeps_placed = True
    part = TierRange.of(log, traffic)
    told = dict[int, ErasedSegment]()
    try:
        for found, count in _holding(log, part, key, remnants):
            with publisher.begin(found.base_offset) as builder:
                copy_batches(found, builder, log.parts, without_key(log, found, key))
                built = builder.finish(found.end_offset, part.modified_ms(found))
                erased = replace(_told(found, count), bytes_after=built.size_bytes, sha256_after=built.sha256())
            told[found.base_offset] = erased
            publisher.replace(built, [found])
        publisher.commit(always=True)
    except RewriteStoppedError as stopped:
        raise StorageError(f"{stopped}: erase again") from stopped
    finally:
        publisher.abandon()
        for placed in publisher.placed:
            objects = tuple(sorted(placed.new.keys))
            done.append(replace(told[placed.new.info.base_offset], objects_after=objects))
            tier.fetcher.forget(placed.old[0])
    remnants += _left(log, tier, {key for placed in publisher.placed for key in placed.old[0].keys})


def _holding(log: Log, part: TierRange, key: bytes, remnants: list[Remnant]) -> Iterator[tuple[TierSource, int]]:
    """Yield the committed segments that hold the key and the number of its records; report damaged ones as remnants."""
    for segment in part.from_offset(0):
        if not isinstance(segment, TierSource):
            continue
        try:
            count = records_of(log, segment, key)
        except CorruptionError as wrong:
            remnants.append(Remnant("damaged segment", segment.label, reason=str(wrong)))
            continue
        if count:
            yield segment, count


def _told(segment: TierSource, count: int) -> ErasedSegment:
    stored = segment.stored
    size_bytes, objects = segment.size_bytes, tuple(sorted(stored.keys))
    bounds = (segment.base_offset, segment.end_offset)
    return ErasedSegment(*bounds, count, size_bytes, size_bytes, stored.sha256, "", "tier", objects)


def _left(log: Log, tier: TierLog, replaced: set[str]) -> Iterator[Remnant]:
    """Yield the objects that the head does not name, and drop them from the caches of this process."""
    until_ms = log.parts.env.clock.now_ms() + GRACE_MS
    named = object_keys(tier.entries(0, log.offsets().log_end, tier.root))
    left = sorted(tier.stored_keys() - named)
    tier.fetcher.forget_objects(left)
    for key in left:
        reason = "it held the key" if key in replaced else "of an older root or never committed: not checked"
        yield Remnant("object", key, until_ms, reason)
