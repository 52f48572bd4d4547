"""``stratalog consume``: print records."""

from __future__ import annotations

import base64
from collections import Counter
from datetime import UTC, datetime
from itertools import islice

import click

from stratalog.cli.options import (
    MANY,
    LogPlace,
    choice_option,
    json_option,
    partition_option,
    place_options,
    typed_bytes,
)
from stratalog.cli.output import Output, printable
from stratalog.errors import UnknownTopicError
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import Isolation
from stratalog.model.records import Record

SHOWN_CHARACTERS = 120


@click.command()
@click.argument("topic")
@partition_option
@click.option("--from", "start", type=click.IntRange(0), default=0, help="First offset; 0 is the log start.")
@click.option(
    "--from-time", "start_ms", type=int, help="Timestamp of the first record, in ms since 1970, instead of --from."
)
@click.option(
    "--key",
    metavar="KEY",
    help="Only records of this key (UTF-8). Extra indexes skip segments that cannot contain the key.",
)
@click.option(
    "--group", metavar="NAME", help="Resume from the group's committed offsets, and commit the new ones at the end."
)
@click.option("--max", "limit", type=MANY, help="Maximum number of records of each partition.")
@choice_option("--isolation", Isolation, Isolation.READ_UNCOMMITTED)
@place_options
@json_option
def consume(
    place: LogPlace,
    output: Output,
    topic: str,
    partition: int | None,
    start: int,
    start_ms: int | None,
    key: str | None,
    group: str | None,
    limit: int | None,
    isolation: str,
) -> None:
    """Print the records of TOPIC, partition by partition, from local disk and from the tier."""
    if group is not None:
        if partition is not None or start or start_ms is not None or key is not None:
            raise click.UsageError(
                "--group resumes from committed offsets: leave out --partition, --from, --from-time and --key"
            )
        _consume_group(place, output, topic, group, limit, isolation)
        return
    with place.reader() as reader:
        info = reader.topics().get(topic)
        if info is None:
            raise UnknownTopicError(f"there is no topic {topic} in {reader.location}")
        numbers = info.partitions if partition is None else (partition,)
        ended = 0
        for number in numbers:
            log = reader.log(topic, number)
            first: int | None = start
            if start_ms is not None:
                first = log.offset_for_timestamp(start_ms, isolation)
            if first is None:
                continue
            if first > log.offsets().log_end and ended < len(numbers) - 1:
                ended += 1  # no error, because another partition may have the offset
                continue
            if key is None:
                records = log.records(first, isolation=isolation)
            else:
                records = log.records_with_key(typed_bytes(key), first, isolation=isolation)
            for record in islice(records, limit):
                _print(output, topic, record)


def _consume_group(place: LogPlace, output: Output, topic: str, group: str, limit: int | None, isolation: str) -> None:
    """Print the records after a group's committed offsets; commit the printed records, even after an error."""
    printed = dict[TopicPartition, int]()
    counts = Counter[TopicPartition]()
    with (
        place.engine() as engine,
        engine.consumer(group=group, topics=[topic], isolation=isolation, auto_offset_reset="earliest") as consumer,
    ):
        try:
            for name, record in consumer:
                _print(output, topic, record)
                printed[name] = record.offset + 1
                counts[name] += 1
                if counts[name] == limit:
                    consumer.pause(name)
        except BaseException:
            consumer.commit(printed)
            raise
        consumer.commit()


def _print(output: Output, topic: str, record: Record) -> None:
    if output.as_json:
        output.item(record_item(topic, record))
    else:
        output.line(record_line(record))


def record_item(topic: str, record: Record) -> dict[str, object]:
    """Return a record as a JSON object; bytes that are not UTF-8 get a name that ends in ``_base64``."""
    item: dict[str, object] = {
        "topic": topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "timestamp_type": str(record.timestamp_type),
        "leader_epoch": record.leader_epoch,
    }
    for name, value in (("key", record.key), ("value", record.value)):
        put_bytes(item, name, value)
    headers = []
    for name, value in record.headers:
        header: dict[str, object] = {"key": name}
        put_bytes(header, "value", value)
        headers.append(header)
    return {**item, "headers": headers}


def put_bytes(item: dict[str, object], name: str, value: bytes | None) -> None:
    """Add bytes to a JSON object: UTF-8 as text, other bytes under a name that ends in ``_base64``."""
    try:
        item[name] = None if value is None else value.decode()
    except UnicodeDecodeError:
        item[f"{name}_base64"] = base64.b64encode(value or b"").decode()


def record_line(record: Record) -> str:
    """Return a record as one line of text."""
    headers = "".join(f" {printable(name)}={_text(value)}" for name, value in record.headers)
    return f"{record.partition}:{record.offset} {_stamp(record)} {_text(record.key)} {_text(record.value)}{headers}"


def _stamp(record: Record) -> str:
    if record.timestamp_ms < 0:
        return "-"
    try:
        return datetime.fromtimestamp(record.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(record.timestamp_ms)


def _text(value: bytes | None) -> str:
    if value is None:
        return "null"
    text = printable(value.decode("utf-8", "backslashreplace"))
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}... ({len(value):,} bytes)"
