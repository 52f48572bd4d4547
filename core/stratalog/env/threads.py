"""Threads with names: workers, loops, and functions that work on many items in parallel."""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from stratalog.env.forks import ends_with_fork

_LOGGER: Final = logging.getLogger(__name__)

_PAUSE_MS: Final = 1000  # wait after a failed step

Job = Callable[[], None]
T = TypeVar("T")
R = TypeVar("R")


class OwnThread(threading.Thread):
    """A daemon thread that belongs to stratalog. ``is_own_thread`` distinguishes it from a caller's thread.

    Args:
        target: function that the thread runs.
        name: name of the thread.
        args: arguments of ``target``.
    """

    def __init__(self, target: Callable[..., object], name: str, args: tuple[object, ...] = ()) -> None:
        super().__init__(target=target, name=name, args=args, daemon=True)


def is_own_thread() -> bool:
    """Return True on an ``OwnThread``. An exception that ends such a thread is not raised to any caller."""
    return isinstance(threading.current_thread(), OwnThread)


class Worker:
    """One named thread that runs jobs in order; the first job starts it. Thread-safe.

    The queue has at most ``limit`` jobs: if it is full, ``submit`` drops the job, and increments ``dropped``. Use
    ``limit`` 0, which means no limit, only if the number of jobs is limited elsewhere.
    """

    def __init__(self, name: str, limit: int = 10_000) -> None:
        self._jobs: queue.Queue[Job | None] = queue.Queue(limit)  # None ends the thread
        self._thread = OwnThread(self._run, name)
        self._lock = threading.Lock()  # over _started and _closed: no job is queued after the None that ends the thread
        self._started = False
        self._closed = False
        self._ends_when_empty = False  # closed without a None in the queue, which may have been full
        self._left = False  # close stopped waiting: queued jobs are not run
        self.dropped = 0
        ends_with_fork(self)

    def submit(self, job: Job) -> bool:
        """Queue ``job``. Return False after ``close`` or if the queue is full. Exceptions of the job are logged."""
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
        """Wait until all jobs that were queued before have run. Return at once if a job of this worker calls it."""
        if threading.current_thread() is not self._thread and not self._left:
            self._jobs.join()

    def close(self, wait_s: float | None = None) -> bool:
        """Run the queued jobs, then end the thread. Idempotent. Does not wait if a job of this worker calls it.

        Args:
            wait_s: how long to wait for the thread to end; None waits without limit.

        Returns:
            False if the thread did not end in time: it ends after the running job, and the queued jobs are not run.
        """
        inside = threading.current_thread() is self._thread
        with self._lock:
            ends = self._started and not self._closed
            self._closed = True
            self._ends_when_empty = self._ends_when_empty or (ends and inside)
        if ends and not inside:
            try:
                self._jobs.put_nowait(None)
            except queue.Full:  # the thread has jobs left, and checks this flag after the last one
                self._ends_when_empty = True
        if not self._started or inside:
            return True
        self._thread.join(wait_s)
        self._left = self._thread.is_alive()
        return not self._left

    @property
    def thread_name(self) -> str:
        """The name of the worker's thread, for log messages."""
        return self._thread.name

    def _run(self) -> None:
        while not (self._left or (self._ends_when_empty and self._jobs.empty())):
            job = self._jobs.get()
            try:
                if job is None:
                    return
                job()
            except BaseException:  # later jobs must run even if this one raises SystemExit
                _LOGGER.exception("a job of thread %s failed", self._thread.name)
            finally:
                self._jobs.task_done()


class Loop:
    """One named thread that repeats a step; each step returns the time to wait before the next one. Thread-safe.

    Args:
        name: name of the thread.
        step: does one step, and returns how long (ms) to wait before the next step.
    """

    def __init__(self, name: str, step: Callable[[], float]) -> None:
        self._step = step
        self._thread = OwnThread(self._run, name)
        self._closed = threading.Event()
        self._lock = threading.Lock()  # over starting and closing
        ends_with_fork(self)

    def start(self) -> None:
        """Start the thread. Do nothing if it was started or closed before."""
        with self._lock:
            if not self._closed.is_set() and self._thread.ident is None:
                self._thread.start()

    def close(self) -> None:
        """Wait for the running step, then end the thread. Idempotent. Does not wait if the step itself calls it."""
        with self._lock:
            self._closed.set()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        wait_ms = 0.0
        while not self._closed.wait(min(wait_ms / 1000, threading.TIMEOUT_MAX)):
            try:
                wait_ms = self._step()
            except BaseException:  # the next step may succeed
                wait_ms = _PAUSE_MS
                _LOGGER.exception("a step of thread %s failed", self._thread.name)


def outcomes(items: Sequence[T], work: Callable[[T], R], threads: int, name: str) -> list[R | Exception]:
    """Call ``work`` with each item in parallel; return the results and exceptions in the order of the items.

    Args:
        items: items to work on, started in this order.
        work: function of one item; must be thread-safe.
        threads: maximum number of threads, including the caller's. With one item or one thread, only the caller's
            works.
        name: prefix of the threads' names; a number is appended.

    Raises:
        BaseException: an exception that is not an Exception, such as KeyboardInterrupt. Work in progress is finished
            first, and no further work starts.
    """
    batch = SharedWork(items, work)
    beside = [
        OwnThread(contextvars.copy_context().run, f"{name}-{number}", (batch.run_beside,))  # keeps the caller's span
        for number in range(1, min(threads, len(items)))
    ]
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
    """Items on which several threads work: each thread repeatedly takes the next item.

    Args:
        items: items to work on, started in this order.
        work: function of one item; must be thread-safe.
        ends_on_error: True to start no further item after an error.

    Attributes:
        found: result or exception of each finished item, by the index of the item.
        ending: exception, not an Exception, that has ended an additional thread; None if there was none.
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
        """Work until no item is left, or ``stop`` is called."""
        while not self._stopping.is_set():
            try:
                index = self._left.get_nowait()
            except queue.Empty:
                return
            try:
                self.found[index] = self._work(self._items[index])
            except Exception as error:  # noqa: BLE001 - it is stored as the item's result
                self.found[index] = error
                if self._ends_on_error:
                    self.stop()

    def run_beside(self) -> None:
        """Call ``run`` on an additional thread. An exception that would end the thread is stored in ``ending``."""
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            self.ending = error
            self.stop()

    def stop(self) -> None:
        """Let ``run`` and ``run_beside`` start no further item. Items in progress are finished."""
        self._stopping.set()
