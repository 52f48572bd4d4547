"""The engine: all logs of some log directories, and the duties over them."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self, Unpack

from stratalog.cleaning.compaction import CompactionResult
from stratalog.cleaning.dryrun import RoundPreview
from stratalog.cleaning.erase import erase
from stratalog.cleaning.erased import EraseResult
from stratalog.cleaning.explain import Explanation, explain
from stratalog.cleaning.plan import CompactionPlan
from stratalog.cleaning.proof import ErasureCheck, check_erasure, proof_of
from stratalog.cleaning.runner import RetentionResult
from stratalog.client.clients import Clients, ProducerKeywords
from stratalog.client.consumer import Consumer
from stratalog.client.producer import Producer
from stratalog.config.files import Settings
from stratalog.config.topic import TopicConfig
from stratalog.engine.attach import Attach, Attacher, check_not_interrupted
from stratalog.engine.changes import TopicChanges
from stratalog.engine.cleaner import Cleaner
from stratalog.engine.duties import Duties
from stratalog.engine.identity import check_identities
from stratalog.engine.loading import LogProgress
from stratalog.engine.logdir import LogDir
from stratalog.engine.metrics import EngineState, samples
from stratalog.engine.move import settle_moves
from stratalog.engine.notify import Notifier
from stratalog.engine.offload import OffloadResult, TierLag
from stratalog.engine.opening import LogOpener
from stratalog.engine.schedule import DutyStatus
from stratalog.engine.services import Services
from stratalog.engine.shelf import LogShelf
from stratalog.engine.tiering import Tiering
from stratalog.errors import (
    ClosedError,
    ConfigError,
    UnknownTopicError,
)
from stratalog.log.background import Background
from stratalog.log.log import Log
from stratalog.model.metrics import Sample
from stratalog.model.names import TopicPartition
from stratalog.reading.parts import ComponentHost
from stratalog.reading.reader import TopicInfo
from stratalog.reading.topics import TopicTable
from stratalog.spi.cleanup import CleanupPolicy
from stratalog.tier.attach import AttachedLog
from stratalog.tier.collect import CollectReport
from stratalog.tier.log import TierLog
from stratalog.tier.tier import Tier


class Engine:
    """Logs for reading and writing. A context manager; thread-safe.

    Logs that cannot be opened do not keep the others from serving: ``log`` raises what is wrong with them.

    Args:
        settings: all settings.
        host: opens components; taken over.
        tier: the opened tier, or None; taken over.
        recovery_progress: told how far each recovery is.
        attach: what to take over from the tier into empty directories; None is nothing.

    Attributes:
        attached: what was taken over when the engine was opened.
    """

    def __init__(
        self,
        settings: Settings,
        host: ComponentHost,
        tier: Tier | None,
        recovery_progress: LogProgress | None = None,
        *,
        attach: Attach | None = None,
    ) -> None:
        self._settings, self._host, self._tier = settings, host, tier
        self._changing = threading.Lock()  # over making a topic, and over _closed
        self._closed = False
        self.attached: tuple[AttachedLog, ...] = ()
        with contextlib.ExitStack() as owned:  # closed by close(), or here if something fails
            owned.callback(host.close)
            if tier is not None:
                owned.callback(tier.close)
            self._notifier = Notifier(host.registry)
            owned.callback(self._notifier.close)
            self._shelf = LogShelf(self._notifier)
            self._dirs = self._shelf.dirs
            for path in settings.engine.log_dirs:
                directory = LogDir(host.segment_store(path, read_only=False), host.env, self._notifier)
                self._dirs.append(directory)
                owned.callback(self._close_dir, directory)
            check_identities([(directory.store.path(), directory.identity) for directory in self._dirs])
            settle_moves(self._dirs)
            background = Background()
            owned.callback(background.close)
            self._topics = TopicTable(
                self._dirs[0].store,
                settings.topic_defaults,
                has_tier=tier is not None,
                sections=host.registry.topic_sections(),
            )
            self._opener = LogOpener(
                settings.engine, host, tier, self._topics, self._dirs, self._notifier, recovery_progress, background
            )
            self._changes = TopicChanges(self._shelf, self._topics, self._opener, host)
            self._clients = Clients(self, host.parts(TopicConfig()))
            clock = host.env.clock
            self._tiering = None if tier is None else Tiering(tier, self._opener, settings.engine, clock)
            self._cleaner = Cleaner(
                settings.engine, clock, self._policies, self._tier_of, self._shelf.write_cleaner_checkpoint
            )
            self._duties = Duties(
                settings.engine,
                clock,
                self._shelf,
                self._opener,
                self._policies,
                self._cleaner,
                self._tiering,
                self._clients.coordinator.abort_expired,
            )
            owned.callback(self._duties.close)
            self._services = Services(host)
            owned.callback(self._services.close)
            if attach is None:
                check_not_interrupted(*self._dirs)
                for directory in self._dirs:
                    self._open_logs(directory)
            elif tier is not None:
                attacher = Attacher(tier, settings.engine, host, self._shelf, self._topics, self._opener, attach)
                self.attached = attacher.run()
            self._owned = owned.pop_all()

    # --- logs and topics ---------------------------------------------------------------------------------------------

    def partitions(self) -> tuple[TopicPartition, ...]:
        """All logs, sorted, those that could not be opened included."""
        return self._shelf.names()

    def topics(self) -> dict[str, TopicInfo]:
        """All topics, by name."""
        grouped: dict[str, list[TopicPartition]] = {}
        for name in self.partitions():
            grouped.setdefault(name.topic, []).append(name)
        return {topic: self._changes.info(topic, names) for topic, names in grouped.items()}

    def log(self, topic: str, partition: int) -> Log:
        """One log.

        Raises:
            UnknownTopicError: it is not here.
            StorageError: what kept it from being opened.
        """
        self._check_open()
        return self._shelf.log(TopicPartition(topic, partition))

    def create_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, object] | None = None) -> TopicInfo:
        """Create a topic; each partition goes to the log directory with the fewest logs.

        Others see it when all of it is there. Its settings are stored before the first partition: a crash leaves fewer
        partitions, never other settings.

        Args:
            name: by Kafka's rules.
            partitions: how many, from 0 on.
            config: settings by Kafka's names; they go over the engine's defaults.

        Raises:
            InvalidTopicError, TopicExistsError, UnknownSettingError, ConfigError: nothing was created.
            DiskFullError, LogDirError, StoreError: what had been made by then was removed again.
        """
        with self._changing:
            self._check_open()
            return self._changes.create(name, partitions, config or {})

    def alter_topic(self, name: str, config: Mapping[str, object]) -> TopicInfo:
        """Change settings of a topic, for logs that are open too; durable on return.

        Args:
            name: of the topic.
            config: settings by Kafka's names; None takes one back to the engine's default.

        Raises:
            UnknownTopicError, UnknownSettingError, ConfigError: nothing was changed.
            StorageError: the settings cannot be stored; nothing was changed.
        """
        with self._changing:
            self._check_open()
            return self._changes.alter(name, config)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records, those in the tier included.

        Its folders get names that say so at once, and go after ``file.delete.delay.ms`` or at an orderly stop. A call
        that failed can be repeated.

        Raises:
            UnknownTopicError: it is not here.
            StoreError: the tier refused; nothing local was touched.
            StorageError: a folder cannot be renamed; the partitions before it are gone.
        """
        with self._changing:
            self._check_open()
            self._changes.delete(name)
        self._duties.write_checkpoints()

    def move_partition(self, topic: str, partition: int, log_dir: str | os.PathLike[str]) -> Log:
        """Move a partition to another of the engine's log directories; the log as it is open there.

        The log is closed while it is copied: a Log that was taken before raises ClosedError from then on.

        Raises:
            UnknownTopicError: it is not here.
            ConfigError: the engine has no such directory.
            StorageError: it was not moved.
        """
        with self._changing:
            return self._changes.move(self.log(topic, partition), os.fspath(log_dir))

    def left_folders(self) -> tuple[str, ...]:
        """Paths of folders that a broker set aside (``-stray``, ``-future``) and the engine leaves alone."""
        return tuple(directory.store.path(name) for directory in self._dirs for name in sorted(directory.left))

    # --- clients -----------------------------------------------------------------------------------------------------

    def producer(self, *, transactional_id: str | None = None, **options: Unpack[ProducerKeywords]) -> Producer:
        """A producer; arguments and errors as ``Clients.producer``, options as ``ProducerOptions``."""
        self._check_open()
        return self._clients.producer(transactional_id=transactional_id, **options)

    def consumer(
        self,
        *,
        topics: Iterable[str],
        group: str | None = None,
        isolation: str = "read_uncommitted",
        auto_offset_reset: str = "latest",
    ) -> Consumer:
        """A consumer of all partitions of ``topics``; arguments and errors as ``Consumer``."""
        self._check_open()
        return self._clients.consumer(
            topics=topics, group=group, isolation=isolation, auto_offset_reset=auto_offset_reset
        )

    # --- duties ------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Do the background duties on threads, and run the services, from now on, until the engine is closed.

        Duties sync, roll by time, apply retention, compact, offload, delete what was set aside, store checkpoints, and
        abort transactions that take too long. Twice is fine.

        Raises:
            PluginError: a service did not start; the duties run.
        """
        self._check_open()
        self._duties.start()
        self._services.start(self)
        return self

    def run_duties(self) -> int:
        """Do the background duties that are due now, on this thread; how long (ms) until one is due again."""
        self._check_open()
        return self._duties.run_due()

    def duties(self) -> tuple[DutyStatus, ...]:
        """How the background duties fare."""
        return self._duties.status()

    def flush(self) -> None:
        """Make everything written durable, and store the checkpoints.

        Raises:
            StorageError: what was wrong with the first log that failed, after all had their turn.
        """
        self._check_open()
        self._duties.flush()

    def offload(self, logs: Iterable[TopicPartition] | None = None) -> tuple[OffloadResult, ...]:
        """Move every closed segment below the last stable offset to the tier, for topics with ``remote.storage.enable``.

        Can be repeated at any time: what the tier has is not sent again. A log that fails (it is damaged, say, or
        fenced) does not keep the others from their turn.

        Args:
            logs: only these; None is all that could be opened.

        Returns:
            One result for each log with a tier that leads.

        Raises:
            ConfigError: the engine has no tier.
            StoreError: the store refused or failed; segments sent before stay committed.
            StorageError: what was wrong with the first log that failed, after all had their turn.
        """
        self._check_open()
        return self._duties.offload(self._duties.chosen(logs))

    def tier_lag(self, logs: Iterable[TopicPartition] | None = None) -> tuple[TierLag, ...]:
        """How far the tier is behind each log that has one, and what its last try failed with."""
        self._check_open()
        return () if self._tiering is None else self._tiering.lag(self._duties.chosen(logs))

    def collect(self) -> CollectReport:
        """Delete what no reader of the tier can need any more, of all logs: see ``tier.history.ms``.

        Raises:
            StoreError: the store refused or failed; what was deleted is gone, the rest stays for the next time.
        """
        self._check_open()
        return self._duties.collect()

    def apply_retention(
        self, logs: Iterable[TopicPartition] | None = None, *, dry_run: bool = False
    ) -> tuple[RetentionResult, ...]:
        """Delete and evict what each topic's cleanup policies say, over both tiers; ``dry_run`` only tells.

        Args:
            logs: only these; None is all that could be opened.
            dry_run: change nothing.

        Raises:
            StoreError, StorageError: as ``offload``.
        """
        self._check_open()
        return self._duties.apply_retention(self._duties.chosen(logs), dry_run=dry_run)

    def run_cleaner(self, logs: Iterable[TopicPartition] | None = None) -> tuple[CompactionResult, ...]:
        """Compact logs, the filthiest first, until none is dirty enough: topics with ``cleanup.policy=compact``.

        What is wrong with one log (it is damaged, say) is in its result, and ends no other's turn; such a log is left
        alone until it is opened again.

        Args:
            logs: only these; None is all that could be opened.

        Returns:
            One result a round; a log whose keys do not fit ``log.cleaner.dedupe.buffer.size`` has several.

        Raises:
            StorageError: a log directory went out of service.
        """
        self._check_open()
        return tuple(self._cleaner.run(self._duties.chosen(logs)))

    def plan_cleaner(self, logs: Iterable[TopicPartition] | None = None) -> tuple[CompactionPlan, ...]:
        """What ``run_cleaner`` would do with each log that is compacted at all, and why; changes nothing."""
        self._check_open()
        return tuple(self._cleaner.plan(self._duties.chosen(logs)))

    def preview_cleaner(self, plan: CompactionPlan) -> RoundPreview | None:
        """What a planned round would make of its log, to the byte, by reading what it would read; None if none is due.

        Raises:
            StorageError: what the round would fail with.
        """
        self._check_open()
        return self._cleaner.preview(plan)

    def explain(
        self, topic: str, partition: int, *, offset: int | None = None, key: bytes | None = None
    ) -> Explanation:
        """What the next retention and compaction do to each part of a log, when it is deleted, and why; changes nothing.

        Args:
            topic: its name.
            partition: its number.
            offset: only the record there.
            key: only records of this key.

        Raises:
            UnknownTopicError: it is not here.
            StorageError: what a pass would fail with.
        """
        self._check_open()
        log, now_ms = self.log(topic, partition), self._host.env.clock.now_ms()
        policies, remote = self._policies(log.config), self._opener.remote_of(log)
        return explain(log, policies, remote, self._cleaner.limits, now_ms, offset=offset, key=key)

    def erase(self, topic: str, key: bytes, *, dry_run: bool = False) -> tuple[EraseResult, ...]:
        """Forget every record of a key in all partitions of a topic, of the log as it ends now; a result for each.

        In a tier the history before it ends with it: what older roots name goes after the collector's grace time, whatever
        ``tier.history.ms`` says. ``EraseResult`` tells what may hold the key until when; ``cleaning.proof`` makes JSON of it.

        Args:
            topic: its name.
            key: the whole key.
            dry_run: change nothing.

        Raises:
            UnknownTopicError: it is not here.
            StorageError: a partition could not be opened; none was touched.
        """
        self._check_open()
        logs = [self.log(*name) for name in self.partitions() if name.topic == topic]
        if not logs:
            raise UnknownTopicError(f"there is no topic {topic} in {', '.join(self._settings.engine.log_dirs)}")
        return tuple(erase(log, key, self._opener.remote_of(log), dry_run=dry_run) for log in logs)

    def metrics(self) -> tuple[Sample, ...]:
        """Figures of logs, directories, duties and the tier, as of now: ``docs/reference/metrics.md`` says what each means.

        It takes no lock that an append would wait for, opens no file and asks no store. ``exposition`` makes text of them.
        """
        self._check_open()
        state = EngineState(
            logs=self._duties.chosen(None),
            failed_logs=len(self._shelf.failed),
            dirs=self._dirs,
            duties=self._duties.status(),
            open_files=self._host.handles.open_count,
            listener_failures=self._host.registry.listener_failures,
            tier=None if self._tier is None else self._tier.metrics(),
            tier_failing=frozenset() if self._tiering is None else self._tiering.failing(),
            throttled_ms=0 if self._tiering is None else self._tiering.throttled_ms,
        )
        return tuple(samples(state))

    def proof_of(self, result: EraseResult, key: bytes) -> dict[str, object]:
        """The proof of an erasure as a JSON object, for ``check_erasure``; the key itself is not in it."""
        return proof_of(result, self.log(*result.log), key)

    def check_erasure(self, proof: Mapping[str, object], key: bytes) -> ErasureCheck:
        """Look whether what may have held an erased key is gone; reads the partition, both tiers of it, for the key.

        Args:
            proof: as ``proof_of`` gave it.
            key: the key.

        Raises:
            ConfigError: the proof is none, or of another key or topic.
            UnknownTopicError: its topic is not here.
            StorageError: the log or the store failed.
        """
        self._check_open()
        topic, partition = proof.get("topic"), proof.get("partition")
        if not isinstance(topic, str) or type(partition) is not int:
            raise ConfigError("the proof names no topic and partition")
        log = self.log(topic, partition)
        return check_erasure(proof, log, key, self._opener.remote_of(log))

    @property
    def tier(self) -> Tier | None:
        """The opened tier."""
        return self._tier

    def close(self) -> None:
        """Stop services, close producers and logs, leaving the directories as a clean stop of Kafka does. Twice is fine."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._close)
            stack.callback(self._clients.close)
            stack.callback(self._services.close)

    def _close(self) -> None:
        with self._changing:  # and no longer: listeners that are still to be told may call the engine
            if self._closed:
                return
            self._closed = True
        self._owned.close()

    def _close_dir(self, directory: LogDir) -> None:
        directory.close(failed=any(name in directory.folders for name in self._shelf.failed))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the engine is closed")

    def _open_logs(self, directory: LogDir) -> None:
        duplicates = [name for name in directory.folders if name in self._shelf.logs]
        for name in duplicates:
            self._shelf.failed[name] = ConfigError(
                f"{name} is in {directory.store.path()} and in another log directory"
            )
        opened, failed = self._opener.open_all(
            directory, [name for name in directory.folders if name not in duplicates]
        )
        self._shelf.failed.update(failed)
        self._shelf.publish((directory, log) for log in opened)

    def _policies(self, config: TopicConfig) -> dict[str, CleanupPolicy]:
        return {name: self._host.policy(name) for name in config.cleanup_policy}

    def _tier_of(self, log: Log) -> TierLog | None:
        return self._opener.remote_of(log)
