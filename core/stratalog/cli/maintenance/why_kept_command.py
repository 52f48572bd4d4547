"""``stratalog why-kept``: explain why the offset ranges of a log are kept, and when they are deleted."""

from __future__ import annotations

import dataclasses

import click

from stratalog.cleaning.explain.explain import RangeFate
from stratalog.cli.options import LogPlace, json_option, place_options
from stratalog.cli.output import Output, moment
from stratalog.cli.parameters import typed_bytes

_RANGES = ("start", "end", "where", "fate", "deleted_at", "size_bytes", "freed_bytes", "reason")
_RECORDS = ("offset", "fate", "newer_offset", "reason")


@click.command("why-kept")
@click.argument("topic")
@click.argument("partition", type=click.IntRange(0))
@click.option("--offset", type=click.IntRange(0), help="Only the record at this offset.")
@click.option("--key", type=typed_bytes, metavar="TEXT", help="Only records of this key (UTF-8).")
@place_options
@json_option
def why_kept(
    place: LogPlace, output: Output, topic: str, partition: int, *, offset: int | None, key: bytes | None
) -> int:
    """Explain for each offset range of a log why it is kept, and when retention or compaction removes it.

    The command changes nothing. The times assume that no more records are written. The exit code is 1 if there is no
    record at --offset or with --key.
    """
    if offset is not None and key is not None:
        raise click.UsageError("--offset and --key exclude each other: give one")
    with place.engine() as engine:
        explanation = engine.why_kept(topic, partition, offset=offset, key=key)
    if output.as_json:
        for fate in explanation.ranges:
            output.item({"range": dataclasses.asdict(fate)})
        for record in explanation.records:
            output.item({"record": dataclasses.asdict(record)})
    else:
        output.table(f"{topic}-{partition}", _RANGES, [_row(fate) for fate in explanation.ranges])
        if explanation.records:
            output.table("records", _RECORDS, [dataclasses.astuple(record) for record in explanation.records])
    is_asked = offset is not None or key is not None
    return 1 if is_asked and not explanation.records else 0


def _row(fate: RangeFate) -> tuple[object, ...]:
    time_text = None if fate.when_ms is None else moment(fate.when_ms)
    return (fate.start, fate.end, fate.where, fate.fate, time_text, fate.size_bytes, fate.freed_bytes, fate.reason)
