"""Threads are started here, named, and joined on close."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

_STOP: Final = object()


class Worker:
    """One named thread that runs jobs in order. The queue is bounded: ``submit`` drops and counts what does not fit."""

    def __init__(self, name: str, limit: int = 10_000) -> None:
        self._jobs: queue.Queue[object] = queue.Queue(limit)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._started = False
        self._closed = False
        self.dropped = 0

    def submit(self, job: Callable[[], None]) -> None:
        """Run ``job`` later; it must not raise."""
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
        """Wait until everything submitted before has run."""
        if self._started and not self._closed:
            self._jobs.join()

    def close(self) -> None:
        """Run what is queued, then end the thread. Twice is fine."""
        if self._closed:
            return
        self._closed = True
        if self._started:
            self._jobs.put(_STOP)
            self._thread.join()

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                if job is _STOP:
                    return
                if callable(job):
                    job()
            finally:
                self._jobs.task_done()
