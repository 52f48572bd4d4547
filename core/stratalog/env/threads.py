"""Threads are started here, named, and joined on close."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Final

_log: Final = logging.getLogger(__name__)

Job = Callable[[], None]


class Worker:
    """One named thread that runs jobs in order, started by the first. Thread-safe.

    The queue is bounded: ``submit`` drops and counts what does not fit.
    """

    def __init__(self, name: str, limit: int = 10_000) -> None:
        self._jobs: queue.Queue[Job | None] = queue.Queue(limit)  # None ends the thread
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._lock = threading.Lock()  # over _started and _closed, so that nothing is queued behind the end
        self._started = False
        self._closed = False
        self._ends_when_empty = False  # closed by a job: the queue may be full, and it must not wait for itself
        self.dropped = 0

    def submit(self, job: Job) -> None:
        """Run ``job`` later. One that raises is logged; those after it run all the same. After ``close``: nothing."""
        with self._lock:
            if self._closed:
                return
            if not self._started:
                self._started = True
                self._thread.start()
            try:
                self._jobs.put_nowait(job)
            except queue.Full:
                self.dropped += 1

    def drain(self) -> None:
        """Wait until everything submitted before has run. A job that asks does not wait for itself."""
        if threading.current_thread() is not self._thread:
            self._jobs.join()

    def close(self) -> None:
        """Run what is queued, then end the thread. Twice is fine; a job that asks does not wait for itself."""
        inside = threading.current_thread() is self._thread
        with self._lock:
            ends = self._started and not self._closed
            self._closed = True
            self._ends_when_empty = self._ends_when_empty or (ends and inside)
        if ends and not inside:
            self._jobs.put(None)
        if self._started and not inside:
            self._thread.join()

    def _run(self) -> None:
        while not (self._ends_when_empty and self._jobs.empty()):
            job = self._jobs.get()
            try:
                if job is None:
                    return
                job()
            except Exception:  # noqa: BLE001 - whatever a job raises, the jobs after it are not its business
                _log.exception("a job of thread %s failed", self._thread.name)
            finally:
                self._jobs.task_done()
