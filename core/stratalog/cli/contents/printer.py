"""Output of records as lines, as JSON, or in the form of a template."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import click

from stratalog.cli.contents.decoders import DECODERS, STYLES, RecordDecoder, decoder_of
from stratalog.cli.contents.template import TOKENS, Template
from stratalog.cli.contents.values import Style
from stratalog.cli.output import Output, moment
from stratalog.cli.parameters import typed_bytes
from stratalog.model.records import Record
from stratalog.spi.commands import option_group


class RecordPrinter:
    """Printer of records, in the form that the command's options select. The arguments are the options' values."""

    def __init__(self, template: str | None, decoder: str | None, key_decoder: str | None, null: str | None) -> None:
        if null is not None and template is None:
            raise click.UsageError("--null is for --format: leave it out, other forms show null")
        if template is not None and (decoder or key_decoder):
            raise click.UsageError("--format prints bytes as they are: leave out --decoder and --key-decoder")
        self._template, self._null, self._decoder, self._key_decoder = template, null, decoder, key_decoder

    def bind(self, output: Output, topic: str) -> Callable[[Record], None]:
        """Return a function that prints a record of ``topic``. Raise UsageError if --format and --json are given."""
        if self._template is not None:
            if output.as_json:
                raise click.UsageError("--format and --json exclude each other: give one")
            return _write(Template(typed_bytes(self._template), topic, typed_bytes(self._null or "")))
        decode = decoder_of(topic, self._decoder, self._key_decoder, default_style=Style.TEXT)
        if output.as_json:
            return lambda record: output.item({**_head(topic, record), **decode(record).item()})

        def print_lines(record: Record) -> None:
            for line in record_lines(record, decode):
                output.line(line)

        return print_lines


def record_lines(record: Record, decode: RecordDecoder) -> Iterator[str]:
    """Yield a record as one or more lines of text: partition:offset, time and contents."""
    lines = decode(record).lines()
    yield f"{record.partition}:{record.offset}  {moment(record.timestamp_ms)}  {next(lines)}"
    yield from lines


def _write(text: Callable[[Record], bytes]) -> Callable[[Record], None]:
    """Return a function that writes the bytes ``text(record)`` to stdout."""
    sys.stdout.flush()
    stream = sys.stdout.buffer

    def write(record: Record) -> None:
        stream.write(text(record))

    return write


def _head(topic: str, record: Record) -> dict[str, object]:
    return {
        "topic": topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "timestamp_type": str(record.timestamp_type),
        "leader_epoch": record.leader_epoch,
    }


print_options = option_group(
    "printer",
    RecordPrinter,
    click.option("--null", metavar="TEXT", help="Text for a null key or value in --format. Default: no text."),
    click.option(
        "--key-decoder", type=click.Choice(STYLES), help="Show keys in this way. Default: the value of --decoder."
    ),
    click.option(
        "--decoder",
        type=click.Choice(DECODERS),
        help="Show keys and values in this way. Default: text (UTF-8, other bytes as hex digits), and for Kafka's "
        "internal topics their decoders offsets and transactions.",
    ),
    click.option("--format", "-f", "template", metavar="FORMAT", help=f"Template for each record. Tokens: {TOKENS}."),
)
"""``--format``, ``--decoder``, ``--key-decoder`` and ``--null``: passed to the command as ``printer``."""
