"""Retries of a read after its segment was removed, or came damaged from a tier."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from stratalog.errors import SegmentGoneError, StorageError
from stratalog.log.read.view import LogView
from stratalog.segment.readable import ReadableSegment

ViewSource: TypeAlias = Callable[[], LogView]


class Again:
    """Retry decisions for one read.

    If retention removed a segment or a truncation shortened it during the read, the read continues with a newer view,
    in which the tier or a later segment has the offsets. If a segment returned bad bytes, it is read once more if the
    bytes may have been damaged in transit. The number of retries is limited by the number of removed or damaged
    segments.
    """

    def __init__(self, views: ViewSource) -> None:
        self._views = views
        self._damaged = set[str]()  # labels, because each view of a tier creates new segment objects

    def after(self, error: StorageError, view: LogView, segment: ReadableSegment | None) -> LogView:
        """Return the view for the retry. Raise ``error`` again if a retry would fail in the same way.

        Args:
            error: the error of the read of ``segment`` in ``view``.
            view: the view that was read.
            segment: the segment that was read.
        """
        newer = self._views()
        if _has_lost(newer, view):
            return newer  # a segment was evicted, truncated or replaced during the read
        if isinstance(error, SegmentGoneError) or segment is None or segment.label in self._damaged:
            raise error
        self._damaged.add(segment.label)
        if not segment.forget():
            raise error
        return view


def _has_lost(newer: LogView, view: LogView) -> bool:
    """Return True if a local segment of ``view`` is no longer in ``newer``; appends and rolls only add segments."""
    here = set(map(id, newer.segments))
    return any(id(segment) not in here for segment in view.segments)
