"""Commands of ``stratalog spark`` that rewrite segments of a tier.

Options that a command does not use itself have the names of the arguments of its job.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import stratalog_spark as jobs
from stratalog.errors import ConfigError
from stratalog.reading import ReadSource
from stratalog.spi import CommandOutput
from stratalog_spark.commands.command_options import (
    Job,
    job_options,
    memory_option,
    source_options,
    take_over_option,
    topics_option,
    topics_required,
)

if TYPE_CHECKING:
    from stratalog_spark.jobs.runs import Replaced


@click.command("compact")
@source_options
@topics_required
@click.option("--any-policy", is_flag=True, help="Also compact topics whose cleanup.policy does not contain compact.")
@memory_option(1 << 20)
@take_over_option
@job_options
def compact_command(job: Job, source: ReadSource, **arguments: Any) -> int:
    """Compact topics of a tier to the newest record of each key. The number of keys is not limited."""
    with job.start("compacting") as (session, progress):
        report = jobs.compact(session, source, progress=progress, **arguments)
    _print_replaced(job.output, report.logs)
    job.summary(
        {"before": report.records_before, "after": report.records_after, "shuffled_bytes": report.shuffled_bytes},
    )
    return 0


@click.command("erase")
@source_options
@topics_option
@click.option("--key", "keys", multiple=True, help="Key as text; can be repeated.")
@click.option("--key-hex", "hex_keys", multiple=True, help="Key as hexadecimal digits; can be repeated.")
@click.option(
    "--keys-from",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="File with one key per line, as text.",
)
@click.option("--dry-run", is_flag=True, help="Show the records that would be erased; change nothing.")
@memory_option(1 << 10)
@take_over_option
@job_options
def erase_command(
    job: Job,
    source: ReadSource,
    keys: tuple[str, ...],
    hex_keys: tuple[str, ...],
    keys_from: Path | None,
    *,
    dry_run: bool,
    **arguments: Any,
) -> int:
    """Erase all records of some keys from a tier.

    Earlier states of the tier contain the records until the collector deletes these states. The exit code of a dry run
    is 1 if it found records.
    """
    all_keys = chain(map(os.fsencode, keys), [_parse_hex(key) for key in hex_keys], _lines(keys_from))
    with job.start("erasing") as (session, progress):
        report = jobs.erase(session, source, all_keys, dry_run=dry_run, progress=progress, **arguments)
    rows = [(log.topic, log.partition, count) for log, count in sorted(report.records.items())]
    job.output.table("records of these keys", ("topic", "partition", "records"), rows)
    _print_replaced(job.output, report.logs)
    job.summary({"records": sum(report.records.values()), "segments": report.segments, "replaced": len(report.logs)})
    return 1 if dry_run and report.records else 0


def _lines(file: Path | None) -> Iterator[bytes]:
    """Yield the lines of a file without the line breaks."""
    if file is not None:
        with file.open("rb") as lines:
            for line in lines:
                yield line.rstrip(b"\r\n")


def _parse_hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise ConfigError(f"--key-hex {text!r}: {error}") from None


@click.command("convert")
@source_options
@topics_required
@click.option(
    "--compression",
    type=click.Choice(["uncompressed", "gzip", "snappy", "lz4", "zstd"]),
    help="Codec of the batches. Control batches, and some batches that compaction has changed, keep their codec. "
    "Default: all batches in the current record format keep their codec.",
)
@click.option(
    "--layout",
    help="Tier layout of the new segments, such as single, plain or chunked. Default: the topic's tier.layout.",
)
@take_over_option
@job_options
def convert_command(job: Job, source: ReadSource, **arguments: Any) -> int:
    """Rewrite segments of a tier in another format, codec or layout.

    The batches of the new segments have the current record format. --compression and --layout change codec and layout.
    """
    with job.start("converting") as (session, progress):
        report = jobs.convert(session, source, progress=progress, **arguments)
    _print_replaced(job.output, report.logs)
    return 0


@click.command("merge")
@source_options
@topics_option
@click.option(
    "--segment-bytes",
    type=click.IntRange(min=1),
    default=128 << 20,
    show_default=True,
    help="Maximum size of a new segment. If the topic's segment.bytes is smaller, it is the limit.",
)
@take_over_option
@job_options
def merge_command(job: Job, source: ReadSource, **arguments: Any) -> int:
    """Merge small segments of a tier. The batches do not change."""
    with job.start("merging") as (session, progress):
        report = jobs.merge(session, source, progress=progress, **arguments)
    _print_replaced(job.output, report.logs)
    return 0


def _print_replaced(output: CommandOutput, logs: Sequence[Replaced]) -> None:
    counts = ("records_before", "records_after", "bytes_before", "bytes_after", "segments_before", "segments_after")
    rows = [(*replaced.log, *(getattr(replaced, name) for name in counts)) for replaced in logs]
    if rows:
        output.table("what was replaced", ("topic", "partition", *counts), rows)
