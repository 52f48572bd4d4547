"""``restore``: copy the logs of a tier, optionally up to an offset or a time, into a log directory.

An engine or a Kafka broker can then start on the directory. A note file in the directory marks an unfinished restore. A
repeated restore with the same arguments continues the unfinished restore.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from stratalog.config.settings_sources import read_settings
from stratalog.config.topic import TopicConfig
from stratalog.engine.open.log_dir import LogDir
from stratalog.engine.open.notifier import Notifier
from stratalog.engine.open_engine import check_tier_is_outside
from stratalog.engine.restore.new_identity import FIRST_EPOCH, assign_new_id, gets_new_id
from stratalog.engine.restore.restore_note import RestoreNote, parse_note, read_note
from stratalog.env import Env
from stratalog.env.progress import Progress, counters
from stratalog.env.threads import all_results, outcomes
from stratalog.errors import AttachError, ConfigError, StorageError
from stratalog.log.change.truncate import batches_end
from stratalog.log.folder.directory_state import read_topic_id
from stratalog.log.folder.folder import write_next_epoch
from stratalog.log.load.loaded_log import LoadRequest
from stratalog.log.load.log_loader import load
from stratalog.log.log import Log
from stratalog.log.open_log import LogEnvironment, OpenRequest
from stratalog.log.state.log_settings import LogSettings
from stratalog.model.arguments import checked
from stratalog.model.names import (
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    RESTORE_NOTE_FILE,
    RESTORING_FILE,
    TopicId,
    TopicPartition,
    check_topic,
)
from stratalog.model.notes import readable
from stratalog.model.offsets import next_epoch
from stratalog.model.timestamps import unix_ms
from stratalog.reading.component_host import ComponentHost
from stratalog.reading.open_reader import open_host, open_tier
from stratalog.reading.reader import StaticLog
from stratalog.reading.tier_reader import tier_view
from stratalog.spi.segment_store import LogFiles
from stratalog.tier.store.log_listing import TierLogName
from stratalog.tier.takeover.download import RestorePlan, copy_segments, plan_copy, write_epochs
from stratalog.tier.takeover.take_over import has_log, is_empty_folder, select_logs
from stratalog.tier.tier import Tier


@dataclass(frozen=True, slots=True)
class RestoredLog:
    """Result of the restore of one log, or the expected result of a dry run.

    Attributes:
        source: name of the log in the tier.
        log: name of the restored log.
        version: version of the log's manifest in the tier.
        log_start: first offset of the restored log.
        log_end: exclusive end offset of the restored log; in a dry run, the requested end, which may be higher.
        segments: number of segments that contain offsets below the requested end.
        size_bytes: size of the ``.log`` files of these segments in the tier.
        requests: approximate number of requests to the store for all of these segments.
        copied: number of segments that this call has downloaded; segments of an interrupted call are not counted. 0 in
            a dry run.
        open_transactions: number of transactions that have records below the end, but no end marker. 0 in a dry run.
    """

    source: TopicPartition
    log: TopicPartition
    version: int
    log_start: int
    log_end: int
    segments: int
    size_bytes: int
    requests: int
    copied: int = 0
    open_transactions: int = 0


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRequest:
    """Topics to restore, and the end offsets of their logs.

    Attributes:
        topics: names of topics, or ``TOPIC-ID``; None is all topics.
        to_offsets: exclusive end offset of the restored log, by log; None for no limit. A batch that contains this
            offset is not restored, because a log is truncated between batches.
        to_time: the restored log ends before the first record with this timestamp or a later one; None for no limit. A
            time without a time zone counts as UTC.
        rename: new names of topics, by name in the tier; renamed topics get new ids.
        overwrite: topics whose records in the directory may be replaced.
    """

    topics: Collection[str] | None = None
    to_offsets: Mapping[TopicPartition, int] | None = None
    to_time: datetime | None = None
    rename: Mapping[str, str] | None = None
    overwrite: Collection[str] = ()


@checked
def restore(
    uri: str,
    directory: str | os.PathLike[str],
    wanted: RestoreRequest | None = None,
    *,
    dry_run: bool = False,
    tier_options: Mapping[str, object] | None = None,
    config: str | os.PathLike[str] | Mapping[str, object] | None = None,
    plugins: Sequence[object] = (),
    env: Env | None = None,
    progress: Progress | None = None,
) -> tuple[RestoredLog, ...]:
    """Copy logs from a tier into a log directory, and return a result for each log. The tier is never changed.

    The directory is created if missing. If the directory belongs to a stopped broker, the topics must exist there; they
    keep the broker's topic ids. Topics with records in the directory must be in ``overwrite``. Every segment is
    compared with its hash in the manifest. Repeat the same call to continue an interrupted restore.

    Args:
        uri: URI of the tier.
        directory: target directory.
        wanted: topics to restore, and the end offsets of their logs; None is everything.
        dry_run: True to return the expected results without copying.
        tier_options: options for the client library of the store; never logged or stored.
        config: a ``stratalog.toml``, or its contents.
        plugins: modules with hooks, in addition to the installed plugins.
        env: clock, files and random source; the real ones if None.
        progress: called with the bytes of ``.log`` files that are copied.

    Raises:
        AttachError: there are four cases. The directory has records of a topic that is not in ``overwrite``. It belongs
            to a broker and lacks a topic. It has an unfinished restore of other logs. The manifest of a log was not
            rebuilt completely.
        ConfigError, StorageError: the tier or ``tier.cache.dir`` is inside the directory, or the tier does not have the
            log or the end offset, or a new name is invalid, or is the name of another restored topic.
        EpochsExhaustedError: a log is in the last possible leader epoch; restore the topic under another name.
        CorruptObjectError, CorruptManifestError: the tier is damaged.
        LogDirLockedError: a broker or an engine uses the directory.
        StoreError, DiskFullError, LogDirError: the restore failed; repeat it.
    """
    settings = read_settings(config, os.environ)
    check_tier_is_outside(uri, settings.engine, [os.fspath(directory)])
    host = open_host(settings, plugins, env)
    try:
        with open_tier(host, uri, tier_options, read_only=True) as tier:
            return _Restore(host, tier, wanted or RestoreRequest(), progress).run(os.fspath(directory), dry_run=dry_run)
    finally:
        host.close()


class _Restore:
    """One restore from a tier into a log directory."""

    def __init__(self, host: ComponentHost, tier: Tier, request: RestoreRequest, progress: Progress | None) -> None:
        self._host, self._tier, self._request, self._progress = host, tier, request, progress
        self._components = host.components(TopicConfig())

    def run(self, path: str, *, dry_run: bool) -> tuple[RestoredLog, ...]:
        if dry_run:
            return tuple(_result_of(plan) for plan in self._make_plans({}))
        notifier = Notifier(self._host.registry, self._host.settings.engine.service_stop_ms)
        try:
            directory = LogDir(self._host.segment_store(path, read_only=False), self._host.env, notifier)
            is_complete = False
            try:
                results = self._restore_into(directory)
                is_complete = True
            finally:
                directory.close(failed=not is_complete)
        finally:
            notifier.close()
        return results

    # --- planning ------------------------------------------------------------------------------------------------

    def _make_plans(self, versions: Mapping[str, int]) -> list[RestorePlan]:
        names = [name for name in self._tier.logs() if has_log(self._tier.log(*name))]
        selected = select_logs(names, self._request.topics, self._tier.uri)
        unknown = set(self._request.to_offsets or ()) - {name.log for name in selected}
        if unknown:
            raise ConfigError(f"there is no {min(unknown)} in {self._tier.uri}")
        self._check_targets(selected)
        for name in selected:
            root = self._tier.log(*name).root
            if root is not None and self._tier.is_half_rebuilt(root):
                raise AttachError(
                    f"the manifest of {name.log} in {self._tier.uri} is incomplete: run `stratalog rebuild "
                    f"{self._tier.uri}` first"
                )
        return [self._make_plan(name, versions.get(str(name.log))) for name in selected]

    def _check_targets(self, selected: Sequence[TierLogName]) -> None:
        """Raise ConfigError if a new name is invalid, two logs get one name, or a renamed topic is not selected."""
        renamed, sources = self._request.rename or {}, dict[TopicPartition, TopicPartition]()
        for topic in renamed.values():
            check_topic(topic)
        unknown = set(renamed) - {name.log.topic for name in selected}
        if unknown:
            raise ConfigError(f"topic {min(unknown)} gets another name, but is not restored")
        for name in selected:
            first = sources.setdefault(self._target(name.log), name.log)
            if first != name.log:
                raise ConfigError(
                    f"{first} and {name.log} would both become {self._target(name.log)}: give one another name"
                )

    def _target(self, log: TopicPartition) -> TopicPartition:
        return TopicPartition((self._request.rename or {}).get(log.topic, log.topic), log.partition)

    def _make_plan(self, name: TierLogName, version: int | None) -> RestorePlan:
        remote = self._tier.log(*name)
        view = remote.view() if version is None else remote.view_as_of(version)
        end = (self._request.to_offsets or {}).get(name.log, view.end_offset)
        if not view.log_start <= end <= view.end_offset:
            raise StorageError(
                f"the tier has {name.log} from offset {view.log_start} to {view.end_offset}, not to {end}"
            )
        if self._request.to_time is not None:
            log = StaticLog(tier_view(name.log, view, self._components), name.topic_id)
            offset = log.offset_for_timestamp(unix_ms(self._request.to_time), "log_end")
            end = end if offset is None else min(end, offset)
        chunk_bytes = self._host.settings.limits.fetch_chunk_bytes
        return plan_copy(remote, self._target(name.log), view, end, chunk_bytes)

    # --- copying -------------------------------------------------------------------------------------------------

    def _restore_into(self, directory: LogDir) -> tuple[RestoredLog, ...]:
        before = read_note(directory)
        plans = self._make_plans(before.versions if before else {})
        note = RestoreNote.of(self._tier.uri, plans)
        if before is not None and before != note:
            raise AttachError(
                f"{directory.store.path(RESTORE_NOTE_FILE)} describes another restore that is not complete: repeat "
                "that restore, or use another directory"
            )
        if before is None:
            self._check_room(directory, plans)
            path = directory.store.path(RESTORE_NOTE_FILE)
            directory.store.replace_small(RESTORE_NOTE_FILE, readable(note.to_json(), parse_note, path))
        self._make_folders(directory, plans)
        copied_counts = self._copy(directory, plans)
        results = [self._truncate_to_end(directory, plan) for plan in plans]
        for name in (plan.target for plan in plans):
            directory.logs[name].flush()
        directory.checkpoints.write()
        for plan in plans:
            files = directory.files_of(plan.target)
            files.remove(RESTORING_FILE)
            files.sync()
        directory.store.remove_small(RESTORE_NOTE_FILE)
        return tuple(replace(log, copied=count) for log, count in zip(results, copied_counts, strict=True))

    def _check_room(self, directory: LogDir, plans: Sequence[RestorePlan]) -> None:
        is_brokers = directory.store.read_small(META_PROPERTIES_FILE) is not None
        for plan in plans:
            folder = directory.folders.get(plan.target)
            keeps_epochs = plan.target.topic == plan.source.topic
            if folder is not None:
                keeps_epochs = not gets_new_id(plan, directory.store.open_log(folder))
            if keeps_epochs:
                next_epoch(plan.leader_epoch, plan.source)
            if folder is None:
                if is_brokers:
                    raise AttachError(
                        f"there is no {plan.target} in {directory.store.path()}, the directory of a broker: create "
                        f"topic {plan.target.topic} in its cluster with the same number of partitions, then stop the "
                        "broker"
                    )
            elif plan.target.topic not in self._request.overwrite and not is_empty_folder(
                directory.store.open_log(folder)
            ):
                raise AttachError(
                    f"{directory.store.path(folder)} contains records: to replace them, name the topic "
                    f"(--overwrite {plan.target.topic}, or overwrite=[{plan.target.topic!r}] in Python)"
                )

    def _make_folders(self, directory: LogDir, plans: Sequence[RestorePlan]) -> None:
        ids = dict[str, TopicId]()
        for plan in plans:
            folder = directory.folders.get(plan.target)
            if folder is None:
                topic = plan.target.topic
                if topic not in ids:
                    ids[topic] = self._topic_id(directory, plan)
                directory.create(plan.target, ids[topic])
            files = directory.files_of(plan.target)
            if files.read_small(RESTORING_FILE) is None:
                _clear(files)
                files.replace_small(RESTORING_FILE, b"")

    def _topic_id(self, directory: LogDir, plan: RestorePlan) -> TopicId:
        """Return the topic id for a new folder.

        If the topic keeps its name, it keeps its id in the tier. A renamed topic gets the id of its existing folders if
        there are any, otherwise a new id.
        """
        if plan.target.topic == plan.source.topic:
            return plan.topic_id
        folders = [folder for log, folder in directory.folders.items() if log.topic == plan.target.topic]
        ids = (read_topic_id(directory.store.open_log(folder)) for folder in folders)
        return next((topic_id for topic_id in ids if topic_id is not None), None) or TopicId.random(
            self._host.env.chance
        )

    def _copy(self, directory: LogDir, plans: Sequence[RestorePlan]) -> list[int]:
        callbacks = counters(self._progress, plans, lambda plan: plan.size_bytes)
        on_bytes = dict(zip((plan.target for plan in plans), callbacks, strict=True))

        def work(plan: RestorePlan) -> int:
            files = directory.files_of(plan.target)
            only_epoch = FIRST_EPOCH if gets_new_id(plan, files) else None
            count = copy_segments(plan, files, on_bytes[plan.target], only_epoch)
            write_epochs(plan, files, only_epoch)
            return count

        threads = self._host.settings.engine.copier_threads
        return all_results(outcomes(plans, work, threads, "stratalog-restore"))

    def _truncate_to_end(self, directory: LogDir, plan: RestorePlan) -> RestoredLog:
        """Open a copied log, truncate it after its last whole batch below the end in ``plan``, and return its result.

        The log continues in a new leader epoch. If a consumer has read beyond the end, the epoch lets it detect the
        truncation.
        """
        log = self._open(directory, plan)
        # With a log end above the last batch, a broker's consumer would wait for offsets that do not exist.
        if log.truncate_to(plan.log_end):
            segments = (segment for segment in reversed(log.view().segments) if segment.size_bytes)
            end = next((batches_end(segment, self._components) for segment in segments), 0)
            log.truncate_to(max(end, plan.view.log_start))
        result = replace(
            _result_of(plan), log_end=log.offsets().log_end, open_transactions=len(log.open_transactions())
        )
        files, epoch = directory.files_of(plan.target), plan.leader_epoch
        if gets_new_id(plan, files):
            epoch = FIRST_EPOCH
            log = assign_new_id(log, files, lambda: self._open(directory, plan))
        write_next_epoch(files, next_epoch(epoch, plan.target), log.offsets().log_end)
        return result

    def _open(self, directory: LogDir, plan: RestorePlan) -> Log:
        files, config = directory.files_of(plan.target), TopicConfig()
        request = LoadRequest(
            clean=True, recovery_point=0, log_start=plan.view.log_start, high_watermark=None, writable=True
        )
        log = directory.logs[plan.target] = Log(
            OpenRequest(
                plan.target,
                read_topic_id(files) or plan.topic_id,
                files,
                load(files, self._components, config, request),
            ),
            LogSettings(config, self._components),
            LogEnvironment(notify=lambda _: None),
        )
        return log


def _clear(files: LogFiles) -> None:
    """Remove all files of a folder except ``partition.metadata``, which has the topic id."""
    for file in files.list():
        if file.name != PARTITION_METADATA_FILE and not file.is_folder:
            files.remove(file.name)
    files.sync()


def _result_of(plan: RestorePlan) -> RestoredLog:
    return RestoredLog(
        source=plan.source,
        log=plan.target,
        version=plan.view.version,
        log_start=plan.view.log_start,
        log_end=plan.log_end,
        segments=plan.segments,
        size_bytes=plan.size_bytes,
        requests=plan.requests,
    )
