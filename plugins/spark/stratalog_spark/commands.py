"""``stratalog spark``: the jobs on the command line. Spark is imported when a job begins, not before."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from stratalog.errors import ConfigError, PluginImportError, StorageError
from stratalog.reading import ReadSource
from stratalog.spi import CommandOutput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Function = TypeVar("Function", bound=Callable[..., Any])
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")


class SparkStartError(StorageError):
    """There is no Spark where the job was to run: look at --master, and at what Java says."""


def _quiet() -> dict[str, str]:
    """Settings with which only what is wrong is printed beside the job's own progress."""
    return {
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
    }


@dataclass(frozen=True, slots=True)
class Job:
    """Where a job runs, and what it prints with."""

    output: CommandOutput
    master: str
    settings: dict[str, str] = field(repr=False)

    @contextmanager
    def session(self) -> Iterator[SparkSession]:
        """A session, which ends with the job."""
        try:
            from stratalog_spark.session import open_session  # noqa: PLC0415 - an extra, and 1 s
        except ImportError as error:
            raise PluginImportError(str(error), "spark", "stratalog[spark]") from error

        from pyspark.errors import PySparkException  # noqa: PLC0415 - the same

        self.output.note(f"starting Spark on {self.master}")
        try:
            session = open_session(self.master, {**_quiet(), **self.settings})
        except PySparkException as error:
            raise SparkStartError(f"Spark cannot be started on {self.master}: {error}") from error
        try:
            yield session
        finally:
            session.stop()

    @contextmanager
    def progress(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """A bar of the tasks that are done."""
        with self.output.progress(what, 0) as steps:
            told = [0, 0]

            def tell(done: int, total: int) -> None:
                steps.add(total - told[1])
                steps.advance(done - told[0])
                told[:] = done, total

            yield tell


def job_options(function: Function) -> Function:
    """``--master``, ``--conf``, ``--json``: handed to the command as ``job``."""

    def wrapped(*args: object, master: str, conf: tuple[str, ...], as_json: bool, **others: object) -> object:
        output = click.get_current_context().obj(as_json=as_json)
        return function(*args, job=Job(output, master, dict(_pairs("--conf", conf))), **others)

    wrapped.__name__, wrapped.__doc__ = function.__name__, function.__doc__
    wrapped.__dict__.update(function.__dict__)
    for option in (
        click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for machines."),
        click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark; can be repeated."),
        click.option(
            "--master",
            default="local[*, 4]",
            show_default=True,
            help="Where it runs: local[CORES, FAILURES], spark://HOST:PORT, yarn, k8s://..., or sc://HOST for Spark Connect.",
        ),
    ):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]  # click's decorators keep the signature that click calls


def source_options(function: Function) -> Function:
    """``SOURCE`` and how to open it: handed to the command as ``source``."""

    def wrapped(
        *args: object,
        location: str,
        tier: str | None,
        tier_options: tuple[str, ...],
        config: str | None,
        **others: object,
    ) -> object:
        options = dict(_pairs("--tier-option", tier_options))
        source = ReadSource(location, tier=tier, tier_options=options, config=config)
        return function(*args, source=source, **others)

    wrapped.__name__, wrapped.__doc__ = function.__name__, function.__doc__
    wrapped.__dict__.update(function.__dict__)
    for option in (
        click.option("--config", type=click.Path(dir_okay=False), help="A stratalog.toml with settings."),
        click.option(
            "--tier-option",
            "tier_options",
            multiple=True,
            metavar="NAME=VALUE",
            help="For the library that talks to the store; can be repeated. Others see what stands here: leave secrets to the environment.",
        ),
        click.option("--tier", metavar="URI", help="The object store behind a directory."),
        click.argument("location", metavar="SOURCE"),
    ):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]  # the same


def topics_option(function: Function) -> Function:
    """``--topic``, repeated: handed to the command as ``topics``, None if not given."""
    option = click.option("--topic", "-t", "topics", multiple=True, help="Only this topic; can be repeated.")
    return option(function)


def _pairs(option: str, texts: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"{option} {text!r} is not of the form NAME=VALUE")
        yield name.strip(), value


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
                options=dict(_pairs("--option", options)),
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
