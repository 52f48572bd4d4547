"""``stratalog consume``: print records."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Final

import click

from stratalog.cli.contents.positions import start_offset
from stratalog.cli.contents.printer import RecordPrinter, print_options
from stratalog.cli.options import LogPlace, choice_option, count_option, json_option, partition_option, place_options
from stratalog.cli.output import Output
from stratalog.cli.parameters import MANY, Start, start_of, time_ms, typed_bytes
from stratalog.client.consumer import Consumer
from stratalog.log.read.log_reader import LogReader
from stratalog.model.names import TopicPartition, unknown_topic
from stratalog.model.offsets import Isolation
from stratalog.model.records import Record
from stratalog.reading.reader import Reader

POLL_MS: Final = 200


@click.command()
@click.argument("topic")
@partition_option
@click.option(
    "--from",
    "-o",
    "start",
    type=start_of,
    metavar="WHERE",
    help="Position of the first record: an offset (0 is the log start), beginning, end, -N for N offsets before the end, "
    "or s@TIME. Default: beginning; with --follow, end.",
)
@click.option(
    "--from-time",
    "start_ms",
    type=time_ms,
    metavar="TIME",
    help="Begin at the first record with this time or a later one: ISO 8601, or ms since 1970.",
)
@click.option("--to", "end", type=click.IntRange(0), help="Exclusive end offset.")
@click.option(
    "--to-time",
    "end_ms",
    type=time_ms,
    metavar="TIME",
    help="End before the first record with this time or a later one: ISO 8601, or ms since 1970.",
)
@click.option("--tail", type=MANY, metavar="N", help="Only the last N records of each partition.")
@click.option("--follow", is_flag=True, help="Keep running, and print new records. Ctrl-C stops the command.")
@click.option(
    "--key",
    metavar="KEY",
    help="Only records of this key (UTF-8). Extra indexes skip segments that cannot contain the key.",
)
@click.option(
    "--group",
    "-G",
    metavar="NAME",
    help="Resume from the group's committed offsets, and commit the offsets of the printed records at the end.",
)
@count_option("records")
@choice_option("--isolation", Isolation, Isolation.READ_UNCOMMITTED)
@print_options
@place_options
@json_option
def consume(
    place: LogPlace,
    output: Output,
    printer: RecordPrinter,
    topic: str,
    partition: int | None,
    start: Start | None,
    start_ms: int | None,
    end: int | None,
    end_ms: int | None,
    tail: int | None,
    key: str | None,
    group: str | None,
    limit: int | None,
    isolation: str,
    *,
    follow: bool,
) -> None:
    """Print the records of TOPIC, partition by partition, from local disk and from the tier.

    A line has partition:offset, time (UTC), key = value, and headers. Text is in quotation marks; null is not. On a
    terminal, long values are cut. In a pipe or a file, all values are complete.
    """
    if (start is not None and (start_ms is not None or tail is not None)) or (
        start_ms is not None and tail is not None
    ):
        raise click.UsageError("--from, --from-time and --tail exclude each other: give one")
    if follow and (end is not None or end_ms is not None):
        raise click.UsageError("--follow has no end: leave out --to and --to-time")
    print_record = printer.bind(output, topic)
    if group == "":
        raise click.UsageError("the name of the group is empty: give --group NAME, or leave out --group")
    if group is not None:
        position_options = (partition, start, start_ms, end, end_ms, tail, key)
        if any(option is not None for option in position_options):
            raise click.UsageError(
                "--group resumes from committed offsets: leave out --partition, --from, --from-time, --to, --to-time, "
                "--tail and --key"
            )
        _consume_group(place, output, topic, group, limit, isolation, print_record, follow=follow)
        return
    if start is None:
        start = (
            Start(time_ms=start_ms) if start_ms is not None else Start(back=0) if follow and tail is None else Start()
        )
    span = _Span(start, tail, end, end_ms, None if key is None else typed_bytes(key), isolation)
    with place.reader() as reader:
        numbers = _partitions(reader, topic, partition)
        records = span.records(reader, topic, numbers)
        if follow:
            records = chain(records, span.new_records(reader, topic, output))
        for record in islice(records, limit):
            print_record(record)


def _partitions(reader: Reader, topic: str, partition: int | None) -> tuple[int, ...]:
    info = reader.topics().get(topic)
    if info is None:
        raise unknown_topic(topic, reader.topics(), reader.location)
    return info.partitions if partition is None else (partition,)


class _Span:
    """Range of records that the command's options select.

    Args:
        start: position of the first record; not used if ``tail`` is given.
        tail: number of records at the end of each partition; None if ``start`` is used.
        end: exclusive end offset; None means the end of the isolation level.
        end_ms: records end before the first record with this time or a later one; None for no such limit.
        key: key of the records; None for all records.
        isolation: name of the isolation level.
    """

    def __init__(
        self, start: Start, tail: int | None, end: int | None, end_ms: int | None, key: bytes | None, isolation: str
    ) -> None:
        self._start, self._tail, self._end, self._end_ms = start, tail, end, end_ms
        self._key, self._isolation = key, Isolation.of(isolation)
        self._next: dict[int, int] = {}  # first unread offset, by partition

    def records(self, reader: Reader, topic: str, numbers: Sequence[int]) -> Iterator[Record]:
        """Yield the records of the partitions, one partition after the other, in the order of ``numbers``.

        Raises:
            OffsetOutOfRangeError: no partition has the first offset.
        """
        skipped_partitions = 0
        for number in numbers:
            log = reader.log(topic, number)
            end = self._end_of(log)
            if self._tail is None:
                first_offset = start_offset(log, self._start, end, self._isolation)
            else:
                first_offset = self._start_of_tail(log, self._tail, end)
            self._next[number] = max(first_offset, end)
            if first_offset > log.offsets().log_end and skipped_partitions < len(numbers) - 1:
                skipped_partitions += 1  # no error, because another partition may have the offset
            elif first_offset < end or first_offset > log.offsets().log_end:
                yield from self._read(log, first_offset, end)

    def new_records(self, reader: Reader, topic: str, output: Output) -> Iterator[Record]:
        """Yield the records after those of ``records``, wait for new records, and never end."""
        output.flush()
        new = reader.topic(topic).follow(
            start=self._next, isolation=self._isolation, partitions=tuple(self._next), poll_ms=POLL_MS
        )
        for record in new:
            if self._key in {None, record.key}:
                yield record
                output.flush()

    def _read(self, log: LogReader, first: int, end: int) -> Iterator[Record]:
        if self._key is None:
            return log.records(first, max(first, end), self._isolation)
        return log.records_with_key(self._key, first, max(first, end), self._isolation)

    def _end_of(self, log: LogReader) -> int:
        end = log.offsets().bound(self._isolation)
        if self._end_ms is not None:
            time_offset = log.offset_for_timestamp(self._end_ms, self._isolation)
            end = end if time_offset is None else time_offset
        return end if self._end is None else min(end, self._end)

    def _start_of_tail(self, log: LogReader, count: int, end: int) -> int:
        """Return the offset at which the last ``count`` records before ``end`` begin.

        Records are counted, not offsets, because compaction and transactions leave gaps between offsets. If there are
        fewer than ``count`` records, return the log start.
        """
        log_start, range_end, span = log.offsets().log_start, end, count
        while range_end > log_start:
            range_start = max(range_end - span, log_start)
            offsets = deque[int](maxlen=count)
            for record in self._read(log, range_start, range_end):
                offsets.append(record.offset)
            if len(offsets) == count:
                return offsets[0]
            count, range_end, span = count - len(offsets), range_start, span * 2
        return log_start


def _consume_group(
    place: LogPlace,
    output: Output,
    topic: str,
    group: str,
    limit: int | None,
    isolation: str,
    print_record: Callable[[Record], None],
    *,
    follow: bool,
) -> None:
    """Print the records from a group's committed offsets on, then commit the offsets after the printed records.

    An error or an interruption does not prevent the commit for the records that were already printed.
    """
    next_offsets = dict[TopicPartition, int]()
    with (
        place.engine() as engine,
        engine.consumer(group=group, topics=[topic], isolation=isolation, auto_offset_reset="earliest") as consumer,
    ):
        try:
            for name, record in islice(_poll(consumer, output) if follow else consumer, limit):
                print_record(record)
                next_offsets[name] = record.offset + 1
        except BaseException:
            consumer.commit(next_offsets)
            raise
        output.flush()
        consumer.commit(next_offsets if follow else None)


def _poll(consumer: Consumer, output: Output) -> Iterator[tuple[TopicPartition, Record]]:
    while True:
        records_by_partition = consumer.poll(timeout_ms=POLL_MS)
        for name, records in records_by_partition.items():
            for record in records:
                yield name, record
        output.flush()
