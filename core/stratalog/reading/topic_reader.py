"""Reads of all partitions of one topic: as Arrow batches, or record by record while the topic grows."""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stratalog.env.clock import Clock
from stratalog.errors import (
    ConfigError,
    ObjectNotFoundError,
    OffsetOutOfRangeError,
    PluginImportError,
    SegmentGoneError,
    UnknownTopicError,
)
from stratalog.log.read.columns import read_arrow
from stratalog.log.read.log_reader import LogReader
from stratalog.model.arguments import CheckedArguments, Positive
from stratalog.model.arrow import ARROW_COLUMNS, arrow_schema, arrow_table, check_columns
from stratalog.model.offsets import Isolation
from stratalog.model.records import Record

if TYPE_CHECKING:
    import pandas  # noqa: ICN001 - types alone
    import polars  # noqa: ICN001 - a type alone
    import pyarrow  # noqa: ICN001 - a type alone

    from stratalog.reading.topic_dataset import TopicDataset

Since = int | dt.datetime
"""A timestamp: milliseconds since 1970 (UTC), or a datetime with a time zone."""
Offsets = int | Mapping[int, int]
"""Offsets by partition, or one offset for all partitions."""
POLL_MS: Final = 1000
_NS_IN_MS: Final = 1_000_000


class _Part(NamedTuple):
    """Offsets [start, end) of one log to read; ``end`` None means up to the bound of the isolation level."""

    log: LogReader
    start: int
    end: int | None


