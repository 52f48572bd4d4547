"""Splits that the tasks of a query read, for batch and streaming queries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

from stratalog import Isolation, Reader
from stratalog.reading import OffsetRange, Piece, Split, plan_splits
from stratalog_spark.columns.pushdown import narrow_range
from stratalog_spark.options.read_options import Options
from stratalog_spark.read.ranges import resolve
from stratalog_spark.tasks.messages import SPLIT
from stratalog_spark.tasks.worker import freeze_once

if TYPE_CHECKING:
    import pyarrow as pa

_UNSPLIT_BYTES: Final = 1 << 62


class SplitPartition(InputPartition):
    """Input of one task. Spark pickles the text of its message, which contains no credentials and no settings."""

    def __init__(self, split: Split) -> None:
        super().__init__(SPLIT.pack(split))

    @property
    def split(self) -> Split:
        """Split that the task reads. Raises MessageError if another release created the message."""
        return SPLIT.unpack(self.value)

    def rows(self, options: Options, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Return the result of ``read_split`` for the split. Called in the task."""
        from stratalog_spark.read.read_split import read_split  # noqa: PLC0415 - imports pyarrow, which plans do not need

        freeze_once()
        return read_split(options, names, self.split)


def plan(options: Options, tasks: int | None = None) -> list[Split]:
    """Return the splits of a batch query, one for each task. If there is nothing to read, return one empty split.

    ``tasks`` is the approximate number of tasks; None if it is unknown. The number of splits is different if the splits
    would be too small or too large. Raises the errors of ``resolve``, and StorageError if the source cannot be read.
    """
    split_hints = {} if tasks is None else {"usual_splits": tasks}
    with options.source.open(peek=True) as reader:
        return plan_ranges(options, reader, resolve(options, reader), **split_hints)


def plan_ranges(options: Options, reader: Reader, ranges: Iterable[OffsetRange], **split_hints: int) -> list[Split]:
    """Return the splits for ranges, without offsets that a pushed predicate excludes.

    If no offset remains, return one empty split.

    For a pushed count, a segment is not read if a manifest contains its number of records. All segments are read if
    ``corruptBatches`` is ``skip`` or ``columns``, because the count then excludes corrupt batches.
    """
    predicate = options.pushed
    if options.counts and options.corrupt == "fail":
        ranges = (replace(offset_range, is_counted=True) for offset_range in ranges)
    if predicate is not None:
        ranges = (
            part
            for offset_range in ranges
            for part in narrow_range(predicate, reader.log(*offset_range.log), offset_range, options.isolation)
        )
    splits = plan_splits(
        reader,
        ranges,
        isolation=options.isolation,
        min_splits=options.min_partitions,
        split_records=options.max_records,
        **split_hints,
    )
    return splits or [Split((), options.isolation)]


def plan_segments(reader: Reader, ranges: Iterable[OffsetRange], isolation: Isolation) -> list[Piece]:
    """Return the records of ranges as one ``Piece`` for each segment, in the order of the ranges."""
    splits = plan_splits(reader, ranges, isolation=isolation, split_bytes=_UNSPLIT_BYTES)
    return [piece for split in splits for piece in split.pieces]
