"""The rows of a split. Only tasks import this module: pyarrow is slow to import."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

import pyarrow as pa

from stratalog import TopicPartition
from stratalog.reading import DamagedRange, MissingRange, Split, scan
from stratalog_spark.columns.kafka_columns import COUNTED
from stratalog_spark.columns.scanned_rows import Rows, count_batch
from stratalog_spark.options.read_options import Options

_LOGGER: Final = logging.getLogger(__name__)


def read_split(options: Options, names: Sequence[str], split: Split) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split in Arrow batches of at most about 5 MiB. Raises the errors of ``scan``.

    For a pushed count, yield one Arrow batch: the result of ``count_batch``.
    """
    if options.counts:
        planned_counts = ((piece.log, piece.records) for piece in split.pieces if piece.records is not None)
        read_counts = ((log, batch.num_rows) for log, batch in _rows(options, (COUNTED,), split))
        yield count_batch(names, chain(planned_counts, read_counts))
    else:
        yield from (batch for _, batch in _rows(options, names, split))


def _rows(options: Options, names: Sequence[str], split: Split) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """Yield (log, rows) of each batch of a split. A corrupt batch is one row if ``corruptBatches`` is ``columns``."""
    rows, damaged_ranges = Rows(names, options.pushed), list[DamagedRange]()

    def on_damage(damage: DamagedRange) -> None:
        _LOGGER.warning("a corrupt batch is skipped: %s", damage)
        if options.corrupt == "columns":
            damaged_ranges.append(damage)

    def on_loss(loss: MissingRange) -> None:
        _LOGGER.warning("records are missing, and failOnDataLoss is off: %s", loss)

    scanned = scan(
        options.source,
        split,
        columns=rows.scanned,
        on_damage=None if options.corrupt == "fail" else on_damage,
        on_loss=None if options.fail_on_loss else on_loss,
    )
    for batch in scanned:
        yield batch.log, rows.convert(batch)
        while damaged_ranges:
            yield damaged_ranges[0].log, rows.convert_damage(damaged_ranges.pop(0))
    for damage in damaged_ranges:
        yield damage.log, rows.convert_damage(damage)
