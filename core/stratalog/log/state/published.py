"""View of a log that readers see: one value, replaced as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from stratalog.errors import CorruptBatchError
from stratalog.log.load.loaded_log import LoadedLog
from stratalog.log.read.tier_view import RemoteView
from stratalog.log.read.view import LogView
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import LogOffsets
from stratalog.producers.state import ProducerState
from stratalog.segment.segment import Segment

_new_tuple: Final = tuple.__new__  # creates a named tuple from all its fields, with one call fewer than its class


class PublishedView:
    """The view that readers of one log see, from the first ``replace`` on.

    Readers need no lock; the log changes the view under its lock.

    ``grow`` stores only the offsets of an append. The full view is built when a reader first requests it, because reads
    are rarer than appends.

    Attributes:
        base: the argument of the last ``replace``. Its offsets may be stale; its other fields are current.
    """

    __slots__ = ("_built", "_current", "_on_moved", "base")

    base: LogView
    _current: tuple[LogView, int | None, int]  # base view, log end or None if the base view is current, recovery point
    _built: tuple[object, LogView]  # a value of _current, and the view that was built from it

    def __init__(self) -> None:
        self._on_moved: Callable[[], None] | None = None

    @property
    def view(self) -> LogView:
        """Return the current view."""
        current = base_view, end, recovery_point = self._current
        if end is None:
            return base_view
        made_from, view = self._built
        if made_from is not current:
            view = base_view.grown_to(end, recovery_point)
            self._built = (current, view)
        return view

    def replace(self, view: LogView) -> None:
        """Publish ``view``, and call the subscriber if offsets have changed."""
        before = None if self._on_moved is None else self.view.offsets
        self._current, self.base = (view, None, 0), view
        self._built = (self._current, view)  # without this, the earlier view would stay in memory
        if self._on_moved is not None and view.offsets != before:
            self._on_moved()

    def grow(self, end: int, recovery_point: int) -> None:
        """Publish a new log end and a new recovery point, after an append.

        The high watermark and the last stable offset become equal to the log end. The rest of the view does not change.
        """
        self._current = (self._current[0], end, recovery_point)
        if self._on_moved is not None:
            self._on_moved()

    def subscribe(self, on_moved: Callable[[], None]) -> None:
        """Call ``on_moved`` each time that offsets have changed, instead of the earlier subscriber.

        The thread that changed the offsets calls ``on_moved`` under the log's lock, so ``on_moved`` must return at
        once.
        """
        self._on_moved = on_moved


def make_view(
    log: TopicPartition,
    loaded_log: LoadedLog,
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
    return LogView(log, tuple(segments), bounds, epochs, remote, damage, epochs.latest)


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
