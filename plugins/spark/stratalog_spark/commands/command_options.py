"""Options of several job commands, and the Spark session in which a job runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from stratalog import Progress
from stratalog.errors import ConfigError, PluginImportError, StorageError
from stratalog.reading import ReadSource
from stratalog.spi import CommandOutput, config_option, option_group, tier_option

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Command = TypeVar("Command", bound=Callable[..., Any])
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_QUIET: Final = {  # settings that reduce Spark's own output to warnings and errors
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
}


class SparkStartError(StorageError):
    """Spark cannot be started on the master of a job. Check --master and the messages of Java."""


@dataclass(frozen=True, slots=True)
class Job:
    """Output and Spark settings of one command. The settings can contain credentials."""

    output: CommandOutput
    master: str
    settings: dict[str, str] = field(repr=False)

    @contextmanager
    def start(self, label: str, *, counts_bytes: bool = False) -> Iterator[tuple[SparkSession, Progress]]:
        """Open a session and a progress bar, labelled ``label``. Stop the session at the end.

        Yield the session, and a function that updates the bar. Its arguments are the numbers of completed tasks and of
        all tasks, or of bytes if ``counts_bytes`` is True.

        Raises:
            PluginImportError: Spark is not installed.
            SparkStartError: Spark cannot be started.
        """
        open_bar = self.output.bytes_progress if counts_bytes else self._tasks_progress
        with self._session() as session, open_bar(label) as progress:
            yield session, progress

    def summary(self, values: Mapping[str, object]) -> None:
        """Print ``values``, the totals of the job by name, as the last line or as the last JSON object."""
        if self.output.as_json:
            self.output.item(values)
        else:
            self.output.line(", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in values.items()))

    @contextmanager
    def _session(self) -> Iterator[SparkSession]:
        try:
            from stratalog_spark.session import open_session  # noqa: PLC0415 - optional, and takes 1 s
        except ImportError as error:
            raise PluginImportError(str(error), "spark", "stratalog[spark]") from error

        from pyspark.errors import PySparkException  # noqa: PLC0415 - an optional dependency

        self.output.note(f"starting Spark on {self.master}")
        try:
            session = open_session(self.master, {**_QUIET, **self.settings})
        except PySparkException as error:
            raise SparkStartError(f"Spark cannot be started on {self.master}: {error}") from error
        try:
            yield session
        finally:
            session.stop()

    @contextmanager
    def _tasks_progress(self, label: str) -> Iterator[Progress]:
        with self.output.progress(label, 0) as steps:
            reported = [0, 0]

            def update(completed: int, total: int) -> None:
                steps.add(total - reported[1])
                steps.advance(completed - reported[0])
                reported[:] = completed, total

            yield update


def pairs_option(name: str, argument: str, help_text: str, metavar: str = "NAME=VALUE") -> Callable[[Command], Command]:
    """Return an option of the form ``NAME=VALUE`` that can be repeated: passed to the command as a dictionary.

    The command raises ConfigError for a text of another form.
    """

    def parse(_context: object, _parameter: object, texts: tuple[str, ...]) -> dict[str, str]:
        values: dict[str, str] = {}
        for text in texts:
            key, equals, value = text.partition("=")
            if not equals or not key:
                raise ConfigError(f"{name} {text!r} is not of the form NAME=VALUE")
            values[key.strip()] = value
        return values

    return click.option(
        name, argument, multiple=True, metavar=metavar, callback=parse, help=f"{help_text}; can be repeated."
    )


def choice_option(name: str, help_text: str, default: str, *others: str) -> Callable[[Command], Command]:
    """Return an option that accepts ``default`` and the other words."""
    return click.option(name, type=click.Choice([default, *others]), default=default, show_default=True, help=help_text)


def _job(*, master: str, conf: dict[str, str], as_json: bool) -> Job:
    return Job(click.get_current_context().obj(as_json=as_json), master, conf)


job_options = option_group(
    "job",
    _job,
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line."),
    pairs_option("--conf", "conf", "Spark setting"),
    click.option(
        "--master",
        default="local[*, 4]",
        show_default=True,
        help="Spark master: local[CORES, FAILURES], spark://HOST:PORT, yarn, k8s://..., or sc://HOST for Spark Connect.",
    ),
)
"""``--master``, ``--conf``, ``--json``: passed to the command as ``job``."""


def _source(*, location: str, tier: str | None, tier_options: Mapping[str, object], config: str | None) -> ReadSource:
    return ReadSource(location, tier=tier, tier_options=tier_options, config=config)


source_options = option_group(
    "source",
    _source,
    config_option,
    tier_option,
    click.option("--tier", metavar="URI", help="URI of the tier, if SOURCE is a log directory."),
    click.argument("location", metavar="SOURCE"),
)
"""The argument ``SOURCE``, ``--tier``, ``--tier-option`` and ``--config``: passed to the command as ``source``."""


topics_option = click.option(
    "--topic", "-t", "topics", multiple=True, callback=lambda _context, _parameter, topics: topics or None,
    help="Only this topic; can be repeated.",
)  # fmt: skip
"""``--topic``, which can be repeated: passed to the command as ``topics``; None, for all topics, if it is not given."""

topics_required = click.option(
    "--topic", "-t", "topics", multiple=True, required=True, help="Name of a topic; can be repeated."
)
"""``--topic`` as a required option, for commands that change data."""

take_over_option = click.option(
    "--take-over", is_flag=True,
    help="Use only after the previous writer has stopped. Starts a new leader epoch, which fences that writer.",
)  # fmt: skip
"""``--take-over``, for jobs that write to a tier."""


def memory_option(least_bytes: int) -> Callable[[Command], Command]:
    """Return the option ``--memory-bytes`` of a job whose tasks need at least ``least_bytes`` for keys."""
    return click.option(
        "--memory-bytes", type=click.IntRange(min=least_bytes), default=128 << 20, show_default=True,
        help="Approximate memory for keys in each task, in addition to its read and write buffers.",
    )  # fmt: skip
