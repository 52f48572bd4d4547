"""The stream source: micro-batches by the rules of Spark's Kafka source, with offsets in its format.

One process plans the whole query, and ``read`` runs on copies. Open readers are therefore not pickled.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from stratalog import LogOffsets, Reader, TopicPartition
from stratalog.errors import ConfigError, OffsetOutOfRangeError, StorageError, UnknownTopicError
from stratalog.reading import OffsetRange, Split, plan_splits
from stratalog.spi import Env
from stratalog.writing import WriteTarget, commit_offsets
from stratalog_spark.options import Numbers, Options
from stratalog_spark.ranges import chosen, start_offsets
from stratalog_spark.rows import SplitPartition, read_split
from stratalog_spark.worker import freeze_once

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - a type alone

_LOGGER: Final = logging.getLogger(__name__)
UNLIMITED: Final = (1 << 63) - 1

Json = dict[str, dict[str, int]]


class Planner:
    """Planner of the offsets of each micro-batch. Used by one process and one thread.

    Args:
        options: options of the query.
        env: its clock measures how long ``minOffsetsPerTrigger`` may delay a batch.
    """

    def __init__(self, options: Options, env: Env | None = None) -> None:
        self.options, self._clock = options, (env or Env()).clock
        self._reader: Reader | None = None
        self._first: Numbers | None = None
        self._target: Numbers | None = None
        self._seen: dict[TopicPartition, LogOffsets] = {}
        self._planned_ns = self._clock.monotonic_ns()

    def first(self) -> Numbers:
        """Return the start offsets of the query, which never change."""
        if self._first is None:
            reader = self.reader()
            self._first = start_offsets(self.options, reader, chosen(self.options, reader))
        return self._first

    def stop_at_what_is_there(self) -> None:
        """Make the current end offsets the end of the query."""
        self._target = self.ends()

    def ends(self) -> Numbers:
        """Return the offset up to which each partition can be read now.

        Raises:
            UnknownTopicError: a named topic does not exist.
        """
        reader = self.reader()
        self._seen = {name: reader.log(*name).offsets() for name in chosen(self.options, reader)}
        return {name: found.bound(self.options.isolation) for name, found in self._seen.items()}

    def next(self, start: Numbers, max_rows: int | None) -> Numbers:
        """Return the end of the next micro-batch, or ``start`` itself if the batch is not due.

        Args:
            start: start offsets of the batch.
            max_rows: limit of the number of offsets; None for no limit, whatever the options set.

        Raises:
            OffsetOutOfRangeError, UnknownTopicError: records or partitions were removed, and ``failOnDataLoss`` is on.
        """
        ends = self.ends() if self._target is None else self._target
        begins = self._begins(start, ends)
        waiting = {name: max(end - begins[name], 0) for name, end in ends.items()}
        total = sum(waiting.values())
        if max_rows is not None and self._target is None and self._shall_wait(total):
            return start
        if total:
            self._planned_ns = self._clock.monotonic_ns()
        if max_rows is None or total <= max_rows:
            return {name: begins[name] + found for name, found in waiting.items()}
        return {name: begins[name] + _share(found, total, max_rows) for name, found in waiting.items()}

    def _begins(self, start: Numbers, ends: Numbers) -> Numbers:
        """Return the offset at which each partition continues.

        A new partition starts at its first record. A truncated or recreated one continues at its end.

        A log that ends below the query's position has lost records. A log that only shows fewer records for now,
        because its writer has just restarted, has not.
        """
        gone = sorted(set(start) - set(ends))
        if gone:
            self._lost(UnknownTopicError(f"{', '.join(map(str, gone))} no longer exists"))
        begins = dict[TopicPartition, int]()
        for name in ends:
            bounds = self._seen[name]
            begin = begins[name] = start.get(name, bounds.log_start)
            if bounds.log_end < begin:
                self._lost(OffsetOutOfRangeError(str(name), begin, bounds.log_start, bounds.log_end))
                begins[name] = bounds.log_end
        return begins

    def splits(self, start: Numbers, end: Numbers) -> list[Split]:
        """Return the tasks of one micro-batch. A repeated micro-batch returns the same rows.

        Raises:
            As ``next``; and OffsetOutOfRangeError if records that were read before are not visible for now.
        """
        reader, ranges = self.reader(), list[OffsetRange]()
        there = set(reader.partitions())
        for name, until in sorted(end.items()):
            if name in there:
                bounds = reader.log(*name).offsets()
                ranges.append(self._range(name, start.get(name, bounds.log_start), until, bounds))
            else:
                self._lost(UnknownTopicError(f"{name} no longer exists in {reader.location}"))
        return plan_splits(reader, ranges, **self.options.splitting)

    def _range(self, name: TopicPartition, begin: int, until: int, bounds: LogOffsets) -> OffsetRange:
        first, last = bounds.log_start, bounds.bound(self.options.isolation)
        if begin >= until:
            return OffsetRange(name, until, until)
        if last < until <= bounds.log_end:
            raise OffsetOutOfRangeError(str(name), until, first, last)
        if begin < first or until > last:
            self._lost(OffsetOutOfRangeError(str(name), begin if begin < first else until, first, last))
        begin = min(max(begin, first), last)
        return OffsetRange(name, begin, min(max(until, begin), last))

    def close(self) -> None:
        """Release files and connections. A second call has no effect."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _shall_wait(self, total: int) -> bool:
        least = self.options.min_offsets
        waited_ms = (self._clock.monotonic_ns() - self._planned_ns) // 1_000_000
        return least is not None and total < least and waited_ms < self.options.max_delay_ms

    def _lost(self, error: StorageError) -> None:
        if self.options.fail_on_loss:
            raise error
        _LOGGER.warning("records are missing, and failOnDataLoss is off: %s", error)

    def reader(self) -> Reader:
        """Return a reader of the current source. A tier's reader is refreshed; a directory is opened again."""
        if self._reader is not None:
            try:
                self._reader.refresh()
            except ConfigError:
                self.close()
        if self._reader is None:
            self._reader = self.options.source.open(peek=True)
        return self._reader