class TopicReader(CheckedArguments):
    """All partitions of one topic, for reading. ``Reader.topic`` creates it. Thread-safe.

    Args:
        log: returns the log of a topic and partition.
        partitions: returns the numbers of all partitions at the last refresh.
        refresh: updates the logs to their current state.

    Attributes:
        name: name of the topic.
    """

    def __init__(
        self,
        name: str,
        log: Callable[[str, int], LogReader],
        partitions: Callable[[], Sequence[int]],
        refresh: Callable[[], object],
        clock: Clock,
    ) -> None:
        self.name = name
        self._log, self._partitions, self._refresh, self._clock = log, partitions, refresh, clock

    def __repr__(self) -> str:
        return f"TopicReader({self.name!r})"

    @property
    def partitions(self) -> tuple[int, ...]:
        """The numbers of the partitions, ascending; raises ClosedError if the reader is closed."""
        return tuple(self._partitions())

    def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        start: Offsets | None = None,
        end: Offsets | None = None,
        since: Since | None = None,
        isolation: str = "read_uncommitted",
        partitions: Collection[int] | None = None,
    ) -> TopicScan:
        """Return a read of the partitions as Arrow batches, in bounded memory. Nothing is read before the first batch.

        Args:
            columns: names of the columns, in the order of the result; only these are decoded. None means all:
                partition, offset, timestamp, timestamp_type, key, value, headers, leader_epoch.
            start: first offset, for all partitions or by partition. A partition without a value, or whose log start is
                higher, is read from its log start.
            end: exclusive end offset, for all partitions or by partition. A partition without a value, or with a higher
                one, is read to the bound of the isolation level.
            since: each partition is read from its first record with this timestamp or a later one; a partition without
                such a record is not read. If ``start`` is given, too, the higher offset counts.
            isolation: ``read_uncommitted``, ``read_committed`` or ``log_end``.
            partitions: numbers of the partitions to read; None means all.

        Raises:
            ConfigError: there is no such column or isolation level, or ``since`` is a datetime without a time zone.
            UnknownTopicError: there is no such partition.
            ClosedError: the reader is closed.
        """
        check_columns(columns)
        Isolation.of(isolation)
        numbers = self._choose_partitions(partitions)
        since_ms = timestamp_ms(since)

        def parts() -> list[_Part]:
            return [self._part(number, start, end, since_ms, isolation) for number in numbers]

        return TopicScan(self.name, columns, isolation, parts)

    def dataset(self, *, isolation: str = "read_uncommitted") -> TopicDataset:
        """Return the topic as a pyarrow dataset, for query engines that push filters and columns down, such as DuckDB.

        Filters by partition and offset skip parts of segments; filters by timestamp skip segments.

        Args:
            isolation: ``read_uncommitted``, ``read_committed`` or ``log_end``.

        Raises:
            ConfigError: there is no such isolation level.
            PluginImportError: pyarrow is not installed; the text names the extra.
        """
        Isolation.of(isolation)
        arrow_schema()  # raises the error for a missing pyarrow
        from stratalog.reading.topic_dataset import TopicDataset  # noqa: PLC0415 - imports pyarrow

        return TopicDataset(lambda: [self._log(self.name, number) for number in self._partitions()], isolation)

    def follow(
        self,
        *,
        start: Offsets | None = None,
        since: Since | None = None,
        isolation: str = "read_uncommitted",
        partitions: Collection[int] | None = None,
        poll_ms: Positive = POLL_MS,
        timeout_ms: int | None = None,
    ) -> Iterator[Record]:
        """Return an iterator over the records of the partitions that waits for new records and refreshes the reader.

        Records of one partition are in the order of their offsets. If ``partitions`` is None, new partitions are read
        from their log start. In a directory, records of a running writer are visible after its next high watermark
        checkpoint, which Kafka writes every 5 seconds by default.

        Args:
            start: first offset, for all partitions or by partition; it may be above the end. None means the log start.
            since: each partition is read from its first record with this timestamp or a later one; without such a
                record, from its end on.
            isolation: ``read_uncommitted``, ``read_committed`` or ``log_end``.
            partitions: numbers of the partitions to read; None means all.
            poll_ms: wait between two refreshes, in milliseconds.
            timeout_ms: end the iteration after this time in milliseconds without a new record; None waits forever.

        Raises:
            OffsetOutOfRangeError: retention has deleted records that were not read.
            UnknownTopicError: there is no such partition, or the topic was deleted, or deleted and created again.
            ConfigError: there is no such isolation level, or ``since`` is a datetime without a time zone.
            The errors of ``LogReader.records`` and ``Reader.refresh``.
        """
        Isolation.of(isolation)
        numbers = self._choose_partitions(partitions)
        since_ms = timestamp_ms(since)
        followed = dict[int, _Part]()
        for number in numbers:
            part = self._part(number, start, None, since_ms, isolation)
            followed[number] = part._replace(start=max(part.start, _offset(start, number) or 0))  # may be above the end
        return self._follow(followed, isolation, partitions is None, poll_ms, timeout_ms)

    def _follow(
        self,
        followed: dict[int, _Part],
        isolation: str,
        with_new: bool,  # noqa: FBT001 - private
        poll_ms: int,
        timeout_ms: int | None,
    ) -> Iterator[Record]:
        positions, never = {number: part.start for number, part in followed.items()}, threading.Event()
        logs = {number: part.log for number, part in followed.items()}
        quiet_from_ns, gone_at = self._clock.monotonic_ns(), dict[int, int]()  # failed positions by partition
        while True:
            is_read = True
            for number, log in logs.items():
                end, records = _unread(log, positions[number], isolation)
                try:
                    for record in records:
                        positions[number] = record.offset + 1
                        yield record
                        quiet_from_ns = self._clock.monotonic_ns()
                    positions[number] = end  # only control batches and hidden records are left below the end
                except (SegmentGoneError, ObjectNotFoundError):  # evicted or replaced since the last refresh
                    if gone_at.get(number) == positions[number]:
                        raise
                    gone_at[number], is_read = positions[number], False
            if is_read:
                quiet_ms = (self._clock.monotonic_ns() - quiet_from_ns) // _NS_IN_MS
                if timeout_ms is not None and quiet_ms >= timeout_ms:
                    return
                self._clock.wait(never, poll_ms if timeout_ms is None else min(poll_ms, timeout_ms - quiet_ms))
            with contextlib.suppress(SegmentGoneError):  # evicted during the refresh; the next one repeats it
                self._refresh()
            self._check_same(logs)
            if with_new:
                self._add_new(logs, positions)

    def _add_new(self, logs: dict[int, LogReader], positions: dict[int, int]) -> None:
        """Add the partitions that ``logs`` does not have, each with its log start as the position."""
        for number in self._partitions():
            if number not in logs:
                logs[number] = self._log(self.name, number)
                positions[number] = logs[number].offsets().log_start

    def _check_same(self, logs: Mapping[int, LogReader]) -> None:
        """Raise UnknownTopicError if the topic of one of the logs was deleted, or deleted and created again."""
        for number, log in logs.items():
            if self._log(self.name, number) is not log:
                raise UnknownTopicError(f"topic {self.name} was deleted and created again: follow it from its start")

    def _choose_partitions(self, partitions: Collection[int] | None) -> list[int]:
        numbers = list(self._partitions())
        if partitions is None:
            return numbers
        for number in partitions:
            if number not in numbers:
                available = ", ".join(map(str, numbers)) or "none"
                raise UnknownTopicError(f"topic {self.name} has no partition {number}: it has {available}")
        return sorted(set(partitions))

    def _part(
        self, number: int, start: Offsets | None, end: Offsets | None, since_ms: int | None, isolation: str
    ) -> _Part:
        log = self._log(self.name, number)
        offsets = log.offsets()
        bound = offsets.bound(Isolation.of(isolation))
        first, last = _offset(start, number), _offset(end, number)
        begin = offsets.log_start if first is None else min(max(first, offsets.log_start), bound)
        if since_ms is not None:
            first_offset = log.offset_for_timestamp(since_ms, isolation)
            begin = max(begin, bound if first_offset is None else first_offset)
        return _Part(log, begin, None if last is None or last > bound else last)


