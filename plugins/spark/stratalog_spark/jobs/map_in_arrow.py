"""Job that applies a function to Arrow batches in the tasks that read them. Dropped rows never reach the JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from stratalog_spark.columns.kafka_columns import check_names
from stratalog_spark.options.read_options import Options
from stratalog_spark.read.plan import plan
from stratalog_spark.read.read_split import read_split
from stratalog_spark.tasks.messages import SPLIT
from stratalog_spark.tasks.run_tasks import frame_of_tasks, task_count

Mapped: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function for ``DataFrame.mapInArrow``. It is called once per task, with all batches of the task's rows."""


def map_in_arrow(
    spark: SparkSession, path: str, function: Mapped, schema: StructType | str, *, options: Mapping[str, str]
) -> DataFrame:
    """Return a DataFrame with the output of a function that gets the rows of a source as Arrow batches.

    The result is the same as that of ``spark.read.format("stratalog").options(...).load(path).mapInArrow(function,
    schema)``. Data crosses between Python and the JVM once instead of three times: the function runs in the Python
    tasks that read the rows, and gets batches of 1 to 4 MiB. Only the output of the function becomes rows of Spark.

    This call makes the plan. The DataFrame contains the records that existed at the time of the call, even if it is
    computed later. Spark repeats failed tasks, so the function must return the same result for the same rows, and must
    have no side effects.

    Args:
        spark: a session, classic or Connect.
        path: a log directory, or the URI of a tier.
        function: called once per task with an iterator of ``pyarrow.RecordBatch``. It yields batches of ``schema``.
            Spark pickles the function. Rows of a partition are in the order of their offsets.
        schema: schema of the function's output.
        options: options of the source, such as ``subscribe``, ``columns``, ``startingOffsets`` or ``tier.NAME``.

    Raises:
        ConfigError: an option is wrong.
        UnknownSettingError: there is no such option.
        UnknownTopicError, OffsetOutOfRangeError: the requested topics or offsets do not exist.
        StorageError: the source cannot be read.
    """
    read_options = Options({**options, "path": path})
    names = check_names(read_options.column_names)
    # pack the splits one by one: a task unpacks only its own split
    splits = [SPLIT.pack(split) for split in plan(read_options, task_count(spark))]

    def run(number: int) -> Iterator[pa.RecordBatch]:
        return function(read_split(read_options, names, SPLIT.unpack(splits[number])))

    return frame_of_tasks(spark, len(splits), run, schema)
