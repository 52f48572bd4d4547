"""Options that several commands share, and what they open."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import click

from stratalog.cli.output import Output
from stratalog.config.keys import LONG_MAX
from stratalog.config.settings_sources import Settings, read_settings
from stratalog.engine.engine import Engine
from stratalog.engine.open_engine import open_engine
from stratalog.errors import ConfigError, DiskFullError, UnknownTopicError
from stratalog.model.names import TopicPartition
from stratalog.reading.open_reader import open_host, open_settled, open_tier
from stratalog.reading.reader import Reader
from stratalog.spi.commands import CommandFunction, config_option, taken_together, tier_option
from stratalog.tier.tier import Tier, TierLogName
from stratalog.tier.tier_log import TierLog

_LOGGER: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the logs are, as the options say."""

    directories: tuple[str, ...]
    tier: str | None
    config: str | None
    tier_options: Mapping[str, object] = field(default_factory=dict, repr=False)

    def engine(self) -> AbstractContextManager[Engine]:
        """An engine over the directories, as ``new_engine``."""
        for directory in self.directories or self.settings().engine.log_dirs:
            if not Path(directory).is_dir():
                raise ConfigError(f"there is no directory {directory}: make it, or create a topic in it")
        return self.new_engine()

    @contextmanager
    def new_engine(self) -> Iterator[Engine]:
        """An engine; directories that are missing are made.

        On a full disk it may not stop in order. Nothing is lost by that, and what a command found is what is to be told.
        """
        self._check_options(self.tier or self.settings().engine.tier)
        engine = open_engine(
            self.directories or None, tier=self.tier, tier_options=self.tier_options, config=self.config
        )
        try:
            yield engine
        finally:
            try:
                engine.close()
            except DiskFullError as error:
                _LOGGER.warning("not stopped in order, so the next start recovers: %s", error)

    def reader(self, *, may_be_away: bool = False) -> Reader:
        """A reader over the directories, and the tier behind them; over the tier alone if that is all that is named.

        What is not named is taken from the settings, as an engine does. ``may_be_away`` as of ``open_settled``.
        """
        known = self.settings()
        tier = self.tier or known.engine.tier
        self._check_options(tier)
        directories = self.directories or (() if self.tier else known.engine.log_dirs)
        if directories:
            first, *others = directories
            return open_settled(
                first, known, tier=tier, tier_options=self.tier_options, may_be_away=may_be_away, others=others
            )
        if tier is None:
            raise ConfigError("say where the logs are: --dir DIRECTORY, --tier URI, or both")
        return TierPlace(tier, self.config, self.tier_options).reader()

    def settings(self) -> Settings:
        """The settings that hold for the command."""
        return read_settings(self.config, os.environ)

    def _check_options(self, tier: str | None) -> None:
        if self.tier_options and tier is None:
            raise ConfigError("--tier-option is for the store of a tier: name the tier with --tier URI")


@dataclass(frozen=True, slots=True)
class TierPlace:
    """The tier that a command works on, as its argument and options say."""

    uri: str
    config: str | None
    tier_options: Mapping[str, object] = field(default_factory=dict, repr=False)

    def settings(self) -> Settings:
        """The settings that hold for the command."""
        return read_settings(self.config, os.environ)

    @contextmanager
    def opened(self, *, read_only: bool) -> Iterator[Tier]:
        """The tier without a reader or an engine."""
        host = open_host(self.settings(), (), None)
        try:
            with open_tier(host, self.uri, self.tier_options, read_only=read_only) as tier:
                yield tier
        finally:
            host.close()

    def reader(self) -> Reader:
        """A reader of the tier alone."""
        if "://" not in self.uri:
            raise ConfigError(f"tier {self.uri!r} is no URI: s3://bucket/prefix or file:///folder are")
        return open_settled(self.uri, self.settings(), tier_options=self.tier_options)


class NamedPath(click.Path):
    """A path that is not empty: ``"$DIR"`` of a variable that is not set would be the folder one is in."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As ``click.Path``."""
        if value == "":
            self.fail("the path is empty; the folder you are in is '.'", param, ctx)
        return super().convert(value, param, ctx)  # type: ignore[arg-type]  # click says what it takes, and checks it


place_options = taken_together(
    "place",
    Place,
    config_option,
    tier_option,
    click.option("--tier", metavar="URI", help="The object store behind the logs: s3://bucket/prefix."),
    click.option(
        "--dir", "-d", "directories", multiple=True, type=NamedPath(), help="A log directory; can be repeated."
    ),
)
"""``--dir``, ``--tier``, ``--tier-option``, ``--config``: handed to the command as ``place``."""


uri_options = taken_together("place", TierPlace, config_option, tier_option, click.argument("uri"))
"""The argument ``URI``, ``--tier-option`` and ``--config``: handed to the command as ``place``."""


json_option = taken_together(
    "output", Output, click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for machines.")
)
"""``--json``: handed to the command as ``output``."""


def choice_option(name: str, choices: type[StrEnum], default: StrEnum) -> Callable[[CommandFunction], CommandFunction]:
    """An option with the words of an enum, as the library takes them: click by itself would ask for their names."""
    words = click.Choice([choice.value for choice in choices])
    return click.option(name, type=words, default=default.value, show_default=True)


MANY: Final = click.IntRange(1, LONG_MAX)
"""How many at the most, where that is all there are."""


def typed_bytes(text: str) -> bytes:
    """The bytes of an argument, as they were typed: a key need not be UTF-8."""
    return os.fsencode(text)


def partition_option(function: CommandFunction) -> CommandFunction:
    """``--partition``: all of the topic's if it is not given."""
    return click.option("--partition", "-p", type=click.IntRange(0), help="One partition; all if not given.")(function)


def tier_logs(reader: Reader, topic: str | None, partition: int | None) -> list[TierLog]:
    """The logs of the tier that a reader was opened on: all, those of a topic, or one; UnknownTopicError if there is none."""
    assert reader.tier is not None
    names = [
        found
        for found in reader.tier.logs()
        if topic in {None, found.log.topic} and partition in {None, found.log.partition}
    ]
    if topic is not None and not names:
        wanted = topic if partition is None else TopicPartition(topic, partition)
        raise UnknownTopicError(f"there is no {wanted} in {reader.tier.uri}")
    return [reader.tier.log(*found) for found in names]


def check_topics(wanted: Iterable[str], names: Iterable[TierLogName], uri: str) -> None:
    """Raise UnknownTopicError if a topic that somebody named is none of those in a tier."""
    unknown = set(wanted) - {name.log.topic for name in names}
    if unknown:
        raise UnknownTopicError(f"there is no topic {', '.join(sorted(unknown))} in {uri}")
