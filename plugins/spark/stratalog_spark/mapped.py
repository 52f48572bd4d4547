"""A function of Arrow batches inside the tasks that read them: what it leaves out never passes through the JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from stratalog_spark.columns import check_names
from stratalog_spark.jobs.tasks import task_count
from stratalog_spark.messages import SPLIT
from stratalog_spark.options import Options
from stratalog_spark.rows import plan, read_split
from stratalog_spark.worker import freeze_once

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - a type alone
    from pyspark.sql.types import StructType

Mapped: TypeAlias = "Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]"
"""As ``DataFrame.mapInArrow`` takes it: called once a task, with all batches of its rows."""


def map_in_arrow(
    spark: SparkSession, path: str, function: Mapped, schema: StructType | str, *, options: Mapping[str, str]
) -> DataFrame:
    """What a function makes of the rows of a log directory or a tier, as Arrow batches, where they are read.

    The same rows, options and answers as ``spark.read.format("stratalog").options(...).load(path).mapInArrow(function,
    schema)``, with one way between Python and the JVM instead of three: the function gets batches of 1 to 4 MiB as they
    are scanned, and only what it yields becomes rows of Spark. For filters, aggregates and models that leave little of
    what they read.

    The plan is made here, once: the frame shows what is there now, whenever it is computed. Tasks that fail are repeated
    as Spark does: the function must give the same for the same rows, and have no effects of its own.

    Args:
        spark: a session, classic or Connect.
        path: a directory, or the URI of a tier.
        function: called once a task with an iterator of ``pyarrow.RecordBatch``; yields those of ``schema``. It is
            pickled. Rows of a partition come in the order of their offsets.
        schema: of what it yields.
        options: those of the source, in its words: ``subscribe``, ``columns``, ``startingOffsets``, ``tier.NAME``...

    Raises:
        ConfigError: an option is wrong.
        UnknownSettingError: there is no such option.
        UnknownTopicError, OffsetOutOfRangeError, StorageError: as when a batch is planned.
    """
    chosen = Options({**options, "path": path})
    names = check_names(chosen.shown)
    splits = [SPLIT.pack(split) for split in plan(chosen, task_count(spark))]  # one by one: a task reads its own alone

    def read(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        freeze_once()
        for number in (number for batch in batches for number in batch.column(0).to_pylist()):
            yield from read_split(chosen, names, chosen.source, SPLIT.unpack(splits[int(str(number))]))

    def work(batches: Iterator[pyarrow.RecordBatch]) -> Iterable[pyarrow.RecordBatch]:
        return function(read(batches))

    return spark.range(0, len(splits), 1, len(splits)).mapInArrow(work, schema)
