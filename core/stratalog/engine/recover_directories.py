"""Recovery of log directories after a crash, or a plan of the recovery that changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from stratalog.config.settings_sources import Settings
from stratalog.config.topic import TopicConfig
from stratalog.engine.engine import Engine
from stratalog.engine.open_engine import open_engine
from stratalog.env.progress import Progress, ProgressSum
from stratalog.errors import LogDirError, LogDirLockedError, StorageError
from stratalog.log.folder.directory_state import DirectoryState, check_log_directory, partition_folders, read_directory
from stratalog.log.folder.folder import file_names, missing_logs, warn_of_missing_logs
from stratalog.log.load.loaded_log import LoadRequest
from stratalog.log.load.log_loader import load
from stratalog.model.events import LogRecovered
from stratalog.model.names import CLUSTER_METADATA_TOPIC, TopicPartition
from stratalog.reading.component_host import ComponentHost
from stratalog.reading.open_reader import open_host
from stratalog.segment.components import Components
from stratalog.spi import hookimpl
from stratalog.spi.segment_store import LogFiles, SegmentStore


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """Result of the recovery of one log, or the expected result of a plan.

    ``segments`` is the number of recovered segments. ``error`` is the reason why the log cannot be recovered, the damage
    after a clean stop, or a sentence about missing ``.log`` files; "" if there is no problem.
    """

    log: TopicPartition
    segments: int = 0
    truncated_bytes: int = 0
    log_start: int | None = None
    log_end: int | None = None
    error: str = ""


class _Listener:
    """Plugin that records the events of recovered logs in ``heard``, by log."""

    def __init__(self) -> None:
        self.heard: dict[TopicPartition, LogRecovered] = {}

    @hookimpl
    def stratalog_on_log_recovered(self, event: LogRecovered) -> None:
        """Record the event. The engine calls this after the recovery, on its thread for listeners."""
        self.heard[event.log] = event


def recover_directories(directories: Sequence[Path], progress: Progress) -> list[RecoveredLog]:
    """Recover the logs of log directories, and close the directories cleanly.

    If one log cannot be recovered or is damaged, its result has the error, and the other logs are still recovered.

    Raises:
        LogDirError: a directory has no logs, or is in use; nothing was changed.
        StorageError: the directories cannot be opened together.
    """
    listener = _Listener()
    with open_host(Settings()) as host:
        stores = _log_directories(host, directories, may_be_unavailable=True)
        lost_files = {
            name: _describe_lost_files(store.open_log(folder))
            for store in stores
            for name, folder in _folders(store).items()
        }
    with open_engine(list(directories), plugins=[listener], progress=progress) as engine:
        all_names = sorted({*engine.partitions(), *lost_files})  # an unavailable directory's logs may be unknown to it
        results = [_recovered(engine, name, lost_files.get(name, "")) for name in all_names]
    # closing the engine has delivered all events
    return [
        replace(result, segments=event.segments, truncated_bytes=event.truncated_bytes)
        if (event := listener.heard.get(result.log))
        else result
        for result in results
    ]


def _describe_lost_files(files: LogFiles) -> str:
    """Return a sentence about the ``.log`` files that are missing beside an index; "" if there are none."""
    try:
        names = file_names(files)
    except LogDirError:
        return ""  # the load of the log reports it
    first, *others = sorted(missing_logs(names, names)) or [""]
    paths = files.path(first) + (f" and {len(others)} other .log files" if others else "")
    return f"records may be lost: missing {paths}" if first else ""


def _recovered(engine: Engine, name: TopicPartition, lost_files: str) -> RecoveredLog:
    try:
        view = engine.log(*name).view()
    except StorageError as error:
        return RecoveredLog(name, error=str(error))
    bounds = view.offsets
    return RecoveredLog(
        name, log_start=bounds.log_start, log_end=bounds.log_end, error=lost_files or _text(view.damage)
    )


def _text(damage: StorageError | None) -> str:
    return "" if damage is None else str(damage)


def plan_recovery(directories: Sequence[Path], progress: Progress) -> list[RecoveredLog]:
    """Return the results that ``recover_directories`` would have. Write nothing."""
    total_progress, planned_logs = ProgressSum(progress), list[RecoveredLog]()
    with open_host(Settings()) as host:
        components = host.components(TopicConfig())
        for store in _log_directories(host, directories):
            state = read_directory(store, live=False)
            planned_logs += (
                _plan(name, store.open_log(folder), components, state, total_progress.part())
                for name, folder in _folders(store).items()
            )
    return planned_logs


def _log_directories(
    host: ComponentHost, directories: Sequence[Path], *, may_be_unavailable: bool = False
) -> Iterator[SegmentStore]:
    """Yield the opened store of each directory, after a check of all directories.

    Raises:
        LogDirError: a directory has no logs, or is in use (LogDirLockedError); or, unless ``may_be_unavailable``, it is
            not known if the directory is in use.
    """
    with ExitStack() as stack:
        stores = [stack.enter_context(host.segment_store(str(directory), read_only=True)) for directory in directories]
        for directory, store in zip(directories, stores, strict=True):
            check_log_directory(store)
            try:
                is_in_use = store.is_acquired_elsewhere()
            except LogDirError:
                if not may_be_unavailable:
                    raise
                is_in_use = False
            if is_in_use:
                error = LogDirLockedError("another engine or a running broker holds the directory", str(directory))
                raise error.advised("stop the engine or broker that uses the directory")
        yield from stores


def _folders(store: SegmentStore) -> dict[TopicPartition, str]:
    """Return the folders of the logs of a directory, by log."""
    return {name: folder for name, folder in partition_folders(store).items() if name.topic != CLUSTER_METADATA_TOPIC}


def _plan(
    name: TopicPartition, files: LogFiles, components: Components, state: DirectoryState, progress: Progress
) -> RecoveredLog:
    try:
        loaded_log = load(files, components, TopicConfig(), LoadRequest.of(state, name, writable=False), progress)
    except StorageError as error:
        return RecoveredLog(name, error=str(error))
    names = file_names(files)
    warn_of_missing_logs(files, names, names)
    first = loaded_log.segments[0].base_offset if loaded_log.segments else loaded_log.log_end
    for segment in loaded_log.segments:
        segment.close()
    error_text = _describe_lost_files(files) or _text(loaded_log.damage)
    start = max(first, state.log_starts.get(name, 0))
    return RecoveredLog(
        name, loaded_log.recovered_segments, loaded_log.truncated_bytes, start, loaded_log.log_end, error_text
    )
