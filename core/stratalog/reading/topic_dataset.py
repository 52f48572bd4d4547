"""A topic as a pyarrow dataset, which reads only the offset ranges that a filter may match.

Query engines that support datasets (DuckDB, polars, pyarrow itself) pass their filters and the columns that they need.
This module imports pyarrow. It is imported at the first use of ``TopicReader.dataset``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from stratalog.log.read.columns import read_arrow
from stratalog.log.read.log_reader import LogReader
from stratalog.model.arrow import ARROW_COLUMNS, arrow_schema
from stratalog.model.offsets import Isolation
from stratalog.reading.known_records import least_timestamp_ms
from stratalog.segment.readable import ReadableSegment

Columns = Sequence[str] | dict[str, ds.Expression] | None
"""Names of columns, or expressions by name; None means all columns."""
PIECE_BYTES: Final = 16 << 20
_LAST_MS: Final = ((1 << 63) - 1) // 1000  # Arrow stores microseconds in 64 bits


@dataclass(frozen=True, slots=True)
class _Piece:
    """Offsets [start, end) of one segment of a log. If ``segment`` is None, a read raises the error about damage."""

    log: LogReader
    segment: ReadableSegment | None
    start: int
    end: int


class TopicDataset(ds.Dataset):
    """The records of a topic as a pyarrow dataset, in ``arrow_schema()``. Each read uses the current state of the logs.

    A filter by partition or offset skips parts of segments. A lower bound of the timestamp skips segments whose largest
    timestamp is below the bound. An upper bound skips segments in a tier whose smallest timestamp is above the bound.

    Args:
        logs: returns the logs of all partitions.
        isolation: isolation level.

    Attributes:
        error: the last error of a read; None if no read failed. Query engines may hide the error behind another one.
    """

    def __init__(self, logs: Callable[[], Sequence[LogReader]], isolation: str) -> None:
        # The base class cannot be constructed in Python. Its state is not used: all its methods call ``scanner``.
        self._logs, self._isolation = logs, isolation
        self.error: Exception | None = None

    def __repr__(self) -> str:
        return f"TopicDataset({[str(log.name) for log in self._logs()]})"

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the records with all columns."""
        return arrow_schema()

    def scanner(  # type: ignore[override]  # the options of pyarrow, most without effect here, are not listed
        self,
        columns: Columns = None,
        filter: ds.Expression | None = None,  # noqa: A002 - pyarrow's name
        **_options: Any,
    ) -> TopicScanner:
        """Return a scan of ``columns`` of the records that match ``filter``; pyarrow's other options have no effect."""
        names = _columns_to_decode(columns, filter)
        return TopicScanner(lambda: self._batches(names, filter), arrow_schema(names), columns, filter)

    def _batches(self, columns: Sequence[str], filter_expression: ds.Expression | None) -> Iterator[pa.RecordBatch]:
        try:
            for log, start, end in self._ranges(filter_expression):
                yield from read_arrow(
                    log.view, log.components, start, end, self._isolation, log.name.partition, columns
                )
        except Exception as error:
            self.error = error
            raise

    def _ranges(self, filter_expression: ds.Expression | None) -> Iterator[tuple[LogReader, int, int]]:
        """Yield the largest ranges of offsets that may contain matching records: log, start and exclusive end."""
        pieces = [piece for log in self._logs() for piece in self._pieces(log)]
        matching = pieces if filter_expression is None else _select_matching(pieces, filter_expression)
        start = None
        for number, piece in enumerate(matching):
            start = piece.start if start is None else start
            following = matching[number + 1] if number + 1 < len(matching) else None
            if following is None or following.log is not piece.log or following.start != piece.end:
                yield piece.log, start, piece.end
                start = None

    def _pieces(self, log: LogReader) -> Iterator[_Piece]:
        view = log.view()
        bound = view.bound(Isolation.of(self._isolation))
        for part in view.ranges(view.offsets.log_start, bound):
            count = min(-(-part.segment.size_bytes // PIECE_BYTES), part.end - part.start)
            for number in range(count):
                span = part.end - part.start
                start, end = part.start + number * span // count, part.start + (number + 1) * span // count
                yield _Piece(log, part.segment, start, end)
        if view.damage is not None:  # a read beyond the bound raises the error about the damage
            yield _Piece(log, None, bound, bound + 1)


class TopicScanner(ds.Scanner):
    """A scan of a topic, which reads on the caller's thread. Each method that returns records starts a new read.

    Args:
        batches: starts a read and yields its batches, in ``schema``.
        schema: schema of the batches.
        columns: the columns of the result; None for all.
        filter_expression: filter; None for all records.
    """

    def __init__(
        self,
        batches: Callable[[], Iterator[pa.RecordBatch]],
        schema: pa.Schema,
        columns: Columns,
        filter_expression: ds.Expression | None,
    ) -> None:
        # The base class cannot be constructed in Python. Its state is not used.
        self._batches, self._schema, self._columns, self._filter = batches, schema, columns, filter_expression

    @property
    def dataset_schema(self) -> pa.Schema:
        """The Arrow schema of the topic's records with all columns."""
        return arrow_schema()

    @property
    def projected_schema(self) -> pa.Schema:
        """The Arrow schema of the result, which has only the chosen columns."""
        return self._project(self._schema.empty_table()).schema

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the matching records in batches of ``projected_schema``."""
        for batch in self._batches():
            if self._filter is None and not isinstance(self._columns, dict):
                yield batch if self._columns is None else batch.select(list(self._columns))
            else:
                yield from self._project(pa.Table.from_batches([batch])).to_batches()

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the matching records as a stream of Arrow batches."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.to_batches())

    def to_table(self) -> pa.Table:
        """Return the matching records as one table."""
        return self.to_reader().read_all()

    def head(self, num_rows: int) -> pa.Table:
        """Return the first ``num_rows`` matching records as a table, or all of them if there are fewer."""
        batches, remaining_rows = list[pa.RecordBatch](), num_rows
        for batch in self.to_batches():
            batches.append(batch.slice(0, remaining_rows))
            remaining_rows -= batches[-1].num_rows
            if not remaining_rows:
                break
        return pa.Table.from_batches(batches, schema=self.projected_schema)

    def count_rows(self) -> int:
        """Return the number of the matching records, after reading all of them."""
        return sum(batch.num_rows for batch in self.to_batches())

    def _project(self, table: pa.Table) -> pa.Table:
        columns = self._columns if isinstance(self._columns, dict | None) else list(self._columns)
        in_memory: Any = ds.InMemoryDataset  # pyarrow does not publish the types of its arguments
        result: pa.Table = in_memory(table).to_table(columns=columns, filter=self._filter)
        return result


def _columns_to_decode(columns: Columns, filter_expression: ds.Expression | None) -> list[str]:
    """Return the columns that a scan must decode: those in the result, and those that an expression names."""
    if columns is None:
        return list(ARROW_COLUMNS)
    is_dict = isinstance(columns, dict)
    text = f"{'' if filter_expression is None else filter_expression} {' '.join(map(str, columns.values())) if isinstance(columns, dict) else ''}"
    return [name for name in ARROW_COLUMNS if (not is_dict and name in columns) or name in text]


def _select_matching(pieces: Sequence[_Piece], filter_expression: ds.Expression) -> list[_Piece]:
    """Return the pieces that may have a matching record."""
    # pyarrow evaluates the filter: it gets a dataset with one imaginary file for each piece, and an expression that all
    # records of the piece satisfy. It returns the files that the filter does not exclude, without opening them.
    schema = arrow_schema()
    by_time = "timestamp" in str(filter_expression)
    file_dataset = ds.FileSystemDataset.from_paths(
        [str(number) for number in range(len(pieces))],
        schema=schema,
        format=ds.ParquetFileFormat(),
        filesystem=fs.LocalFileSystem(),
        partitions=[_guarantee(piece, by_time=by_time) for piece in pieces],
    )
    return [pieces[int(fragment.path)] for fragment in file_dataset.get_fragments(filter_expression)]


def _guarantee(piece: _Piece, *, by_time: bool) -> ds.Expression:
    """Return an expression that is true for all records of a piece."""
    offset, partition = ds.field("offset"), pa.scalar(piece.log.name.partition, pa.int32())
    guarantee = (ds.field("partition") == partition) & (offset >= piece.start) & (offset < piece.end)
    largest_ms = piece.segment.max_timestamp_ms if by_time and piece.segment is not None else -1
    if 0 <= largest_ms <= _LAST_MS:
        stamp = ds.field("timestamp")
        largest = pa.scalar(1000 * largest_ms, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
        guarantee &= (stamp <= largest) | stamp.is_null()
        least_ms = -1 if piece.segment is None else least_timestamp_ms(piece.segment)
        if least_ms >= 0:  # then each record has a timestamp
            guarantee &= stamp >= pa.scalar(1000 * least_ms, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    return guarantee
