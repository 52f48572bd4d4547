"""The stream source. Micro-batches and the format of offsets follow the rules of Spark's Kafka source.

One process plans the whole query. Tasks call ``read`` of a pickled copy, which contains no open readers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from stratalog.errors import ConfigError, StorageError
from stratalog_spark.options.read_options import Options
from stratalog_spark.read.plan import SplitPartition
from stratalog_spark.read.stream_offsets import Json, from_json, to_json
from stratalog_spark.read.stream_planner import Planner

if TYPE_CHECKING:
    import pyarrow as pa

_LOGGER: Final = logging.getLogger(__name__)


class PlainStreamReader(DataSourceStreamReader):
    """Stream reader for Spark before 4.2.

    In these versions, Python sources support neither limits of a micro-batch nor AvailableNow.

    The constructor raises ConfigError if the options contain such limits.
    """

    has_limits: ClassVar[bool] = False

    def __init__(self, options: Options, names: Sequence[str]) -> None:
        self._options, self._names = options, tuple(names)
        self._planner = Planner(options)
        if not self.has_limits and (options.max_offsets or options.min_offsets):
            raise ConfigError("maxOffsetsPerTrigger and minOffsetsPerTrigger need Spark 4.2 or newer")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._options, self._names)  # copies in tasks do not plan, so they need no planner

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's name
        """Return the start offsets of a new query. Raises the errors of ``resolve``."""
        return to_json(self._planner.first())

    def latestOffset(self) -> Json:  # noqa: N802 - Spark's name
        """Return the result of ``Planner.rising_ends``. Raises the errors of ``Planner.ends``."""
        return to_json(self._planner.rising_ends())

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Return the inputs of the tasks of one micro-batch. Raises the errors of ``Planner.splits``."""
        return [SplitPartition(split) for split in self._planner.splits(from_json(start), from_json(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one task as Arrow batches."""
        assert isinstance(partition, SplitPartition)  # from ``partitions``
        return partition.rows(self._options, self._names)

    def commit(self, end: Json) -> None:
        """If option ``commitGroupOffsets`` is true, commit the offsets ``end`` for the consumer group.

        Spark calls this method after each micro-batch, but perhaps not after the last one. An error is only logged,
        because the next micro-batch commits newer offsets.
        """
        group, source = self._options.group, self._options.source
        if group is None:
            return
        from stratalog.writing import WriteTarget, commit_offsets  # noqa: PLC0415 - imports the engine, which few need

        target = WriteTarget(source.location, tier_options=source.tier_options, config=source.config)
        try:
            with target.open() as writer:
                commit_offsets(writer, group, from_json(end))
        except StorageError as error:
            _LOGGER.warning("offsets of group %s are not committed: %s", group, error)

    def stop(self) -> None:
        """Close the reader of the planner at the end of the query."""
        self._planner.close()


def stream_reader_class() -> type[PlainStreamReader]:
    """Return the class of stream readers for this version of Spark."""
    try:
        from stratalog_spark.read.limited_stream import LimitedStreamReader  # noqa: PLC0415 - not before Spark 4.2
    except ImportError:
        return PlainStreamReader
    return LimitedStreamReader
