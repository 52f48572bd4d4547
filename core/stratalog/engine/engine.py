"""The engine: all logs of some log directories, their producers and consumers, and their duties."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Self, Unpack

from stratalog.cleaning.compact.compaction_round import CompactionResult
from stratalog.cleaning.erase.erase_key import erase
from stratalog.cleaning.erase.erasure_proof import ErasureCheck, check_erasure, proof_of
from stratalog.cleaning.erase.erasure_report import EraseResult
from stratalog.cleaning.explain.explain import Explanation, explain
from stratalog.cleaning.explain.preview import RoundPreview
from stratalog.cleaning.plan.compaction_plan import CompactionPlan
from stratalog.cleaning.plan.retention import RetentionResult
from stratalog.client.clients import ProducerKeywords
from stratalog.client.consumer import Consumer
from stratalog.client.group_offsets import CommittedOffset, GroupOffsets
from stratalog.client.producer import Producer
from stratalog.engine.duties.engine_metrics import EngineState, histograms, samples
from stratalog.engine.duties.scheduler import DutyStatus
from stratalog.engine.duties.verify_logs import VerifyResult, verify_log
from stratalog.engine.engine_logs import EngineLogs
from stratalog.engine.for_each_log import for_each
from stratalog.engine.tiering.offload_log import OffloadResult, TierLag
from stratalog.env.watch import BeginSpan, Latencies
from stratalog.errors import ConfigError
from stratalog.log.change.extra_indexes import ExtrasResult
from stratalog.model.metrics import HistogramSample, Sample
from stratalog.model.names import TopicPartition, unknown_topic
from stratalog.reading.reader import TopicInfo
from stratalog.tier.upkeep.collect import CollectReport


class Engine(EngineLogs):
    """All logs of some log directories, for reading and writing. A context manager; thread-safe.

    If a log cannot be opened, the other logs are served, and ``log`` raises its error. Created by ``open_engine``;
    arguments and attributes are those of ``EngineLogs``.
    """

    # --- topics ------------------------------------------------------------------------------------------------------

    def create_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Add partitions to a topic, all of them or none; records that are stored keep their partitions.

        A key of new records may belong to another partition than before. Producers that are open use the new partitions
        only for records that name one.

        Args:
            name: name of the topic.
            partitions: number of partitions that the topic has afterwards.

        Raises:
            UnknownTopicError: the topic does not exist here.
            ConfigError: the topic has as many partitions, or more; or ``limits.topic.partitions`` is lower.
            LogDirOfflineError: a log directory is unavailable and may hold partitions of the topic.
            StorageError: partition 0 could not be opened.
            DiskFullError, LogDirError, StoreError: the creation failed; partitions created before were removed again.
        """
        with self._changing:
            self._check_open()
            made = self._changes.create_partitions(name, partitions)
            self._keep_inventory()
            self._create_in_tier(name)
            return made

    # --- clients -----------------------------------------------------------------------------------------------------

    def producer(self, *, transactional_id: str | None = None, **options: Unpack[ProducerKeywords]) -> Producer:
        """Create a producer; arguments and errors are those of ``Clients.producer``, options of ``ProducerOptions``."""
        self._check_open()
        return self._clients.producer(transactional_id=transactional_id, **options)

    def consumer(
        self,
        *,
        topics: Iterable[str] | re.Pattern[str] = (),
        group: str | None = None,
        isolation: str = "read_uncommitted",
        auto_offset_reset: str = "latest",
    ) -> Consumer:
        """Create a consumer of all partitions of ``topics``; arguments and errors are those of ``Consumer``."""
        self._check_open()
        return self._clients.consumer(
            topics=topics, group=group, isolation=isolation, auto_offset_reset=auto_offset_reset
        )

    def groups(self) -> tuple[str, ...]:
        """Return the groups that have committed offsets, sorted."""
        return self._group_offsets().groups()

    def group_offsets(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group, by partition; none for an unknown group."""
        return self._group_offsets().committed(group)

    def alter_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int | CommittedOffset | None], durability: str | None = None
    ) -> None:
        """Commit offsets for a group that no consumer uses now; None deletes the offset of a partition.

        Args:
            group: name of the group.
            offsets: offset of the next record to read, by partition.
            durability: ``written`` or ``durable``; None is the engine's setting.

        Raises:
            ConfigError: an offset is negative, or ``group`` is empty.
            UnknownTopicError: a partition does not exist here; nothing was stored.
        """
        if not group:
            raise ConfigError("group must not be empty")
        self._group_offsets().commit(group, offsets, durability)

    def delete_group(self, group: str, durability: str | None = None) -> bool:
        """Delete all committed offsets of a group. Return False if it has none."""
        offsets = self._group_offsets()
        found = offsets.committed(group)
        offsets.commit(group, dict.fromkeys(found), durability)
        return bool(found)

    def _group_offsets(self) -> GroupOffsets:
        self._check_open()
        self._clients.coordinator.recover()  # ends the transactions that may commit offsets
        return self._clients.offsets

    # --- duties ------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the threads of the background duties and the services; they run until the engine is closed. Idempotent.

        Duties sync, roll by time, apply retention, compact, offload, delete files that were set aside, store
        checkpoints, and abort transactions that exceed their timeout.

        Raises:
            PluginError: a service did not start; the duties run.
        """
        self._check_open()
        self._duties.start()
        self._services.start(lambda service: service.start(self))
        return self

    def run_duties(self) -> int:
        """Run the background duties that are due, on this thread. Return the time (ms) until the next one is due."""
        self._check_open()
        return self._duties.run_due()

    def duties(self) -> tuple[DutyStatus, ...]:
        """Return the status of each background duty."""
        return self._duties.status()

    def flush(self) -> None:
        """Make all written records durable, and store the checkpoints.

        Raises:
            StorageError: error of the first log that failed, raised after all logs.
        """
        self._check_open()
        self._duties.flush()

    def offload(self, logs: Iterable[TopicPartition] | None = None) -> tuple[OffloadResult, ...]:
        """Move closed segments below the last stable offset to the tier, for topics with ``remote.storage.enable``.

        The call can be repeated at any time: segments in the tier are not sent again. If a log fails, for instance
        because it is damaged or fenced, the other logs are still offloaded.

        Args:
            logs: only these logs; None is all open logs.

        Returns:
            One result for each log with a tier that leads.

        Raises:
            ConfigError: the engine has no tier.
            StoreError: the store refused or failed; segments sent before stay committed.
            StorageError: error of the first log that failed, raised after all logs.
        """
        self._check_open()
        return self._duties.offload(self._duties.chosen(logs))

    def tier_lag(self, logs: Iterable[TopicPartition] | None = None) -> tuple[TierLag, ...]:
        """Return the tier lag of each log that has a tier, with the error of its last attempt."""
        self._check_open()
        return () if self._tiering is None else self._tiering.lag(self._duties.chosen(logs))

    def collect(self) -> CollectReport:
        """Delete the objects of all logs in the tier that no reader can need any longer; see ``tier.history.ms``.

        Raises:
            StoreError: the store refused or failed. Objects deleted before stay deleted; the next call deletes the
                rest.
        """
        self._check_open()
        return self._duties.collect()

    def apply_retention(
        self, logs: Iterable[TopicPartition] | None = None, *, dry_run: bool = False
    ) -> tuple[RetentionResult, ...]:
        """Delete and evict segments on local disk and in the tier according to each topic's cleanup policies.

        Args:
            logs: only these logs; None is all open logs.
            dry_run: return the results without any change.

        Raises:
            StoreError, StorageError: as ``offload``.
        """
        self._check_open()
        return self._duties.apply_retention(self._duties.chosen(logs), dry_run=dry_run)

    def make_extra_indexes(self, logs: Iterable[TopicPartition] | None = None) -> tuple[ExtrasResult, ...]:
        """Build the extra indexes (``index.extra``) that closed local segments lack, as a background duty also does.

        Args:
            logs: only these logs; None is all open logs.

        Raises:
            PluginError, StorageError: error of the first log that failed, raised after all logs.
        """
        self._check_open()
        return self._duties.make_extras(self._duties.chosen(logs))

    def run_cleaner(self, logs: Iterable[TopicPartition] | None = None) -> tuple[CompactionResult, ...]:
        """Compact logs, the filthiest first, until none is dirty enough: topics with ``cleanup.policy=compact``.

        The error of a log, for instance a damaged batch, is in its result, and the other logs are still compacted.
        The log is not compacted again until it is opened again.

        Args:
            logs: only these logs; None is all open logs.

        Returns:
            One result for each round; a log whose keys exceed ``log.cleaner.dedupe.buffer.size`` has several rounds.

        Raises:
            StorageError: a log directory went out of service.
        """
        self._check_open()
        return tuple(self._cleaner.run(self._duties.chosen(logs), asks_all=True))

    def plan_cleaner(self, logs: Iterable[TopicPartition] | None = None) -> tuple[CompactionPlan, ...]:
        """Return the plan of ``run_cleaner``, with reasons, for each log with a compacting policy; changes nothing."""
        self._check_open()
        return tuple(self._cleaner.plan(self._duties.chosen(logs), asks_all=True))

    def preview_cleaner(self, plan: CompactionPlan) -> RoundPreview | None:
        """Return the exact result of a planned round, after reading the same records; None if no round is due.

        Raises:
            StorageError: the error with which the round would fail.
        """
        self._check_open()
        return self._cleaner.preview(plan)

    def why_kept(
        self, topic: str, partition: int, *, offset: int | None = None, key: bytes | None = None
    ) -> Explanation:
        """Explain what the next retention and compaction do to each part of a log, when, and why. Changes nothing.

        Args:
            topic: name of the topic.
            partition: number of the partition.
            offset: only the record at this offset.
            key: only records with this key.

        Raises:
            UnknownTopicError: the partition does not exist here.
            StorageError: the error with which retention or compaction would fail.
        """
        self._check_open()
        log, now_ms = self.log(topic, partition), self._host.env.clock.now_ms()
        policies, remote = self._policies(log.config), self._opener.remote_of(log)
        return explain(log, policies, remote, self._cleaner.limits, now_ms, offset=offset, key=key)

    def erase(self, topic: str, key: bytes, *, dry_run: bool = False) -> tuple[EraseResult, ...]:
        """Erase all records of a key below the current log end in all partitions of a topic; return a result for each.

        In a tier, the erasure also ends the history: objects that only older roots name are deleted after the
        collector's grace time, for any ``tier.history.ms``. ``EraseResult`` lists the files and objects that may
        still contain the key, and until when; ``proof_of`` converts it to JSON.

        Args:
            topic: name of the topic.
            key: the whole key.
            dry_run: return the results without any change.

        Raises:
            UnknownTopicError: the topic does not exist here.
            StorageError: a partition could not be opened; none was changed.
        """
        self._check_open()
        logs = [self.log(*name) for name in self.partitions() if name.topic == topic]
        if not logs:
            raise unknown_topic(topic, self.partitions(), self._open_logs.places())
        remotes = [self._opener.joined(log) for log in logs]
        return tuple(erase(log, key, remote, dry_run=dry_run) for log, remote in zip(logs, remotes, strict=True))

    def verify(
        self, logs: Iterable[TopicPartition] | None = None, *, deep: bool = False, repair: bool = False
    ) -> tuple[VerifyResult, ...]:
        """Check the closed segments of logs on local disk and, except orphans, everything in the tier.

        The engine continues meanwhile. The active segment is not checked: ``Log.roll`` closes it.

        Args:
            logs: only these logs; None is all open logs.
            deep: decode every local record, and read every segment of the tier.
            repair: restore damaged segments of the tier from local disk. ``stratalog verify --repair`` repairs the rest,
                and needs the engine to be stopped.

        Raises:
            StoreError, StorageError: as ``offload``.
        """
        self._check_open()
        return tuple(
            for_each(
                self._duties.chosen(logs),
                lambda log: verify_log(log, self._opener.remote_of(log), deep=deep, repair=repair),
            )
        )

    def metrics(self) -> tuple[Sample, ...]:
        """Return the current metrics of logs, directories, duties and the tier; see ``docs/reference/metrics.md``.

        The call takes no lock that an append waits for, opens no file and sends no request to a store.
        """
        self._check_open()
        state = EngineState(
            logs=self._duties.chosen(None),
            failed_logs=len(self._open_logs.failed),
            dirs=self._dirs,
            unreached=tuple(self._open_logs.unreached),
            duties=self._duties.status(),
            open_files=self._host.handles.open_count,
            listener_failures=self._host.registry.listener_failures,
            tier=None if self._tier is None else self._tier.metrics(),
            tier_away=self._tier is not None and self._tier.availability.away is not None,
            tier_failing=frozenset() if self._tiering is None else self._tiering.failing(),
            throttled_ms=0 if self._tiering is None else self._tiering.throttled_ms,
        )
        return tuple(samples(state))

    def measure_latencies(self) -> None:
        """Measure the latencies of appends, fetches, offloads and store requests from now on. Idempotent.

        A measured append takes about a microsecond longer. Service ``metrics`` calls this method.
        """
        self._check_open()
        env = self._host.env
        env.watch.latencies = env.watch.latencies or Latencies(env.clock.monotonic_ns)

    def latencies(self) -> tuple[HistogramSample, ...]:
        """Return the latencies in seconds since ``measure_latencies`` was called; nothing if it was not."""
        self._check_open()
        latencies = self._host.env.watch.latencies
        return () if latencies is None else tuple(histograms(latencies))

    def trace(self, begin_span: BeginSpan | None) -> None:
        """Trace each request to the store, each offload of a log and each run of a duty, from now on.

        Args:
            begin_span: gets the name and the attributes of a span, and returns a context manager that ends it, as
                OpenTelemetry's ``Tracer.start_as_current_span`` does. Called on the threads that do the work. None ends
                the tracing.
        """
        self._check_open()
        self._host.env.watch.begin_span = begin_span

    def proof_of(self, result: EraseResult, key: bytes) -> dict[str, object]:
        """Return the proof of an erasure as a JSON object for ``check_erasure``. It does not contain the key."""
        return proof_of(result, self.log(*result.log), key)

    def check_erasure(self, proof: Mapping[str, object], key: bytes) -> ErasureCheck:
        """Check that all files and objects that may have contained an erased key are gone.

        Searches the partition for the key, on local disk and in the tier.

        Args:
            proof: result of ``proof_of``.
            key: the erased key.

        Raises:
            ConfigError: the proof is invalid, or belongs to another key or topic.
            UnknownTopicError: the topic of the proof does not exist here.
            StorageError: the log or the store failed.
        """
        self._check_open()
        topic, partition = proof.get("topic"), proof.get("partition")
        if not isinstance(topic, str) or type(partition) is not int:
            raise ConfigError("the proof names no topic and partition: use the output of stratalog erase --json")
        log = self.log(topic, partition)
        return check_erasure(proof, log, key, self._opener.remote_of(log))
