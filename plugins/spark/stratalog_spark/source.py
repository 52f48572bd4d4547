"""The data source ``stratalog``: batches of records as Arrow, planned once, read by tasks on their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from stratalog_spark.columns import check_names, ddl
from stratalog_spark.options import Options, SinkOptions
from stratalog_spark.rows import SplitPartition, plan, read_split
from stratalog_spark.tables import is_table, table_schema, with_table
from stratalog_spark.worker import freeze_once

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - a type alone


class StratalogSource(DataSource):
    """Reads a log directory (of an engine or of a Kafka broker) or a tier; options and columns are those of docs/spark.md.

    There is no ``pushFilters`` on purpose: Spark plans a DataFrame once, so a plan that was filtered would be used again
    for the whole DataFrame, silently (seen with 4.3). Ranges are options, and the schema is the projection.
    """

    @classmethod
    def name(cls) -> str:
        """What stands in ``format(...)``."""
        return "stratalog"

    def schema(self) -> StructType | str:
        """The columns, as far as the options choose them. Text: there may be no Spark here to parse it."""
        if is_table(self.options):
            return table_schema(self.options)
        return ddl(check_names(Options(self.options, streaming=None).shown))

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``; ``schema`` is the user's, if there is one, and chooses the columns."""
        return BatchReader(Options(with_table(self.options, schema, streaming=False)), _names(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """For ``spark.readStream``; the schema as for ``reader``."""
        options = Options(with_table(self.options, schema, streaming=True), streaming=True)
        names = _names(schema)
        try:
            from stratalog_spark.limited import LimitedStreamReader  # noqa: PLC0415 - not before Spark 4.2
        except ImportError:
            from stratalog_spark.stream import PlainStreamReader  # noqa: PLC0415 - then this one

            return PlainStreamReader(options, names)
        return LimitedStreamReader(options, names)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's signature
        """For ``df.write``, always with ``mode("append")``."""
        from stratalog_spark.sink import BatchWriter, check_append  # noqa: PLC0415 - readers need none of it

        check_append(overwrite=overwrite)
        return BatchWriter(SinkOptions(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802 - Spark's
        """For ``df.writeStream``, in output mode append or update."""
        from stratalog_spark.sink import StreamWriter, check_append  # noqa: PLC0415 - readers need none of it

        check_append(overwrite=overwrite)
        return StreamWriter(SinkOptions(self.options), schema)


def _names(schema: StructType) -> tuple[str, ...]:
    """The columns that a schema chooses, checked."""
    return check_names(schema.names, [field.dataType.simpleString() for field in schema.fields])


class BatchReader(DataSourceReader):
    """Plans once a DataFrame, which so is a frozen snapshot; ``load`` again sees what is new."""

    def __init__(self, options: Options, names: Sequence[str]) -> None:
        self._options, self._names = options, tuple(names)

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks."""
        return [SplitPartition(split) for split in plan(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Carry out one task."""
        assert isinstance(partition, SplitPartition)  # as planned
        freeze_once()
        return read_split(self._options, self._names, self._options.source, partition.split)
