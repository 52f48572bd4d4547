"""``stratalog consume``: print records."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Final

import click

from stratalog.cli.contents.printer import RecordPrinter, print_options
from stratalog.cli.options import LogPlace, choice_option, count_option, json_option, partition_option, place_options
from stratalog.cli.output import Output
from stratalog.cli.parameters import MANY, Start, start_of, time_ms, typed_bytes
from stratalog.client.consumer import Consumer
from stratalog.log.read.log_reader import LogReader
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import Isolation
from stratalog.model.records import Record
from stratalog.reading.reader import Reader
from stratalog.spi.commands import option_group

POLL_MS: Final = 200


class RecordSpan:
    """Range of records that the command's options select. The arguments are the values of these options."""

    def __init__(
        self,
        start: Start | None,
        start_ms: int | None,
        end: int | None,
        end_ms: int | None,
        tail: int | None,
        follow: bool,  # noqa: FBT001 - click passes options
        key: bytes | None,
        isolation: str,
    ) -> None:
        if sum(option is not None for option in (start, start_ms, tail)) > 1:
            raise click.UsageError("--from, --from-time and --tail exclude each other: give one")
        if follow and (end is not None or end_ms is not None):
            raise click.UsageError("--follow has no end: leave out --to and --to-time")
        self.is_whole = all(option is None for option in (start, start_ms, end, end_ms, tail, key))
        self.follow, self.isolation = follow, Isolation.of(isolation)
        self._start = Start(time_ms=start_ms) if start_ms is not None else start or Start(back=0 if follow else None)
        self._tail, self._end, self._end_ms, self._key = tail, end, end_ms, key
        self._next: dict[int, int] = {}  # first unread offset, by partition

    def records(self, reader: Reader, topic: str, numbers: Sequence[int]) -> Iterator[Record]:
        """Yield the records, one partition after the other. Fail if no partition has the first offset."""
        skipped_partitions = 0
        for number in numbers:
            log = reader.log(topic, number)
            end = self._end_of(log)
            if self._tail is None:
                first_offset = self._start.offset_in(log, end, self.isolation)
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
        for record in reader.topic(topic).follow(
            start=self._next, isolation=self.isolation, partitions=tuple(self._next), poll_ms=POLL_MS
        ):
            if self._key in {None, record.key}:
                yield record
                output.flush()

    def _read(self, log: LogReader, first: int, end: int) -> Iterator[Record]:
        if self._key is None:
            return log.records(first, max(first, end), self.isolation)
        return log.records_with_key(self._key, first, max(first, end), self.isolation)

    def _end_of(self, log: LogReader) -> int:
        end = log.offsets().bound(self.isolation)
        if self._end_ms is not None:
            time_offset = log.offset_for_timestamp(self._end_ms, self.isolation)
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


_span_options = option_group(
    "span",
    RecordSpan,
    choice_option("--isolation", Isolation, Isolation.READ_UNCOMMITTED),
    click.option(
        "--key", type=typed_bytes, metavar="KEY",
        help="Only records of this key (UTF-8). Extra indexes skip segments that cannot contain the key.",
    ),
    click.option("--follow", is_flag=True, help="Keep running, and print new records. Ctrl-C stops the command."),
    click.option("--tail", type=MANY, metavar="N", help="Only the last N records of each partition."),
    click.option(
        "--to-time", "end_ms", type=time_ms, metavar="TIME",
        help="End before the first record with this time or a later one: ISO 8601, or ms since 1970.",
    ),
    click.option("--to", "end", type=click.IntRange(0), help="Exclusive end offset."),
    click.option(
        "--from-time", "start_ms", type=time_ms, metavar="TIME",
        help="Begin at the first record with this time or a later one: ISO 8601, or ms since 1970.",
    ),
    click.option(
        "--from", "-o", "start", type=start_of, metavar="WHERE",
        help="Position of the first record: an offset (0 is the log start), beginning, end, -N for N offsets before "
        "the end, or s@TIME. Default: beginning; with --follow, end.",
    ),
)  # fmt: skip


@click.command()
@click.argument("topic")
@partition_option
@_span_options
@click.option(
    "--group", "-G", metavar="NAME",
    help="Resume from the group's committed offsets, and commit the offsets of the printed records at the end.",
)  # fmt: skip
@count_option("records")
@print_options
@place_options
@json_option
def consume(
    place: LogPlace,
    output: Output,
    printer: RecordPrinter,
    topic: str,
    partition: int | None,
    span: RecordSpan,
    group: str | None,
    limit: int | None,
) -> None:
    """Print the records of TOPIC, partition by partition, from local disk and from the tier.

    A line has partition:offset, time (UTC), key = value, and headers. Text is in quotation marks; null is not. On a
    terminal, long values are cut. In a pipe or a file, all values are complete.
    """
    print_record = printer.bind(output, topic)
    if group == "":
        raise click.UsageError("the name of the group is empty: give --group NAME, or leave out --group")
    if group is not None:
        if partition is not None or not span.is_whole:
            raise click.UsageError(
                "--group resumes from committed offsets: leave out --partition, --from, --from-time, --to, --to-time, "
                "--tail and --key"
            )
        _consume_group(place, output, topic, group, limit, span, print_record)
        return
    with place.reader() as reader:
        partitions = reader.topic(topic).partitions
        records = span.records(reader, topic, partitions if partition is None else (partition,))
        if span.follow:
            records = chain(records, span.new_records(reader, topic, output))
        for record in islice(records, limit):
            print_record(record)


def _consume_group(
    place: LogPlace,
    output: Output,
    topic: str,
    group: str,
    limit: int | None,
    span: RecordSpan,
    print_record: Callable[[Record], None],
) -> None:
    """Print the records from a group's committed offsets on, then commit the offsets after the printed records.

    An error or an interruption does not prevent the commit for the records that were already printed.
    """
    next_offsets = dict[TopicPartition, int]()
    with (
        place.engine() as engine,
        engine.consumer(
            group=group, topics=[topic], isolation=span.isolation, auto_offset_reset="earliest"
        ) as consumer,
    ):
        try:
            for name, record in islice(_poll(consumer, output) if span.follow else consumer, limit):
                print_record(record)
                next_offsets[name] = record.offset + 1
        except BaseException:
            consumer.commit(next_offsets)
            raise
        output.flush()
        consumer.commit(next_offsets if span.follow else None)


def _poll(consumer: Consumer, output: Output) -> Iterator[tuple[TopicPartition, Record]]:
    while True:
        records_by_partition = consumer.poll(timeout_ms=POLL_MS)
        for name, records in records_by_partition.items():
            for record in records:
                yield name, record
        output.flush()
