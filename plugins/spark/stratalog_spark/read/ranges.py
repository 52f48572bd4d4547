"""Offset ranges of a read, by the rules of Spark's Kafka source."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from stratalog import LogReader, Reader, TopicPartition
from stratalog.errors import ConfigError, OffsetOutOfRangeError, UnknownTopicError
from stratalog.reading import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS, OffsetRange
from stratalog_spark.options.read_options import EARLIEST, LATEST, Bound, Options

_OPENED_LOGS: Final = 256  # number of logs that are opened together, to limit memory


def select_partitions(options: Options, reader: Reader) -> list[TopicPartition]:
    """Return the partitions to read, sorted.

    A pattern never selects an internal topic, as in Spark's Kafka source.

    Raises:
        UnknownTopicError: a named topic or partition does not exist.
    """
    selection, existing = options.topics, reader.partitions()
    if selection.partitions is not None:
        _check_missing([str(partition) for partition in selection.partitions if partition not in existing], reader)
        return list(selection.partitions)
    if selection.names is not None:
        return partitions_of_topics(reader, selection.names)
    internal_topics = INTERNAL_TOPICS | {CLUSTER_METADATA_TOPIC}
    return [
        partition
        for partition in existing
        if partition.topic not in internal_topics and selection.matches(partition.topic)
    ]


def partitions_of_topics(reader: Reader, topics: Iterable[str] | None) -> list[TopicPartition]:
    """Return all partitions of ``topics``, sorted. None means all topics.

    Raise UnknownTopicError if a topic does not exist.
    """
    existing = reader.partitions()
    if topics is None:
        return list(existing)
    requested = set(topics)
    _check_missing(sorted(requested - {partition.topic for partition in existing}), reader)
    return [partition for partition in existing if partition.topic in requested]


def _check_missing(missing: list[str], reader: Reader) -> None:
    if not missing:
        return
    topics = list(reader.topics())
    similar = difflib.get_close_matches(missing[0], topics, n=1)
    hint = f"; did you mean {similar[0]!r}?" if similar else ""
    if not topics:
        hint = ", nor any other topic: check the path, and that its files are still there"
    raise UnknownTopicError(f"there is no topic {', '.join(missing)} in {reader.location}{hint}")


def resolve(
    options: Options, reader: Reader, partitions: Sequence[TopicPartition] | None = None
) -> Iterator[OffsetRange]:
    """Yield the offset range of each partition. A range may be empty. Up to 256 logs at a time are opened in parallel.

    ``partitions`` are the partitions to read; None means the result of ``select_partitions``.

    Raises:
        ConfigError: an option with offsets or timestamps by partition does not name exactly the partitions of the read.
            Or ``startingOffsetsByTimestampStrategy`` is ``error``, and a partition has no record at or after its start
            timestamp.
        OffsetOutOfRangeError: a requested offset is outside the log, and ``failOnDataLoss`` is true.
        UnknownTopicError: a topic or a partition does not exist.
    """
    partitions = select_partitions(options, reader) if partitions is None else partitions
    for bound in (options.start, options.end):
        _check_all_named(bound, partitions)
    for first in range(0, len(partitions), _OPENED_LOGS):
        group = partitions[first : first + _OPENED_LOGS]
        reader.open_logs(group)
        for partition in group:
            log = reader.log(*partition)
            last = log.offsets().bound(options.isolation)
            start, end = _start(options, log, last), _end(options, log, last)
            yield OffsetRange(partition, start, max(start, end))


def _check_all_named(bound: Bound, partitions: Sequence[TopicPartition]) -> None:
    if isinstance(bound.value, int):
        return
    missing, unexpected = sorted(set(partitions) - set(bound.value)), sorted(set(bound.value) - set(partitions))
    if missing or unexpected:
        problem = f"lacks {missing[0]}" if missing else f"names {unexpected[0]}, which is not read"
        raise ConfigError(f"option {bound.option} must name exactly the partitions that are read, but it {problem}")


def _start(options: Options, log: LogReader, last: int) -> int:
    bound, first = options.start, log.offsets().log_start
    requested = bound.value_for(log.name)
    if not bound.is_time:
        word_offsets = {EARLIEST: first, LATEST: last}
        return word_offsets[requested] if requested in word_offsets else _clamp_offset(options, log, requested, last)
    offset = log.offset_for_timestamp(requested, options.isolation)
    if offset is None and not options.or_latest:
        raise ConfigError(
            f"option {bound.option}: {log.name} has no record at or after {requested}; set "
            "startingOffsetsByTimestampStrategy=latest to start at the end"
        )
    return last if offset is None else offset


def _end(options: Options, log: LogReader, last: int) -> int:
    requested = options.end.value_for(log.name)
    if not options.end.is_time:
        return last if requested == LATEST else _clamp_offset(options, log, requested, last)
    offset = log.offset_for_timestamp(requested, options.isolation)
    return last if offset is None else offset


def _clamp_offset(options: Options, log: LogReader, requested: int, last: int) -> int:
    """Return ``requested``, or the nearest offset of the log if ``requested`` is outside the log.

    Raises:
        OffsetOutOfRangeError: ``requested`` is outside the log, and ``failOnDataLoss`` is true.
    """
    first = log.offsets().log_start
    if options.fail_on_loss and not first <= requested <= last:
        raise OffsetOutOfRangeError(str(log.name), requested, first, last)
    return min(max(requested, first), last)
