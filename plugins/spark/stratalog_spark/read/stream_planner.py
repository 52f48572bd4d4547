"""Plan of a stream: the end offsets and splits of each micro-batch, by the rules of Spark's Kafka source."""

from __future__ import annotations

import logging
from typing import Any, Final

from stratalog import LogOffsets, Reader, TopicPartition
from stratalog.errors import ConfigError, OffsetOutOfRangeError, StorageError, UnknownTopicError
from stratalog.reading import OffsetRange, Split
from stratalog.spi import Env
from stratalog_spark.options.option_values import Numbers
from stratalog_spark.options.read_options import Options
from stratalog_spark.read.plan import plan_ranges
from stratalog_spark.read.ranges import resolve, select_partitions
from stratalog_spark.read.stream_offsets import Offsets, recreated_topics, to_json, topic_ids

_LOGGER: Final = logging.getLogger(__name__)
_GONE_ADVICE: Final = "create it again, or use a new checkpointLocation; failOnDataLoss=false reads the other partitions of a query that has some"
_LOSS_ADVICE: Final = (
    "retention deleted the records, or the log was truncated, before they were read: failOnDataLoss=false continues with the "
    "remaining records"
)


class Planner:
    """Planner of the offsets of each micro-batch. Used by one process and one thread.

    The clock of ``env`` measures how long ``minOffsetsPerTrigger`` delays a micro-batch.
    """

    def __init__(self, options: Options, env: Env | None = None) -> None:
        self.options, self._clock = options, (env or Env()).clock
        self._reader: Reader | None = None
        self._first: Offsets | None = None
        self._target: Offsets | None = None
        self._ends = Offsets({})
        self._returned = Offsets({})
        self._log_offsets: dict[TopicPartition, LogOffsets] = {}
        self._batch: tuple[Offsets, Offsets] | None = None  # start and end in the last result of ``next``
        self._planned: tuple[Offsets, Offsets, list[Split]] | None = None
        self._planned_ns = self._clock.monotonic_ns()

    def first(self) -> Offsets:
        """Return the start offsets of the query, which never change. Raises the errors of ``resolve``."""
        if self._first is None:
            reader = self.reader()
            partitions = self._select_partitions(reader)
            starts = {part.log: part.start for part in resolve(self.options, reader, partitions)}
            self._first = Offsets(starts, topic_ids(reader, partitions))
        return self._first

    def stop_at_current_ends(self) -> None:
        """Set the end of the query to the current end offsets. Later calls of ``next`` return no offsets above them."""
        self._target = self.ends()

    def ends(self) -> Offsets:
        """Return the exclusive end offset up to which each partition can be read now.

        Raise UnknownTopicError if a named topic does not exist.
        """
        reader = self.reader()
        partitions = self._select_partitions(reader)
        self._log_offsets = {partition: reader.log(*partition).offsets() for partition in partitions}
        bounds = {
            partition: log_offsets.bound(self.options.isolation) for partition, log_offsets in self._log_offsets.items()
        }
        self._ends = Offsets(bounds, topic_ids(reader, partitions))
        return self._ends

    def rising_ends(self) -> Offsets:
        """Return ``ends``, but never a lower end of a partition than an earlier call returned.

        After the writer has restarted, the bound of readers may temporarily be too low. A micro-batch that ended there
        would move the query back, and the next micro-batch would repeat records. If a partition was truncated, its end
        is the log end offset.
        """
        ends, returned = self.ends(), self._returned
        recreated = recreated_topics(returned, ends)
        rising = {
            partition: end
            if partition.topic in recreated
            else max(end, min(returned.get(partition, end), self._log_offsets[partition].log_end))
            for partition, end in ends.items()
        }
        self._returned = Offsets(rising, ends.ids)
        return self._returned

    def _select_partitions(self, reader: Reader) -> list[TopicPartition]:
        """Open the logs to read, and return their names. Logs of deleted topics are left out.

        Raise UnknownTopicError if an option names a deleted topic. A tier keeps the last state of a deleted topic for
        some time.
        """
        partitions = select_partitions(self.options, reader)
        reader.open_logs(partitions)
        deleted = {partition.topic for partition in partitions if reader.log(*partition).is_deleted}
        named_deleted = sorted(deleted & (self.options.topics.names or set()))
        if named_deleted:
            raise UnknownTopicError(f"{', '.join(named_deleted)} was deleted from {reader.location}").advised(
                _GONE_ADVICE
            )
        return [partition for partition in partitions if partition.topic not in deleted]

    def next(self, start: Offsets, max_rows: int | None) -> Offsets:
        """Return the end offsets of the next micro-batch; ``start`` if ``minOffsetsPerTrigger`` delays the micro-batch.

        ``max_rows`` is the maximum number of offsets in the micro-batch. None means no limit, even if options set limits.

        Raises:
            ConfigError: the start offsets belong to another query, which read other topics.
            OffsetOutOfRangeError, UnknownTopicError: ``failOnDataLoss`` is true, and records or partitions were
                deleted, or a topic was deleted and created again.
        """
        self._check_checkpoint(start)
        ends = self.ends() if self._target is None else self._target
        begins = self._begin_offsets(start, ends)
        waiting = {partition: max(end - begins[partition], 0) for partition, end in ends.items()}
        total = sum(waiting.values())
        end = start
        if max_rows is None or self._target is not None or not self._should_wait(total):
            if total:
                self._planned_ns = self._clock.monotonic_ns()
            if max_rows is not None and max_rows < total:  # shares in proportion, but at least 1 if records wait
                waiting = {
                    partition: max(max_rows * count // total, min(count, 1)) for partition, count in waiting.items()
                }
            end = Offsets({partition: begins[partition] + count for partition, count in waiting.items()}, ends.ids)
        self._batch = start, end
        return end

    def _check_checkpoint(self, start: Offsets) -> None:
        selection, topics = self.options.topics, {partition.topic for partition in start}
        other_topics = {topic for topic in topics if not selection.matches(topic)}
        if topics and other_topics == topics:
            raise ConfigError(
                f"the checkpoint is of another query: it has offsets of {', '.join(sorted(other_topics))}, and "
                f"this query reads {selection.strategy}={selection.text}"
            ).advised("use a new checkpointLocation, or subscribe to the topics of the checkpoint")

    def _begin_offsets(self, start: Offsets, ends: Offsets) -> Numbers:
        """Return the offset at which the query continues in each partition.

        New partitions start at their first record, and so do the partitions of a topic that was deleted and created
        again. A truncated partition continues at its end. A partition is truncated if its log end offset is below the
        position of the query. If only the bound of readers is below the position, nothing is lost: the bound may
        temporarily be low after the writer has restarted.

        If ``failOnDataLoss`` is true, raise UnknownTopicError or OffsetOutOfRangeError for a topic that was created
        again, a truncated partition, or a missing partition.
        """
        missing = sorted(set(start) - set(ends))
        if missing:
            self._report_loss(
                UnknownTopicError(f"{', '.join(map(str, missing))} no longer exists").advised(_GONE_ADVICE)
            )
        recreated = recreated_topics(start, ends)
        for topic in sorted(recreated):
            self._report_loss(_recreated_error(topic, start.ids[topic], ends.ids[topic], self.options.source.location))
        begins = dict[TopicPartition, int]()
        for partition in ends:
            bounds = self._log_offsets[partition]
            begin = start.get(partition, bounds.log_start)
            begins[partition] = begin = bounds.log_start if partition.topic in recreated else begin
            if bounds.log_end < begin:
                self._report_loss(
                    OffsetOutOfRangeError(str(partition), begin, bounds.log_start, bounds.log_end).advised(_LOSS_ADVICE)
                )
                begins[partition] = bounds.log_end
        return begins

    def report(self) -> dict[str, dict[str, Any]]:
        """Return the latest end offsets, and metrics of the micro-batch whose end ``next`` returned last.

        The metrics have the key ``Stratalog[Subscribe[TOPIC] of LOCATION]``, which cannot be the name of a topic. Like those of Spark's Kafka
        source, they contain the distance between the end of the micro-batch and the latest offsets. They also contain
        the number of bytes and of segments that the micro-batch reads.
        """
        progress: dict[str, dict[str, Any]] = {**to_json(Offsets(self._ends))}
        if self._batch is None:
            return progress
        start, end = self._batch
        splits: list[Split] = []
        if end != start:
            splits = self._split(start, end)
            self._planned = start, end, splits
        lags = [max(latest - end.get(partition, latest), 0) for partition, latest in self._ends.items()]
        pieces = [piece for split in splits for piece in split.pieces]
        progress[f"Stratalog[{self.options.topics} of {self.options.source.location}]"] = {
            "minOffsetsBehindLatest": min(lags, default=0),
            "maxOffsetsBehindLatest": max(lags, default=0),
            "avgOffsetsBehindLatest": sum(lags) / max(len(lags), 1),
            "bytesRead": sum(piece.span_bytes for piece in pieces),
            "segmentsRead": len({(piece.log, piece.base_offset) for piece in pieces}),
        }
        return progress

    def splits(self, start: Offsets, end: Offsets) -> list[Split]:
        """Return the splits of one micro-batch, one for each task, at least one. A repeated micro-batch has the same rows.

        Raises:
            ConfigError: the offsets belong to another query, which read other topics.
            OffsetOutOfRangeError, UnknownTopicError: ``next`` raises these errors for the same reasons. This method
                also raises them if readers temporarily cannot see records below ``end``.
        """
        planned, self._planned = self._planned, None
        if planned is not None and planned[:2] == (start, end):
            return planned[2]
        self._check_checkpoint(end)
        self.reader()
        return self._split(start, end)

    def _split(self, start: Offsets, end: Offsets) -> list[Split]:
        """Return the splits from ``start`` to ``end``, from the reader's last refresh.

        Raises the errors of ``splits``.
        """
        reader = self._reader or self.reader()
        existing = set(reader.partitions())
        partitions = [partition for partition in sorted(end) if partition in existing]
        reader.open_logs(partitions)
        for partition in sorted(set(end) - existing):
            self._report_loss(
                UnknownTopicError(f"{partition} no longer exists in {reader.location}").advised(_GONE_ADVICE)
            )
        now = Offsets({}, topic_ids(reader, partitions))
        outdated, recreated = recreated_topics(end, now), recreated_topics(start, end)
        for topic in sorted(outdated):
            self._report_loss(_recreated_error(topic, end.ids[topic], now.ids[topic], reader.location))
        ranges = list[OffsetRange]()
        for partition in partitions:
            bounds = reader.log(*partition).offsets()
            begin = bounds.log_start if partition.topic in recreated else start.get(partition, bounds.log_start)
            if partition.topic not in outdated:
                ranges.append(self._range(partition, begin, end[partition], bounds))
        return plan_ranges(self.options, reader, ranges)

    def _range(self, partition: TopicPartition, begin: int, end: int, bounds: LogOffsets) -> OffsetRange:
        first, last = bounds.log_start, bounds.bound(self.options.isolation)
        if begin > end and begin > bounds.log_end:  # before Spark 4.2, ``next`` is not called
            self._report_loss(OffsetOutOfRangeError(str(partition), begin, first, bounds.log_end).advised(_LOSS_ADVICE))
        if begin >= end:
            return OffsetRange(partition, end, end)
        if last < end <= bounds.log_end:
            raise OffsetOutOfRangeError(str(partition), end, first, last)
        if begin < first or end > last:
            offset = begin if begin < first else end
            self._report_loss(OffsetOutOfRangeError(str(partition), offset, first, last).advised(_LOSS_ADVICE))
        begin = min(max(begin, first), last)
        return OffsetRange(partition, begin, min(max(end, begin), last))

    def close(self) -> None:
        """Release files and connections. Idempotent."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _should_wait(self, total: int) -> bool:
        min_offsets = self.options.min_offsets
        waited_ms = (self._clock.monotonic_ns() - self._planned_ns) // 1_000_000
        return min_offsets is not None and total < min_offsets and waited_ms < self.options.max_delay_ms

    def _report_loss(self, error: StorageError) -> None:
        if self.options.fail_on_loss:
            raise error
        _LOGGER.warning("records are missing, and failOnDataLoss is off: %s", error)

    def reader(self) -> Reader:
        """Return a reader of the current state of the source. The first call opens it, and later calls refresh it."""
        if self._reader is not None:
            try:
                self._reader.refresh()
            except ConfigError:
                self.close()
        if self._reader is None:
            self._reader = self.options.source.open(peek=True, topics=self.options.topics.names)
        return self._reader


def _recreated_error(topic: str, old_id: str, new_id: str, location: str) -> UnknownTopicError:
    return UnknownTopicError(
        f"{topic} in {location} is not the topic that the query has read: its id is {new_id}, not {old_id}"
    ).advised(
        "it was deleted and created again, or the checkpoint belongs to another source; use a new checkpointLocation, or "
        "set failOnDataLoss=false to continue with the first record of the new topic"
    )
