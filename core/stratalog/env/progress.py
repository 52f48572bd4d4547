"""Callbacks for the progress, in bytes, of work that may take long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

T = TypeVar("T")

_MARK: Final = "is_from_progress"  # attribute of an exception that a callback raised


class Progress(Protocol):
    """Callback for the progress of long work.

    Any thread that does the work may call the callback, but only one thread at a time. If the callback raises an
    exception, the work ends. Finished parts stay, and a later call of the function that does the work continues it.
    """

    def __call__(self, done_bytes: int, total_bytes: int, /) -> None:
        """Receive the number of finished bytes, and the total number as far as known. Neither number decreases."""


OnBytes: TypeAlias = Callable[[int], None]
"""Callback that receives the number of bytes completed since the last call."""


class ProgressSum:
    """Sum of the progress of several parts of the same work. Thread-safe.

    Args:
        report: receives the sums of the finished and of the total bytes of all parts; None to report nothing.
    """

    def __init__(self, report: Progress | None) -> None:
        self._report, self._lock = report, threading.Lock()
        self._done = self._total = 0

    def part(self, total_bytes: int = 0) -> Progress:
        """Add a part of the work, and return the callback for the progress of this part.

        If ``total_bytes`` is above 0, it is reported at once. Later calls of the callback can increase the total. The
        callback ignores numbers that are lower than in earlier calls. It counts finished bytes only up to the total.
        """
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
    """Return True if ``error`` was raised by the callback of a ``ProgressSum``, not by the work itself."""
    return getattr(error, _MARK, False)


def counted(progress: Progress, total_bytes: int) -> OnBytes:
    """Return a callback that receives the size of each finished piece, and reports the sums to ``progress``."""
    done_bytes = 0

    def count(more_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes += more_bytes
        progress(done_bytes, total_bytes)

    return count


def counters(progress: Progress | None, items: Sequence[T], size_of: Callable[[T], int]) -> list[OnBytes]:
    """Return one callback for each item, for the sizes of the item's finished pieces. ``progress`` receives the sums.

    ``size_of`` returns the size (bytes) of an item. If ``progress`` is None, ``size_of`` is not called.
    """
    if progress is None:
        return [uncounted for _ in items]
    summed, sizes_bytes = ProgressSum(progress), [size_of(item) for item in items]
    parts = [summed.part(size_bytes) for size_bytes in sizes_bytes]
    return [counted(part, size_bytes) for part, size_bytes in zip(parts, sizes_bytes, strict=True)]


def uncounted(_size_bytes: int) -> None:
    """Do nothing: an ``OnBytes`` for work without a ``Progress``."""


def no_progress(_done_bytes: int, _total_bytes: int) -> None:
    """Do nothing: a ``Progress`` that ignores the numbers."""
