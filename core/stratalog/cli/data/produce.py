"""``stratalog produce``: append lines as records."""

from __future__ import annotations

import io
import os
import select
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import click

from stratalog.cli.options import LogPlace, choice_option, json_option, place_options
from stratalog.cli.output import Output
from stratalog.client.log_access import partitions_of
from stratalog.client.partitioner import partition_of_key
from stratalog.errors import RecordBatchTooLargeError
from stratalog.log.append.commit import AppendResult
from stratalog.log.log import Log
from stratalog.model.offsets import Durability
from stratalog.model.records import Record

LINES_AT_ONCE = 10_000
READ_BYTES = 1 << 20


@dataclass(slots=True)
class AppendTotals:
    """Records appended to one partition so far: their number, and the offsets ``first`` to ``last`` (inclusive)."""

    records: int = 0
    first: int | None = None
    last: int | None = None

    def add(self, result: AppendResult) -> None:
        """Add the records of an append."""
        self.records += result.last_offset - result.base_offset + 1
        self.first = result.base_offset if self.first is None else self.first
        self.last = result.last_offset


def _not_empty(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    del context, option
    if value == "":
        raise click.BadParameter("the separator is empty: use at least one character")
    return value


@click.command()
@click.argument("topic")
@click.argument("file", type=click.File("rb"), default="-")
@click.option(
    "--partition",
    "-p",
    type=click.IntRange(0),
    help="Partition of all records. Default: chosen by the key, as Kafka's producer does.",
)
@click.option(
    "--key-separator",
    metavar="TEXT",
    callback=_not_empty,
    help="Split each line at the first occurrence of TEXT into key and value.",
)
@choice_option("--durability", Durability, Durability.DURABLE)
@place_options
@json_option
def produce(
    place: LogPlace,
    output: Output,
    topic: str,
    file: BinaryIO,
    partition: int | None,
    key_separator: str | None,
    durability: str,
) -> None:
    """Append each line of FILE (standard input if none is given) to TOPIC as one record.

    Lines are appended as they arrive. If the command fails, records that it has appended stay, and it prints their
    number.
    """
    done, ended = dict[int, AppendTotals](), False
    separator = None if key_separator is None else os.fsencode(key_separator)
    try:
        with place.engine() as engine:
            numbers = [name.partition for name in partitions_of(engine, topic)]
            for lines in _lines(file):
                records = [_record(line, separator) for line in lines]
                for number, group in _by_partition(records, numbers, partition).items():
                    for result in _append(engine.log(topic, number), group, durability):
                        done.setdefault(number, AppendTotals()).add(result)
            engine.log(topic, numbers[0] if partition is None else partition)  # even if there are no lines
        ended = True
    finally:
        if ended and not done:
            done[partition or 0] = AppendTotals()
        if done:
            output.table(
                "appended",
                ("topic", "partition", "records", "first_offset", "last_offset"),
                [(topic, number, found.records, found.first, found.last) for number, found in sorted(done.items())],
            )


def _append(log: Log, records: Sequence[Record], durability: str) -> Iterator[AppendResult]:
    """Append the records, and split them if they do not fit into one segment."""
    try:
        yield log.append(records, durability)
    except RecordBatchTooLargeError:
        if len(records) == 1:
            raise
        middle = len(records) // 2
        yield from _append(log, records[:middle], durability)
        yield from _append(log, records[middle:], durability)


def _by_partition(records: Sequence[Record], numbers: Sequence[int], chosen: int | None) -> dict[int, list[Record]]:
    """Return the records by partition; records without a key go to the first partition."""
    if chosen is not None:
        return {chosen: list(records)}
    found: dict[int, list[Record]] = {}
    for record in records:
        index = 0 if record.key is None else partition_of_key(record.key, len(numbers))
        found.setdefault(numbers[index], []).append(record)
    return found


def _lines(file: BinaryIO) -> Iterator[list[bytes]]:
    """Yield the lines of a file in lists of at most ``LINES_AT_ONCE``, without waiting for more lines."""
    rest: list[bytes] = []
    while data := _read(file):
        *whole, last = data.split(b"\n")
        if whole:
            rest.append(whole[0])
            whole[0], rest = b"".join(rest), []
        if last:
            rest.append(last)
        for start in range(0, len(whole), LINES_AT_ONCE):
            yield whole[start : start + LINES_AT_ONCE]
    if rest:
        yield [b"".join(rest)]


def _read(file: BinaryIO) -> bytes:
    """Read up to ``READ_BYTES``: wait for the first bytes, then read what is available; return b"" at the file end."""
    parts = [_read_once(file, READ_BYTES)]
    size = len(parts[0])
    while parts[-1] and size < READ_BYTES and _is_ready(file):
        parts.append(_read_once(file, READ_BYTES - size))
        size += len(parts[-1])
    return b"".join(parts)


def _read_once(file: BinaryIO, size_bytes: int) -> bytes:
    return file.read1(size_bytes) if isinstance(file, io.BufferedReader) else file.read(size_bytes)


def _is_ready(file: BinaryIO) -> bool:
    """Return True if a read would not block, and False if the system cannot report it."""
    try:
        return bool(select.select([file], [], [], 0)[0])
    except (OSError, ValueError):  # no descriptor, or Windows
        return False


def _record(line: bytes, separator: bytes | None) -> Record:
    text = line.rstrip(b"\r")
    if separator is None:
        return Record(value=text)
    key, mark, value = text.partition(separator)
    return Record(key=key, value=value) if mark else Record(value=text)
