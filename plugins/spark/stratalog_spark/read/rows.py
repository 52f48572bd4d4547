"""Splits that the tasks of a query read, and the rows of a split, for batch and streaming queries."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

from stratalog import Reader, TopicPartition
from stratalog.reading import DamagedRange, MissingRange, OffsetRange, ReadSource, Split, plan_splits, scan
from stratalog_spark.columns.kafka_columns import COUNTED, Rows, counted
from stratalog_spark.columns.pushdown import narrowed
from stratalog_spark.options.read_options import Options
from stratalog_spark.read.ranges import resolve
from stratalog_spark.tasks.messages import SPLIT

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - a type alone

_LOGGER: Final = logging.getLogger(__name__)


class SplitPartition(InputPartition):
    """Input of one task. Spark pickles the text of its message, which contains no credentials and no settings."""

    def __init__(self, split: Split) -> None:
        super().__init__(SPLIT.pack(split))

    @property
    def split(self) -> Split:
        """Split to read. Raises MessageError if another release created the message."""
        return SPLIT.unpack(self.value)


def plan(options: Options, tasks: int | None = None) -> list[Split]:
    """Return the splits of a batch query, one for each task. If there is nothing to read, return one empty split.

    Errors are those of ``resolve``, and StorageError if the source cannot be read.

    Args:
        options: options of the read.
        tasks: approximate number of tasks, unless their splits would be too small or too large; None if it is unknown.
    """
    usual = {} if tasks is None else {"usual_splits": tasks}
    with options.source.open(peek=True) as reader:
        return planned(options, reader, resolve(options, reader), **usual)


def planned(options: Options, reader: Reader, ranges: Iterable[OffsetRange], **usual: int) -> list[Split]:
    """Return the splits for ranges, without offsets that a pushed predicate excludes; one empty split if none is left.

    For a pushed count, segments whose number of records is in a manifest are not read. They are read if
    ``corruptBatches`` is ``skip`` or ``columns``, because the count then excludes corrupt batches.
    """
    node = options.pushed
    if options.counts and options.corrupt == "fail":
        ranges = (replace(each, is_counted=True) for each in ranges)
    if node is not None:
        ranges = (part for each in ranges for part in narrowed(node, reader.log(*each.log), each, options.isolation))
    splits = plan_splits(reader, ranges, **options.splitting, **usual)
    return splits or [Split((), options.isolation)]


def read_split(
    options: Options, names: Sequence[str], source: ReadSource, split: Split
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of a split in batches of at most about 5 MiB, as ``scan``.

    For a pushed count, yield one batch with the numbers of rows, as ``counted``.
    """
    if options.counts:
        yield counted(names, _counts(options, source, split))
    else:
        yield from (batch for _, batch in _rows(options, names, source, split))


def _counts(options: Options, source: ReadSource, split: Split) -> Iterator[tuple[TopicPartition, int]]:
    """Yield log and number of rows: for each piece whose number is in the plan, and for each batch that is read."""
    yield from ((piece.log, piece.records) for piece in split.pieces if piece.records is not None)
    yield from ((log, batch.num_rows) for log, batch in _rows(options, (COUNTED,), source, split))


def _rows(
    options: Options, names: Sequence[str], source: ReadSource, split: Split
) -> Iterator[tuple[TopicPartition, pyarrow.RecordBatch]]:
    """Yield log and rows of each batch of a split. A corrupt batch is one row if ``corruptBatches`` is ``columns``."""
    rows, found = Rows(names, options.pushed), list[DamagedRange]()

    def damaged(damage: DamagedRange) -> None:
        _LOGGER.warning("a corrupt batch is skipped: %s", damage)
        if options.corrupt == "columns":
            found.append(damage)

    def lost(loss: MissingRange) -> None:
        _LOGGER.warning("records are missing, and failOnDataLoss is off: %s", loss)

    scanned = scan(
        source,
        split,
        columns=rows.scanned,
        on_damage=None if options.corrupt == "fail" else damaged,
        on_loss=None if options.fail_on_loss else lost,
    )
    for batch in scanned:
        yield batch.log, rows.of(batch)
        while found:
            yield found[0].log, rows.of_damage(found.pop(0))
    for damage in found:
        yield damage.log, rows.of_damage(damage)
