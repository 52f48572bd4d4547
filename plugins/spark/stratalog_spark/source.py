"""The data source ``stratalog``. A read is planned once, and independent tasks read the records as Arrow batches."""

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

from stratalog_spark import catalog
from stratalog_spark.columns.kafka_columns import check_names, ddl
from stratalog_spark.options.read_options import Options
from stratalog_spark.options.table_options import is_table, merge_table_options, table_schema
from stratalog_spark.read.plan import SplitPartition, plan
from stratalog_spark.read.stream import stream_reader_class
from stratalog_spark.tasks.worker import pause_collection

if TYPE_CHECKING:
    import pyarrow as pa


class StratalogSource(DataSource):
    """Data source for a log directory (of an engine or a Kafka broker) or a tier.

    See docs/spark.md for options and columns.

    The readers deliberately have no method ``pushFilters``. Spark plans a DataFrame once, so later reads of the whole
    DataFrame would silently use the filtered plan (observed with Spark 4.3). Instead, options select the offsets, and
    the schema selects the columns.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return "stratalog"

    def schema(self) -> StructType | str:
        """Return the columns that the options select. Raise ConfigError if an option is wrong.

        For a read, the result is a DDL string, because this process may have no Spark session to parse DDL. For a table
        that is being created, and for a request of the catalog, the result is a StructType, because the metadata of its
        columns contains data.
        """
        if catalog.ASK in self.options:  # a request of the catalog in the JVM
            return catalog.response(self.options)
        if is_table(self.options):
            return table_schema(self.options)
        return ddl(check_names(Options(self.options, streaming=None).column_names))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for ``spark.read``. Raise ConfigError if an option or a column is wrong.

        ``schema`` selects the columns. It is the user's schema, or the result of ``schema()`` if the user set none.
        """
        options = Options(merge_table_options(self.options, schema, streaming=False))
        options.warn_of_ignored()
        return BatchReader(options, schema.names if options.counts else _names(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader for ``spark.readStream``. Raise ConfigError if an option or a column is wrong.

        ``schema`` selects the columns, as in the method ``reader``.
        """
        options = Options(merge_table_options(self.options, schema, streaming=True), streaming=True)
        options.warn_of_ignored()
        return stream_reader_class()(options, _names(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's signature
        """Return the writer for ``df.write``.

        Raise ConfigError if the mode is not ``append``, or an option is wrong.
        """
        from stratalog_spark.options.write_options import SinkOptions  # noqa: PLC0415 - imports the engine
        from stratalog_spark.write.sink import BatchWriter  # noqa: PLC0415 - readers do not need it

        return BatchWriter(SinkOptions(self.options, overwrite=overwrite), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802 - Spark's
        """Return the writer for ``df.writeStream``.

        Raise ConfigError if the output mode is complete, or an option is wrong.
        """
        from stratalog_spark.options.write_options import SinkOptions  # noqa: PLC0415 - imports the engine
        from stratalog_spark.write.sink import StreamWriter  # noqa: PLC0415 - readers do not need it

        return StreamWriter(SinkOptions(self.options, overwrite=overwrite), schema)


def _names(schema: StructType) -> tuple[str, ...]:
    """Return the names of a schema's columns.

    Raise ConfigError if the source has no column with one of the names and types.
    """
    return check_names(schema.names, [field.dataType.simpleString() for field in schema.fields])


class BatchReader(DataSourceReader):
    """Reader of one DataFrame.

    The read is planned once, so the DataFrame never contains records that are appended later.
    """

    def __init__(self, options: Options, names: Sequence[str]) -> None:
        self._options, self._names = options, tuple(names)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the inputs of the tasks, at least one."""
        with pause_collection():
            splits = plan(self._options)[::-1]
            return [SplitPartition(splits.pop()) for _ in range(len(splits))]  # free each split: a plan is large

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one task as Arrow batches."""
        assert isinstance(partition, SplitPartition)  # from ``partitions``
        return partition.rows(self._options, self._names)
