"""``stratalog produce``: append lines, JSON objects or files as records."""

from __future__ import annotations

import io
import json
import os
import select
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import BinaryIO, Final, TypeAlias

import click

from stratalog.cli.contents.template import unescape
from stratalog.cli.contents.values import bytes_of
from stratalog.cli.options import LogPlace, choice_option, json_option, place_options
from stratalog.cli.output import Output
from stratalog.cli.parameters import split_setting, typed_bytes
from stratalog.client.partitioner import partition_of_key
from stratalog.errors import InvalidRecordError, RecordBatchTooLargeError, StorageError
from stratalog.log.append.append import AppendResult
from stratalog.log.log import Log
from stratalog.model.batches import NO_TIMESTAMP
from stratalog.model.offsets import Durability
from stratalog.model.records import Headers, Record
from stratalog.spi.commands import option_group

LINES_AT_ONCE = 10_000
READ_BYTES = 1 << 20
_HEADER_FIELDS: Final = frozenset({"key", "value", "value_hex", "value_base64"})
_RECORD_FIELDS: Final = _HEADER_FIELDS | {
    "key_hex", "key_base64", "headers", "partition", "timestamp_ms",
    "topic", "offset", "timestamp_type", "leader_epoch", "error",  # fields of `consume --json` that are ignored
}  # fmt: skip

PartitionedRecord: TypeAlias = tuple[int | None, Record]
"""A record, and the partition that the input gives for the record; None if the input gives no partition."""


@dataclass(slots=True)
class AppendTotals:
    """Records appended to one partition so far: their number, and the offsets ``first`` to ``last`` (inclusive)."""

    records: int = 0
    first: int | None = None
    last: int | None = None

    def add(self, result: AppendResult) -> None:
        """Add the records of the append that returned ``result``."""
        self.records += result.last_offset - result.base_offset + 1
        self.first = result.base_offset if self.first is None else self.first
        self.last = result.last_offset


class InputForm(StrEnum):
    """Form of the input: a record is a line, a JSON object on a line, or a whole file."""

    LINES = "lines"
    JSON = "json"
    FILES = "files"


@dataclass(frozen=True, slots=True)
class RecordInput:
    """Reader of records from files.

    Attributes:
        key: key of all records; None means a null key.
        separator: separator of key and value in a line; None if the whole line is the value. A line without the
            separator is a value whose key is null.
        headers: headers of all records.
        null: text that means a null key or value; None if there is no such text.
    """

    key: bytes | None
    separator: bytes | None
    headers: Headers
    null: bytes | None

    def records(self, files: Iterable[BinaryIO], form: InputForm) -> Iterator[list[PartitionedRecord]]:
        """Yield lists of records as soon as the records arrive. Each record has the partition that the input gives."""
        for file in files:
            if form is InputForm.FILES:
                yield [(None, self._record(self.key, file.read()))]
                continue
            number = 0
            for lines in _lines(file):
                if form is InputForm.LINES:
                    yield [(None, self._line(line)) for line in lines]
                else:
                    yield [
                        self._parse(line, file.name, number + index)
                        for index, line in enumerate(lines, 1)
                        if line.strip()
                    ]
                number += len(lines)

    def _record(self, key: bytes | None, value: bytes | None) -> Record:
        return Record(
            key=None if key == self.null else key, value=None if value == self.null else value, headers=self.headers
        )

    def _line(self, line: bytes) -> Record:
        text = line.rstrip(b"\r")
        if self.separator is None:
            return self._record(self.key, text)
        key, mark, value = text.partition(self.separator)
        return self._record(key, value) if mark else self._record(None, text)

    def _parse(self, line: bytes, file: str, number: int) -> PartitionedRecord:
        try:
            item = json.loads(line)
            if not isinstance(item, dict):
                raise InvalidRecordError("a record must be a JSON object")
            _check_fields(item, _RECORD_FIELDS, "key, value, headers, partition and timestamp_ms")
            headers = _parse_headers(item.get("headers") or [])
            partition = item.get("partition")
            if partition is not None and type(partition) is not int:
                raise InvalidRecordError(f"partition must be an int, not {type(partition).__name__}")
            key = bytes_of(item, "key")
            record = Record(
                key=self.key if key is None else key,
                value=bytes_of(item, "value"),
                headers=(*headers, *self.headers),
                timestamp_ms=item.get("timestamp_ms", NO_TIMESTAMP),
            )
        except json.JSONDecodeError as error:
            reason = f"no JSON at column {error.colno}: {error.msg}"
            raise InvalidRecordError(f"line {number} of {file} is not a record: {reason}") from error
        except (ValueError, TypeError, RecursionError, StorageError) as error:
            raise InvalidRecordError(f"line {number} of {file} is not a record: {error}") from error
        return partition, record


