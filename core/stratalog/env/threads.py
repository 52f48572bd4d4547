"""Threads with names: workers, loops, and functions that work on many items in parallel."""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, TypeVar

from stratalog.env.forks import ends_with_fork

_LOGGER: Final = logging.getLogger(__name__)

_PAUSE_MS: Final = 1000  # wait after a failed step

Job = Callable[[], None]
T = TypeVar("T")
R = TypeVar("R")


class OwnThread(threading.Thread):
    """A daemon thread that belongs to stratalog. ``is_own_thread`` distinguishes it from a caller's thread."""

    def __init__(self, target: Callable[..., object], name: str, args: tuple[object, ...] = ()) -> None:
        super().__init__(target=target, name=name, args=args, daemon=True)


def is_own_thread() -> bool:
    """Return True if an ``OwnThread`` calls this function. No caller sees an exception that ends such a thread."""
    return isinstance(threading.current_thread(), OwnThread)


class Worker:
    """One named thread that runs jobs in order. The first job starts the thread. Thread-safe.

    At most ``limit`` jobs are queued; 0 means no limit. ``dropped`` is the number of jobs that ``submit`` dropped
    because the queue was full.
    """

    def __init__(self, name: str, limit: int = 10_000) -> None:
        self._limit = limit
        self._jobs: queue.Queue[Job | None] = queue.Queue()  # None ends the thread, and is queued even above the limit
        self._thread = OwnThread(self._run, name)
        self._lock = threading.Lock()  # protects _started and _closed: no job may follow the None that ends the thread
        self._started = False
        self._closed = False
        self._left = False  # close stopped waiting: queued jobs are not run
        self.dropped = 0
        ends_with_fork(self)

    def submit(self, job: Job) -> bool:
        """Queue ``job``, and return True. Drop ``job``, and return False, after ``close`` or if the queue is full.

        Exceptions of ``job`` are logged. Raises RuntimeError if the system cannot start the thread. ``job`` is then not
        queued, and the next call tries to start the thread again.
        """
        with self._lock:
            if self._closed:
                return False
            if not self._started:
                self._thread.start()
                self._started = True
            if 0 < self._limit <= self._jobs.qsize():
                self.dropped += 1
                return False
            self._jobs.put(job)
            return True

    def drain(self) -> None:
        """Wait until no job is queued or running.

        Return at once if a job of this worker calls the method, or if ``close`` has returned False.
        """
        if threading.current_thread() is not self._thread and not self._left:
            self._jobs.join()

    def close(self, wait_s: float | None = None) -> bool:
        """Run the queued jobs, then end the thread, and wait for its end. Idempotent.

        If a job of this worker calls the method, the method returns True at once.

        Args:
            wait_s: how long to wait for the thread to end; None waits without limit.

        Returns:
            False if the thread did not end in time. It then ends after the running job, and drops the queued jobs.
        """
        is_own_job = threading.current_thread() is self._thread
        with self._lock:
            if self._started and not self._closed:
                self._jobs.put(None)
            self._closed = True
        if not self._started or is_own_job:
            return True
        self._thread.join(wait_s)
        self._left = self._thread.is_alive()
        return not self._left

    @property
    def thread_name(self) -> str:
        """The name of the worker's thread, for log messages."""
        return self._thread.name

    def _run(self) -> None:
        while not self._left:
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
    """One named thread that repeats a function (a step). Thread-safe.

    Args:
        step: returns how long (ms) to wait before the next call. An exception is logged, and the next call follows
            after one second.
    """

    def __init__(self, name: str, step: Callable[[], float]) -> None:
        self._step = step
        self._thread = OwnThread(self._run, name)
        self._closed = threading.Event()
        self._lock = threading.Lock()  # protects start and close
        ends_with_fork(self)

    def start(self) -> None:
        """Start the thread. Do nothing if it was started or closed before."""
        with self._lock:
            if not self._closed.is_set() and self._thread.ident is None:
                self._thread.start()

    def close(self) -> None:
        """End the thread after the running step, and wait for its end. Do not wait if the step calls the method."""
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
        threads: maximum number of threads, including the caller's.
        name: prefix of the names of the additional threads.

    Raises:
        BaseException: an exception that is not an Exception, such as KeyboardInterrupt. It is raised after the items
            in progress are finished. No further item is started.
    """
    batch = SharedWork(items, work)
    additional_threads = [
        OwnThread(contextvars.copy_context().run, f"{name}-{number}", (batch.run_in_helper,))  # keeps the caller's span
        for number in range(1, min(threads, len(items)))
    ]
    try:
        for thread in additional_threads:
            thread.start()
        batch.run()
    finally:
        batch.stop()
        for thread in additional_threads:
            if thread.ident is not None:
                thread.join()
    return batch.outcomes()


def all_results(item_outcomes: Iterable[R | Exception]) -> list[R]:
    """Return the results in ``item_outcomes``; raise the first exception instead if there is one."""
    results = list[R]()
    for outcome in item_outcomes:
        if isinstance(outcome, Exception):
            raise outcome
        results.append(outcome)
    return results


class SharedWork(Generic[T, R]):
    """Items on which several threads work. A thread that calls ``run`` or ``run_in_helper`` takes one item at a time.

    Args:
        ends_on_error: True to start no further item after an error.
    """

    def __init__(self, items: Sequence[T], work: Callable[[T], R], *, ends_on_error: bool = False) -> None:
        self._items, self._work, self._ends_on_error = items, work, ends_on_error
        self._left = queue.SimpleQueue[int]()
        self._stopping = threading.Event()
        self._outcomes: dict[int, R | Exception] = {}  # by the index of the item
        self._ending: BaseException | None = None  # ended a call of ``run_in_helper``, such as KeyboardInterrupt
        for index in range(len(items)):
            self._left.put(index)

    def run(self) -> None:
        """Work until no item is left, or ``stop`` is called. An Exception of ``work`` is stored, not raised."""
        while not self._stopping.is_set():
            try:
                index = self._left.get_nowait()
            except queue.Empty:
                return
            try:
                self._outcomes[index] = self._work(self._items[index])
            except Exception as error:  # noqa: BLE001 - it is stored as the item's result
                self._outcomes[index] = error
                if self._ends_on_error:
                    self.stop()

    def run_in_helper(self) -> None:
        """Call ``run``. If ``run`` raises an exception, call ``stop``, and keep the exception for ``outcomes``."""
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            self._ending = error
            self.stop()

    def stop(self) -> None:
        """Start no further item. Items in progress are finished."""
        self._stopping.set()

    def outcomes(self) -> list[R | Exception]:
        """Return the result or exception of each finished item, in the order of the items.

        Raise the exception that ended a call of ``run_in_helper``, such as KeyboardInterrupt, if there is one.
        """
        if self._ending is not None:
            raise self._ending
        return [self._outcomes[index] for index in sorted(self._outcomes)]
