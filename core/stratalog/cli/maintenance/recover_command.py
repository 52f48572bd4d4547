"""``stratalog recover``: recover a log directory after an unclean shutdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from stratalog.cli.options import NamedDirectories, check_directory, directory_options, json_option
from stratalog.cli.output import Output
from stratalog.config.settings_sources import Settings
from stratalog.config.topic import TopicConfig
from stratalog.engine.open_engine import open_engine
from stratalog.env.progress import Progress, ProgressSum
from stratalog.errors import LogDirLockedError, StorageError
from stratalog.log.folder.directory_state import DirectoryState, check_log_directory, partition_folders, read_directory
from stratalog.log.load.loaded_log import LoadRequest
from stratalog.log.load.log_loader import load
from stratalog.model.events import LogRecovered
from stratalog.model.names import CLUSTER_METADATA_TOPIC, TopicPartition
from stratalog.reading.component_host import ComponentHost
from stratalog.reading.open_reader import open_host
from stratalog.segment.components import Components
from stratalog.spi import hookimpl
from stratalog.spi.segment_store import LogFiles, SegmentStore

COLUMNS = ("topic", "partition", "recovered_segments", "truncated_bytes", "log_start", "log_end", "error")


@dataclass(slots=True)
class RecoveredLog:
    """Result of the recovery of one log, or the expected result of a dry run.

    ``segments`` is the number of recovered segments. ``error`` is the reason why the log cannot be recovered, or "".
    """

    log: TopicPartition
    segments: int = 0
    truncated_bytes: int = 0
    log_start: int | None = None
    log_end: int | None = None
    error: str = ""

    def row(self) -> tuple[object, ...]:
        """Return the values of the columns ``COLUMNS``."""
        return (*self.log, self.segments, self.truncated_bytes, self.log_start, self.log_end, self.error)


@click.command()
@directory_options("[DIR]...", "A log directory, as DIR; can be repeated.")
@click.option("--dry-run", is_flag=True, help="Show the actions of recovery; write nothing.")
@json_option
def recover(output: Output, directories: NamedDirectories, *, dry_run: bool) -> int:
    """Recover the logs of each DIR, a log directory, after a crash, and leave it as a clean stop does.

    Checks every batch from the recovery point to the end, truncates a log at its first bad batch, and rebuilds its
    indexes and producer snapshots. A directory that was closed cleanly is only opened and closed; to check one, use
    `stratalog verify`.

    The exit code is 1 if a log could not be recovered; the other logs are recovered.
    """
    paths = [Path(path) for path in directories.paths]
    for directory in paths:
        check_directory(directory)
        with _open_read_only(directory) as (_, store):
            check_log_directory(store)  # raises before anything is written to a folder that is no log directory
    with output.bytes_progress("recovering") as progress:
        outcomes = _plan_all(paths, progress) if dry_run else _recover(paths, progress)
    output.table("would be recovered" if dry_run else "recovered", COLUMNS, (outcome.row() for outcome in outcomes))
    return 1 if any(outcome.error for outcome in outcomes) else 0


@contextmanager
def _open_read_only(directory: Path) -> Iterator[tuple[ComponentHost, SegmentStore]]:
    """Yield the components and the segment store of a directory, opened for reading only."""
    with open_host(Settings()) as host, host.segment_store(str(directory), read_only=True) as store:
        yield host, store


class _Listener:
    """Plugin that records the events of recovered logs in ``heard``, by log."""

    def __init__(self) -> None:
        self.heard: dict[TopicPartition, LogRecovered] = {}

    @hookimpl
    def stratalog_on_log_recovered(self, event: LogRecovered) -> None:
        """Record the event. The engine calls this after the recovery, on its thread for listeners."""
        self.heard[event.log] = event


def _recover(directories: Sequence[Path], progress: Progress) -> list[RecoveredLog]:
    listener = _Listener()
    outcomes, folders = [], set[TopicPartition]()
    for directory in directories:
        with _open_read_only(directory) as (_, store):
            folders |= {name for name in partition_folders(store) if name.topic != CLUSTER_METADATA_TOPIC}
    with open_engine(list(directories), plugins=[listener], progress=progress) as engine:
        for name in sorted({*engine.partitions(), *folders}):  # an unavailable directory's logs may be unknown to it
            outcome = RecoveredLog(name)
            outcomes.append(outcome)
            try:
                bounds = engine.log(*name).offsets()
            except StorageError as error:
                outcome.error = str(error)
            else:
                outcome.log_start, outcome.log_end = bounds.log_start, bounds.log_end
    for outcome in outcomes:  # closing the engine has delivered all events
        event = listener.heard.get(outcome.log)
        if event is not None:
            outcome.segments, outcome.truncated_bytes = event.segments, event.truncated_bytes
    return outcomes


def _plan_all(directories: Sequence[Path], progress: Progress) -> list[RecoveredLog]:
    """Return the results that a recovery would have. Raise LogDirLockedError if a directory is in use."""
    total_progress, outcomes = ProgressSum(progress), list[RecoveredLog]()
    for directory in directories:
        with _open_read_only(directory) as (host, store):
            if store.is_acquired_elsewhere():
                lock_error = LogDirLockedError("another engine or a running broker holds the directory", str(directory))
                raise lock_error.advised("stop the engine or broker that uses the directory")
            state = read_directory(store, live=False)
            outcomes += (
                _plan(name, store.open_log(folder), host.components(TopicConfig()), state, total_progress.part())
                for name, folder in partition_folders(store).items()
                if name.topic != CLUSTER_METADATA_TOPIC
            )
    return outcomes


def _plan(
    name: TopicPartition, files: LogFiles, components: Components, state: DirectoryState, progress: Progress
) -> RecoveredLog:
    try:
        loaded_log = load(files, components, TopicConfig(), LoadRequest.of(state, name, writable=False), progress)
    except StorageError as error:
        return RecoveredLog(name, error=str(error))
    first = loaded_log.segments[0].base_offset if loaded_log.segments else loaded_log.log_end
    for segment in loaded_log.segments:
        segment.close()
    damage = "" if loaded_log.damage is None else str(loaded_log.damage)
    start = max(first, state.log_starts.get(name, 0))
    return RecoveredLog(
        name, loaded_log.recovered_segments, loaded_log.truncated_bytes, start, loaded_log.log_end, damage
    )
