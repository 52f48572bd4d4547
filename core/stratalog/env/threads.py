"""Threads are started here, named, and joined on close."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from stratalog.env.forks import ends_with_fork

_LOGGER: Final = logging.getLogger(__name__)

_PAUSE_MS: Final = 1000  # after a step that failed

Job = Callable[[], None]
T = TypeVar("T")
R = TypeVar("R")


class OwnThread(threading.Thread):
    """A daemon thread that stratalog starts, and no caller runs on.

    Args:
        target: what the thread runs.
        name: of the thread.
        args: of ``target``.
    """

    def __init__(self, target: Callable[..., object], name: str, args: tuple[object, ...] = ()) -> None:
        super().__init__(target=target, name=name, args=args, daemon=True)


def is_own_thread() -> bool:
    """Return True on a thread that stratalog started: an exception that ends it reaches no caller."""
    return isinstance(threading.current_thread(), OwnThread)


class Worker:
    """One named thread that runs jobs in order, started by the first. Thread-safe.

    The queue is bounded: ``submit`` drops and counts what does not fit. ``limit`` 0 is for jobs that are bounded elsewhere.
    """

    def __init__(self, name: str, limit: int = 10_000) -> None:
        self._jobs: queue.Queue[Job | None] = queue.Queue(limit)  # None ends the thread
        self._thread = OwnThread(self._run, name)
        self._lock = threading.Lock()  # over _started and _closed, so that nothing is queued behind the end
        self._started = False
        self._closed = False
        self._ends_when_empty = False  # closed, though the queue may be full
        self._left = False  # nobody waits any more: what is queued is not run
        self.dropped = 0
        ends_with_fork(self)

    def submit(self, job: Job) -> bool:
        """Run ``job`` later. True if it will, not after ``close`` or if the queue is full. What it raises is logged."""
        with self._lock:
            if self._closed:
                return False
            if not self._started:
                self._started = True
                self._thread.start()
            try:
                self._jobs.put_nowait(job)
            except queue.Full:
                self.dropped += 1
                return False
            return True

    def drain(self) -> None:
        """Wait until everything submitted before has run. A job that asks does not wait for itself."""
        if threading.current_thread() is not self._thread and not self._left:
            self._jobs.join()

    def close(self, wait_s: float | None = None) -> bool:
        """Run what is queued, then end the thread. Twice is fine; a job that asks does not wait for itself.

        Args:
            wait_s: how long to wait for that; None is until it is done.

        Returns:
            False if the job that runs has taken longer: the thread ends after it, and what is queued is not run.
        """
        inside = threading.current_thread() is self._thread
        with self._lock:
            ends = self._started and not self._closed
            self._closed = True
            self._ends_when_empty = self._ends_when_empty or (ends and inside)
        if ends and not inside:
            try:
                self._jobs.put_nowait(None)
            except queue.Full:  # then the thread is not waiting for a job, and sees this after the last one
                self._ends_when_empty = True
        if not self._started or inside:
            return True
        self._thread.join(wait_s)
        self._left = self._thread.is_alive()
        return not self._left

    @property
    def thread_name(self) -> str:
        """The name of the thread."""
        return self._thread.name

    def _run(self) -> None:
        while not (self._left or (self._ends_when_empty and self._jobs.empty())):
            job = self._jobs.get()
            try:
                if job is None:
                    return
                job()
            except BaseException:  # whatever a job raises, SystemExit too, the jobs after it are not its business
                _LOGGER.exception("a job of thread %s failed", self._thread.name)
            finally:
                self._jobs.task_done()


class Loop:
    """One named thread that does a step again and again, waiting in between for as long as the step says. Thread-safe.

    Args:
        name: of the thread.
        step: its result is how long (ms) to wait before the next one.
    """

    def __init__(self, name: str, step: Callable[[], float]) -> None:
        self._step = step
        self._thread = OwnThread(self._run, name)
        self._woken, self._closed = threading.Event(), threading.Event()
        self._lock = threading.Lock()  # over starting and closing
        ends_with_fork(self)

    def start(self) -> None:
        """Begin; again, or after ``close``: nothing."""
        with self._lock:
            if not self._closed.is_set() and self._thread.ident is None:
                self._thread.start()

    def wake(self) -> None:
        """Do the next step now."""
        self._woken.set()

    def close(self) -> None:
        """End after the step that runs now, which is waited for, unless it is the step that asks. Twice is fine."""
        with self._lock:
            self._closed.set()
        self._woken.set()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        wait_ms = 0.0
        while True:
            self._woken.wait(min(wait_ms / 1000, threading.TIMEOUT_MAX))
            self._woken.clear()
            if self._closed.is_set():
                return
            try:
                wait_ms = self._step()
            except BaseException:  # the next step may do better
                wait_ms = _PAUSE_MS
                _LOGGER.exception("a step of thread %s failed", self._thread.name)


def outcomes(items: Sequence[T], work: Callable[[T], R], threads: int, name: str) -> list[R | Exception]:
    """Do ``work`` to each item, several at a time; what came of each, results and errors, in the order of the items.

    Args:
        items: taken in their order.
        work: must be thread-safe.
        threads: how many at a time; with one item or one thread the work is done on the caller's.
        name: of the threads, a number behind it.

    Raises:
        BaseException: what is no Exception, an interrupt say; work that has begun is waited for, no other begins.
    """
    batch = SharedWork(items, work)
    beside = [OwnThread(batch.run_beside, f"{name}-{number}") for number in range(1, min(threads, len(items)))]
    try:
        for thread in beside:
            thread.start()
        batch.run()
    finally:
        batch.stop()
        for thread in beside:
            if thread.ident is not None:
                thread.join()
    if batch.ending is not None:
        raise batch.ending
    return [batch.found[index] for index in range(len(items))]


class SharedWork(Generic[T, R]):
    """Items that several threads work on, each taking the next one.

    Args:
        items: taken in their order.
        work: must be thread-safe.
        ends_on_error: whether nothing further begins after an error.
    """

    def __init__(self, items: Sequence[T], work: Callable[[T], R], *, ends_on_error: bool = False) -> None:
        self._items, self._work, self._ends_on_error = items, work, ends_on_error
        self._left = queue.SimpleQueue[int]()
        self._stopping = threading.Event()
        self.found: dict[int, R | Exception] = {}
        self.ending: BaseException | None = None
        for index in range(len(items)):
            self._left.put(index)

    def run(self) -> None:
        """Work until nothing is left."""
        while not self._stopping.is_set():
            try:
                index = self._left.get_nowait()
            except queue.Empty:
                return
            try:
                self.found[index] = self._work(self._items[index])
            except Exception as error:  # noqa: BLE001 - it is the outcome
                self.found[index] = error
                if self._ends_on_error:
                    self.stop()

    def run_beside(self) -> None:
        """The same, on a thread of its own: what ends it is for the caller."""
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            self.ending = error
            self.stop()

    def stop(self) -> None:
        """Begin nothing further."""
        self._stopping.set()