def _check_fields(item: Mapping[str, object], allowed: frozenset[str], advice: str) -> None:
    """Raise InvalidRecordError for an unknown field. Without this check, a misspelt ``value`` would be a null value."""
    if not item.keys() <= allowed:
        unknown = next(name for name in item if name not in allowed)
        raise InvalidRecordError(f"unknown field {unknown!r}: use {advice}")


def _parse_headers(headers: object) -> Headers:
    """Parse headers in the form of ``consume --json``; raise InvalidRecordError if they are invalid."""
    if not isinstance(headers, list) or not all(isinstance(header, dict) for header in headers):
        raise InvalidRecordError('headers must be a list of objects, such as [{"key": "name", "value": "text"}]')
    for header in headers:
        _check_fields(header, _HEADER_FIELDS, "key and value")
        if not isinstance(header.get("key"), str):
            raise InvalidRecordError('a header has no name: add its name as the text "key"')
    return tuple((header["key"], bytes_of(header, "value")) for header in headers)


def _separator(text: str) -> bytes:
    if not text:
        raise click.BadParameter("the separator is empty: use at least one character")
    return unescape(typed_bytes(text))


def _header(setting: str) -> tuple[str, bytes]:
    name, value = split_setting(setting)
    return name, typed_bytes(value)


_input_options = option_group(
    "record_input",
    RecordInput,
    click.option("--null", type=typed_bytes, metavar="TEXT", help="A key or value that equals TEXT is null."),
    click.option(
        "--header", "-H", "headers", type=_header, multiple=True, metavar="NAME=VALUE",
        help="Header of all records; can be repeated.",
    ),
    click.option(
        "--key-separator", "-K", "separator", type=_separator, metavar="TEXT",
        help="Split each line at the first occurrence of TEXT into key and value. \\t is a tab.",
    ),
    click.option("--key", "-k", type=typed_bytes, metavar="TEXT", help="Key of all records."),
)  # fmt: skip


@click.command()
@click.argument("topic")
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.File("rb"))
@click.option(
    "--input", "form", type=click.Choice([form.value for form in InputForm]), default=InputForm.LINES.value,
    help="lines: each line is a record. json: each line is an object with key, value, headers, partition and "
    "timestamp_ms, in the form of `consume --json`; --json concerns only the output. files: each FILE is the value of "
    "one record.",
)  # fmt: skip
@click.option(
    "--partition", "-p", type=click.IntRange(0),
    help="Partition of all records. Default: the hash of the key selects the partition, as in Kafka's producer.",
)  # fmt: skip
@_input_options
@choice_option("--durability", Durability, Durability.DURABLE)
@place_options
@json_option
def produce(
    place: LogPlace,
    output: Output,
    topic: str,
    files: tuple[BinaryIO, ...],
    form: str,
    partition: int | None,
    record_input: RecordInput,
    durability: str,
) -> None:
    """Append records to TOPIC, from each FILE or from standard input (`-`, or no FILE).

    Lines are appended as soon as they arrive. If the command fails or is interrupted, the records that it has appended
    stay in the topic, and the command prints their number.
    """
    if record_input.separator is not None and (record_input.key is not None or form != InputForm.LINES):
        raise click.UsageError("--key-separator splits lines: leave out --key, and use --input lines")
    totals, is_complete = dict[int, AppendTotals](), False
    try:
        with place.engine() as engine, _progress(output, files) as update_progress:
            numbers = [name.partition for name in engine.partitions() if name.topic == topic]
            if not numbers:
                engine.log(topic)  # raises UnknownTopicError, which names the directory
            for records in record_input.records(files or (sys.stdin.buffer,), InputForm(form)):
                for number, group in _group_by_partition(records, numbers, partition).items():
                    for result in _append(engine.log(topic, number), group, durability):
                        totals.setdefault(number, AppendTotals()).add(result)
                update_progress()
            engine.log(topic, numbers[0] if partition is None else partition)  # even if there are no lines
        is_complete = True
    finally:
        if is_complete and not totals:
            totals[partition or 0] = AppendTotals()
        if totals:
            output.table(
                "appended",
                ("topic", "partition", "records", "first_offset", "last_offset"),
                [(topic, number, total.records, total.first, total.last) for number, total in sorted(totals.items())],
            )


