"""Progress of work that may take long, in bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

T = TypeVar("T")

_MARK: Final = "is_from_progress"  # attribute of an exception


class Progress(Protocol):
    """Callback of long work.

    Calls come from the threads that work, one at a time. An exception that the callback raises ends the work as an
    interruption does: what is complete stays, and the same call continues later.
    """

    def __call__(self, done_bytes: int, total_bytes: int, /) -> None:
        """Take the bytes that are done, and all bytes as far as they are known; neither number ever gets smaller."""


OnBytes: TypeAlias = Callable[[int], None]
"""Called with the size (bytes) of each further piece that is done."""


class ProgressSum:
    """Sum of the progress of several parts of one piece of work. Thread-safe.

    Args:
        report: called with the sums; None if no caller wants them.
    """

    def __init__(self, report: Progress | None) -> None:
        self._report, self._lock = report, threading.Lock()
        self._done = self._total = 0

    def part(self, total_bytes: int = 0) -> Progress:
        """Add a part, and return its progress. ``total_bytes`` counts at once; the part may raise it."""
        known_done = known_total = 0

        def report_sums(done_bytes: int, total_bytes: int) -> None:
            nonlocal known_done, known_total
            with self._lock:
                more_total = max(total_bytes - known_total, 0)
                more_done = max(min(done_bytes, known_total + more_total) - known_done, 0)
                if not more_total and not more_done:
                    return
                known_total, known_done = known_total + more_total, known_done + more_done
                self._total, self._done = self._total + more_total, self._done + more_done
                if self._report is not None:
                    self._call(self._report)

        report_sums(0, total_bytes)
        return report_sums

    def _call(self, report: Progress) -> None:
        try:
            report(self._done, self._total)
        except BaseException as error:
            setattr(error, _MARK, True)
            raise


def is_from_progress(error: BaseException) -> bool:
    """Return True if a callback of progress raised the error, and not the component whose method was at work."""
    return getattr(error, _MARK, False)


def counted(progress: Progress, total_bytes: int) -> OnBytes:
    """Return a function that takes the size of each further piece of ``total_bytes``, and reports their sum."""
    done_bytes = 0

    def count(more_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes += more_bytes
        progress(done_bytes, total_bytes)

    return count


def counters(progress: Progress | None, items: Sequence[T], size_of: Callable[[T], int]) -> list[OnBytes]:
    """Return a function for each item that counts its pieces; together they report to ``progress``.

    ``size_of`` returns the size (bytes) of an item. It is not called without ``progress``.
    """
    if progress is None:
        return [uncounted for _ in items]
    summed, sizes_bytes = ProgressSum(progress), [size_of(item) for item in items]
    parts = [summed.part(size_bytes) for size_bytes in sizes_bytes]
    return [counted(part, size_bytes) for part, size_bytes in zip(parts, sizes_bytes, strict=True)]


def uncounted(_size_bytes: int) -> None:
    """Ignore the size of a piece, for work without an observer."""


def no_progress(_done_bytes: int, _total_bytes: int) -> None:
    """Ignore progress."""
