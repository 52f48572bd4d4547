"""Background work of a log: syncs for callers that do not wait, and calls to subscribers after offsets have changed.

An engine has one ``Background`` for all its logs. The threads start on first use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

from stratalog.env.forks import ends_with_fork
from stratalog.env.lock_order import LockRank
from stratalog.env.threads import Job, Worker
from stratalog.log.durability.sync import sync_records
from stratalog.log.state.log_state import LogState
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import LogOffsets

_LOGGER: Final = logging.getLogger(__name__)
_SYNCING: Final = 4  # number of threads that sync logs for callers that do not wait
_NO_LIMIT: Final = 0

R = TypeVar("R")


class Background:
    """Background threads for logs. Thread-safe. The creator closes this object."""

    def __init__(self) -> None:
        self._syncing = [Worker(f"stratalog-sync-{number}", _NO_LIMIT) for number in range(1, _SYNCING + 1)]
        self._notifying = Worker("stratalog-subscribers", _NO_LIMIT)

    def when_durable(self, state: LogState, end: int, result: R) -> Future[R]:
        """Return a future that holds ``result`` when the records below offset ``end`` are durable.

        If the sync fails, the future holds the error. If ``end`` is 0, the future is done at once. The future cannot be
        cancelled, because the records are already written. After ``close``, or if the system cannot start a thread, this
        method syncs in the calling thread.
        """
        future: Future[R] = Future()
        future.set_running_or_notify_cancel()
        if not end:
            future.set_result(result)
            return future

        def sync() -> None:
            try:
                sync_records(state, end)
            except BaseException as error:  # noqa: BLE001 - the future reports it
                future.set_exception(error)
            else:
                future.set_result(result)

        if not _submit(self._syncing[hash(state.name) % _SYNCING], sync):
            sync()
        return future

    def notify(self, job: Job) -> bool:
        """Run ``job`` soon, on the thread that calls the subscribers, and return True.

        Do nothing, and return False, after ``close`` or if the system cannot start a thread.
        """
        return _submit(self._notifying, job)

    def close(self) -> None:
        """Finish the submitted jobs, then end the threads. May be called twice."""
        for worker in (*self._syncing, self._notifying):
            worker.close()


def _submit(worker: Worker, job: Job) -> bool:
    """Return True if ``worker`` runs ``job``; False after ``close``, or if the system cannot start a thread."""
    try:
        return worker.submit(job)
    except RuntimeError:  # the records are written: an error would wrongly report a failed append
        return False


class Subscribers:
    """Callbacks that are called after the offsets of one log have changed. Thread-safe.

    Offsets may change several times between two calls. A callback gets the log's ``LogOffsets`` at the time of the
    call.

    Args:
        offsets: returns the log's current offsets.
        background: calls the callbacks, one after the other, with no lock held.

    Attributes:
        failures: number of exceptions that callbacks raised. Each exception is logged.
    """

    def __init__(self, log: TopicPartition, offsets: Callable[[], LogOffsets], background: Background) -> None:
        self._log_name, self._offsets, self._background = log, offsets, background
        self._lock = LockRank.LEAF.lock()
        self._callbacks: dict[object, Callable[[LogOffsets], object]] = {}  # replaced as a whole, under _lock
        self._is_scheduled = False  # True while a notification is scheduled; under _lock
        self.failures = 0
        ends_with_fork(self)

    def add(self, callback: Callable[[LogOffsets], object]) -> Callable[[], None]:
        """Call ``callback`` after future changes; return a function that unsubscribes ``callback``.

        Unsubscribing does not wait for a call that is in progress.
        """
        subscription = object()
        with self._lock:
            self._callbacks = {**self._callbacks, subscription: callback}

        def unsubscribe() -> None:
            with self._lock:
                self._callbacks = {
                    key: subscriber for key, subscriber in self._callbacks.items() if key is not subscription
                }

        return unsubscribe

    def schedule(self) -> None:
        """Schedule one call of each callback, because offsets have changed.

        Returns at once; the caller may hold any locks. If the system cannot start a thread, the next change schedules
        the calls.
        """
        with self._lock:
            if self._is_scheduled or not self._callbacks:
                return
            self._is_scheduled = True
        if not self._background.notify(self._notify):
            with self._lock:
                self._is_scheduled = False

    def _notify(self) -> None:
        with self._lock:
            self._is_scheduled = False
            callbacks = self._callbacks
        offsets = self._offsets()
        for name, callback in callbacks.items():
            if name not in self._callbacks:
                continue  # unsubscribed in the meantime
            try:
                callback(offsets)
            except BaseException:  # an error of one subscriber, even SystemExit, must not stop the calls of the others
                self.failures += 1
                _LOGGER.exception("a subscriber to %s failed", self._log_name)
