"""``stratalog produce``: append lines as records."""

from __future__ import annotations

from itertools import islice
from typing import BinaryIO

import click

from stratalog.cli.options import Place, choice_option, json_option, place_options
from stratalog.cli.output import Output
from stratalog.model.offsets import Durability
from stratalog.model.records import Record

LINES_AT_ONCE = 10_000


def _not_empty(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    del context, option
    if value == "":
        raise click.BadParameter("a separator has at least one character")
    return value


@click.command()
@click.argument("topic")
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--partition", "-p", type=click.IntRange(0), default=0, show_default=True, help="Where to.")
@click.option(
    "--key-separator",
    metavar="TEXT",
    callback=_not_empty,
    help="Split each line at its first TEXT into key and value.",
)
@choice_option("--durability", Durability, Durability.DURABLE)
@place_options
@json_option
def produce(
    place: Place,
    output: Output,
    topic: str,
    file: BinaryIO,
    partition: int,
    key_separator: str | None,
    durability: str,
) -> None:
    """Append each line of FILE (standard input if none is given) to TOPIC as one record."""
    count, first, last = 0, None, None
    with place.engine() as engine:
        log = engine.log(topic, partition)
        while lines := list(islice(file, LINES_AT_ONCE)):
            result = log.append([_record(line, key_separator) for line in lines], durability)
            count += len(lines)
            first = result.base_offset if first is None else first
            last = result.last_offset
    output.table(
        "appended",
        ("topic", "partition", "records", "first_offset", "last_offset"),
        [(topic, partition, count, first, last)],
    )


def _record(line: bytes, separator: str | None) -> Record:
    text = line.rstrip(b"\r\n")
    if separator is None:
        return Record(value=text)
    key, mark, value = text.partition(separator.encode())
    return Record(key=key, value=value) if mark else Record(value=text)
