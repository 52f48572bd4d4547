"""View of the tier of a log that is being opened, even if the tier's store is unavailable."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Final

from stratalog.epochs.epoch_cache import first_divergence
from stratalog.errors import CorruptCheckpointError, FencedEpochError, StoreError
from stratalog.log.folder.tier_note import TierNote, read_note
from stratalog.log.load.loaded_log import LoadedLog
from stratalog.log.read.tier_view import OfflineSegments, RemoteLog, RemoteView
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import EpochEntry
from stratalog.spi.segment_store import LogFiles

_LOGGER: Final = logging.getLogger(__name__)


def tier_at_opening(remote: RemoteLog, files: LogFiles, loaded_log: LoadedLog) -> RemoteView:
    """Return the contents of the tier of a log that is being opened.

    If the store fails and the log can open without its tier, the result of ``build_assumed_view`` is returned instead.

    Raises:
        TamperedManifestError: a key authenticates the tier, and the tier's newest root is neither the root that the
            tier note names nor a successor of that root.
        StoreError: the store failed, and the log must not open without its tier.
        CorruptCheckpointError: the store is unavailable, and the tier note is damaged.
        The other errors of ``RemoteLog.view``.
    """
    try:
        return read_tier(remote, files)
    except StoreError as error:
        if not remote.may_open_without(error):
            raise
    view = build_assumed_view(read_note(files), loaded_log, remote.unavailable_error)
    remote.assume(view)
    return view


def read_tier(remote: RemoteLog, files: LogFiles) -> RemoteView:
    """Return the contents of the tier, which must be or continue the state in the tier note.

    Only the first call for a log sends requests. Raises the errors of ``tier_at_opening``.
    """
    with contextlib.suppress(CorruptCheckpointError):
        note = read_note(files)
        if note is not None:
            remote.expect(note.version, note.identity)
    return remote.view()


def warn_of_evicted(log: TopicPartition, files: LogFiles, loaded_log: LoadedLog) -> None:
    """Log a warning if local disk lacks offsets that a tier may have: a reader without the tier does not see them."""
    note = None
    with contextlib.suppress(CorruptCheckpointError):
        note = read_note(files)
    evicted_offsets = _find_evicted_offsets(note or TierNote(), loaded_log)
    if evicted_offsets:
        _LOGGER.warning(
            "%s: local disk lacks offsets [%d, %d): if they are in a tier, name it (--tier URI, or tier=URI in Python)",
            log,
            evicted_offsets.start,
            evicted_offsets.stop,
        )


def _find_evicted_offsets(note: TierNote, loaded_log: LoadedLog) -> range:
    """Return the offsets that only the tier has, as far as local disk shows (see ``build_assumed_view``)."""
    first = loaded_log.segments[0].base_offset if loaded_log.segments else loaded_log.log_end
    start = max(note.log_start, loaded_log.log_start)
    return range(start, first if note.segments > 0 or loaded_log.has_start else start)


def build_assumed_view(note: TierNote | None, loaded_log: LoadedLog, why: Callable[[], StoreError]) -> RemoteView:
    """Return the contents of an unavailable tier, as far as local disk shows them.

    A segment leaves local disk only after the tier has it. Therefore the tier holds all records between the log start
    and the first local segment, even records that were committed after the tier note was written. If an earlier release
    wrote no note, ``note`` is None. If the checkpoint then has a log start below the first segment, segments were
    evicted. ``why`` returns the error that a read from the tier raises.
    """
    known_note = note or TierNote()
    evicted_offsets = _find_evicted_offsets(known_note, loaded_log)
    start = evicted_offsets.start
    end = max(known_note.end_offset if known_note.segments else 0, evicted_offsets.stop if evicted_offsets else 0)
    if end <= start:
        return RemoteView(known_note.version, known_note.log_start, known_note.high_watermark)
    return RemoteView(
        known_note.version,
        start,
        max(known_note.high_watermark, end),
        OfflineSegments(start, end, max(known_note.segments, 1), why),
        known_note.leader_epochs,
        known_note.first_dirty_offset,
    )


def report_losses(name: TopicPartition, tier_view: RemoteView, files: LogFiles, loaded_log: LoadedLog) -> None:
    """Log an error if the tier has lost records of the tier note, and local disk no longer has these records.

    Nothing is checked without a readable tier note.
    """
    with contextlib.suppress(CorruptCheckpointError):
        note = read_note(files)
        if note is None or not note.segments or not loaded_log.segments:
            return
        start = max(note.log_start, loaded_log.log_start, tier_view.log_start, tier_view.end_offset)
        end = min(note.end_offset, loaded_log.segments[0].base_offset)
        if start < end:
            _LOGGER.error(
                "the tier lost records that local disk had evicted: log=%s offsets=[%d, %d) version=%d "
                "version_before=%d",
                name,
                start,
                end,
                tier_view.version,
                note.version,
            )


def check_not_taken(name: TopicPartition, tier_view: RemoteView, epochs: Sequence[EpochEntry], log_end: int) -> None:
    """Raise FencedEpochError if the tier has records from ``log_end`` on, or other leader epochs than the log.

    Only another engine that took the log over can have written such records.
    """
    if not tier_view.segments:
        return
    end = tier_view.end_offset
    if end > log_end:
        raise FencedEpochError(f"the tier has {name} up to offset {end}, this directory only up to {log_end}")
    offset = first_divergence(epochs, tier_view.leader_epochs, tier_view.start_offset, end)
    if offset is not None:
        raise FencedEpochError(f"the tier and this directory have different records of {name} from offset {offset}")
