"""The operations of an engine on its logs: duties, retention, cleaning, erasure and checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stratalog.cleaning.compact.compaction_round import CompactionResult
from stratalog.cleaning.erase.erase_key import erase, searched_bytes
from stratalog.cleaning.erase.erasure_proof import ErasureCheck, check_erasure, proof_of
from stratalog.cleaning.erase.erasure_report import EraseResult
from stratalog.cleaning.explain.explain import Explanation, explain
from stratalog.cleaning.explain.preview import RoundPreview, preview
from stratalog.cleaning.plan.compaction_plan import CompactionPlan
from stratalog.cleaning.plan.retention import RetentionResult
from stratalog.engine.duties.duties import Duties, counters_by_log
from stratalog.engine.duties.engine_metrics import histograms, samples
from stratalog.engine.duties.scheduler import DutyStatus
from stratalog.engine.duties.verify_logs import VerifyResult, checked_bytes, verify_log
from stratalog.engine.engine_logs import EngineLogs
from stratalog.engine.for_each_log import for_each
from stratalog.engine.tiering.offload_log import OffloadResult, TierLag
from stratalog.env.closing import Closeable
from stratalog.env.latencies import BeginSpan, Latencies
from stratalog.env.progress import Progress, counters
from stratalog.errors import ConfigError
from stratalog.log.change.extra_indexes import ExtrasResult
from stratalog.log.log import Log
from stratalog.model.arguments import CheckedArguments
from stratalog.model.metrics import HistogramSample, Sample
from stratalog.model.names import TopicPartition
from stratalog.tier.upkeep.collect import CollectReport


class EngineDuties(CheckedArguments, Closeable):
    """Base class of ``Engine`` with its operations on logs: retention, cleaning, offload, erasure and checks.

    ``Engine`` sets ``_logs``, which owns the logs, and ``_duties``, which also does some of this work on a schedule.
    """

    _logs: EngineLogs
    _duties: Duties

    def _select_logs(self, names: Iterable[TopicPartition] | None) -> list[Log]:
        self._logs.check_open()
        return self._duties.select_logs(names)

    def run_duties(self) -> int:
        """Run the background duties that are due, on this thread. Return the time (ms) until the next duty is due.

        If a duty fails, its error is logged and is in the result of ``duties``, but is not raised.
        """
        self._logs.check_open()
        return self._duties.run_due()

    def duties(self) -> tuple[DutyStatus, ...]:
        """Return the status of each background duty: its runs, failures and latest error."""
        return self._duties.status()

    def flush(self) -> None:
        """Make all written records durable, and store the checkpoints.

        Raises:
            StorageError: error of the first log or directory that failed, raised after all of them have been processed.
        """
        logs = self._select_logs(None)
        try:
            for_each(logs, Log.flush)
        finally:
            self._duties.write_checkpoints()

    def offload(
        self, logs: Iterable[TopicPartition] | None = None, *, progress: Progress | None = None
    ) -> tuple[OffloadResult, ...]:
        """Copy closed segments below the last stable offset to the tier, for topics with ``remote.storage.enable``.

        Segments that are in the tier are not sent again. If a log fails, for instance because it is damaged or fenced,
        the other logs are still offloaded. Retention deletes the local copies later.

        Args:
            logs: only these logs; None is all open logs.
            progress: called with the bytes of segments that were sent.

        Returns:
            One result for each log that has a tier, is the leader and does not set ``remote.log.copy.disable``.

        Raises:
            ConfigError: the engine has no tier.
            UnknownTopicError: a log in ``logs`` does not exist here.
            StoreError: the store refused a request or failed; segments that were committed before stay committed.
            StorageError: error of the first log that failed, raised after all logs have been processed.
        """
        return self._duties.offload(self._select_logs(logs), progress)

    def tier_lag(self, logs: Iterable[TopicPartition] | None = None) -> tuple[TierLag, ...]:
        """Return the tier lag of each log that has a tier, with the error of its last offload; () without a tier.

        Raises:
            UnknownTopicError: a log in ``logs`` does not exist here.
        """
        selected, tiering = self._select_logs(logs), self._logs.tiering
        return () if tiering is None else tiering.lag(selected)

    def collect(self) -> CollectReport:
        """Delete the objects in the tier that no reader can need any longer.

        This includes objects of deleted topics, and of topics that left the tier. Objects of earlier versions are kept
        for ``tier.history.ms``. Without a tier, nothing is done, and the report is empty.

        Raises:
            StoreError: the store refused a request or failed. The next call deletes the remaining objects.
            StorageError: error of the first log that failed, raised after all logs have been processed.
        """
        logs, tiering = self._select_logs(None), self._logs.tiering
        return CollectReport() if tiering is None else tiering.collect(logs)

    def apply_retention(
        self, logs: Iterable[TopicPartition] | None = None, *, dry_run: bool = False, progress: Progress | None = None
    ) -> tuple[RetentionResult, ...]:
        """Delete segments on local disk and in the tier, and evict local copies, according to the cleanup policies.

        Args:
            logs: only these logs; None is all open logs.
            dry_run: True to return the results and change nothing.
            progress: called after each log with the size of its local segments before the call.

        Returns:
            One result for each log.

        Raises:
            UnknownTopicError: a log in ``logs`` does not exist here.
            StoreError: the store refused a request or failed. After that error, only logs without a tier are processed.
            StorageError: error of the first log that failed, raised after all logs have been processed.
        """
        return self._duties.apply_retention(self._select_logs(logs), dry_run=dry_run, progress=progress)

    def make_extra_indexes(self, logs: Iterable[TopicPartition] | None = None) -> tuple[ExtrasResult, ...]:
        """Build the missing extra indexes (``index.extra``) of closed local segments. A duty builds them, too.

        Args:
            logs: only these logs; None is all open logs.

        Returns:
            One result for each log.

        Raises:
            UnknownTopicError: a log in ``logs`` does not exist here.
            StorageError: error of the first log that failed, raised after all logs have been processed.
        """
        return self._duties.make_extras(self._select_logs(logs))

    def run_cleaner(
        self, logs: Iterable[TopicPartition] | None = None, *, progress: Progress | None = None
    ) -> tuple[CompactionResult, ...]:
        """Compact the logs of topics with a compacting ``cleanup.policy``, the dirtiest first, until none is due.

        If the compaction of a log fails, for instance because a batch is damaged, its result contains the error, and
        the other logs are still compacted. After damage or a wrong policy, that part of the log (local or tier) is not
        compacted until the log is opened again.

        Args:
            logs: only these logs; None is all open logs.
            progress: called with the bytes that were read. The total grows when a compaction round begins.

        Returns:
            One result for each compaction round, and for each part of a log (local or tier) that could not be planned.
            A log whose keys exceed ``log.cleaner.dedupe.buffer.size`` has several rounds.

        Raises:
            UnknownTopicError: a log in ``logs`` does not exist here.
            StorageError: a log directory went out of service, or its checkpoint cannot be written.
        """
        return tuple(self._duties.cleaner.run(self._select_logs(logs), asks_all=True, progress=progress))

    def plan_cleaner(self, logs: Iterable[TopicPartition] | None = None) -> tuple[CompactionPlan, ...]:
        """Return plans of the compaction rounds with which ``run_cleaner`` would begin now. Changes nothing.

        Each log with a compacting policy has a plan for its local part, and, if it has segments in the tier, a plan for
        its tier part. A plan contains a compaction round and its reason. If no round is due, the plan contains the
        reason or the error.

        Raises:
            UnknownTopicError: a log in ``logs`` does not exist here.
        """
        return tuple(self._duties.cleaner.plan(self._select_logs(logs), asks_all=True))

    def preview_cleaner(self, plan: CompactionPlan) -> RoundPreview | None:
        """Return the result that a planned compaction round would have; None if no round is due. Changes nothing.

        The call reads the records that the round would read. If the plan is for the tier part of a log, the call
        downloads segments.

        Raises:
            SegmentGoneError: the log changed during the preview; call again.
            StorageError: the error with which the compaction round would fail.
        """
        logs = self._logs
        logs.check_open()
        policies, now_ms = logs.policies(plan.log.config), logs.env.clock.now_ms()
        return preview(plan, policies, self._duties.cleaner.limits, now_ms)

    def why_kept(
        self, topic: str, partition: int, *, offset: int | None = None, key: bytes | None = None
    ) -> Explanation:
        """Return the next action of retention or compaction on each offset range of a log, with its time and reason.

        Args:
            topic: name of the topic.
            partition: number of the partition.
            offset: only the record at this offset; None for no restriction.
            key: only records with this key; None for no restriction. Ignored if ``offset`` is given.

        Raises:
            UnknownTopicError: the partition does not exist here.
            StorageError: the error with which retention or compaction would fail.
        """
        log, logs = self._logs.log(topic, partition), self._logs
        policies, remote, now_ms = logs.policies(log.config), logs.opener.remote_of(log), logs.env.clock.now_ms()
        return explain(log, policies, remote, self._duties.cleaner.limits, now_ms, offset=offset, key=key)

    def erase(
        self, topic: str, key: bytes, *, dry_run: bool = False, progress: Progress | None = None
    ) -> tuple[EraseResult, ...]:
        """Erase all records of a key below the current log end in all partitions of a topic.

        The result has one ``EraseResult`` for each partition. It lists the files and objects that may still contain the
        key, and until which time. ``proof_of`` converts an ``EraseResult`` to JSON. In a tier, the erasure also ends
        the history: the first collection after one hour deletes the objects of earlier versions, even if
        ``tier.history.ms`` is longer.

        Args:
            topic: name of the topic.
            key: the whole key.
            dry_run: True to return the results and change nothing.
            progress: called with the bytes that were searched, on local disk and in the tier.

        Raises:
            UnknownTopicError: the topic does not exist here.
            LogDirOfflineError: a log directory is unavailable and may contain partitions of the topic.
            StorageError: a partition could not be opened, or its tier is unavailable; no partition was changed. An
                error that ends the erasure of a partition early is not raised, but is in its result.
        """
        pairs = [(log, self._logs.opener.connect_remote(log)) for log in self._logs.logs_of(topic)]
        callbacks = counters(progress, pairs, lambda pair: searched_bytes(*pair))
        return tuple(
            erase(log, key, remote, dry_run=dry_run, on_bytes=on_bytes)
            for (log, remote), on_bytes in zip(pairs, callbacks, strict=True)
        )

    def verify(
        self,
        logs: Iterable[TopicPartition] | None = None,
        *,
        deep: bool = False,
        repair: bool = False,
        progress: Progress | None = None,
    ) -> tuple[VerifyResult, ...]:
        """Check the closed local segments of logs, and their manifests and objects in the tier.

        The check does not find orphans, which are objects that no manifest refers to. The active segment is not
        checked; ``Log.roll`` closes it.

        Args:
            logs: only these logs; None is all open logs.
            deep: True to decode every local record, and to read every segment of the tier.
            repair: True to restore damaged segments of the tier from local disk. To repair local files, stop the
                engine, and run ``stratalog verify --repair``.
            progress: called with the sizes (bytes) of checked segments, even if a segment of the tier was checked
                without reading it.

        Raises:
            UnknownTopicError: a log in ``logs`` does not exist here.
            StoreError: the store refused a request or failed; the remaining logs are not checked.
            StorageError: error of the first log that failed, raised after all logs have been processed.
        """
        selected, remote_of = self._select_logs(logs), self._logs.opener.remote_of
        on_bytes = counters_by_log(selected, progress, lambda log: checked_bytes(log, remote_of(log)))

        def work(log: Log) -> VerifyResult:
            return verify_log(log, remote_of(log), deep=deep, repair=repair, on_bytes=on_bytes[log.name])

        return tuple(for_each(selected, work))

    def proof_of(self, result: EraseResult, key: bytes) -> dict[str, object]:
        """Return the proof of an erasure as a JSON object for ``check_erasure``. The proof does not contain the key.

        Args:
            result: result of ``erase`` for one partition. After a dry run that found records, the proof is incomplete.
            key: the erased key, of which the proof contains a salted hash.

        Raises:
            UnknownTopicError: the partition does not exist here.
            StorageError: the error with which the log could not be opened.
        """
        return proof_of(result, self._logs.log(*result.log), key)

    def check_erasure(self, proof: Mapping[str, object], key: bytes) -> ErasureCheck:
        """Return the files and objects of a partition that contain or may contain an erased key.

        The method searches the whole partition, on local disk and in the tier. Records with the key that were appended
        after the erasure began are ignored. The method also checks if the files and objects that the proof lists as
        remnants still exist.

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
        log = self._logs.log(topic, partition)
        return check_erasure(proof, log, key, self._logs.opener.remote_of(log))

    def metrics(self) -> tuple[Sample, ...]:
        """Return the current metrics of logs, directories, duties and the tier; see ``docs/reference/metrics.md``.

        The call takes no lock that an append waits for, opens no file and sends no request to a store.
        """
        self._logs.check_open()
        return tuple(samples(self._logs.state(self._duties.status())))

    def measure_latencies(self) -> None:
        """Measure the latencies of appends, fetches, offloads and store requests from now on. Idempotent.

        A measured append takes about a microsecond longer. The service ``metrics`` calls this method.
        """
        self._logs.check_open()
        env = self._logs.env
        env.watch.latencies = env.watch.latencies or Latencies(env.clock.monotonic_ns)

    def latencies(self) -> tuple[HistogramSample, ...]:
        """Return histograms of the latencies (seconds) since the first ``measure_latencies``; () before that call."""
        self._logs.check_open()
        latencies = self._logs.env.watch.latencies
        return () if latencies is None else tuple(histograms(latencies))

    def trace(self, begin_span: BeginSpan | None) -> None:
        """Trace each request to the store, each offload of a log and each run of a duty, from now on.

        Args:
            begin_span: called with the name and the attributes of a span, on the thread that does the work. Returns a
                context manager that ends the span, as OpenTelemetry's ``Tracer.start_as_current_span`` does. None ends
                the tracing.
        """
        self._logs.check_open()
        self._logs.env.watch.begin_span = begin_span
