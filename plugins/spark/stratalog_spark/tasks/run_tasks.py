"""Execution of a job: a list of tasks on the executors, with progress and readable errors."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, Final, TypeVar, cast
from uuid import uuid4

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from stratalog import Progress
from stratalog.errors import StorageError
from stratalog.reading import ReadSource
from stratalog_spark.tasks.messages import Message
from stratalog_spark.tasks.worker import freeze_once

T = TypeVar("T")
R = TypeVar("R")
TaskProgress = Callable[[int, int], None]
"""Callback for the progress of a job.

Its arguments are the number of completed tasks and of all tasks. It runs in another thread.
"""

_POLL_SECONDS: Final = 0.3
_TASKS_A_CORE: Final = 3  # with this number, the last task does not delay the job much
_RAISED: Final = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception|Interrupt)): (.*)", re.MULTILINE)


class SparkJobError(StorageError):
    """A task of a Spark job failed permanently. The error text contains the task's error.

    Correct the cause of that error, and run the job again.
    """


def source_of(source: ReadSource | str) -> ReadSource:
    """Return ``source`` if it is a ReadSource, otherwise a ReadSource with this location."""
    return ReadSource(source) if isinstance(source, str) else source


def task_count(spark: SparkSession) -> int:
    """Return the number of tasks for work that can be divided freely: three times the tasks that run at once.

    With Spark Connect, which does not provide that number, 8 tasks are assumed to run at once.
    """
    context = _context(spark)
    return _TASKS_A_CORE * (8 if context is None else max(int(context.defaultParallelism), 1))


def group_by_size(items: Iterable[T], size_of: Callable[[T], int], least_bytes: int) -> Iterator[list[T]]:
    """Yield groups of successive items. Each group except the last has at least ``least_bytes`` in total."""
    group, group_bytes = list[T](), 0
    for item in items:
        group.append(item)
        group_bytes += size_of(item)
        if group_bytes >= least_bytes:
            yield group
            group, group_bytes = [], 0
    if group:
        yield group


class ByteCount:
    """Progress in bytes over several calls of ``run_tasks``.

    Spark reports only the number n of completed tasks. Spark starts tasks in order, so this class counts the first n
    tasks as completed.

    Args:
        progress: called with the bytes of completed tasks and of all known tasks; None to report nothing.
    """

    def __init__(self, progress: Progress | None) -> None:
        self._progress, self._known_bytes = progress, 0

    @contextmanager
    def count_tasks(self, sizes_bytes: Iterable[int]) -> Iterator[TaskProgress | None]:
        """Return a context manager that yields the argument ``progress`` of ``run_tasks`` for tasks of these sizes.

        The value is None if nothing is reported. When the context ends without an error, all tasks count as completed.
        """
        if self._progress is None:
            yield None
            return
        report, ends = self._progress, [*accumulate(sizes_bytes, initial=self._known_bytes)]
        self._known_bytes = ends[-1]
        report(ends[0], ends[-1])
        yield lambda completed, _: report(ends[min(completed, len(ends) - 1)], ends[-1])
        report(ends[-1], ends[-1])


def run_tasks(
    spark: SparkSession,
    tasks: Sequence[T],
    work: Callable[[T], R],
    *,
    task: type[T],
    result: type[R],
    progress: TaskProgress | None = None,
) -> list[R]:
    """Run ``work`` on each item of ``tasks`` in Spark, and return the results in order; [] if there are no items.

    Items and results, of the types ``task`` and ``result``, are sent as text in messages (see ``Message``), so they must
    be small. Spark pickles ``work`` with all objects that it refers to. ``progress`` is called with the numbers of
    completed tasks and of all tasks. It is not called with Spark Connect.

    Raises:
        SparkJobError: a task failed permanently, for example because its result is not of the type of ``result``.
        MessageError: an item of ``tasks`` is not of the type of ``task``.
    """
    if not tasks:
        return []
    task_message, result_message = Message(task), Message(result)
    packed_tasks = [task_message.pack(item) for item in tasks]

    def run(number: int) -> Iterator[pa.RecordBatch]:
        packed_result = result_message.pack(work(task_message.unpack(packed_tasks[number])))
        yield pa.RecordBatch.from_pydict({"task": pa.array([number], pa.int64()), "result": [packed_result]})

    with convert_errors(), watch_progress(spark, progress):
        table = frame_of_tasks(spark, len(packed_tasks), run, "task bigint, result string").toArrow()
    by_number = dict(zip(table["task"].to_pylist(), table["result"].to_pylist(), strict=True))
    return [result_message.unpack(str(by_number[number])) for number in range(len(packed_tasks))]


def frame_of_tasks(
    spark: SparkSession, count: int, run: Callable[[int], Iterable[pa.RecordBatch]], schema: StructType | str
) -> DataFrame:
    """Return a DataFrame with one task for each number below ``count``. The task yields the rows of ``run(number)``."""

    def run_numbers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_once()
        for batch in batches:
            for number in cast(list[int], batch.column(0).to_pylist()):
                yield from run(number)

    return spark.range(0, count, 1, count).mapInArrow(run_numbers, schema)


@contextmanager
def convert_errors() -> Iterator[None]:
    """Return a context manager that converts Spark's error of a failed task to a SparkJobError.

    The SparkJobError contains the task's own error. An error of Spark without the error of a task is raised unchanged.
    """
    try:
        yield
    except PySparkException as error:
        raised = _RAISED.findall(str(error))
        if not raised:
            raise
        name, text = raised[-1]
        raise SparkJobError(f"a task failed: {name}: {text.strip()}") from error


@contextmanager
def watch_progress(spark: SparkSession, progress: TaskProgress | None) -> Iterator[None]:
    """Return a context manager that reports the progress of the Spark jobs that this thread starts in the context.

    A second thread calls ``progress`` with the numbers of completed tasks and of all tasks when they change. With Spark
    Connect, which does not provide these numbers, ``progress`` is not called.
    """
    context = None if progress is None else _context(spark)
    if context is None or progress is None:
        yield
        return
    group, ended = f"stratalog-{uuid4()}", threading.Event()
    previous_group = context.getLocalProperty("spark.jobGroup.id")
    context.setLocalProperty("spark.jobGroup.id", group)
    watcher = threading.Thread(
        target=_watch, args=(context, group, ended, progress), name="stratalog-progress", daemon=True
    )
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        context.setLocalProperty("spark.jobGroup.id", previous_group)


def _context(spark: SparkSession) -> Any:
    """Return the SparkContext of a session; None for Spark Connect, which has no SparkContext."""
    try:
        return spark.sparkContext
    except (PySparkException, AttributeError):
        return None


def _watch(context: Any, group: str, ended: threading.Event, progress: TaskProgress) -> None:
    tracker = context.statusTracker()
    reported = (0, 0)
    while not ended.wait(_POLL_SECONDS):
        completed = total = 0
        for job in tracker.getJobIdsForGroup(group):
            info = tracker.getJobInfo(job)
            for stage in (tracker.getStageInfo(number) for number in (info.stageIds if info else ())):
                if stage is not None:
                    completed, total = completed + stage.numCompletedTasks, total + stage.numTasks
        if (completed, total) != reported:
            reported = completed, total
            try:
                progress(completed, total)
            except KeyboardInterrupt:  # the user interrupted the command; the main thread also raises KeyboardInterrupt
                return
