"""The operations of an engine on its logs: duties, retention, cleaning, erasure and checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stratalog.cleaning.compact.compaction_round import CompactionResult
from stratalog.cleaning.erase.erasure_proof import ErasureCheck, proof_of
from stratalog.cleaning.erase.erasure_report import EraseResult
from stratalog.cleaning.explain.explain import Explanation
from stratalog.cleaning.explain.preview import RoundPreview
from stratalog.cleaning.plan.compaction_plan import CompactionPlan
from stratalog.cleaning.plan.retention import RetentionResult
from stratalog.engine.duties.duties import Duties
from stratalog.engine.duties.engine_metrics import histograms, samples
from stratalog.engine.duties.scheduler import DutyStatus
from stratalog.engine.duties.verify_logs import VerifyResult
from stratalog.engine.engine_logs import EngineLogs
from stratalog.engine.tiering.offload_log import OffloadResult, TierLag
from stratalog.env.closing import Closeable
from stratalog.env.latencies import BeginSpan, Latencies
from stratalog.env.progress import Progress
from stratalog.errors import ConfigError
from stratalog.log.change.extra_indexes import ExtrasResult
from stratalog.log.log import Log
from stratalog.model.arguments import CheckedArguments
from stratalog.model.metrics import HistogramSample, Sample
from stratalog.model.names import TopicPartition
from stratalog.tier.upkeep.collect import CollectReport


class EngineDuties(CheckedArguments, Closeable):
    """The operations of ``Engine`` on its logs, with their documentation. It has no state: ``Engine`` sets the owners.

    ``EngineLogs`` owns the logs, and ``Duties`` does the work.
    """

    _logs: EngineLogs
    _duties: Duties

    def _chosen(self, names: Iterable[TopicPartition] | None) -> list[Log]:
        self._logs.check_open()
        return self._duties.chosen(names)

    def run_duties(self) -> int:
        """Run the background duties that are due, on this thread. Return the time (ms) until the next one is due."""
        self._logs.check_open()
        return self._duties.run_due()

    def duties(self) -> tuple[DutyStatus, ...]:
        """Return the status of each background duty."""
        return self._duties.status()

    def flush(self) -> None:
        """Make all written records durable, and store the checkpoints.

        Raises:
            StorageError: error of the first log that failed, raised after all logs.
        """
        self._logs.check_open()
        self._duties.flush()

    def offload(
        self, logs: Iterable[TopicPartition] | None = None, *, progress: Progress | None = None
    ) -> tuple[OffloadResult, ...]:
        """Move closed segments below the last stable offset to the tier, for topics with ``remote.storage.enable``.

        The call can be repeated at any time: segments in the tier are not sent again. If a log fails, for instance
        because it is damaged or fenced, the other logs are still offloaded.

        Args:
            logs: only these logs; None is all open logs.
            progress: called with the bytes of segments that were sent.

        Returns:
            One result for each log with a tier that leads.

        Raises:
            ConfigError: the engine has no tier.
            StoreError: the store refused or failed; segments sent before stay committed.
            StorageError: error of the first log that failed, raised after all logs.
        """
        return self._duties.offload(self._chosen(logs), progress)

    def tier_lag(self, logs: Iterable[TopicPartition] | None = None) -> tuple[TierLag, ...]:
        """Return the tier lag of each log that has a tier, with the error of its last attempt."""
        return self._duties.tier_lag(self._chosen(logs))

    def collect(self) -> CollectReport:
        """Delete the objects of all logs in the tier that no reader can need any longer; see ``tier.history.ms``.

        Raises:
            StoreError: the store refused or failed. Objects deleted before stay deleted; the next call deletes the
                rest.
        """
        self._logs.check_open()
        return self._duties.collect()

    def apply_retention(
        self,
        logs: Iterable[TopicPartition] | None = None,
        *,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> tuple[RetentionResult, ...]:
        """Delete and evict segments on local disk and in the tier according to each topic's cleanup policies.

        Args:
            logs: only these logs; None is all open logs.
            dry_run: return the results without any change.
            progress: called with the local bytes of the logs that retention was applied to.

        Raises:
            StoreError, StorageError: as ``offload``.
        """
        return self._duties.apply_retention(self._chosen(logs), dry_run=dry_run, progress=progress)

    def make_extra_indexes(self, logs: Iterable[TopicPartition] | None = None) -> tuple[ExtrasResult, ...]:
        """Build the extra indexes (``index.extra``) that closed local segments lack, as a background duty also does.

        Args:
            logs: only these logs; None is all open logs.

        Raises:
            PluginError, StorageError: error of the first log that failed, raised after all logs.
        """
        return self._duties.make_extras(self._chosen(logs))

    def run_cleaner(
        self, logs: Iterable[TopicPartition] | None = None, *, progress: Progress | None = None
    ) -> tuple[CompactionResult, ...]:
        """Compact logs, the dirtiest first, until none is dirty enough: topics with ``cleanup.policy=compact``.

        The error of a log, for instance a damaged batch, is in its result, and the other logs are still compacted.
        The log is not compacted again until it is opened again.

        Args:
            logs: only these logs; None is all open logs.
            progress: called with the bytes that were read; each round adds its bytes to the total when it begins.

        Returns:
            One result for each round; a log whose keys exceed ``log.cleaner.dedupe.buffer.size`` has several rounds.

        Raises:
            StorageError: a log directory went out of service.
        """
        return tuple(self._duties.cleaner.run(self._chosen(logs), asks_all=True, progress=progress))

    def plan_cleaner(self, logs: Iterable[TopicPartition] | None = None) -> tuple[CompactionPlan, ...]:
        """Return the plan of ``run_cleaner``, with reasons, for each log with a compacting policy; changes nothing."""
        return tuple(self._duties.cleaner.plan(self._chosen(logs), asks_all=True))

    def preview_cleaner(self, plan: CompactionPlan) -> RoundPreview | None:
        """Return the exact result of a planned round, after reading the same records; None if no round is due.

        Raises:
            StorageError: the error with which the round would fail.
        """
        self._logs.check_open()
        return self._duties.cleaner.preview(plan)

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
        return self._duties.why_kept(self._logs.log(topic, partition), offset, key)

    def erase(
        self, topic: str, key: bytes, *, dry_run: bool = False, progress: Progress | None = None
    ) -> tuple[EraseResult, ...]:
        """Erase all records of a key below the current log end in all partitions of a topic; return a result for each.

        In a tier, the erasure also ends the history: objects that only older roots name are deleted after the
        collector's grace time, for any ``tier.history.ms``. ``EraseResult`` lists the files and objects that may
        still contain the key, and until when; ``proof_of`` converts it to JSON.

        Args:
            topic: name of the topic.
            key: the whole key.
            dry_run: return the results without any change.
            progress: called with the bytes that were searched, on local disk and in the tier.

        Raises:
            UnknownTopicError: the topic does not exist here.
            StorageError: a partition could not be opened; none was changed.
        """
        return self._duties.erase(self._logs.logs_of(topic), key, dry_run=dry_run, progress=progress)

    def verify(
        self,
        logs: Iterable[TopicPartition] | None = None,
        *,
        deep: bool = False,
        repair: bool = False,
        progress: Progress | None = None,
    ) -> tuple[VerifyResult, ...]:
        """Check the closed segments of logs on local disk and, except orphans, everything in the tier.

        The engine continues meanwhile. The active segment is not checked: ``Log.roll`` closes it.

        Args:
            logs: only these logs; None is all open logs.
            deep: decode every local record, and read every segment of the tier.
            repair: restore damaged segments of the tier from local disk. ``stratalog verify --repair`` repairs the rest,
                and needs the engine to be stopped.
            progress: called with the bytes of segments that were checked; a segment of the tier that is not read counts
                with its size.

        Raises:
            StoreError, StorageError: as ``offload``.
        """
        return self._duties.verify(self._chosen(logs), deep=deep, repair=repair, progress=progress)

    def proof_of(self, result: EraseResult, key: bytes) -> dict[str, object]:
        """Return the proof of an erasure as a JSON object for ``check_erasure``. It does not contain the key."""
        return proof_of(result, self._logs.log(*result.log), key)

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
        self._logs.check_open()
        topic, partition = proof.get("topic"), proof.get("partition")
        if not isinstance(topic, str) or type(partition) is not int:
            raise ConfigError("the proof names no topic and partition: use the output of stratalog erase --json")
        return self._duties.check_erasure(proof, self._logs.log(topic, partition), key)

    def metrics(self) -> tuple[Sample, ...]:
        """Return the current metrics of logs, directories, duties and the tier; see ``docs/reference/metrics.md``.

        The call takes no lock that an append waits for, opens no file and sends no request to a store.
        """
        self._logs.check_open()
        return tuple(samples(self._logs.state(self._duties.status())))

    def measure_latencies(self) -> None:
        """Measure the latencies of appends, fetches, offloads and store requests from now on. Idempotent.

        A measured append takes about a microsecond longer. Service ``metrics`` calls this method.
        """
        self._logs.check_open()
        env = self._logs.env
        env.watch.latencies = env.watch.latencies or Latencies(env.clock.monotonic_ns)

    def latencies(self) -> tuple[HistogramSample, ...]:
        """Return the latencies in seconds since ``measure_latencies`` was called; nothing if it was not."""
        self._logs.check_open()
        latencies = self._logs.env.watch.latencies
        return () if latencies is None else tuple(histograms(latencies))

    def trace(self, begin_span: BeginSpan | None) -> None:
        """Trace each request to the store, each offload of a log and each run of a duty, from now on.

        Args:
            begin_span: gets the name and the attributes of a span, and returns a context manager that ends it, as
                OpenTelemetry's ``Tracer.start_as_current_span`` does. Called on the threads that do the work. None ends
                the tracing.
        """
        self._logs.check_open()
        self._logs.env.watch.begin_span = begin_span
