"""Retries of a read after its segment was removed, or was read with damage from a tier."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final, TypeAlias, TypeVar

from stratalog.errors import CorruptionError, ObjectNotFoundError, SegmentGoneError
from stratalog.log.read.view import LogView
from stratalog.segment.readable import ReadableSegment

T = TypeVar("T")
ViewSource: TypeAlias = Callable[[], LogView]
READ_ERRORS: Final = (SegmentGoneError, CorruptionError, ObjectNotFoundError)  # after these, ``ReadRetry`` decides


class DamagedReads:
    """Positions of damage that were read again once, because bytes from a tier may be damaged in transfer."""

    def __init__(self) -> None:
        self._positions = set[tuple[str, int]]()  # labels, because each view of a tier creates new segment objects

    def should_repeat(self, error: CorruptionError, segment: ReadableSegment) -> bool:
        """Return True if a second read of ``segment`` may return other bytes.

        The result is True at most once for each position.
        """
        place = segment.label, error.position
        if place in self._positions:
            return False
        self._positions.add(place)
        return segment.forget()


class ReadRetry:
    """Retry decisions for one read.

    If a segment is removed, truncated or replaced during the read, the read continues with a newer view, in which the
    tier or another segment has the offsets. The number of retries is limited by the number of removed segments, of
    commits to the tier and of damaged batches.

    Args:
        views: returns the newest view.
        view: the view that is read first.

    Attributes:
        view: the view to read.
    """

    def __init__(self, views: ViewSource, view: LogView) -> None:
        self.view, self._views = view, views
        self._damaged_reads = DamagedReads()

    def should_retry(
        self, error: SegmentGoneError | CorruptionError | ObjectNotFoundError, segment: ReadableSegment | None
    ) -> bool:
        """Return True if the read may succeed now with ``self.view``, which this call may replace by a newer view.

        Args:
            error: the error of the read of ``segment`` in ``view``.
            segment: the segment that was read; None if the list of segments could not be read.
        """
        newer = self._views()
        was_collected = isinstance(error, ObjectNotFoundError) and _tier_version(newer) != _tier_version(self.view)
        if was_collected or _has_lost(newer, self.view):
            self.view = newer  # a segment was evicted, truncated or replaced during the read
            return True
        if not isinstance(error, CorruptionError) or segment is None:
            return False
        return self._damaged_reads.should_repeat(error, segment)


def read_with_retry(views: ViewSource, read: Callable[[LogView], Generator[ReadableSegment, None, T]]) -> T:
    """Return the result of ``read``. After an error, repeat ``read`` with a newer view if ``ReadRetry`` allows it.

    ``read`` yields each segment before it reads the segment, and finally returns its result.
    """
    view, retry = views(), None
    while True:
        segment: ReadableSegment | None = None
        steps = read(view)
        try:
            while True:
                segment = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        except READ_ERRORS as error:
            retry = retry or ReadRetry(views, view)
            if not retry.should_retry(error, segment):
                raise
            view = retry.view


def _tier_version(view: LogView) -> int:
    return 0 if view.remote is None else view.remote.version


def _has_lost(newer: LogView, view: LogView) -> bool:
    """Return True if a local segment of ``view`` is no longer in ``newer``; appends and rolls only add segments."""
    newer_ids = set(map(id, newer.segments))
    return any(id(segment) not in newer_ids for segment in view.segments)
