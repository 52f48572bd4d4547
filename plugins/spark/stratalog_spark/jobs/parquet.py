"""Writer of ranges of a log as Parquet, with one file per date, in bounded memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from stratalog import TopicPartition
from stratalog_spark.jobs.ledger import Target

GROUP_BYTES: Final = 32 << 20  # size of a row group in memory
_HELD_BYTES: Final = 96 << 20  # limit for all row groups in memory
_OPEN_FILES: Final = 64
NO_DATE: Final = "__HIVE_DEFAULT_PARTITION__"
_MICROSECONDS: Final = {"date": 86_400_000_000, "hour": 3_600_000_000}

Made = tuple[str, int, int]
"""A file: its name below the destination, rows, bytes."""


@dataclass(slots=True)
class _File:
    """One Parquet file that is being written."""

    name: str
    local: Path
    writer: Any = None
    waiting: list[Any] = field(default_factory=list)
    waiting_bytes: int = 0
    rows: int = 0

    def flush(self, pa: Any, options: dict[str, object]) -> None:
        """Write the gathered rows as a row group."""
        if not self.waiting:
            return
        table = pa.Table.from_batches(self.waiting)
        if self.writer is None:
            self.writer = import_module("pyarrow.parquet").ParquetWriter(self.local, table.schema, **options)
        self.writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self.rows += table.num_rows
        self.waiting, self.waiting_bytes = [], 0


class RangeWriter:
    """Writer of one range of a log to files named after the range. A repeated write creates the same files.

    Args:
        target: the destination.
        log: log of the records.
        start: start of the range, inclusive.
        end: end of the range, exclusive.
        partition_by: ``date``, ``hour`` or ``none``.
        compression: codec of Parquet.
        hive: True for folders named ``topic=T/date=D``, False for ``T/D``.
    """

    def __init__(
        self,
        target: Target,
        log: TopicPartition,
        start: int,
        end: int,
        *,
        partition_by: str,
        compression: str,
        hive: bool,
    ) -> None:
        self._pa = import_module("pyarrow")
        self._target, self._log, self._by, self._hive = target, log, partition_by, hive
        self._name = f"{log}-{start:020}-{end:020}"
        self._files: dict[int | None, _File] = {}
        self._pieces: dict[int | None, int] = {}
        self._made: list[Made] = []
        self._folder = tempfile.TemporaryDirectory(prefix="stratalog-export-")
        # dictionaries for repeated values, delta encoding for ascending numbers
        self._options: dict[str, object] = {
            "compression": compression,
            "use_dictionary": ["key", "partition", "timestampType", "leaderEpoch"],
            "column_encoding": {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
            "write_statistics": ["partition", "offset", "timestamp", "topic"],
            "coerce_timestamps": "us",
        }

    def write(self, batch: Any) -> None:
        """Add rows, which have a column ``timestamp``. Any: a ``pyarrow.RecordBatch``."""
        for period, rows in self._by_period(batch):
            file = self._files.get(period)
            if file is None:
                file = self._open(period)
            file.waiting.append(rows)
            file.waiting_bytes += rows.nbytes
            if file.waiting_bytes >= GROUP_BYTES:
                file.flush(self._pa, self._options)
        while sum(file.waiting_bytes for file in self._files.values()) > _HELD_BYTES:
            max(self._files.values(), key=lambda file: file.waiting_bytes).flush(self._pa, self._options)

    def finish(self) -> list[Made]:
        """Complete all files, and move them to the destination."""
        for period in list(self._files):
            self._close(period)
        return self._made

    def close(self) -> None:
        """Discard unfinished files. A second call has no effect."""
        for file in self._files.values():
            if file.writer is not None:
                file.writer.close()
        self._files.clear()
        self._folder.cleanup()

    def _open(self, period: int | None) -> _File:
        if len(self._files) >= _OPEN_FILES:
            self._close(next(iter(self._files)))
        piece = self._pieces.get(period, 0)
        self._pieces[period] = piece + 1
        suffix = f"-{piece}" if piece else ""
        name = "/".join([*self._folders(period), f"{self._name}{suffix}.parquet"])
        made = _File(name, Path(self._folder.name) / f"{len(self._made) + len(self._files)}.parquet")
        self._files[period] = made
        return made

    def _close(self, period: int | None) -> None:
        file = self._files[period]
        file.flush(self._pa, self._options)
        file.writer.close()
        del self._files[period]
        size_bytes = file.local.stat().st_size
        self._target.put(str(file.local), file.name)
        file.local.unlink()
        self._made.append((file.name, file.rows, size_bytes))

    def _folders(self, period: int | None) -> list[str]:
        found = [("topic", self._log.topic)]
        if self._by != "none":
            np = import_module("numpy")
            days, hour = divmod(period, 24) if period is not None and self._by == "hour" else (period, 0)
            found.append(("date", NO_DATE if days is None else str(np.datetime64(days, "D"))))
            if self._by == "hour":
                found.append(("hour", NO_DATE if days is None else f"{hour:02}"))
        return [f"{name}={value}" if self._hive else value for name, value in found]

    def _by_period(self, batch: Any) -> Iterator[tuple[int | None, Any]]:
        """Yield the rows of each date or hour, in their order."""
        if self._by == "none":
            yield 0, batch
            return
        np = import_module("numpy")
        times = batch.column("timestamp")
        raw = times.cast("int64").fill_null(np.iinfo(np.int64).min).to_numpy()
        periods = raw // _MICROSECONDS[self._by]
        null = np.iinfo(np.int64).min // _MICROSECONDS[self._by]
        first = periods[0]
        if (periods == first).all():
            yield (None if times.null_count else int(first)), batch
            return
        for period in np.unique(periods).tolist():
            mask = self._pa.array(periods == period)
            yield (None if times.null_count and period == null else period), batch.filter(mask)


def write_range(writer: RangeWriter, batches: Iterable[Any]) -> list[Made]:
    """Write all batches of a range. If that fails, no local file is left."""
    try:
        for batch in batches:
            writer.write(batch)
        return writer.finish()
    finally:
        writer.close()
