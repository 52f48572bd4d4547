"""``stratalog spark``: the jobs on the command line. Spark is imported when a job begins, not before."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from stratalog.errors import ConfigError
from stratalog.reading import ReadSource
from stratalog.spi import CommandOutput
from stratalog_spark.command_options import Job, job_options, pairs, replacing_options, source_options, topics_option

if TYPE_CHECKING:
    from stratalog_spark.jobs.runs import Replaced


@click.group()
def spark() -> None:
    """Jobs on Spark: look at, check and move whole topics, with no broker.

    SOURCE is a log directory (of an engine, or of a Kafka broker) or the URI of a tier.
    """


@spark.command("verify")
@source_options
@topics_option
@click.option("--shallow", is_flag=True, help="Do not read the records: only manifests, sizes and indexes.")
@job_options
def verify_command(job: Job, source: ReadSource, topics: tuple[str, ...], *, shallow: bool) -> int:
    """Check every CRC and hash of a tier, in parallel.

    The exit code is 1 if something is wrong.
    """
    with job.session() as session:
        from stratalog_spark.jobs.verify import verify  # noqa: PLC0415 - needs Spark

        with job.progress("checking") as progress:
            found = verify(session, source, topics=topics or None, deep=not shallow, progress=progress)
    columns = ("topic", "partition", "flaw", "object", "position", "what")
    rows = [
        (item.log.topic, item.log.partition, str(item.finding.flaw), item.finding.key, item.finding.position, item.finding.text)
        for item in (*found.wrong, *found.orphans)
    ]  # fmt: skip
    if rows or job.output.as_json:
        job.output.table("what was found", columns, rows)
    summary = {
        "logs": found.logs,
        "segments": found.segments,
        "bytes": found.size_bytes,
        "wrong": len(found.wrong),
        "orphans": len(found.orphans),
    }
    _summary(job.output, summary)
    return 0 if found.ok else 1


@spark.command("stats")
@source_options
@topics_option
@click.option(
    "--isolation",
    type=click.Choice(["read_uncommitted", "read_committed", "log_end"]),
    default="read_uncommitted",
    show_default=True,
    help="What is seen.",
)
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw it, as SVG, into this file.")
@job_options
def stats_command(job: Job, source: ReadSource, topics: tuple[str, ...], isolation: str, picture: Path | None) -> int:
    """Count records, bytes, keys and times of each partition.

    Keys are counted to within 1.6 % or so. The exit code is 1 if corrupt batches were found, which are left out.
    """
    with job.session() as session:
        from stratalog_spark.jobs.stats import stats  # noqa: PLC0415 - needs Spark

        with job.progress("counting") as progress:
            found = stats(session, source, topics=topics or None, isolation=isolation, progress=progress)
    rows = [each.row() for each in found]
    columns = list(rows[0]) if rows else ["topic", "partition", "records"]
    job.output.table("partitions", columns, [list(row.values()) for row in rows])
    if picture is not None:
        from stratalog_spark.jobs.picture import picture as drawn  # noqa: PLC0415 - needs Spark

        picture.write_text(drawn(found, f"Topics of {source.location}"), encoding="utf-8")
        job.output.note(f"the picture is {picture}")
    return 1 if any(each.damaged for each in found) else 0


@spark.command("export")
@source_options
@click.argument("destination")
@topics_option
@click.option(
    "--schema",
    type=click.Choice(["raw", "json", "avro"]),
    default="raw",
    show_default=True,
    help="How values are understood: as they are, or as columns.",
)
@click.option(
    "--fields", metavar="DDL", help="Of JSON: 'user string, amount double'. Guessed from 1,000 records if not given."
)
@click.option(
    "--avro-schema",
    "avro",
    multiple=True,
    metavar="[NUMBER=]FILE",
    help="A writer's schema; with its number in the registry where values begin with that. Can be repeated.",
)
@click.option(
    "--partition-by",
    type=click.Choice(["date", "hour", "none"]),
    default="date",
    show_default=True,
    help="Of folders, in UTC.",
)
@click.option(
    "--compression",
    type=click.Choice(["zstd", "snappy", "gzip", "lz4", "none"]),
    default="zstd",
    show_default=True,
    help="Of Parquet.",
)
@click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="What is exported.",
)
@click.option("--allow-loss", is_flag=True, help="Go on though records were deleted before they were exported.")
@click.option(
    "--option", "options", multiple=True, metavar="NAME=VALUE", help="For fsspec and DESTINATION; can be repeated."
)
@click.option(
    "--iceberg",
    metavar="CATALOG.NAMESPACE.TABLE",
    help="An Iceberg table of these files; pyiceberg's configuration knows the catalog.",
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
    **chosen: str,
) -> int:
    """Write what is new of topics as Parquet, each record exactly once.

    Run it again and again: DESTINATION, a folder or a URI, knows what it has.
    """
    written = dict(_avro_schema(text) for text in avro)
    with job.session() as session:
        from stratalog_spark.jobs.export import export  # noqa: PLC0415 - needs Spark
        from stratalog_spark.jobs.iceberg import IcebergTable  # noqa: PLC0415 - the same
        from stratalog_spark.jobs.values import ddl_fields  # noqa: PLC0415 - the same

        with job.progress("exporting") as progress:
            found = export(
                session,
                source,
                destination,
                topics=topics or None,
                fields=None if fields is None else ddl_fields(fields),
                avro_schemas=written or None,
                fail_on_loss=not allow_loss,
                options=dict(pairs("--option", options)),
                iceberg=None if iceberg is None else IcebergTable(iceberg, {}),
                progress=progress,
                **chosen,
            )
    columns = ("topic", "partition", "exported_to")
    job.output.table(
        destination, columns, [(name.topic, name.partition, end) for name, end in sorted(found.ends.items())]
    )
    summary = {"run": found.run, "resumed": found.resumed, "rows": found.rows, "files": len(found.files)}
    _summary(job.output, {**summary, "bytes": found.size_bytes, "malformed": found.malformed, "lost": found.lost})
    return 0


@spark.command("import")
@click.argument("source")
@click.argument("target")
@topics_option
@click.option("--name", "names", multiple=True, metavar="TOPIC=NAME", help="Another name for a topic; can be repeated.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Of topics that are made; can be repeated.")
@click.option(
    "--option", "options", multiple=True, metavar="NAME=VALUE", help="For fsspec and SOURCE; can be repeated."
)
@click.option("--config", type=click.Path(dir_okay=False), help="A stratalog.toml with settings.")
@replacing_options
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
    *,
    take_over: bool,
) -> int:
    """Make topics of what `export` wrote to SOURCE, each record exactly once.

    TARGET is a log directory whose engine does not run, or the URI of a tier. Run it again for what was exported since.
    """
    with job.session() as session:
        from stratalog.writing import WriteTarget  # noqa: PLC0415 - 0.2 s
        from stratalog_spark.jobs.imports import import_topics  # noqa: PLC0415 - needs Spark

        with job.progress("importing") as progress:
            found = import_topics(
                session,
                source,
                WriteTarget(target, config=config, take_over=take_over),
                topics=topics or None,
                names=dict(pairs("--name", names)),
                config=dict(pairs("--set", settings)),
                options=dict(pairs("--option", options)),
                progress=progress,
            )
    rows = [
        (each.log.topic, each.log.partition, each.base_offset, each.end_offset, each.duplicate)
        for each in found.published
    ]
    job.output.table(target, ("topic", "partition", "from_offset", "to_offset", "was_there"), rows)
    _summary(job.output, {"rows": found.rows})
    return 0


_topics_required: Final = click.option("--topic", "-t", "topics", multiple=True, required=True, help="Can be repeated.")


@spark.command("compact")
@source_options
@_topics_required
@click.option("--any-policy", is_flag=True, help="Though its cleanup.policy has no compact.")
@replacing_options
@job_options
def compact_command(job: Job, source: ReadSource, topics: tuple[str, ...], *, any_policy: bool, take_over: bool) -> int:
    """Keep the newest record of each key of whole topics in a tier, however many keys there are."""
    with job.session() as session:
        from stratalog_spark.jobs.compact import compact  # noqa: PLC0415 - needs Spark

        with job.progress("compacting") as progress:
            found = compact(
                session, source, topics=topics, any_policy=any_policy, take_over=take_over, progress=progress
            )
    _replaced(job.output, found.logs)
    _summary(
        job.output,
        {"before": found.records_before, "after": found.records_after, "shuffled_bytes": found.shuffled_bytes},
    )
    return 0


@spark.command("erase")
@source_options
@topics_option
@click.option("--key", "keys", multiple=True, help="As text; can be repeated.")
@click.option("--key-hex", "hex_keys", multiple=True, help="As hex digits; can be repeated.")
@click.option(
    "--keys-from",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="A file with a key a line, as text.",
)
@click.option("--dry-run", is_flag=True, help="Only tell what is there.")
@replacing_options
@job_options
def erase_command(
    job: Job,
    source: ReadSource,
    topics: tuple[str, ...],
    keys: tuple[str, ...],
    hex_keys: tuple[str, ...],
    keys_from: Path | None,
    *,
    dry_run: bool,
    take_over: bool,
) -> int:
    """Forget all records of some keys in a tier, over all history.

    Earlier states of the tier hold them until the collector takes these. The exit code of a dry run is 1 if it found some.
    """
    listed = [] if keys_from is None else keys_from.read_bytes().splitlines()
    wanted = [*(key.encode() for key in keys), *map(_unhexed, hex_keys), *listed]
    with job.session() as session:
        from stratalog_spark.jobs.erase import erase  # noqa: PLC0415 - needs Spark

        with job.progress("erasing") as progress:
            found = erase(
                session,
                source,
                wanted,
                topics=topics or None,
                dry_run=dry_run,
                take_over=take_over,
                progress=progress,
            )
    rows = [(log.topic, log.partition, count) for log, count in sorted(found.records.items())]
    job.output.table("records of these keys", ("topic", "partition", "records"), rows)
    _replaced(job.output, found.logs)
    _summary(
        job.output, {"records": sum(found.records.values()), "segments": found.segments, "replaced": len(found.logs)}
    )
    return 1 if dry_run and found.records else 0


def _unhexed(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise ConfigError(f"--key-hex {text!r}: {error}") from None


@spark.command("convert")
@source_options
@_topics_required
@click.option(
    "--compression",
    type=click.Choice(["uncompressed", "gzip", "snappy", "lz4", "zstd"]),
    help="Of all batches; else those of today's format stay as they are.",
)
@click.option("--layout", help="How segments are stored: single, plain, chunked, ...; else as the topic says.")
@replacing_options
@job_options
def convert_command(
    job: Job,
    source: ReadSource,
    topics: tuple[str, ...],
    compression: str | None,
    layout: str | None,
    *,
    take_over: bool,
) -> int:
    """Write segments of a tier anew: old formats as today's, in another codec, in another layout."""
    with job.session() as session:
        from stratalog_spark.jobs.convert import convert  # noqa: PLC0415 - needs Spark

        with job.progress("converting") as progress:
            found = convert(
                session,
                source,
                topics=topics,
                compression=compression,
                layout=layout,
                take_over=take_over,
                progress=progress,
            )
    _replaced(job.output, found.logs)
    return 0


def _replaced(output: CommandOutput, logs: Sequence[Replaced]) -> None:
    columns = ("topic", "partition", "records_before", "records_after", "bytes_before", "bytes_after", "segments_before", "segments_after")  # fmt: skip
    rows = [
        (
            each.log.topic,
            each.log.partition,
            each.records_before,
            each.records_after,
            each.bytes_before,
            each.bytes_after,
            each.segments_before,
            each.segments_after,
        )
        for each in logs
    ]
    if rows:
        output.table("what was replaced", columns, rows)


def _avro_schema(text: str) -> tuple[int | None, object]:
    number, equals, path = text.partition("=")
    if not equals or not number.isdecimal():
        number, path = "", text
    try:
        return int(number) if number else None, json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"--avro-schema {path}: no JSON: {error}") from None


def _summary(output: CommandOutput, values: Mapping[str, object]) -> None:
    if output.as_json:
        output.item(values)
    else:
        output.line(", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in values.items()))
