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

    Rows, options and results are those of ``spark.read.format("stratalog").options(...).load(path).mapInArrow(function,
    schema)``. Data crosses between Python and the JVM once instead of three times: the function runs in the Python
    tasks that read the rows, and gets batches of 1 to 4 MiB. Only its output becomes rows of Spark.

    The plan is made once, in this call: the frame shows the records of that time, whenever it is computed. Spark
    repeats failed tasks. The function must return the same result for the same rows, and must have no side effects.

    Args:
        spark: a session, classic or Connect.
        path: a log directory, or the URI of a tier.
        function: called once per task with an iterator of ``pyarrow.RecordBatch``; yields batches of ``schema``. Spark
            pickles it. Rows of a partition are in the order of their offsets.
        schema: schema of the function's output.
        options: options of the source, by their names: ``subscribe``, ``columns``, ``startingOffsets``,
            ``tier.NAME``...

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
