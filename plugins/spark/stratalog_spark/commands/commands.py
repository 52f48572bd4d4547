"""Commands of ``stratalog spark``. Spark is imported when a job begins.

Options that a command does not use itself have the names of the arguments of its job.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import stratalog_spark as jobs
from stratalog.errors import ConfigError
from stratalog.reading import ReadSource
from stratalog.spi import CommandOutput, config_option, tier_option
from stratalog.spi.commands import settings_contents
from stratalog_spark.commands.command_options import (
    Job,
    choice_option,
    job_options,
    memory_option,
    pairs_option,
    source_options,
    take_over_option,
    topics_option,
    topics_required,
)

if TYPE_CHECKING:
    from stratalog_spark.jobs.runs import Replaced


@click.group()
def spark() -> None:
    """Run Spark jobs that count, check, rewrite, export and import whole topics, without a broker.

    SOURCE is a log directory of an engine or of a Kafka broker, or the URI of a tier.
    """


@spark.command("verify")
@source_options
@topics_option
@click.option("--shallow", is_flag=True, help="Check only manifests, sizes and indexes; do not read the records.")
@job_options
def verify_command(job: Job, source: ReadSource, topics: Sequence[str] | None, *, shallow: bool) -> int:
    """Check every CRC and hash of a tier, in parallel.

    The exit code is 1 if a problem was found.
    """
    with job.start("checking") as (session, progress):
        report = jobs.verify(session, source, topics=topics, deep=not shallow, progress=progress)
    columns = ("topic", "partition", "flaw", "object", "position", "what")
    rows = [
        (*(item.log or ()), str(item.kind), item.place, item.position, item.text)
        for item in (*report.wrong, *report.orphans)
    ]  # fmt: skip
    if rows or job.output.as_json:
        job.output.table("what was found", columns, rows)
    summary = {"logs": report.logs, "segments": report.segments, "bytes": report.size_bytes}
    job.summary({**summary, "wrong": len(report.wrong), "orphans": len(report.orphans)})
    return 0 if report.ok else 1


@spark.command("stats")
@source_options
@topics_option
@choice_option("--isolation", "Isolation level of the read.", "read_uncommitted", "read_committed", "log_end")
@click.option(
    "--picture", type=click.Path(dir_okay=False, path_type=Path),
    help="Write a chart of the result to this file, as SVG.",
)  # fmt: skip
@job_options
def stats_command(
    job: Job, source: ReadSource, topics: Sequence[str] | None, isolation: str, picture: Path | None
) -> int:
    """Count the records, bytes and keys of each partition.

    The command also shows the time range of each partition. The number of keys is an estimate with a standard error of
    1.6 %. Records in corrupt batches are not counted. The exit code is 1 if corrupt batches were found.
    """
    with job.start("counting") as (session, progress):
        all_stats = jobs.stats(session, source, topics=topics, isolation=isolation, progress=progress)
    rows = [partition.row() for partition in all_stats]
    columns = list(rows[0]) if rows else ["topic", "partition", "records"]
    job.output.table("partitions", columns, [list(row.values()) for row in rows])
    if picture is not None:
        from stratalog_spark.jobs.stats_chart import stats_chart  # noqa: PLC0415 - needs Spark

        picture.write_text(stats_chart(all_stats, f"Topics of {source.location}"), encoding="utf-8")
        job.output.note(f"the chart is in {picture}")
    return 1 if any(partition.damaged for partition in all_stats) else 0


@spark.command("export")
@source_options
@click.argument("destination")
@topics_option
@choice_option(
    "--schema", "Keep values as bytes (raw), or parse them into columns (json, avro).", "raw", "json", "avro"
)
@click.option(
    "--fields", metavar="DDL",
    help="Fields for --schema json, such as 'user string, amount double'. Default: inferred from 1,000 records.",
)  # fmt: skip
@click.option(
    "--avro-schema", "avro", multiple=True, metavar="[NUMBER=]FILE",
    help="File with an Avro writer schema; can be repeated. If values begin with the schema's id in the schema "
    "registry, add this id as NUMBER.",
)  # fmt: skip
@choice_option("--partition-by", "Time period (UTC) for which there is one output folder.", "date", "hour", "none")
@choice_option("--compression", "Compression of the Parquet files.", "zstd", "snappy", "gzip", "lz4", "none")
@choice_option("--isolation", "Isolation level of the exported records.", "read_committed", "read_uncommitted")
@click.option("--allow-loss", is_flag=True, help="Continue even if records were deleted before they were exported.")
@pairs_option("--option", "options", "Storage option of DESTINATION (fsspec)")
@click.option(
    "--iceberg", metavar="CATALOG.NAMESPACE.TABLE",
    help="Also add the files to this Iceberg table. The configuration of pyiceberg defines the catalog.",
)  # fmt: skip
@job_options
def export_command(
    job: Job,
    source: ReadSource,
    destination: str,
    avro: tuple[str, ...],
    fields: str | None,
    iceberg: str | None,
    *,
    allow_loss: bool,
    **arguments: Any,
) -> int:
    """Write new records of topics as Parquet, each record exactly once.

    DESTINATION is a folder or a URI. Each run adds the records that were written since the previous run, and stores its
    end offsets in DESTINATION.
    """
    avro_schemas = dict(_avro_schema(text) for text in avro)
    with job.start("exporting", counts_bytes=True) as (session, progress):
        from stratalog_spark.parquet.values import ddl_fields  # noqa: PLC0415 - needs Spark

        report = jobs.export(
            session,
            source,
            destination,
            fields=None if fields is None else ddl_fields(fields),
            avro_schemas=avro_schemas or None,
            fail_on_loss=not allow_loss,
            iceberg=None if iceberg is None else jobs.IcebergTable(iceberg, {}),
            progress=progress,
            **arguments,
        )
    columns = ("topic", "partition", "exported_to")
    job.output.table(
        destination, columns, [(name.topic, name.partition, end) for name, end in sorted(report.ends.items())]
    )
    summary = {"run": report.run, "resumed": report.resumed, "rows": report.rows, "files": len(report.files)}
    job.summary({**summary, "bytes": report.size_bytes, "malformed": report.malformed, "lost": report.lost})
    return 0


def _avro_schema(text: str) -> tuple[int | None, object]:
    number, equals, path = text.partition("=")
    if not equals or not number.isdecimal():
        number, path = "", text
    try:
        return int(number) if number else None, json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"--avro-schema {path} is not valid JSON: {error}") from None


@spark.command("import")
@click.argument("source")
@click.argument("target")
@topics_option
@pairs_option("--name", "names", "Import TOPIC under another name", "TOPIC=NAME")
@pairs_option("--set", "settings", "Setting of the topics that the command creates", "KEY=VALUE")
@pairs_option("--option", "options", "Storage option of SOURCE (fsspec)")
@config_option
@tier_option
@take_over_option
@job_options
def import_command(
    job: Job,
    source: str,
    target: str,
    settings: dict[str, str],
    config: str | None,
    tier_options: Mapping[str, object],
    *,
    take_over: bool,
    **arguments: Any,
) -> int:
    """Import the records that `export` wrote, each record exactly once.

    SOURCE is the DESTINATION of `export`. TARGET is a log directory that no engine uses, or the URI of a tier. Each run
    imports the records that were exported since the previous run.
    """
    with job.start("importing", counts_bytes=True) as (session, progress):
        from stratalog.writing import WriteTarget  # noqa: PLC0415 - 0.2 s

        report = jobs.import_topics(
            session,
            source,
            WriteTarget(target, tier_options=tier_options, config=settings_contents(config), take_over=take_over),
            config=settings,
            progress=progress,
            **arguments,
        )
    rows = [
        (published.log.topic, published.log.partition, published.base_offset, published.end_offset, published.duplicate)
        for published in report.published
    ]
    job.output.table(target, ("topic", "partition", "from_offset", "to_offset", "was_there"), rows)
    job.summary({"rows": report.rows})
    return 0


# --- jobs that rewrite segments of a tier ---------------------------------------------------------------------------


@spark.command("compact")
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
        {"before": report.records_before, "after": report.records_after, "shuffled_bytes": report.shuffled_bytes}
    )
    return 0


@spark.command("erase")
@source_options
@topics_option
@click.option("--key", "keys", multiple=True, help="Key as text; can be repeated.")
@click.option("--key-hex", "hex_keys", multiple=True, help="Key as hexadecimal digits; can be repeated.")
@click.option(
    "--keys-from", type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="File with one key per line, as text.",
)  # fmt: skip
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
    except ValueError:
        raise ConfigError(f"--key-hex {text!r}: use two hexadecimal digits for each byte of the key") from None


@spark.command("convert")
@source_options
@topics_required
@click.option(
    "--compression", type=click.Choice(["uncompressed", "gzip", "snappy", "lz4", "zstd"]),
    help="Codec of the batches. Control batches, and some batches that compaction has changed, keep their codec. "
    "Default: all batches in the current record format keep their codec.",
)  # fmt: skip
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


@spark.command("merge")
@source_options
@topics_option
@click.option(
    "--segment-bytes", type=click.IntRange(min=1), default=128 << 20, show_default=True,
    help="Maximum size of a new segment. If the topic's segment.bytes is smaller, it is the limit.",
)  # fmt: skip
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
