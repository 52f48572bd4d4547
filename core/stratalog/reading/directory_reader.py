"""Reads of log directories of an engine or of a Kafka broker, which may be stopped or running."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from stratalog.config.topic import TopicConfig
from stratalog.errors import ConfigError, SegmentGoneError
from stratalog.log.folder.directory_state import (
    DirectoryState,
    check_log_directory,
    partition_folders,
    read_directory,
    read_topic_id,
)
from stratalog.log.load.loaded_log import LoadedLog, LoadRequest
from stratalog.log.load.log_loader import load
from stratalog.log.load.tier_at_opening import tier_at_opening, warn_of_evicted
from stratalog.log.read.tier_view import RemoteView
from stratalog.log.state.bounds import make_view
from stratalog.model.names import TIER_NOTE_FILE, TopicId, TopicPartition
from stratalog.reading.component_host import ComponentHost
from stratalog.reading.reader import Reader, StaticLog
from stratalog.reading.tier_reader import KAFKA_LAYOUT, tier_view
from stratalog.reading.topic_table import TopicTable
from stratalog.segment.components import Components
from stratalog.spi.layouts import StoredSegment
from stratalog.spi.segment_store import LogFiles, SegmentStore
from stratalog.tier.read.unmanaged_logs import foreign_part
from stratalog.tier.store.log_listing import TierLogName
from stratalog.tier.tier import Tier


class _Folder(NamedTuple):
    """Location of a log: its log directory, the name of its folder, and the state of the directory."""

    store: SegmentStore
    name: str
    state: DirectoryState

    def files(self) -> LogFiles:
        return self.store.open_log(self.name)


class _Stamp(NamedTuple):
    """Facts about an opened log; if they are equal at a refresh, the log has not changed."""

    live: bool
    clean: bool
    high_watermark: int | None
    log_start: int | None
    files: frozenset[tuple[str, int, tuple[int, int]]]
    tier_note: bytes | None  # the engine's note about the tier; None if there is no note, or if the reader has no tier


class DirectoryReader(Reader):
    """Reader of the logs of one or more log directories, and of their tier if there is one.

    A log is read up to its high watermark in the directory's checkpoint. It is read to its end if the checkpoint does
    not contain the log, or if the directory's writer has stopped without a clean shutdown. The settings of topics are
    those in the first directory.
    """

    def __init__(self, location: str, host: ComponentHost, stores: Sequence[SegmentStore], tier: Tier | None) -> None:
        super().__init__(location, host, tier)
        self._stores = stores
        self._foreign: dict[TierLogName, list[StoredSegment]] | None = None  # listed at first use
        self._stamps: dict[TopicPartition, _Stamp] = {}  # for the opened logs
        for store in stores:
            check_log_directory(store)
        self._folders, self._topics = self._list_folders()

    def _list_folders(self) -> tuple[dict[TopicPartition, list[_Folder]], TopicTable]:
        """Return the folders of all logs and the table of topics, as they are now."""
        folders_by_log: dict[TopicPartition, list[_Folder]] = {}
        for store in self._stores:
            folders = partition_folders(store)
            state = read_directory(store, live=store.is_acquired_elsewhere())
            for name, folder in folders.items():
                folders_by_log.setdefault(name, []).append(_Folder(store, folder, state))
        registry, settings = self._host.registry, self._host.settings
        has_tier, sections = self.tier is not None, registry.topic_sections()
        return folders_by_log, TopicTable(
            self._stores[0], settings.topic_defaults, has_tier=has_tier, sections=sections
        )

    def refresh(self) -> tuple[TopicPartition, ...]:
        """Update all logs to the current files; return the opened logs that have changed. See ``Reader.refresh``."""
        self._check_open()
        self._folders, self._topics = self._list_folders()
        self._foreign = None
        changed = list[TopicPartition]()
        for name, log in list(self._logs.items()):
            if name not in self._folders or self._topic_id(name) != log.topic_id:
                self._logs.pop(name).close()
            elif self._stamp(name) == self._stamps.get(name):
                continue
            else:
                log.replace(self._open(name))
            changed.append(name)
        return tuple(sorted(changed))

    def _stamp(self, name: TopicPartition) -> _Stamp:
        """Return facts about a log that change when its visible records change.

        File sizes are compared only if no writer is running: new records of a running writer become visible by its high
        watermark checkpoint.

        The identities of the files change if compaction replaces segments.
        """
        folder = self._folders[name][0]
        state = folder.state
        log_files = folder.files()
        files = frozenset((file.name, 0 if state.live else file.size_bytes, file.file_id) for file in log_files.list())
        note = None if self.tier is None else log_files.read_small(TIER_NOTE_FILE)
        return _Stamp(state.live, state.clean, state.high_watermarks.get(name), state.log_starts.get(name), files, note)

    def _names(self) -> Collection[TopicPartition]:
        return self._folders

    def _topic_id(self, name: TopicPartition) -> TopicId | None:
        return read_topic_id(self._folders[name][0].files()) or self._topics.topic_id(name.topic)

    def topic_config(self, name: TopicPartition) -> TopicConfig:
        """Return the settings of a log's topic, with ``TopicTable.config``."""
        return self._topics.config(name.topic)

    def _components_of(self, topic: str) -> Components:
        """Return the components of a topic: the shared ones, unless the topic has other index formats."""
        is_usual = self._topics.defaults.index_formats == TopicConfig().index_formats
        if is_usual and "index.formats" not in self._topics.own_settings(topic):
            return self._components
        return self._host.reading_components(self._topics.config(topic))

    def _open(self, name: TopicPartition) -> StaticLog:
        for has_another_try in (True, True, False):
            stamp = self._stamp(name)  # before the files are read: a later change is detected
            try:
                log = self._load_log(name)
            except SegmentGoneError:  # the writer deleted or replaced a file after it was listed
                if not has_another_try:
                    raise
            else:
                break
        self._stamps[name] = stamp  # after an error, the next refresh opens the log again
        return log

    def _load_log(self, name: TopicPartition) -> StaticLog:
        folder, *other_folders = self._folders[name]
        if other_folders:
            places = ", ".join(listed_folder.store.path() for listed_folder in (folder, *other_folders))
            raise ConfigError(f"{name} is in several log directories: {places}")
        state, files = folder.state, folder.files()
        topic_id, components = self._topic_id(name), self._components_of(name.topic)
        loaded_log = load(files, components, TopicConfig(), LoadRequest.of(state, name, writable=False))
        tiered: RemoteView | None = None
        if self.tier is None and name not in self._stamps:
            warn_of_evicted(name, files, loaded_log)
        elif self.tier is not None and topic_id is not None:
            try:
                tiered = self._read_tier(name, topic_id, files, loaded_log)
            except BaseException:
                for segment in loaded_log.segments:
                    segment.close()
                raise
            if not loaded_log.segments and tiered.segments:
                return StaticLog(tier_view(name, tiered, components), topic_id)
        watermark = state.high_watermarks.get(name)
        is_unclean_stop = not state.clean and not state.live
        high_watermark = loaded_log.log_end if is_unclean_stop or watermark is None else watermark
        damage = None if state.live else loaded_log.damage
        view = make_view(name, loaded_log, components, high_watermark=high_watermark, remote=tiered, damage=damage)
        return StaticLog(view, topic_id, tuple(loaded_log.producers.entries()), state.dirty_starts.get(name))

    def _read_tier(self, name: TopicPartition, topic_id: TopicId, files: LogFiles, loaded_log: LoadedLog) -> RemoteView:
        """Return the log's state in the tier, up to its divergence from the local log.

        If the log has no manifest root, return the state of the segments that a Kafka broker uploaded.
        """
        assert self.tier is not None
        remote = self.tier.log(name, topic_id)
        if name in self._logs:  # a refresh reads the tier after the local files: an engine commits before it evicts
            remote.refresh()
        view = tier_at_opening(remote, files, loaded_log)
        if view.version or remote.is_assumed:
            return view.within(loaded_log.epochs.entries)
        if self._foreign is None:
            self._foreign = self.tier.foreign(KAFKA_LAYOUT)
        segments = self._foreign.get(TierLogName(name, topic_id), [])
        if not segments:
            return view
        local_start = loaded_log.segments[0].base_offset if loaded_log.segments else loaded_log.log_end
        return foreign_part(segments, self.tier.fetcher, loaded_log.epochs.entries, loaded_log.log_start, local_start)

    def _close(self) -> None:
        for store in self._stores:
            store.close()
