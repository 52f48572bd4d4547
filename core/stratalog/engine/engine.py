"""The engine: all logs of some log directories, with clients of them and the duties over them."""

from __future__ import annotations

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
from stratalog.client.producer import Producer
from stratalog.engine.duties.engine_metrics import EngineState, samples
from stratalog.engine.duties.scheduler import DutyStatus
from stratalog.engine.engine_logs import EngineLogs
from stratalog.engine.tiering.offload_log import OffloadResult, TierLag
from stratalog.errors import ConfigError, UnknownTopicError
from stratalog.log.change.extra_indexes import ExtrasResult
from stratalog.model.metrics import Sample
from stratalog.model.names import TopicPartition
from stratalog.tier.upkeep.collect import CollectReport


class Engine(EngineLogs):
    """Logs for reading and writing. A context manager; thread-safe.

    Logs that cannot be opened do not keep the others from serving: ``log`` raises what is wrong with them. Made by
    ``open_engine``; arguments and attributes as ``EngineLogs``.
    """

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

    def make_extra_indexes(self, logs: Iterable[TopicPartition] | None = None) -> tuple[ExtrasResult, ...]:
        """Make the EXTRA indexes (``index.extra``) that closed segments on local disk lack; a duty does it by itself.

        Args:
            logs: only these; None is all that could be opened.

        Raises:
            PluginError, StorageError: what was wrong with the first log that failed, after all had their turn.
        """
        self._check_open()
        return self._duties.make_extras(self._duties.chosen(logs))

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
        return tuple(self._cleaner.run(self._duties.chosen(logs), asks_all=True))

    def plan_cleaner(self, logs: Iterable[TopicPartition] | None = None) -> tuple[CompactionPlan, ...]:
        """What ``run_cleaner`` would do with each log that is compacted at all, and why; changes nothing."""
        self._check_open()
        return tuple(self._cleaner.plan(self._duties.chosen(logs), asks_all=True))

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
        remotes = [self._opener.joined(log) for log in logs]
        return tuple(erase(log, key, remote, dry_run=dry_run) for log, remote in zip(logs, remotes, strict=True))

    def metrics(self) -> tuple[Sample, ...]:
        """Figures of logs, directories, duties and the tier, as of now: ``docs/reference/metrics.md`` says what each means.

        It takes no lock that an append would wait for, opens no file and asks no store. ``exposition`` makes text of them.
        """
        self._check_open()
        state = EngineState(
            logs=self._duties.chosen(None),
            failed_logs=len(self._shelf.failed),
            dirs=self._dirs,
            unreached=tuple(self._shelf.unreached),
            duties=self._duties.status(),
            open_files=self._host.handles.open_count,
            listener_failures=self._host.registry.listener_failures,
            tier=None if self._tier is None else self._tier.metrics(),
            tier_away=self._tier is not None and self._tier.reach.away is not None,
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
