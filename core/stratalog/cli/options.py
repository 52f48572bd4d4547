"""Options of several commands, and classes that open the engine, reader or tier that these options name."""

from __future__ import annotations

import dataclasses
import logging
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

import click

from stratalog.cli.output import Output
from stratalog.cli.parameters import MANY, NamedPath
from stratalog.config.settings_sources import Settings, read_settings
from stratalog.engine.engine import Engine
from stratalog.engine.open_engine import engine_settings, open_settled_engine
from stratalog.errors import ConfigError, DiskFullError, LogDirNotFoundError
from stratalog.log.folder.directory_state import DIRECTORY_FILES
from stratalog.model.names import TopicPartition, parse_partition_folder, parse_segment_file, unknown_topic
from stratalog.reading.open_reader import open_host, open_settled, open_tier
from stratalog.reading.reader import Reader
from stratalog.spi.commands import CommandFunction, config_option, option_group, tier_option
from stratalog.tier.tier import Tier
from stratalog.tier.tier_log import TierLog

_OF_DISKS: Final = frozenset({"lost+found"})  # folders of an empty file system
_LOGGER: Final = logging.getLogger(__name__)


def check_directory(path: Path) -> None:
    """Raise LogDirNotFoundError if ``path`` is not a directory."""
    if not path.is_dir():
        raise LogDirNotFoundError("this is not a directory" if path.exists() else "no such directory", str(path))


def check_no_other_files(directory: str) -> None:
    """Raise LogDirNotFoundError if a directory is not empty, and contains only files of other programs.

    The folder of a single log is not an error here, because the engine raises a better error for it.
    """
    try:
        names = {entry.name for entry in Path(directory.removeprefix("file://")).iterdir()} - _OF_DISKS
    except OSError:
        return  # the engine reports it
    if (
        names
        and names.isdisjoint(DIRECTORY_FILES)
        and not any(parse_partition_folder(name) or parse_segment_file(name) for name in names)
    ):
        raise LogDirNotFoundError("the directory contains other files, and no logs", directory).advised(
            "correct the path; an engine begins in an empty directory"
        )


def check_log_directories(directories: Sequence[str], settings: Settings) -> None:
    """Call ``check_no_other_files`` for the directories of the options, or of the settings if the options name none.

    Raise ConfigError if neither the options nor the settings name a log directory.
    """
    if not (directories or settings.engine.log_dirs):
        raise ConfigError("no log directory is named: add --dir DIRECTORY, or set log.dirs in the settings file")
    for directory in directories or settings.engine.log_dirs:
        check_no_other_files(directory)


def check_tier(engine: Engine) -> None:
    """Raise ConfigError if the engine has no tier."""
    if engine.tier is None:
        raise ConfigError("no tier is configured: add --tier URI, or set tier in the settings file")


