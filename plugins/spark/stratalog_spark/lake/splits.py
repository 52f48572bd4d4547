"""Stream with one row for each split of a micro-batch. The row describes where the records of the split are stored.

Python tasks read the records of each split, so the records never pass through the JVM.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from stratalog_spark.options.read_options import Options
from stratalog_spark.read.plan import SplitPartition
from stratalog_spark.read.stream import stream_reader_class
from stratalog_spark.source import StratalogSource

if TYPE_CHECKING:
    import pyarrow as pa


class SplitSource(StratalogSource):
    """Data source ``stratalog-splits``, which ``sync`` uses. It has the options of the source ``stratalog``."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return "stratalog-splits"

    def schema(self) -> StructType | str:
        """Return the schema as DDL: only the column ``split``."""
        return "split string"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 - Spark's signature
        """Return the reader for ``spark.readStream``."""
        return SplitStreamReader(Options(self.options, streaming=True), ("split",))


class SplitStreamReader(stream_reader_class()):  # type: ignore[misc]  # depends on the version of Spark
    """Stream reader whose tasks return the message of their split instead of its records."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one row with the message of the task's split."""
        import pyarrow as pa  # noqa: PLC0415 - in the worker

        assert isinstance(partition, SplitPartition)  # from ``partitions``
        batch: Any = pa.RecordBatch.from_pydict({"split": [partition.value]})
        yield batch
