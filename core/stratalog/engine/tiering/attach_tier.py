"""Attach: take over the logs of a tier into empty log directories.

A note file in the first directory marks an attach in progress. An attach first writes the note, and removes it at its
end, before the first append. While the note exists, the directories have no records, and a repeated attach starts from
the beginning.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from stratalog.client.statetopic import CONFIG as STATE_TOPIC_CONFIG
from stratalog.engine.open.log_dir import LogDir
from stratalog.engine.open.log_opener import LogOpener
from stratalog.engine.open.open_logs import OpenLogs
from stratalog.engine.topics.move_log import moved_request
from stratalog.env.progress import Progress, counters
from stratalog.env.threads import all_results, outcomes
from stratalog.errors import AttachError, StorageError, StoreError
from stratalog.log.log import Log
from stratalog.model.names import ATTACH_NOTE_FILE, INTERNAL_TOPICS, RESTORE_NOTE_FILE, TopicPartition, partition_folder
from stratalog.reading.component_host import ComponentHost
from stratalog.reading.topic_table import KEEP_EVERYTHING, TopicEntry, TopicTable
from stratalog.tier.takeover.take_over import (
    AttachedLog,
    has_log,
    is_empty_folder,
    missing_partitions,
    select_logs,
    take_over,
    write_folder,
)
from stratalog.tier.tier import Tier
from stratalog.tier.tier_log import TierLog

R = TypeVar("R")

_NOTE_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Attach:
    """Request to take over logs of a tier.

    Attributes:
        topics: names of topics, or ``TOPIC-ID`` if the tier has several topics with that name; None is all topics.
        progress: called with the sizes of the logs that were taken over.
    """

    topics: Collection[str] | None = None
    progress: Progress | None = None


def check_not_interrupted(directories: Sequence[LogDir]) -> None:
    """Raise AttachError if an attach or a restore into the directories was interrupted."""
    for directory in directories:
        if directory.store.read_small(ATTACH_NOTE_FILE) is not None:
            path = directory.store.path()
            raise AttachError(f"attaching a tier to {path} was interrupted: run `stratalog attach` again")
        if directory.store.read_small(RESTORE_NOTE_FILE) is not None:
            raise AttachError(f"a restore to {directory.store.path()} was interrupted: run `stratalog restore` again")


class Attacher:
    """One attach of a tier's logs to an engine. Closes none of its arguments."""

    def __init__(
        self,
        tier: Tier,
        host: ComponentHost,
        open_logs: OpenLogs,
        topics: TopicTable,
        opener: LogOpener,
        request: Attach,
    ) -> None:
        self._tier, self._host, self._open_logs = tier, host, open_logs
        self._topics, self._opener, self._request = topics, opener, request
        self._first = open_logs.dirs[0].store

    def run(self) -> tuple[AttachedLog, ...]:
        """Take over and open the logs of ``request.topics``; None means all topics. Return a description of each log.

        Raises:
            AttachError: a directory contains logs (empty folders of an interrupted attach to the same tier do not
                count), or the first directory has the note of an interrupted attach to another tier; a topic does not
                exist in the tier, a topic name is ambiguous, or the manifest of a log is missing or was not rebuilt
                completely.
            ConfigError: a topic in the tier has more partitions than ``limits.topic.partitions``.
            EpochsExhaustedError: a log is in the last possible leader epoch.
            CorruptionError: a log's manifest, or its last segments in the tier, are damaged; no folder was created.
            FencedEpochError: another process takes over a log at the same time.
            StoreError, LogDirError, DiskFullError: the attach failed; repeat it.
        """
        self._make_room()
        remotes = self._select_remotes()
        self._first.replace_small(
            ATTACH_NOTE_FILE, json.dumps({"version": _NOTE_VERSION, "tier": self._tier.uri}).encode()
        )
        attached_logs = self._take_over(remotes)
        attached_logs += missing_partitions(attached_logs)
        # Logs whose topic settings are not in the tier come first; of the others, the latest commit comes last.
        by_age = sorted(attached_logs, key=lambda log: (log.topic is not None, log.last_commit_ms))
        self._topics.put_all({log.log.topic: TopicEntry(log.topic_id, _settings_of(log)) for log in by_age})
        directories = self._write_folders(attached_logs)
        opened_logs = list[tuple[LogDir, Log]]()
        try:
            for log in attached_logs:
                directory = directories[log.log]
                opened_logs.append((directory, self._opener.open(directory, log.log, moved_request(log.offsets))))
        except BaseException:
            for _, opened_log in opened_logs:
                opened_log.maintenance.abandon()
            raise
        self._first.remove_small(ATTACH_NOTE_FILE)
        self._open_logs.publish(opened_logs)
        for directory in self._open_logs.dirs:
            directory.checkpoints.arriving.clear()
        return tuple(attached_logs)

    def _make_room(self) -> None:
        """Remove the folders of an interrupted attach to the same tier. Raise AttachError if other folders exist."""
        note = self._first.read_small(ATTACH_NOTE_FILE)
        folders = [(directory, log) for directory in self._open_logs.dirs for log in directory.folders]
        if note is not None:
            self._check_same_tier(note)
        occupied_paths = [
            directory.store.path(directory.folders[log])
            for directory, log in folders
            if note is None or not is_empty_folder(directory.files_of(log))
        ]
        if occupied_paths:
            raise AttachError(
                f"the directories contain logs such as {occupied_paths[0]}: attach the tier to empty directories, or "
                "open these logs without attach"
            )
        for directory, log in folders:
            directory.discard(log)

    def _check_same_tier(self, note: bytes) -> None:
        path = self._first.path(ATTACH_NOTE_FILE)
        try:
            body = json.loads(note)
            version, uri = body["version"], body["tier"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise AttachError(
                f"{path} is malformed ({error}): remove the file if the directory contains no logs"
            ) from error
        if version != _NOTE_VERSION or uri != self._tier.uri:
            raise AttachError(
                f"{path} describes an interrupted attach to {uri}, not to {self._tier.uri}: attach that tier again, or "
                "use an empty directory"
            )

    def _select_remotes(self) -> list[TierLog]:
        names = self._tier.logs()
        remotes = {name: self._tier.log(*name) for name in names}
        are_present = self._run_parallel(list(remotes.values()), has_log)
        self._check_rebuilt()
        existing_names = [name for name, is_present in zip(names, are_present, strict=True) if is_present]
        selected = [remotes[name] for name in select_logs(existing_names, self._request.topics, self._tier.uri)]
        for remote in selected:  # checked before the first take-over, which fences the old engine
            if remote.root is not None and remote.root.topic is not None:
                self._host.settings.limits.check_partitions(remote.name.topic, remote.root.topic.partitions)
        return selected

    def _check_rebuilt(self) -> None:
        """Raise AttachError if the manifest of a requested log lacks segments, and must first be rebuilt."""
        topics = self._request.topics
        for name in self._tier.lost():
            if topics is not None and {name.log.topic, f"{name.log.topic}-{name.topic_id}"}.isdisjoint(topics):
                continue
            root = self._tier.log(*name).root
            try:
                planned = self._tier.rebuild(name, dry_run=True)
            except StoreError:
                raise
            except StorageError:  # no object describes a segment
                continue
            if root is None or planned.end_offset > root.end_offset:
                raise AttachError(
                    f"the manifest of {name.log} in {self._tier.uri} is {'missing' if root is None else 'incomplete'}: "
                    f"run `stratalog rebuild {self._tier.uri}` first"
                )

    def _take_over(self, remotes: Sequence[TierLog]) -> list[AttachedLog]:
        callbacks = counters(self._request.progress, remotes, TierLog.known_bytes)
        on_bytes = dict(zip((remote.name for remote in remotes), callbacks, strict=True))

        def work(remote: TierLog) -> AttachedLog:
            attached_log = take_over(remote, self._host.components(self._topics.config(remote.name.topic)))
            on_bytes[remote.name](remote.known_bytes())
            return attached_log

        return self._run_parallel(remotes, work)

    def _run_parallel(self, remotes: Sequence[TierLog], work: Callable[[TierLog], R]) -> list[R]:
        return all_results(outcomes(remotes, work, self._host.settings.engine.copier_threads, "stratalog-attach"))

    def _write_folders(self, attached_logs: Sequence[AttachedLog]) -> dict[TopicPartition, LogDir]:
        """Create the folders of all logs, and then the checkpoint files. Return the directory of each log."""
        directories = dict[TopicPartition, LogDir]()
        for log in attached_logs:
            directory = directories[log.log] = self._open_logs.emptiest()
            folder = directory.folders[log.log] = partition_folder(log.log)
            write_folder(directory.store.open_log(folder, create=True), log)
            directory.checkpoints.arriving[log.log] = log.offsets  # the folder has no segments with the log start
        for directory in self._open_logs.dirs:
            directory.checkpoints.write()
        return directories


def _settings_of(log: AttachedLog) -> dict[str, object]:
    """Return the settings of a log's topic. If the tier does not have them, return settings that delete no records."""
    if log.topic is not None:
        return {**log.topic.config, "remote.storage.enable": True}
    defaults = STATE_TOPIC_CONFIG if log.log.topic in INTERNAL_TOPICS else KEEP_EVERYTHING
    return {**defaults, "remote.storage.enable": True}
