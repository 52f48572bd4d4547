"""Writers that a Python worker of Spark keeps open between micro-batches, and threads that merge small segments.

Spark runs the tasks and the commits of a query in a few processes, which it reuses. If the writer of a tier stays open,
it has the manifests in memory, and a micro-batch reads only their changes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from stratalog import TopicPartition
from stratalog.errors import StorageError
from stratalog.writing import BulkWriter, Published, WriteTarget

_LOGGER: Final = logging.getLogger(__name__)
_KEPT: Final[list[tuple[WriteTarget, BulkWriter]]] = []  # at most one, because a worker usually serves one query


@contextmanager
def open_writer(target: WriteTarget) -> Iterator[BulkWriter]:
    """Return a context manager that yields a writer of a target.

    The writer of a tier stays open after the context for the next call, unless an error occurs. Only one writer stays
    open in a process. It keeps the settings that it read when it was opened. The writer of a directory is closed, because
    it holds the directory's lock.
    """
    if not target.is_tier:
        with target.open() as writer:
            yield writer
        return
    writer = _pop_kept(target) or target.open()
    try:
        writer.refresh()
        yield writer
    except BaseException:
        writer.close()
        raise
    close_kept()
    _KEPT.append((target, writer))


def _pop_kept(target: WriteTarget) -> BulkWriter | None:
    """Remove the kept writer from ``_KEPT`` and return it if it is for this target; otherwise return None."""
    for entry in _KEPT:
        if entry[0] == target:
            _KEPT.remove(entry)
            return entry[1]
    return None


def close_kept() -> None:
    """Close the kept writer, if there is one."""
    while _KEPT:
        _KEPT.pop()[1].close()


def merge_ends(writer: BulkWriter, logs: Iterable[TopicPartition], limit_bytes: int) -> None:
    """Merge small segments at the ends of logs. Errors are only logged, because the records are published already."""
    sorted_logs = sorted(logs)
    outcomes: Sequence[Published | Exception | None]
    try:
        outcomes = writer.merge_ends(sorted_logs, limit_bytes)
    except StorageError as error:  # raised before the first merge
        outcomes = [error] * len(sorted_logs)
    for log, outcome in zip(sorted_logs, outcomes, strict=True):
        if isinstance(outcome, Exception):
            _LOGGER.warning("small segments of %s are not merged: %s", log, outcome)


class Merger:
    """Merger of small segments at the ends of a tier's logs. It runs in a thread of this process. Thread-safe.

    If the process ends during a merge, the merge does not change the log, and the next merge includes the same
    segments. Errors are only logged.
    """

    def __init__(self, target: WriteTarget) -> None:
        self.target = target
        self._waiting = dict[TopicPartition, int]()  # maximum size of a merged segment
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def submit(self, logs: Iterable[TopicPartition], limit_bytes: int) -> None:
        """Queue logs for a merge to segments of at most ``limit_bytes``, and return immediately.

        A log that is queued already is merged only once, with the latest ``limit_bytes``.
        """
        with self._lock:
            self._waiting.update(dict.fromkeys(logs, limit_bytes))
            if self._waiting and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stratalog-merger")
                self._thread.start()

    def wait(self) -> None:
        """Wait until all queued logs are merged, or their errors are logged."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                logs, self._waiting = self._waiting, {}
                if not logs:
                    self._thread = None
                    return
            try:
                with self.target.open() as writer:
                    for limit_bytes in set(logs.values()):
                        merge_ends(writer, [log for log in logs if logs[log] == limit_bytes], limit_bytes)
            except StorageError as error:
                _LOGGER.warning("small segments in %s are not merged: %s", self.target.location, error)
            except BaseException:
                with self._lock:
                    self._thread = None  # the next call of `submit` starts another thread
                raise


_MERGERS: Final[list[Merger]] = []


def merger_of(target: WriteTarget) -> Merger:
    """Return the merger of a target. A process has one merger for each target."""
    for merger in _MERGERS:
        if merger.target == target:
            return merger
    _MERGERS.append(Merger(target))
    return _MERGERS[-1]