@contextmanager
def _progress(output: Output, files: Sequence[BinaryIO]) -> Iterator[Callable[[], object]]:
    """Return a context manager that shows the number of read bytes, and yields a function that updates this display.

    Nothing is shown if a file is a pipe, because the size of a pipe is unknown.
    """
    states = [os.fstat(file.fileno()) for file in files]
    if not states or not all(stat.S_ISREG(state.st_mode) for state in states):
        yield lambda: None
        return
    total_bytes = sum(state.st_size for state in states)
    with output.bytes_progress("appending", "the rest was not appended") as progress:
        yield lambda: progress(sum(file.tell() for file in files), total_bytes)


def _append(log: Log, records: Sequence[Record], durability: str) -> Iterator[AppendResult]:
    """Append the records. If they do not fit into one segment, append the first half, then the second half."""
    try:
        yield log.append(records, durability)
    except RecordBatchTooLargeError:
        if len(records) == 1:
            raise
        middle = len(records) // 2
        yield from _append(log, records[:middle], durability)
        yield from _append(log, records[middle:], durability)


def _group_by_partition(
    records: Iterable[PartitionedRecord], numbers: Sequence[int], only_partition: int | None
) -> dict[int, list[Record]]:
    """Return the records by partition. Records without a partition and without a key go to the first partition."""
    records_by_partition: dict[int, list[Record]] = {}
    for partition, record in records:
        if only_partition is not None:
            number = only_partition
        elif partition is not None:
            number = partition
        else:
            number = numbers[0 if record.key is None else partition_of_key(record.key, len(numbers))]
        records_by_partition.setdefault(number, []).append(record)
    return records_by_partition


def _lines(file: BinaryIO) -> Iterator[list[bytes]]:
    """Yield the lines of a file, without line feeds, in lists of at most ``LINES_AT_ONCE`` lines.

    If the file is a pipe, available lines are yielded at once, before the next lines arrive.
    """
    incomplete_line: list[bytes] = []
    while data := _read(file):
        *complete_lines, last_piece = data.split(b"\n")
        if complete_lines:
            incomplete_line.append(complete_lines[0])
            complete_lines[0], incomplete_line = b"".join(incomplete_line), []
        if last_piece:
            incomplete_line.append(last_piece)
        for start in range(0, len(complete_lines), LINES_AT_ONCE):
            yield complete_lines[start : start + LINES_AT_ONCE]
    if incomplete_line:
        yield [b"".join(incomplete_line)]


def _read(file: BinaryIO) -> bytes:
    """Wait for the first bytes, then read available bytes up to ``READ_BYTES``. Return b"" at the end of the file."""
    parts = [_read_once(file, READ_BYTES)]
    size = len(parts[0])
    while parts[-1] and size < READ_BYTES and _is_ready(file):
        parts.append(_read_once(file, READ_BYTES - size))
        size += len(parts[-1])
    return b"".join(parts)


def _read_once(file: BinaryIO, size_bytes: int) -> bytes:
    return file.read1(size_bytes) if isinstance(file, io.BufferedReader) else file.read(size_bytes)


def _is_ready(file: BinaryIO) -> bool:
    """Return True if a read would not block; False if it would block, or if the system cannot report it."""
    try:
        return bool(select.select([file], [], [], 0)[0])
    except (OSError, ValueError):  # no descriptor, or Windows
        return False