class TopicScan:
    """A read of some columns of a topic. Each use of the object reads again, from the current state of the partitions.

    The object is an Arrow stream (``__arrow_c_stream__``): polars, DuckDB and pandas accept it.

    Args:
        topic: name of the topic.
        columns: names of the columns; None for all.
        isolation: isolation level.
        parts: returns the logs to read, each with its offsets.
    """

    def __init__(
        self,
        topic: str,
        columns: Sequence[str] | None,
        isolation: str,
        parts: Callable[[], Sequence[_Part]],
    ) -> None:
        self._topic, self._columns, self._isolation, self._parts = topic, columns, isolation, parts

    def __repr__(self) -> str:
        return f"TopicScan({self._topic!r}, columns={list(self._columns or ARROW_COLUMNS)})"

    @property
    def schema(self) -> pyarrow.Schema:
        """The schema of the batches.

        Raises:
            PluginImportError: pyarrow is not installed; the text names the extra.
        """
        return arrow_schema(self._columns)

    def batches(self) -> Iterator[pyarrow.RecordBatch]:
        """Yield the records in Arrow batches, each from about 4 MiB of log, partition by partition.

        Raises:
            The errors of ``LogReader.to_arrow``.
        """
        for log, start, end in self._parts():
            if end is None or start < end:
                yield from read_arrow(
                    log.view, log.components, start, end, self._isolation, log.name.partition, self._columns
                )

    def reader(self) -> pyarrow.RecordBatchReader:
        """Return the batches as a stream for libraries that use Arrow.

        If reading the stream fails, pyarrow may raise another error than ``batches`` would.
        """
        schema = self.schema
        reader: pyarrow.RecordBatchReader = import_module("pyarrow").RecordBatchReader.from_batches(
            schema, self.batches()
        )
        return reader

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the stream as a PyCapsule, as Arrow's PyCapsule interface requires it."""
        stream: Any = self.reader()
        capsule: object = stream.__arrow_c_stream__(requested_schema)
        return capsule

    def to_arrow(self) -> pyarrow.Table:
        """Return all records as one Arrow table.

        Raises:
            The errors of ``LogReader.to_arrow``.
        """
        tables = (
            log.to_arrow(start, end, self._isolation, columns=self._columns)
            for log, start, end in self._parts()
            if end is None or start < end
        )
        return arrow_table((batch for table in tables for batch in table.to_batches()), self._columns)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the records as a data frame of pandas.

        Raises:
            PluginImportError: pandas is not installed; the text names the extra.
            The errors of ``to_arrow``.
        """
        _library("pandas")
        frame: pandas.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_polars(self) -> polars.DataFrame:
        """Return the records as a data frame of polars.

        Raises:
            PluginImportError: polars is not installed; the text names the extra.
            The errors of ``to_arrow``.
        """
        frame: polars.DataFrame = _library("polars").from_arrow(self.to_arrow())
        return frame


def _unread(log: LogReader, position: int, isolation: str) -> tuple[int, Iterator[Record]]:
    """Return the end of the visible records, at least ``position``, and the records from ``position`` to this end.

    Raises:
        OffsetOutOfRangeError: ``position`` is below the log start.
    """
    offsets = log.offsets()
    end = offsets.bound(Isolation.of(isolation))
    if position < offsets.log_start:  # ``records`` would read offset 0 as the log start
        raise OffsetOutOfRangeError(str(log.name), position, offsets.log_start, offsets.log_end)
    return (end, iter(log.records(position, end, isolation))) if position < end else (position, iter(()))


def timestamp_ms(since: Since | None) -> int | None:
    """Return a timestamp in milliseconds since 1970 (UTC); a datetime is rounded up.

    Return None if ``since`` is None. Raise ConfigError for a datetime without a time zone.
    """
    if not isinstance(since, dt.datetime):
        return since
    if since.tzinfo is None:
        raise ConfigError(f"since={since!r} has no time zone: add tzinfo=datetime.UTC, for instance")
    return -(-(since - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1))


def _offset(offsets: Offsets | None, number: int) -> int | None:
    return offsets.get(number) if isinstance(offsets, Mapping) else offsets


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise PluginImportError(f"{name} is not installed", name, f"stratalog[{name}]") from error
