"""Offsets of a log, limited by one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stratalog.errors import CorruptBatchError
from stratalog.log.load.loaded_log import LoadedLog
from stratalog.log.read.tier_view import RemoteView
from stratalog.log.read.view import LogView
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import LogOffsets
from stratalog.producers.state import ProducerState
from stratalog.segment.components import Components
from stratalog.segment.segment import Segment

_new_tuple: Final = tuple.__new__  # creates a named tuple from all its fields, with one call fewer than its class


def make_view(
    log: TopicPartition,
    loaded_log: LoadedLog,
    components: Components,
    *,
    high_watermark: int,
    remote: RemoteView | None,
    damage: CorruptBatchError | None,
) -> LogView:
    """Return the view of a loaded log that is not open for writing.

    The offsets are limited to the log's bounds, as in ``limit_bounds``.
    """
    segments, epochs = loaded_log.segments, loaded_log.epochs
    bounds = limit_bounds(
        segments, loaded_log.producers, remote, loaded_log.log_start, loaded_log.recovery_point, high_watermark
    )
    return LogView(log, tuple(segments), bounds, epochs, components, remote, damage, epochs.latest)


def limit_bounds(
    segments: Sequence[Segment],
    producers: ProducerState,
    remote: RemoteView | None,
    log_start: int,
    recovery_point: int,
    high_watermark: int,
) -> LogOffsets:
    """Return the offsets of a log, limited by: log start <= last stable offset <= high watermark <= log end.

    If the tier has segments, the log starts at the tier's log start or later. If the tier has no segments, the log
    starts at the first local segment, but not below the tier's log start: a log start offset never falls.
    """
    first, end = (segments[0].base_offset, segments[-1].end_offset) if segments else (log_start, log_start)
    if remote is not None and remote.segments:
        start = max(log_start, remote.log_start)
        if not segments:
            first = end = max(end, remote.end_offset)
    else:
        start = max(log_start, first)
        # All segments of the tier may have been deleted after this log's start was stored in its checkpoint.
        if remote is not None and start < remote.log_start:
            start = min(remote.log_start, end)
    high_watermark = stable_end = _limit(high_watermark, start, end)
    unstable = producers.first_unstable(high_watermark)
    if unstable is not None:
        stable_end = _limit(unstable, start, high_watermark)
    local_start, synced_end = _limit(first, start, end), _limit(recovery_point, start, end)
    return _new_tuple(LogOffsets, (start, local_start, synced_end, high_watermark, stable_end, end))


def _limit(value: int, low: int, high: int) -> int:
    """Return ``value`` limited to [low, high]; ``high`` if ``low`` is above ``high``."""
    if value < low:  # noqa: PLR1730 - each append runs it several times, and a call of max() costs more
        value = low
    return high if value > high else value  # noqa: FURB136 - for the same reason
