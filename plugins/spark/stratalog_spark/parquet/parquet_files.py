"""Writer of rows as Parquet, with one file per date or hour, in bounded memory."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

GROUP_BYTES: Final = 32 << 20  # size of a row group in memory
_HELD_BYTES: Final = 96 << 20  # limit for all row groups in memory
_OPEN_FILES: Final = 64
NO_DATE: Final = "__HIVE_DEFAULT_PARTITION__"
_FIRST_US: Final = -62_135_596_800_000_000  # the year 1
_LAST_US: Final = 253_402_300_799_999_999  # the end of the year 9999
_MICROSECONDS: Final = {"date": 86_400_000_000, "hour": 3_600_000_000}


@dataclass(frozen=True, slots=True)
class ParquetFile:
    """One file that was written.

    Attributes:
        name: name below the destination.
        period: days or hours since 1970 of all its rows, or ``only_period`` of the writer. None if its rows have no
            timestamp.
        footer: the Parquet metadata of the file, encoded as a Parquet file without rows.
    """

    name: str
    rows: int
    size_bytes: int
    period: int | None
    footer: bytes

    @classmethod
    def of(cls, name: str, size_bytes: int, period: int | None, metadata: Any) -> ParquetFile:
        """Return the description of a file with the metadata ``metadata``, a ``pyarrow.parquet.FileMetaData``."""
        footer = io.BytesIO()
        metadata.write_metadata_file(footer)
        return cls(name, metadata.num_rows, size_bytes, period, footer.getvalue())

    def metadata(self) -> Any:
        """Return the footer as a ``pyarrow.parquet.FileMetaData``."""
        return pq.read_metadata(io.BytesIO(self.footer))


@dataclass(slots=True)
class _File:
    """One Parquet file that is being written."""

    name: str
    local: Path
    writer: Any = None
    waiting: list[Any] = field(default_factory=list)
    waiting_bytes: int = 0
    footers: list[Any] = field(default_factory=list)

    def flush(self, options: Mapping[str, Any]) -> None:
        """Write the collected rows as a row group."""
        if not self.waiting:
            return
        table = pa.Table.from_batches(self.waiting)
        if self.writer is None:
            self.writer = pq.ParquetWriter(self.local, table.schema, metadata_collector=self.footers, **options)
        self.writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self.waiting, self.waiting_bytes = [], 0


class PeriodWriter:
    """Writer of rows to Parquet files, with one file for each date or hour. A context manager.

    At most 64 files are open. To open another file, the writer completes the oldest file. Later rows of that file's
    period begin a new file, whose name ends with ``-1``, ``-2`` and so on.

    Args:
        put: stores a copy of a local file under a name, atomically.
        name: returns the name of the file for a period, without ``.parquet``.
        partition_by: ``date``, ``hour`` or ``none``.
        column: the column with the timestamps of the rows.
        options: options of ``pyarrow.parquet.ParquetWriter``.
        only_period: the period of all rows if ``partition_by`` is ``none``.
    """

    def __init__(
        self,
        put: Callable[[str, str], None],
        name: Callable[[int | None], str],
        *,
        partition_by: str,
        column: str,
        options: Mapping[str, Any],
        only_period: int | None = 0,
    ) -> None:
        self._put, self._name, self._partition_by, self._column = put, name, partition_by, column
        self._files: dict[int | None, _File] = {}
        self._pieces: dict[int | None, int] = {}
        self._written_files: list[ParquetFile] = []
        self._folder = tempfile.TemporaryDirectory(prefix="stratalog-export-")
        self._options, self._only_period = options, only_period

    def write(self, batch: Any) -> None:
        """Add the rows of a ``pyarrow.RecordBatch``, which must have at least one row."""
        for period, rows in self._split_by_period(batch):
            file = self._files.get(period)
            if file is None:
                file = self._open(period)
            file.waiting.append(rows)
            file.waiting_bytes += rows.nbytes
            if file.waiting_bytes >= GROUP_BYTES:
                file.flush(self._options)
        while sum(file.waiting_bytes for file in self._files.values()) > _HELD_BYTES:
            max(self._files.values(), key=lambda file: file.waiting_bytes).flush(self._options)

    def finish(self) -> list[ParquetFile]:
        """Complete all files, move them to the destination, and return the descriptions of all files of the writer."""
        for period in list(self._files):
            self._close(period)
        return self._written_files

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Discard unfinished files and the temporary folder. Files in the destination stay."""
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
        name = f"{self._name(period)}{suffix}.parquet"
        file = _File(name, Path(self._folder.name) / f"{len(self._written_files) + len(self._files)}.parquet")
        self._files[period] = file
        return file

    def _close(self, period: int | None) -> None:
        file = self._files[period]
        file.flush(self._options)
        file.writer.close()
        del self._files[period]
        size_bytes = file.local.stat().st_size
        self._put(str(file.local), file.name)
        file.local.unlink()
        [footer] = file.footers
        self._written_files.append(ParquetFile.of(file.name, size_bytes, period, footer))

    def _split_by_period(self, batch: Any) -> Iterator[tuple[int | None, Any]]:
        """Yield each date or hour, as a number (see ``ParquetFile.period``), with its rows in their order."""
        if self._partition_by == "none":
            yield self._only_period, batch
            return
        times = batch.column(self._column)
        raw = times.cast("int64").fill_null(np.iinfo(np.int64).min).to_numpy()
        periods = raw // _MICROSECONDS[self._partition_by]
        null = np.iinfo(np.int64).min // _MICROSECONDS[self._partition_by]
        first = periods[0]
        if (periods == first).all():
            yield (None if times.null_count else int(first)), batch
            return
        for period in np.unique(periods).tolist():
            mask = pa.array(periods == period)
            yield (None if times.null_count and period == null else period), batch.filter(mask)


def period_folders(period: int | None, partition_by: str) -> list[tuple[str, str]]:
    """Return (name, value) of each partition folder of ``period``: ``date``, and for ``hour`` a second folder ``hour``.

    Dates and hours are in UTC. Return [] if ``partition_by`` is ``none``. The value for rows without timestamp is
    ``NO_DATE``.
    """
    if partition_by == "none":
        return []
    days, hour = divmod(period, 24) if period is not None and partition_by == "hour" else (period, 0)
    folders = [("date", NO_DATE if days is None else str(np.datetime64(days, "D")))]
    if partition_by == "hour":
        folders.append(("hour", NO_DATE if days is None else f"{hour:02}"))
    return folders


def clear_invalid_times(batch: Any) -> Any:
    """Return a ``pyarrow.RecordBatch`` with null for each ``timestamp`` that is not in the years 1 to 9999.

    The libraries for Iceberg and Delta fail on other years. A record can have such a timestamp if its producer sent
    microseconds instead of milliseconds.
    """
    times = batch.column("timestamp")
    bounds = [pa.scalar(bound, pa.int64()).cast(times.type) for bound in (_FIRST_US, _LAST_US)]
    is_valid = pc.and_(pc.greater_equal(times, bounds[0]), pc.less_equal(times, bounds[1]))
    if not pc.any(pc.invert(is_valid)).as_py():
        return batch
    index = batch.schema.get_field_index("timestamp")
    return batch.set_column(index, batch.schema.field(index), pc.if_else(is_valid, times, pa.scalar(None, times.type)))
