"""The data source ``stratalog``: batches of records as Arrow, planned once, read by tasks on their own."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from stratalog.reading import Damage, Lost, ReadSource, Split, plan_splits, scan
from stratalog_spark.columns import CORRUPT, HEADERS, KAFKA, Rows, check_names, ddl
from stratalog_spark.options import Options
from stratalog_spark.ranges import resolve
from stratalog_spark.worker import freeze_once

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - a type alone

_LOG: Final = logging.getLogger(__name__)


class StratalogSource(DataSource):
    """Reads a log directory (of an engine or of a Kafka broker) or a tier; options and columns are those of docs/spark.md.

    There is no ``pushFilters`` on purpose: Spark plans a DataFrame once, so a plan that was filtered would be used again
    for the whole DataFrame, silently (seen with 4.3). Ranges are options, and the schema is the projection.
    """

    @classmethod
    def name(cls) -> str:
        """What stands in ``format(...)``."""
        return "stratalog"

    def schema(self) -> str:
        """The columns, as far as the options choose them. Text: there may be no Spark here to parse it."""
        options = Options(self.options)
        if options.columns:
            return ddl(check_names(options.columns))
        corrupt = CORRUPT if options.corrupt == "columns" else ()
        return ddl([*KAFKA, *([HEADERS] if options.headers else []), *corrupt])

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``; ``schema`` is the user's, if there is one, and chooses the columns."""
        kinds = [field.dataType.simpleString() for field in schema.fields]
        return BatchReader(Options(self.options), check_names(schema.names, kinds))


class SplitPartition(InputPartition):
    """What one task reads. Neither credentials nor settings are in it."""

    def __init__(self, split: Split) -> None:
        super().__init__(None)
        self.split = split


class BatchReader(DataSourceReader):
    """Plans once a DataFrame, which so is a frozen snapshot; ``load`` again sees what is new."""

    def __init__(self, options: Options, names: Sequence[str]) -> None:
        self._options, self._names = options, tuple(names)

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks."""
        options = self._options
        with options.source.open(peek=True) as reader:
            splits = plan_splits(
                reader, resolve(options, reader), isolation=options.isolation, min_splits=options.min_partitions
            )
        return [SplitPartition(split) for split in splits] or [SplitPartition(Split((), options.isolation))]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Carry out one task."""
        assert isinstance(partition, SplitPartition)  # as planned
        freeze_once()
        return read_split(self._options, self._names, self._options.source, partition.split)


def read_split(
    options: Options, names: Sequence[str], source: ReadSource, split: Split
) -> Iterator[pyarrow.RecordBatch]:
    """The rows of a split, in batches of 1 to 4 MiB: tuples would be eight times slower."""
    rows, found = Rows(names), list[Damage]()

    def damaged(damage: Damage) -> None:
        _LOG.warning("a corrupt batch is left out: %s", damage)
        if options.corrupt == "columns":
            found.append(damage)

    def lost(loss: Lost) -> None:
        _LOG.warning("records are gone, and failOnDataLoss is off: %s", loss)

    scanned = scan(
        source,
        split,
        on_damage=None if options.corrupt == "fail" else damaged,
        on_loss=None if options.fail_on_loss else lost,
    )
    for batch in scanned:
        yield rows.of(batch)
        while found:
            yield rows.of_damage(found.pop(0))
    for damage in found:
        yield rows.of_damage(damage)
