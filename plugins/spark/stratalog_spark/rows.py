"""Input of one task and its rows, for batches and streams."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

from stratalog.reading import DamagedRange, MissingRange, ReadSource, Split, plan_splits, scan
from stratalog_spark.columns import Rows
from stratalog_spark.messages import SPLIT
from stratalog_spark.options import Options
from stratalog_spark.ranges import resolve

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - a type alone

_LOGGER: Final = logging.getLogger(__name__)


class SplitPartition(InputPartition):
    """Input of one task as text, because Spark pickles it. It contains neither credentials nor settings."""

    def __init__(self, split: Split) -> None:
        super().__init__(SPLIT.pack(split))

    @property
    def split(self) -> Split:
        """Split to read; raises MessageError if another release created it."""
        return SPLIT.unpack(self.value)


def plan(options: Options, tasks: int | None = None) -> list[Split]:
    """Return the tasks of a batch. If there is nothing to read, return one empty task.

    Args:
        options: options of the read.
        tasks: approximate number of tasks, unless they would become too small or too large; None if it is unknown.
    """
    usual = {} if tasks is None else {"usual_splits": tasks}
    with options.source.open(peek=True) as reader:
        ranges = resolve(options, reader)
        splits = plan_splits(reader, ranges, **options.splitting, **usual)
    return splits or [Split((), options.isolation)]


def read_split(
    options: Options, names: Sequence[str], source: ReadSource, split: Split
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of a split in batches of 1 to 4 MiB. Tuples would be eight times slower."""
    rows, found = Rows(names), list[DamagedRange]()

    def damaged(damage: DamagedRange) -> None:
        _LOGGER.warning("a corrupt batch is skipped: %s", damage)
        if options.corrupt == "columns":
            found.append(damage)

    def lost(loss: MissingRange) -> None:
        _LOGGER.warning("records are missing, and failOnDataLoss is off: %s", loss)

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
