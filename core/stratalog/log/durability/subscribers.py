"""What a log does for callers that do not wait: syncing for them, and telling who subscribed that offsets have moved.

The threads are those of an engine, for all its logs. They start when they are needed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

from stratalog.env.forks import ends_with_fork
from stratalog.env.threads import Job, Worker
from stratalog.log.durability.sync import sync_records
from stratalog.log.state.log_state import LogState
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import LogOffsets

_LOGGER: Final = logging.getLogger(__name__)
_SYNCING: Final = 4  # logs that are synced at a time for callers that do not wait
_NO_LIMIT: Final = 0

R = TypeVar("R")


class Background:
    """Threads for logs. Thread-safe; whoever made it closes it."""

    def __init__(self) -> None:
        self._syncing = [Worker(f"stratalog-sync-{number}", _NO_LIMIT) for number in range(1, _SYNCING + 1)]
        self._telling = Worker("stratalog-subscribers", _NO_LIMIT)

    def when_durable(self, state: LogState, end: int, result: R) -> Future[R]:
        """A future of ``result``, done when the records below ``end`` (0: at once) are durable, or with what kept them from it.

        It cannot be cancelled: the records are written. Of one log the next sync serves all that were asked for before.
        """
        done: Future[R] = Future()
        done.set_running_or_notify_cancel()
        if not end:
            done.set_result(result)
            return done

        def sync() -> None:
            try:
                sync_records(state, end)
            except BaseException as error:  # noqa: BLE001 - it is for whoever holds the future
                done.set_exception(error)
            else:
                done.set_result(result)

        if not self._syncing[hash(state.log) % _SYNCING].submit(sync):
            sync()  # the engine is about to close
        return done

    def tell(self, job: Job) -> None:
        """Do ``job`` soon, on the thread that tells subscribers."""
        self._telling.submit(job)

    def close(self) -> None:
        """Finish what was asked for, then end the threads. Twice is fine."""
        for worker in (*self._syncing, self._telling):
            worker.close()


class Subscribers:
    """Who is told that the offsets of one log have moved. Thread-safe.

    Between two calls offsets may have moved several times: a callback gets the bounds as they are then.

    Args:
        log: whose offsets.
        offsets: as they are now.
        background: calls the callbacks, one after the other, with no lock held.
    """

    def __init__(self, log: TopicPartition, offsets: Callable[[], LogOffsets], background: Background) -> None:
        self._log_name, self._offsets, self._background = log, offsets, background
        self._lock = threading.Lock()
        self._callbacks: dict[object, Callable[[LogOffsets], object]] = {}  # replaced as a whole, under _lock
        self._told = False  # whether a call is on its way, under _lock
        self.failures = 0
        ends_with_fork(self)

    def add(self, callback: Callable[[LogOffsets], object]) -> Callable[[], None]:
        """Tell ``callback`` from now on; what is returned ends that. A call that has begun is not waited for."""
        name = object()
        with self._lock:
            self._callbacks = {**self._callbacks, name: callback}

        def unsubscribe() -> None:
            with self._lock:
                self._callbacks = {other: found for other, found in self._callbacks.items() if other is not name}

        return unsubscribe

    def moved(self) -> None:
        """Say that offsets have moved; returns at once, whatever locks the caller holds."""
        with self._lock:
            if self._told or not self._callbacks:
                return
            self._told = True
        self._background.tell(self._tell)

    def _tell(self) -> None:
        with self._lock:
            self._told = False
            callbacks = self._callbacks
        offsets = self._offsets()
        for name, callback in callbacks.items():
            if name not in self._callbacks:
                continue  # gone meanwhile
            try:
                callback(offsets)
            except Exception:  # whatever a subscriber raises, the others hear
                self.failures += 1
                _LOGGER.exception("a subscriber to %s failed", self._log_name)
