"""The stream source: micro-batches by the rules of Spark's Kafka source, with offsets in the format of that source.

One process plans the whole query. Tasks run ``read`` on pickled copies, which contain no open readers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from stratalog.errors import ConfigError, StorageError
from stratalog.reading import Split
from stratalog_spark.options.read_options import Options
from stratalog_spark.read.plan import SplitPartition
from stratalog_spark.read.stream_offsets import Json, from_json, to_json
from stratalog_spark.read.stream_planner import Planner

if TYPE_CHECKING:
    import pyarrow as pa

_LOGGER: Final = logging.getLogger(__name__)


class PlainStreamReader(DataSourceStreamReader):
    """Stream reader for Spark below 4.2, where Python sources support neither limits of a micro-batch nor AvailableNow.

    The constructor raises ConfigError if the options contain such limits.
    """

    has_limits: ClassVar[bool] = False

    def __init__(self, options: Options, names: Sequence[str]) -> None:
        self._options, self._names = options, tuple(names)
        self._planner = Planner(options)
        if not self.has_limits and (options.max_offsets or options.min_offsets):
            raise ConfigError("maxOffsetsPerTrigger and minOffsetsPerTrigger need Spark 4.2 or newer")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._options, self._names)  # a copy in a task does not plan

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's name
        """Return the start offsets of a new query. Errors are those of ``resolve``."""
        return to_json(self._planner.first())

    def latestOffset(self) -> Json:  # noqa: N802 - Spark's name
        """Return the result of ``Planner.rising_ends``. Errors are those of ``Planner.ends``."""
        return to_json(self._planner.rising_ends())

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Return the input of each task of one micro-batch; at least one. Errors are those of ``Planner.splits``."""
        splits = self._planner.splits(from_json(start), from_json(end))
        return [SplitPartition(split) for split in splits] or [SplitPartition(Split((), self._options.isolation))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one task as Arrow batches."""
        assert isinstance(partition, SplitPartition)  # from ``partitions``
        return partition.rows(self._options, self._names)

    def commit(self, end: Json) -> None:
        """Commit the offsets of the consumer group if option ``commitGroupOffsets`` is on.

        Spark calls this method after each micro-batch, but perhaps not after the last one. An error is only logged,
        because the next batch commits newer offsets.
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
