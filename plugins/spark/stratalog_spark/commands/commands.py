"""Commands of ``stratalog spark`` that read, export and import topics.

Spark is imported when a job begins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click

import stratalog_spark as jobs
from stratalog.errors import ConfigError
from stratalog.reading import ReadSource
from stratalog.spi import config_option, tier_option
from stratalog.spi.commands import settings_contents
from stratalog_spark.commands.command_options import (
    Job,
    job_options,
    pairs,
    source_options,
    take_over_option,
    topics_option,
)
from stratalog_spark.commands.replacing_commands import compact_command, convert_command, erase_command, merge_command


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
def verify_command(job: Job, source: ReadSource, topics: tuple[str, ...], *, shallow: bool) -> int:
    """Check every CRC and hash of a tier, in parallel.

    The exit code is 1 if a problem was found.
    """
    with job.start("checking") as (session, progress):
        report = jobs.verify(session, source, topics=topics or None, deep=not shallow, progress=progress)
    columns = ("topic", "partition", "flaw", "object", "position", "what")
    rows = [
        (*(item.log or ()), str(item.kind), item.place, item.position, item.text)
        for item in (*report.wrong, *report.orphans)
    ]  # fmt: skip
    if rows or job.output.as_json:
        job.output.table("what was found", columns, rows)
    summary = {
        "logs": report.logs,
        "segments": report.segments,
        "bytes": report.size_bytes,
        "wrong": len(report.wrong),
        "orphans": len(report.orphans),
    }
    job.summary(summary)
    return 0 if report.ok else 1


@spark.command("stats")
@source_options
@topics_option
@click.option(
    "--isolation",
    type=click.Choice(["read_uncommitted", "read_committed", "log_end"]),
    default="read_uncommitted",
    show_default=True,
    help="Isolation level of the read.",
)
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a chart of the result to this file, as SVG.",
)
@job_options
def stats_command(job: Job, source: ReadSource, topics: tuple[str, ...], isolation: str, picture: Path | None) -> int:
    """Count the records, bytes and keys of each partition.

    The command also shows the time range of each partition. The number of keys is an estimate with a standard error of
    1.6 %. Records in corrupt batches are not counted. The exit code is 1 if corrupt batches were found.
    """
    with job.start("counting") as (session, progress):
        all_stats = jobs.stats(session, source, topics=topics or None, isolation=isolation, progress=progress)
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
@click.option(
    "--schema",
    type=click.Choice(["raw", "json", "avro"]),
    default="raw",
    show_default=True,
    help="Keep values as bytes (raw), or parse them into columns (json, avro).",
)
@click.option(
    "--fields",
    metavar="DDL",
    help="Fields for --schema json, such as 'user string, amount double'. Default: inferred from 1,000 records.",
)
@click.option(
    "--avro-schema",
    "avro",
    multiple=True,
    metavar="[NUMBER=]FILE",
    help="File with an Avro writer schema; can be repeated. If values begin with the schema's id in the schema "
    "registry, add this id as NUMBER.",
)
@click.option(
    "--partition-by",
    type=click.Choice(["date", "hour", "none"]),
    default="date",
    show_default=True,
    help="Time period (UTC) for which there is one output folder.",
)
@click.option(
    "--compression",
    type=click.Choice(["zstd", "snappy", "gzip", "lz4", "none"]),
    default="zstd",
    show_default=True,
    help="Compression of the Parquet files.",
)
@click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="Isolation level of the exported records.",
)
@click.option("--allow-loss", is_flag=True, help="Continue even if records were deleted before they were exported.")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Storage option of DESTINATION (fsspec); can be repeated.",
)
@click.option(
    "--iceberg",
    metavar="CATALOG.NAMESPACE.TABLE",
    help="Also add the files to this Iceberg table. The configuration of pyiceberg defines the catalog.",
)
@job_options
def export_command(
    job: Job,
    source: ReadSource,
    destination: str,
    topics: tuple[str, ...],
    avro: tuple[str, ...],
    fields: str | None,
    options: tuple[str, ...],
    iceberg: str | None,
    *,
    allow_loss: bool,
    **export_options: str,
) -> int:
    """Write new records of topics as Parquet, each record exactly once.

    DESTINATION is a folder or a URI. Each run adds the records that were written since the previous run, and stores its
    end offsets in DESTINATION.
    """
    avro_schemas = dict(_avro_schema(text) for text in avro)
    with job.start_with_bytes("exporting") as (session, progress):
        from stratalog_spark.parquet.values import ddl_fields  # noqa: PLC0415 - needs Spark

        report = jobs.export(
            session,
            source,
            destination,
            topics=topics or None,
            fields=None if fields is None else ddl_fields(fields),
            avro_schemas=avro_schemas or None,
            fail_on_loss=not allow_loss,
            options=dict(pairs("--option", options)),
            iceberg=None if iceberg is None else jobs.IcebergTable(iceberg, {}),
            progress=progress,
            **export_options,
        )
    columns = ("topic", "partition", "exported_to")
    job.output.table(
        destination, columns, [(name.topic, name.partition, end) for name, end in sorted(report.ends.items())]
    )
    summary = {"run": report.run, "resumed": report.resumed, "rows": report.rows, "files": len(report.files)}
    job.summary({**summary, "bytes": report.size_bytes, "malformed": report.malformed, "lost": report.lost})
    return 0


@spark.command("import")
@click.argument("source")
@click.argument("target")
@topics_option
@click.option(
    "--name", "names", multiple=True, metavar="TOPIC=NAME", help="Import TOPIC under another name; can be repeated."
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Setting of the topics that the command creates; can be repeated.",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Storage option of SOURCE (fsspec); can be repeated.",
)
@config_option
@tier_option
@take_over_option
@job_options
def import_command(
    job: Job,
    source: str,
    target: str,
    topics: tuple[str, ...],
    names: tuple[str, ...],
    settings: tuple[str, ...],
    options: tuple[str, ...],
    config: str | None,
    tier_options: Mapping[str, object],
    *,
    take_over: bool,
) -> int:
    """Import the records that `export` wrote, each record exactly once.

    SOURCE is the DESTINATION of `export`. TARGET is a log directory that no engine uses, or the URI of a tier. Each run
    imports the records that were exported since the previous run.
    """
    with job.start_with_bytes("importing") as (session, progress):
        from stratalog.writing import WriteTarget  # noqa: PLC0415 - 0.2 s

        report = jobs.import_topics(
            session,
            source,
            WriteTarget(target, tier_options=tier_options, config=settings_contents(config), take_over=take_over),
            topics=topics or None,
            names=dict(pairs("--name", names)),
            config=dict(pairs("--set", settings)),
            options=dict(pairs("--option", options)),
            progress=progress,
        )
    rows = [
        (published.log.topic, published.log.partition, published.base_offset, published.end_offset, published.duplicate)
        for published in report.published
    ]
    job.output.table(target, ("topic", "partition", "from_offset", "to_offset", "was_there"), rows)
    job.summary({"rows": report.rows})
    return 0


for command in (compact_command, erase_command, convert_command, merge_command):
    spark.add_command(command)


def _avro_schema(text: str) -> tuple[int | None, object]:
    number, equals, path = text.partition("=")
    if not equals or not number.isdecimal():
        number, path = "", text
    try:
        return int(number) if number else None, json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"--avro-schema {path} is not valid JSON: {error}") from None