def confirm(question: str) -> None:
    """Ask for a confirmation; raise ClickException if the answer is no.

    If standard input is at its end, for example in a script, raise a UsageError that names ``--yes``.
    """
    try:
        is_confirmed = click.confirm(question, err=True)
    except click.Abort as abort:
        if not isinstance(abort.__context__, EOFError):
            raise
        click.echo(err=True)  # ends the line of the question
        raise click.UsageError("no answer on standard input: add --yes to delete without confirmation") from None
    if not is_confirmed:
        raise click.ClickException("nothing was deleted")


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Values of the options ``--dir``, ``--tier``, ``--config`` and ``--tier-option``, which name the logs."""

    directories: tuple[str, ...]
    tier: str | None
    config: str | None
    tier_options: Mapping[str, object] = field(default_factory=dict, repr=False)

    def engine(self, more_services: Sequence[str] = ()) -> AbstractContextManager[Engine]:
        """Return a context manager that opens an engine on existing directories, and closes it.

        Raise LogDirNotFoundError if a directory is missing. In all other respects, this method is ``new_engine``.
        """
        for directory in self.directories or self.settings().engine.log_dirs:
            path = Path(directory)
            if not path.exists():
                raise LogDirNotFoundError("no such directory", directory).advised(
                    f"correct the path, or begin a log directory with mkdir {shlex.quote(directory)}"
                )
            check_directory(path)
        return self.new_engine(more_services)

    @contextmanager
    def new_engine(self, more_services: Sequence[str] = ()) -> Iterator[Engine]:
        """Return a context manager that opens an engine, creates missing directories, and closes the engine.

        The engine has the services of the settings and ``more_services``. If a full disk prevents a clean shutdown,
        only a warning is logged: no data is lost, and the next start recovers the logs.

        Raise LogDirNotFoundError if a directory contains only files of other programs.
        """
        configured = self.settings()
        check_log_directories(self.directories, configured)
        self._check_options(self.tier or configured.engine.tier)
        settings = engine_settings(self.directories or None, self.tier, self.config)
        services = dict.fromkeys((*settings.engine.services, *more_services))
        settings = dataclasses.replace(settings, engine=dataclasses.replace(settings.engine, services=tuple(services)))
        engine = open_settled_engine(settings, tier_options=self.tier_options)
        try:
            yield engine
        finally:
            try:
                engine.close()
            except DiskFullError as error:
                _LOGGER.warning("the engine did not stop cleanly; the next start recovers its logs: %s", error)

    def reader(self, *, allow_offline: bool = False) -> Reader:
        """Open a reader of the directories and of their tier, or of the tier alone if there are no directories.

        If the options name no tier, the tier of the settings is used. If the options name neither a directory nor a
        tier, the directories of the settings are used. ``allow_offline`` is passed to ``open_settled``. Raise
        ConfigError if neither the options nor the settings name a directory or a tier.
        """
        settings = self.settings()
        tier = self.tier or settings.engine.tier
        self._check_options(tier)
        directories = self.directories or (() if self.tier else settings.engine.log_dirs)
        if directories:
            first_directory, *further_directories = directories
            return open_settled(
                first_directory,
                settings,
                tier=tier,
                tier_options=self.tier_options,
                allow_offline=allow_offline,
                other_paths=further_directories,
            )
        if tier is None:
            raise ConfigError("no logs are named: add --dir DIRECTORY, --tier URI, or both")
        return TierPlace(tier, self.config, self.tier_options).reader()

    def settings(self) -> Settings:
        """Return the settings of ``--config`` and of the environment. Raises the errors of ``read_settings``."""
        return read_settings(self.config, os.environ)

    def _check_options(self, tier: str | None) -> None:
        if self.tier_options and tier is None and not any("://" in place for place in self.directories):
            raise ConfigError("--tier-option needs a tier: add --tier URI")


@dataclass(frozen=True, slots=True)
class TierPlace:
    """Values of the argument ``URI`` and the options ``--config`` and ``--tier-option``, which name a tier."""

    uri: str
    config: str | None
    tier_options: Mapping[str, object] = field(default_factory=dict, repr=False)

    def settings(self) -> Settings:
        """Return the settings of ``--config`` and of the environment. Raises the errors of ``read_settings``."""
        return read_settings(self.config, os.environ)

    @contextmanager
    def open_tier(self, *, read_only: bool) -> Iterator[Tier]:
        """Return a context manager that opens the tier without reader or engine, yields the tier, and closes it."""
        with (
            open_host(self.settings()) as host,
            open_tier(host, self.uri, self.tier_options, read_only=read_only) as tier,
        ):
            yield tier

    def check_uri(self) -> None:
        """Raise ConfigError if ``uri`` is not a URI."""
        if "://" not in self.uri:
            raise ConfigError(f"tier {self.uri!r} is not a URI: use a form like s3://bucket/prefix or file:///folder")

    def check_logs(self) -> None:
        """Raise ConfigError if the tier has no logs, for example because the URI has a wrong prefix."""
        with self.open_tier(read_only=True) as tier:
            if not tier.logs():
                raise self.no_logs_error()

    def no_logs_error(self) -> ConfigError:
        """Return the error for a tier without logs."""
        return ConfigError(
            f"there are no logs in {self.uri}: correct the URI, or if the manifests of the tier are lost, run "
            f"stratalog rebuild {shlex.quote(self.uri)}"
        )

    def reader(self) -> Reader:
        """Open a reader of the tier alone; raise ConfigError if ``uri`` is not a URI."""
        self.check_uri()
        return open_settled(self.uri, self.settings(), tier_options=self.tier_options)


def directories_option(description: str, *, exists: bool = False) -> Callable[[CommandFunction], CommandFunction]:
    """Return the repeatable option ``--dir``. Its values are passed to the command as ``directories``."""
    return click.option("--dir", "-d", "directories", multiple=True, type=NamedPath(exists=exists), help=description)


def place_options_with(directory_help: str) -> Callable[[CommandFunction], CommandFunction]:
    """Return ``place_options`` with another help text of ``--dir``."""
    return option_group(
        "place",
        LogPlace,
        config_option,
        tier_option,
        click.option("--tier", metavar="URI", help="URI of the tier, such as s3://bucket/prefix."),
        directories_option(directory_help),
    )


place_options = place_options_with("A log directory; can be repeated.")
"""``--dir``, ``--tier``, ``--tier-option``, ``--config``: passed to the command as ``place``."""


view_options = option_group(
    "place",
    lambda location, tier, config, tier_options: LogPlace((location,), tier, config, tier_options),
    config_option,
    tier_option,
    click.option("--tier", metavar="URI", help="URI of the tier behind a directory."),
    click.argument("location", metavar="PATH|URI", type=NamedPath()),
)
"""The argument ``PATH|URI``, ``--tier``, ``--tier-option`` and ``--config``: passed to the command as ``place``."""


@dataclass(frozen=True, slots=True)
class NamedDirectories:
    """Log directories that a command gets as arguments ``DIR`` or as options ``--dir``."""

    arguments: tuple[str, ...]
    options: tuple[str, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """All directories, first the arguments and then the options. Raises UsageError if there are none."""
        if not (self.arguments or self.options):
            raise click.UsageError("no log directory is named: give DIR")
        return (*self.arguments, *self.options)

    @property
    def path(self) -> str:
        """The directory of a command that writes to one directory. Raises UsageError if there are none or several."""
        first_path, *further_paths = self.paths
        if further_paths:
            raise click.UsageError(
                f"the command writes to one log directory, and several are named: {first_path} {further_paths[0]}"
            )
        return first_path


def directory_options(metavar: str, described: str) -> Callable[[CommandFunction], CommandFunction]:
    """Return the arguments ``DIR`` and the option ``--dir``, passed to the command as ``directories``."""
    return option_group(
        "directories",
        NamedDirectories,
        click.option("--dir", "-d", "options", multiple=True, type=NamedPath(), help=described),
        click.argument("arguments", metavar=metavar, nargs=-1, type=NamedPath()),
    )


uri_options = option_group("place", TierPlace, config_option, tier_option, click.argument("uri"))
"""The argument ``URI``, ``--tier-option`` and ``--config``: passed to the command as ``place``."""


location_options = option_group(
    "place", TierPlace, config_option, tier_option, click.argument("uri", metavar="PATH|URI", type=NamedPath())
)
"""The argument ``PATH|URI``, ``--tier-option`` and ``--config``: passed to the command as ``place``."""


json_option = option_group(
    "output", Output, click.option("--json", "-J", "as_json", is_flag=True, help="Print one JSON object per line.")
)
"""``--json``: passed to the command as ``output``."""


def count_option(results: str) -> Callable[[CommandFunction], CommandFunction]:
    """Return the option ``--count``, passed to the command as ``limit``: the maximum number of results."""
    return click.option("--count", "-c", "limit", type=MANY, metavar="N", help=f"Stop after N {results}.")


def choice_option(name: str, choices: type[StrEnum], default: StrEnum) -> Callable[[CommandFunction], CommandFunction]:
    """Return an option that accepts the values of an enum; ``click.Choice`` of an enum would accept the names."""
    words = click.Choice([choice.value for choice in choices])
    return click.option(name, type=words, default=default.value)


topics_option = click.option("--topic", "topics", multiple=True, help="Only this topic; can be repeated.")
"""``--topic``, which can be repeated: passed to the command as ``topics``."""


partition_option = click.option("--partition", "-p", type=click.IntRange(0), help="Only this partition.")
"""``--partition``: passed to the command as ``partition``; None means all partitions of the topic."""


def tier_logs(reader: Reader, topic: str | None, partition: int | None) -> list[TierLog]:
    """Return the logs of the reader's tier, filtered by ``topic`` and ``partition``; None does not filter.

    The reader must have a tier. If the tier has several topics with the same name, the logs of all of them are
    returned. Raise UnknownTopicError if ``topic`` is given, and the tier has no such log.
    """
    assert reader.tier is not None
    names = [
        name
        for name in reader.tier.logs()
        if topic in {None, name.log.topic} and partition in {None, name.log.partition}
    ]
    if topic is not None and not names:
        requested = topic if partition is None else TopicPartition(topic, partition)
        raise unknown_topic(requested, (name.log for name in reader.tier.logs()), reader.tier.uri)
    return [reader.tier.log(*name) for name in names]
