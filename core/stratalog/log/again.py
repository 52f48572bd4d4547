"""Reading on when what was being read goes away, or comes damaged from a tier."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from stratalog.errors import SegmentGoneError, StorageError
from stratalog.log.view import LogView
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.segment import Segment

ViewSource: TypeAlias = Callable[[], LogView]


class Again:
    """Decides for one read whether there is a point in another try.

    A segment that retention took away is looked for in a newer view, where the tier or a later segment has its place.
    So is one that was cut while it was read. One that gave bad bytes is read once more, if they may have been damaged on
    the way.
    """

    def __init__(self, views: ViewSource) -> None:
        self._views = views
        self._damaged: str | None = None  # a label: views of a tier make their segments anew

    def after(self, error: StorageError, view: LogView, segment: ReadableSegment | None) -> LogView:
        """The view to go on with; ``error`` is raised again if the same would happen.

        Args:
            error: what reading ``segment`` of ``view`` raised.
            view: the view that was read.
            segment: the segment that was read.
        """
        if isinstance(error, SegmentGoneError):
            newer = self._views()
            if newer is view:
                raise error
            return newer
        if isinstance(segment, Segment):
            newer = self._views()
            if all(segment is not found for found in newer.segments):
                return newer  # it was truncated, or replaced, in the middle of a read
        if segment is None or segment.label == self._damaged or not segment.forget():
            raise error
        self._damaged = segment.label
        return view
