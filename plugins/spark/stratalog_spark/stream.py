"""The stream source: micro-batches by the rules of Spark's Kafka source, its offsets as that writes them.

The planner is one process for the whole query, and ``read`` runs on copies: what is held open here is not pickled.
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
    """Which offsets come next. One process, one thread.

    Args:
        options: of the query.
        env: its clock tells how long ``minOffsetsPerTrigger`` may make wait.
    """

    def __init__(self, options: Options, env: Env | None = None) -> None:
        self._options, self._clock = options, (env or Env()).clock
        self._reader: Reader | None = None
        self._first: Numbers | None = None
        self._target: Numbers | None = None
        self._seen: dict[TopicPartition, LogOffsets] = {}
        self._planned_ns = self._clock.monotonic_ns()

    def first(self) -> Numbers:
        """Where the query begins; the same for as long as it lives."""
        if self._first is None:
            reader = self._now()
            self._first = start_offsets(self._options, reader, chosen(self._options, reader))
        return self._first

    def stop_at_what_is_there(self) -> None:
        """The query ends with what is there now."""
        self._target = self.ends()

    def ends(self) -> Numbers:
        """Up to where each partition can be read now.

        Raises:
            UnknownTopicError: a topic that is named is not there.
        """
        reader = self._now()
        self._seen = {name: reader.log(*name).offsets() for name in chosen(self._options, reader)}
        return {name: found.bound(self._options.isolation) for name, found in self._seen.items()}

    def next(self, start: Numbers, max_rows: int | None) -> Numbers:
        """Where the next micro-batch ends; ``start`` itself if it is not due.

        Args:
            start: where it begins.
            max_rows: at most so many offsets; None: all that there are, whatever the options say.

        Raises:
            OffsetOutOfRangeError, UnknownTopicError: records or partitions are gone, and ``failOnDataLoss`` is on.
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
        """Where each partition goes on: a new one at its first record, one that was cut or made anew at its end.

        A log that ends below where the query was has lost records. One that only shows less of them for now, as its
        writer has just started again, has not.
        """
        gone = sorted(set(start) - set(ends))
        if gone:
            self._lost(UnknownTopicError(f"there is no {', '.join(map(str, gone))} any more"))
        begins = dict[TopicPartition, int]()
        for name in ends:
            bounds = self._seen[name]
            begin = begins[name] = start.get(name, bounds.log_start)
            if bounds.log_end < begin:
                self._lost(OffsetOutOfRangeError(str(name), begin, bounds.log_start, bounds.log_end))
                begins[name] = bounds.log_end
        return begins

    def splits(self, start: Numbers, end: Numbers) -> list[Split]:
        """The tasks of one micro-batch; the same rows again if it is repeated.

        Raises:
            As ``next``; and OffsetOutOfRangeError where records that were read once are not shown for now.
        """
        reader, ranges = self._now(), list[OffsetRange]()
        there = set(reader.partitions())
        for name, until in sorted(end.items()):
            if name in there:
                bounds = reader.log(*name).offsets()
                ranges.append(self._range(name, start.get(name, bounds.log_start), until, bounds))
            else:
                self._lost(UnknownTopicError(f"{name} is gone from {reader.location}"))
        options = self._options
        return plan_splits(reader, ranges, isolation=options.isolation, min_splits=options.min_partitions)

    def _range(self, name: TopicPartition, begin: int, until: int, bounds: LogOffsets) -> OffsetRange:
        first, last = bounds.log_start, bounds.bound(self._options.isolation)
        if begin >= until:
            return OffsetRange(name, until, until)
        if last < until <= bounds.log_end:
            raise OffsetOutOfRangeError(str(name), until, first, last)
        if begin < first or until > last:
            self._lost(OffsetOutOfRangeError(str(name), begin if begin < first else until, first, last))
        begin = min(max(begin, first), last)
        return OffsetRange(name, begin, min(max(until, begin), last))

    def close(self) -> None:
        """Let go of files and connections. Twice is fine."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _shall_wait(self, total: int) -> bool:
        least = self._options.min_offsets
        waited_ms = (self._clock.monotonic_ns() - self._planned_ns) // 1_000_000
        return least is not None and total < least and waited_ms < self._options.max_delay_ms

    def _lost(self, error: StorageError) -> None:
        if self._options.fail_on_loss:
            raise error
        _LOGGER.warning("records are gone, and failOnDataLoss is off: %s", error)

    def _now(self) -> Reader:
        """The source as it is now: a tier is looked at anew, a directory is opened again."""
        if self._reader is not None:
            try:
                self._reader.refresh()
            except ConfigError:
                self.close()
        if self._reader is None:
            self._reader = self._options.source.open(peek=True)
        return self._reader


def _share(waiting: int, total: int, max_rows: int) -> int:
    """What one partition gets of ``max_rows``, in proportion to what waits in all; one that waits gets something."""
    return max(max_rows * waiting // total, min(waiting, 1))


class PlainStreamReader(DataSourceStreamReader):
    """For Spark below 4.2, which lets a Python source neither limit a micro-batch nor know of AvailableNow."""

    def __init__(self, options: Options, names: Sequence[str]) -> None:
        self._options, self._names = options, tuple(names)
        self._planner = Planner(options)
        if options.max_offsets or options.min_offsets:
            self.check_limits()

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._options, self._names)  # a copy in a task plans nothing

    def check_limits(self) -> None:
        """Whether ``maxOffsetsPerTrigger`` and its like can be kept to."""
        raise ConfigError("maxOffsetsPerTrigger and minOffsetsPerTrigger need Spark 4.2 or newer")

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's name
        """Where a new query begins."""
        return to_json(self._planner.first())

    def latestOffset(self) -> Json:  # noqa: N802 - Spark's name
        """All that there is."""
        return to_json(self._planner.ends())

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """The tasks of one micro-batch."""
        splits = self._planner.splits(from_json(start), from_json(end))
        return [SplitPartition(split) for split in splits] or [SplitPartition(Split((), self._options.isolation))]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Carry out one task."""
        assert isinstance(partition, SplitPartition)  # as planned
        freeze_once()
        return read_split(self._options, self._names, self._options.source, partition.split)

    def commit(self, end: Json) -> None:
        """Comes late, for the last batch perhaps never: nothing depends on it."""

    def stop(self) -> None:
        """The query is over."""
        self._planner.close()


def to_json(offsets: Mapping[TopicPartition, int]) -> Json:
    """Offsets as Spark's Kafka source has them in its checkpoints: ``{"topic": {"0": 23}}``."""
    found: Json = {}
    for name, offset in sorted(offsets.items()):
        found.setdefault(name.topic, {})[str(name.partition)] = offset
    return found


def from_json(offsets: Json) -> Numbers:
    """What ``to_json`` wrote."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, numbers in offsets.items()
        for partition, offset in numbers.items()
    }
