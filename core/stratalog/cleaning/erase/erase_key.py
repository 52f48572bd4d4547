"""Forgetting a key: every segment that holds a record of it, on local disk and in the tier, is written anew without these.

Offsets, batch headers, markers and what is known of producers stay: a batch that loses all of its records stays as its
header alone. Segments take each other's place as in compaction, so that a crash leaves each either as it was or without the
key, and a second call goes on where the first ended. In the tier the commit that does it ends the history before it, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

from stratalog.cleaning.erase.erase_in_tier import erase_in_tier
from stratalog.cleaning.erase.erasure_report import ErasedSegment, EraseResult, Remnant
from stratalog.cleaning.erase.key_removal import records_of, write_without
from stratalog.errors import CorruptionError, SegmentGoneError, StorageError
from stratalog.log.log import Log
from stratalog.segment.segment import Segment
from stratalog.tier.tier_log import TierLog

_HASHED_BYTES: Final = 1 << 20


def erase(log: Log, key: bytes, tier: TierLog | None = None, *, dry_run: bool = False) -> EraseResult:
    """Forget a key of one log; ``dry_run`` only tells (digests after are "" then). The active segment is rolled first.

    Waits for a round of compaction, or an offload, that is under way.

    Args:
        log: whose.
        key: the whole key.
        tier: what the log has in a tier, if anything.
        dry_run: change nothing.
    """
    end = log.offsets().log_end
    done, remnants = list[ErasedSegment](), list[Remnant]()
    error: StorageError | None = None
    with log.cleaning.tier_busy:
        try:
            with log.cleaning.busy:
                if not log.settle_remote():
                    raise StorageError(  # noqa: TRY301 - told in the result
                        f"whether the last commit to the tier of {log.name} took effect shows with the next one: offload, then "
                        "erase again"
                    )
                if not dry_run and _active_holds(log, key):
                    log.roll()
                _erase_locally(log, key, end, done, remnants, dry_run=dry_run)
            if tier is not None:
                if not log.is_leader:
                    remnants += _in_tier(log, key)
                else:
                    erase_in_tier(log, tier, key, done, remnants, dry_run=dry_run)
        except StorageError as wrong:
            error = wrong
    remnants += [Remnant("deleted file", path, until_ms) for path, until_ms in log.leaving()]
    return EraseResult(log.name, end, tuple(done), tuple(remnants), error, log.parts.env.clock.now_ms())


def _erase_locally(
    log: Log, key: bytes, end: int, done: list[ErasedSegment], remnants: list[Remnant], *, dry_run: bool
) -> None:
    """Those segments that local disk has alone; what is done by the time of an error is told."""
    remote_end = _remote_end(log)
    for segment in log.view().segments:
        if segment.base_offset < remote_end or segment.base_offset >= end:
            continue
        try:
            if count := records_of(log, segment, key):
                done.append(_told(segment, count) if dry_run else _erased(log, segment, key, count))
        except CorruptionError as wrong:
            remnants.append(Remnant("damaged segment", segment.label, reason=str(wrong)))


# --- finding ---------------------------------------------------------------------------------------------------------


def _active_holds(log: Log, key: bytes) -> bool:
    try:
        return bool(records_of(log, log.view().segments[-1], key))
    except CorruptionError:  # nothing is dropped from it, and it is told of
        return False


def _remote_end(log: Log) -> int:
    remote = log.view().remote
    return 0 if remote is None else remote.end_offset


def _in_tier(log: Log, key: bytes) -> Iterator[Remnant]:
    """Committed segments that hold the key, and local copies of them."""
    view = log.view()
    for segment in () if view.remote is None else view.remote.segments:
        try:
            if not records_of(log, segment, key):
                continue
        except CorruptionError as wrong:
            yield Remnant("damaged segment", segment.label, reason=str(wrong))
            continue
        yield Remnant("tier", segment.label, reason="the leader of the log erases it")
        for local in view.segments:
            if local.base_offset < segment.end_offset and segment.base_offset < local.end_offset:
                yield Remnant("local copy", local.label, reason="it is a copy of what the tier has")


# --- writing anew ----------------------------------------------------------------------------------------------------


def _erased(log: Log, segment: Segment, key: bytes, count: int) -> ErasedSegment:
    ticket = log.cleaning.changes
    before, size_bytes = _digest(segment), segment.size_bytes
    made = log.new_cleaned(segment.base_offset)
    try:
        after = write_without(log, segment, key, made)
        bytes_after = made.size_bytes
        made.finish(segment.log.modified_ms)
        if not log.replace(made, [segment], ticket):
            raise SegmentGoneError("the log was changed while the key was erased: do it again", segment.label)  # noqa: TRY301 - the files go first
    except BaseException:
        made.discard()
        raise
    return ErasedSegment(segment.base_offset, segment.end_offset, count, size_bytes, bytes_after, before, after)


def _told(segment: Segment, count: int) -> ErasedSegment:
    size_bytes = segment.size_bytes
    return ErasedSegment(segment.base_offset, segment.end_offset, count, size_bytes, size_bytes, _digest(segment), "")


def _digest(segment: Segment) -> str:
    found = hashlib.sha256()
    for position in range(0, segment.size_bytes, _HASHED_BYTES):
        found.update(segment.read(position, _HASHED_BYTES))
    return found.hexdigest()
