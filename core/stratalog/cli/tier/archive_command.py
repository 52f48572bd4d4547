"""``stratalog archive``: copy a Kafka broker's logs to a tier, without changing the broker's directory."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import click

from stratalog.cli.options import TierPlace, check_directory, json_option, uri_options
from stratalog.cli.output import Columns, Output, printable, size_text
from stratalog.cli.parameters import NamedPath, NumberRange
from stratalog.config.engine_settings import EngineConfig
from stratalog.config.settings_sources import Settings
from stratalog.config.topic import TopicConfig
from stratalog.engine.open_engine import check_tier_is_outside
from stratalog.env import Clock
from stratalog.env.rate_limit import CopyRate
from stratalog.errors import SegmentGoneError, StorageError, StoreError
from stratalog.log.folder.directory_state import check_log_directory
from stratalog.model.names import TopicPartition
from stratalog.reading.component_host import ComponentHost
from stratalog.reading.open_reader import open_host, open_tier
from stratalog.spi.segment_store import SegmentStore
from stratalog.tier.collect_all import TierCollection
from stratalog.tier.takeover.archive import ArchivedLog, ArchivePlan, Archiver

_TRIES: Final = 5  # maximum number of passes of a run without --follow, if the broker changes files during a pass
_AGAIN_MS: Final = 500
_COLUMNS: Final[Columns[ArchivedLog]] = {
    "topic": lambda result: result.log.topic,
    "partition": lambda result: result.log.partition,
    "segments": lambda result: result.segments,
    "bytes": lambda result: result.size_bytes,
    "tier_end_offset": lambda result: result.tier_end,
    "high_watermark": lambda result: result.high_watermark,
    "error": lambda result: "" if result.error is None else str(result.error),
}


def _pattern(_context: click.Context, _parameter: click.Parameter, value: str | None) -> re.Pattern[str] | None:
    try:
        return None if value is None else re.compile(value)
    except re.error as error:
        raise click.BadParameter(f"not a regular expression: {error}") from error


@click.command()
@click.argument("directories", metavar="KAFKA_LOG_DIR...", nargs=-1, type=NamedPath())
@uri_options
@click.option(
    "--follow", is_flag=True,
    help="Keep running, and copy each segment after the broker has closed it. Ctrl-C stops the command.",
)  # fmt: skip
@click.option(
    "--topics", "pattern", metavar="PATTERN", callback=_pattern,
    help="Archive only topics whose name matches this regular expression.",
)  # fmt: skip
@click.option(
    "--interval", type=NumberRange(0.1), default=5.0,
    help="With --follow: seconds between two passes over the log directories.",
)  # fmt: skip
@click.option(
    "--layout",
    help="Tier layout of the archive, such as plain, chunked or parquet. Default: tier.layout of [topic_defaults].",
)
@click.option("--max-bytes-per-second", "rate", type=click.IntRange(1), help="Maximum upload rate.")
@click.option(
    "--skip-gaps", is_flag=True, help="Continue after offsets that the broker deleted before they were archived."
)
@json_option
def archive(
    output: Output,
    directories: tuple[str, ...],
    place: TierPlace,
    *,
    pattern: re.Pattern[str] | None,
    follow: bool,
    interval: float,
    layout: str | None,
    rate: int | None,
    skip_gaps: bool,
) -> int:
    """Copy the closed segments in log directories of a stopped or running Kafka broker into the tier at URI.

    The command does not write to the directories. It copies each closed segment that is below the high watermark and
    not in the tier. Therefore a second run continues where the first run stopped. The tier keeps records that the
    broker deletes.

    The exit code is 1 if a closed segment could not be archived. It is 2 if the command could not start, or stopped
    because the store failed.
    """
    if not directories:
        raise click.UsageError("name at least one log directory, and then the URI of the tier")
    place.check_uri()
    settings = place.settings()
    check_tier_is_outside(place.uri, settings.engine, directories)
    with ExitStack() as stack:
        host = stack.enter_context(open_host(settings))
        stores: list[SegmentStore] = []
        for directory in directories:
            check_directory(Path(directory))
            stores.append(stack.enter_context(host.segment_store(directory, read_only=True)))
            check_log_directory(stores[-1])
        copy_rate = CopyRate(rate, host.env.clock)
        plan = ArchivePlan(
            config=_topic_config(host, settings, layout),
            wants=lambda topic: pattern is None or pattern.fullmatch(topic) is not None,
            skip_gaps=skip_gaps,
            wait_for=lambda size_bytes: copy_rate.take(size_bytes, lambda: True),
            progress=None if follow else stack.enter_context(output.bytes_progress("archiving")),
        )
        tier = stack.enter_context(open_tier(host, place.uri, place.tier_options, read_only=False))
        archiver = Archiver(stores, tier, host.components(TopicConfig()), plan)
        run = _Run(output, archiver, host.env.clock, settings.engine)
        code = run.follow(round(interval * 1000)) if follow else run.once()
        if pattern is not None and not run.has_logs:
            output.note(f"no topic matches --topics {pattern.pattern}: the pattern must match the whole name")
        return code


def _topic_config(host: ComponentHost, settings: Settings, layout: str | None) -> TopicConfig:
    defaults = TopicConfig(sections=host.registry.topic_sections())
    config = defaults.replaced(settings.topic_defaults, "topic_defaults")
    if layout is not None:
        config = dataclasses.replace(config, tier_layout=layout)
    host.check_topic_config(config)
    return config


class _Run:
    """One run of the command: its passes, and the sum of their results."""

    def __init__(self, output: Output, archiver: Archiver, clock: Clock, settings: EngineConfig) -> None:
        self._output, self._archiver, self._clock = output, archiver, clock
        self._collection = TierCollection(settings.tier_history_ms)
        self._collect_ns = settings.collect_interval_ms * 1_000_000
        self._total: dict[TopicPartition, ArchivedLog] = {}

    @property
    def has_logs(self) -> bool:
        """True if a pass had at least one log."""
        return bool(self._total)

    def once(self) -> int:
        """Run passes, at most ``_TRIES``, until no file has changed during a pass. Return the exit code."""
        with self._summary():
            for number in range(_TRIES):
                if number:
                    self._clock.sleep_ms(_AGAIN_MS)
                has_changed = False
                for result in self._archiver.run():
                    if isinstance(result.error, StoreError):
                        raise result.error  # the store would fail for the other logs, too
                    has_changed |= isinstance(result.error, SegmentGoneError)
                    self._add(result)
                if not has_changed:
                    break
            self._collect()
        return self._exit_code()

    def follow(self, interval_ms: int) -> int:
        """Run passes until Ctrl-C. Return the exit code: 1 if the last pass of a log failed."""
        due_ns = self._clock.monotonic_ns() + self._collect_ns
        try:
            with self._summary():
                while True:
                    self._pass()
                    if self._clock.monotonic_ns() >= due_ns:
                        self._collect()
                        due_ns = self._clock.monotonic_ns() + self._collect_ns
                    self._clock.sleep_ms(interval_ms)
        except KeyboardInterrupt:
            return self._exit_code()

    def _exit_code(self) -> int:
        return 1 if any(result.error is not None for result in self._total.values()) else 0

    def _pass(self) -> None:
        for result in self._archiver.run():
            before = self._total.get(result.log)
            is_news = result.segments > 0 or str(result.error) != str(before.error if before else None)
            self._add(result)  # before the output, because Ctrl-C may interrupt the output
            if is_news:
                self._print(result)
            if isinstance(result.error, StoreError):
                if not result.error.retriable:
                    raise result.error
                return  # the store is unavailable: the next pass retries

    def _collect(self) -> None:
        """Delete roots and objects that the archive no longer needs. Print an error as a warning; do not raise it."""
        try:
            report = self._archiver.collect(self._collection)
        except StorageError as error:
            text = "; ".join([str(error), *getattr(error, "__notes__", ())])  # the notes are errors of other logs
            self._output.note(printable(f"warning: garbage of the archive was not collected: {text}"))
            return
        if report.roots or report.objects or report.orphans:
            self._output.note(
                f"collected {report.roots} old manifest roots, {report.objects} objects that only these roots named, "
                f"{report.orphans} objects of unfinished uploads"
            )

    def _add(self, result: ArchivedLog) -> None:
        before = self._total.get(result.log)
        if before is not None:
            result = dataclasses.replace(
                result,
                segments=before.segments + result.segments,
                size_bytes=before.size_bytes + result.size_bytes,
                tier_end=max(before.tier_end, result.tier_end),
                skipped_offsets=before.skipped_offsets + result.skipped_offsets,
            )
        self._total[result.log] = result

    def _print(self, result: ArchivedLog) -> None:
        text = f"{result.log}: {result.segments} segments, {size_text(result.size_bytes)}, up to {result.tier_end}"
        if self._output.as_json:
            self._output.item({name: value(result) for name, value in _COLUMNS.items()})
        else:
            self._output.line(text if result.error is None else printable(f"{text}, then: {result.error}"))
        self._output.flush()

    @contextmanager
    def _summary(self) -> Iterator[None]:
        """Print the table of all logs at the end of the run, even after an error."""
        try:
            yield
        finally:
            self._output.table_of("archived", _COLUMNS, (result for _, result in sorted(self._total.items())))
            skipped_offsets = sum(result.skipped_offsets for result in self._total.values())
            if skipped_offsets:
                self._output.note(f"the broker had deleted {skipped_offsets} offsets: the archive has a gap there")