def _share(waiting: int, total: int, max_rows: int) -> int:
    """Return a partition's part of ``max_rows``, proportional to its waiting records, and at least 1 if any wait."""
    return max(max_rows * waiting // total, min(waiting, 1))


class PlainStreamReader(DataSourceStreamReader):
    """Reader for Spark below 4.2, where a Python source supports neither limits of a micro-batch nor AvailableNow."""

    def __init__(self, options: Options, names: Sequence[str]) -> None:
        self._options, self._names = options, tuple(names)
        self._planner = Planner(options)
        if options.max_offsets or options.min_offsets:
            self.check_limits()

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._options, self._names)  # a copy in a task does not plan

    def check_limits(self) -> None:
        """Raise ConfigError: ``maxOffsetsPerTrigger`` and similar options need Spark 4.2."""
        raise ConfigError("maxOffsetsPerTrigger and minOffsetsPerTrigger need Spark 4.2 or newer")

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's name
        """Return the start of a new query."""
        return to_json(self._planner.first())

    def latestOffset(self) -> Json:  # noqa: N802 - Spark's name
        """Return the current end offsets."""
        return to_json(self._planner.ends())

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Return the tasks of one micro-batch."""
        splits = self._planner.splits(from_json(start), from_json(end))
        return [SplitPartition(split) for split in splits] or [SplitPartition(Split((), self._options.isolation))]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Run one task."""
        assert isinstance(partition, SplitPartition)  # from ``partitions``
        freeze_once()
        return read_split(self._options, self._names, self._options.source, partition.split)

    def commit(self, end: Json) -> None:
        """Commit the group's offsets if the options ask for it. Spark calls this after the batch, and for the last perhaps not.

        An error is only logged: it does not affect the query, and the next batch commits newer offsets.
        """
        group, source = self._options.group, self._options.source
        if group is None:
            return
        target = WriteTarget(source.location, tier_options=source.tier_options, config=source.config)
        try:
            with target.open() as writer:
                commit_offsets(writer, group, from_json(end))
        except StorageError as error:
            _LOGGER.warning("offsets of group %s are not committed: %s", group, error)

    def stop(self) -> None:
        """Release the resources of the query."""
        self._planner.close()


def to_json(offsets: Mapping[TopicPartition, int]) -> Json:
    """Return offsets in the format of Spark's Kafka source in its checkpoints: ``{"topic": {"0": 23}}``."""
    found: Json = {}
    for name, offset in sorted(offsets.items()):
        found.setdefault(name.topic, {})[str(name.partition)] = offset
    return found


def from_json(offsets: Json) -> Numbers:
    """Parse the output of ``to_json``."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, numbers in offsets.items()
        for partition, offset in numbers.items()
    }
