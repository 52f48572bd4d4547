"""Reading on when what was being read goes away, or comes damaged from a tier."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from stratalog.errors import SegmentGoneError, StorageError
from stratalog.log.read.view import LogView
from stratalog.segment.readable import ReadableSegment

ViewSource: TypeAlias = Callable[[], LogView]


class Again:
    """Decides for one read whether there is a point in another try.

    A segment that retention took away is looked for in a newer view, where the tier or a later segment has its place.
    So is one that was cut while it was read. One that gave bad bytes is read once more, if they may have been damaged on
    the way. Each of these can happen only as often as segments leave the log, or are damaged: no read tries for ever.
    """

    def __init__(self, views: ViewSource) -> None:
        self._views = views
        self._damaged = set[str]()  # labels: views of a tier make their segments anew

    def after(self, error: StorageError, view: LogView, segment: ReadableSegment | None) -> LogView:
        """The view to go on with; ``error`` is raised again if the same would happen.

        Args:
            error: what reading ``segment`` of ``view`` raised.
            view: the view that was read.
            segment: the segment that was read.
        """
        newer = self._views()
        if _has_lost(newer, view):
            return newer  # what failed was evicted, truncated or replaced in the middle of a read
        if isinstance(error, SegmentGoneError) or segment is None or segment.label in self._damaged:
            raise error
        self._damaged.add(segment.label)
        if not segment.forget():
            raise error
        return view


def _has_lost(newer: LogView, view: LogView) -> bool:
    """True if a local segment of ``view`` is no longer in ``newer``; appends and rolls only add some."""
    here = set(map(id, newer.segments))
    return any(id(segment) not in here for segment in view.segments)
