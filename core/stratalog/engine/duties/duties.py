"""The duties of an engine, such as retention and offload: work on many logs, on a schedule or on request."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from stratalog.cleaning.plan.retention import RetentionResult, apply_retention
from stratalog.engine.duties.cleaner import Cleaner
from stratalog.engine.duties.scheduler import Duty, DutyStatus, Scheduler
from stratalog.engine.for_each_log import for_each
from stratalog.engine.open.log_opener import LogOpener
from stratalog.engine.open.open_logs import OpenLogs
from stratalog.engine.tiering.offload_log import OffloadResult
from stratalog.engine.tiering.tier_duties import TierDuties
from stratalog.env.progress import OnBytes, Progress, counters
from stratalog.errors import ClosedError, ConfigError, LogDirError, OutOfResourcesError, PluginError, StoreError
from stratalog.log.change.extra_indexes import ExtrasResult
from stratalog.log.log import Log
from stratalog.model.names import TopicPartition
from stratalog.reading.component_host import ComponentHost

LONGEST_SYNC_TICK_MS: Final = 1000  # longest interval between checks of flush.ms, even if sync.interval.ms is longer
DELETE_TICK_MS: Final = 1000
TRANSACTIONS_TICK_MS: Final = 10_000  # brokers check for overdue transactions at this interval


class Duties:
    """The duties of one engine. Thread-safe. ``close`` stops ``cleaner`` and ``tiering``, but closes no argument.

    If a duty fails for one log, the duty continues with the other logs, and raises the first error at the end. After a
    failure of the tier's store, only ``apply_retention`` continues, with the logs that have no tier. ``cleaner`` returns
    the error of a log in the result for that log.
    """

    def __init__(
        self,
        host: ComponentHost,
        opener: LogOpener,
        open_logs: OpenLogs,
        tiering: TierDuties | None,
        abort_expired: Callable[[], object],
    ) -> None:
        self._host, self._opener, self._open_logs, self._tiering = host, opener, open_logs, tiering
        self._settings, env = host.settings.engine, host.env
        self._abort_all_expired = abort_expired
        self.cleaner = Cleaner(host, opener, open_logs)
        schedules = self._schedules()
        self._schedulers = [Scheduler(env.clock, duties, name, env.watch) for name, duties in schedules.items()]

    # --- on a schedule -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads that run the duties when they are due. Idempotent."""
        for scheduler in self._schedulers:
            scheduler.start()

    def run_due(self) -> int:
        """Run the duties that are due now, on this thread. Return the time (ms) until the next duty is due."""
        return min(scheduler.run_due() for scheduler in self._schedulers)

    def status(self) -> tuple[DutyStatus, ...]:
        """Return the status of each duty: its runs, failures and latest error."""
        return tuple(status for scheduler in self._schedulers for status in scheduler.status())

    def close(self) -> None:
        """Start no further duty, and wait for running duties. Compaction, offload and collection stop early. Idempotent."""
        self.cleaner.stop()
        if self._tiering is not None:
            self._tiering.close()
        for scheduler in reversed(self._schedulers):
            scheduler.close()

    def _schedules(self) -> Mapping[str, Sequence[Duty]]:
        """Return the duties of each thread, by the name of the thread."""
        settings = self._settings
        return {
            "stratalog-duties": (
                Duty("sync", min(max(settings.sync_interval_ms // 2, 1), LONGEST_SYNC_TICK_MS), self._sync_due),
                Duty("delete", DELETE_TICK_MS, self._delete_due),
                Duty("transactions", TRANSACTIONS_TICK_MS, self._abort_expired),
                Duty("high watermarks", settings.watermark_interval_ms, self._write_high_watermarks),
                Duty("checkpoints", max(settings.checkpoint_interval_ms, 1), self.write_checkpoints),
                Duty("producers", settings.producer_expiration_interval_ms, self._forget_producers),
                Duty("roll", settings.retention_interval_ms, self._roll_due),
            ),
            # The following duties have their own threads: a plugin's policy or an upload may take minutes, and must
            # not delay syncs. A compaction round in a tier may take hours, and must not delay retention.
            "stratalog-retention": (
                Duty(
                    "retention", settings.retention_interval_ms, lambda: self.apply_retention(self._logs_in_service())
                ),
            ),
            "stratalog-cleaning": (
                [Duty("cleaner", settings.cleaner_backoff_ms, self._clean_due)] if settings.cleaner_enable else ()
            ),
            "stratalog-tier": () if self._tiering is None else self._tier_duties(self._tiering),
            "stratalog-extras": (
                Duty("EXTRA indexes", settings.extra_interval_ms, lambda: self.make_extras(self._logs_in_service())),
            ),
        }

    def _clean_due(self) -> None:
        """Compact the logs in service. Raise the first StoreError or LogDirError of a compaction round."""
        for result in self.cleaner.run(self._logs_in_service()):
            if isinstance(result.error, StoreError | LogDirError):
                raise result.error

    def _tier_duties(self, tiering: TierDuties) -> Sequence[Duty]:
        def offload() -> None:
            """Offload all logs in service. Skip a log during the pause after a plugin has failed on it."""
            with contextlib.suppress(PluginError):  # the error was logged, and is in the log's TierLag
                self.offload([log for log in self._logs_in_service() if tiering.is_due(log)])

        return (
            Duty("offload", self._settings.offload_interval_ms, offload),
            Duty("collect", self._settings.collect_interval_ms, lambda: tiering.collect(self.select_logs(None))),
        )

    def _logs_in_service(self) -> list[Log]:
        """Return the open logs that are in service."""
        return [log for log in self.select_logs(None) if log.healthy]

    def _sync_due(self) -> None:
        interval_ms = self._settings.sync_interval_ms // 2
        for_each(self._logs_in_service(), lambda log: log.maintenance.sync_if_due(interval_ms))

    def _abort_expired(self) -> None:
        with contextlib.suppress(ClosedError):  # the engine is being closed
            self._abort_all_expired()

    def _forget_producers(self) -> None:
        silent_ms = self._settings.producer_expiration_ms
        for_each(self._logs_in_service(), lambda log: log.maintenance.forget_producers(silent_ms))

    def _roll_due(self) -> None:
        for_each(self._logs_in_service(), lambda log: log.maintenance.roll_if_due())

    def _delete_due(self) -> None:
        for_each(self._logs_in_service(), lambda log: log.maintenance.delete_expired())
        for directory in self._open_logs.dirs:
            directory.delete_expired()

    def _write_high_watermarks(self) -> None:
        with contextlib.ExitStack() as stack:
            for directory in self._open_logs.dirs:
                stack.callback(directory.checkpoints.write_high_watermarks)

    # --- on request --------------------------------------------------------------------------------------------------

    def select_logs(self, names: Iterable[TopicPartition] | None) -> list[Log]:
        """Return the logs with these names, in the order of ``names``. If None, return all open logs, sorted by name.

        Raises the errors of ``Engine.log``.
        """
        if names is None:
            return [log for _, log in sorted(self._open_logs.logs.items())]
        return [self._open_logs.log(name) for name in names]

    def write_checkpoints(self) -> None:
        """Store the checkpoint files of all directories. An error is raised after all directories were tried."""
        with contextlib.ExitStack() as stack:
            for directory in self._open_logs.dirs:
                stack.callback(directory.checkpoints.write)

    def offload(self, logs: Sequence[Log], progress: Progress | None = None) -> tuple[OffloadResult, ...]:
        """Offload logs once, several in parallel, and return the results.

        A log has no result if it has no tier, is a follower, or sets ``remote.log.copy.disable``. ``progress`` is
        called with the bytes that were sent.
        """
        if self._tiering is None:
            raise ConfigError("no tier is configured, so segments cannot be offloaded: set tier to the URI of a tier")
        tiering = self._tiering
        on_bytes = counters_by_log(logs, progress, lambda log: sum(lag.size_bytes for lag in tiering.lag([log])))
        results = for_each(logs, lambda log: tiering.offload(log, on_bytes[log.name]), self._settings.copier_threads)
        return tuple(result for result in results if result is not None)

    def make_extras(self, logs: Sequence[Log]) -> tuple[ExtrasResult, ...]:
        """Build the missing extra indexes (``index.extra``) of closed local segments. Return a result for each log."""
        return tuple(for_each(logs, lambda log: log.maintenance.make_extra_indexes()))

    def apply_retention(
        self, logs: Sequence[Log], *, dry_run: bool = False, progress: Progress | None = None
    ) -> tuple[RetentionResult, ...]:
        """Delete and evict segments according to the cleanup policies. Return a result for each log.

        ``progress`` is called after each log, with the size that its local segments had at the beginning.
        """
        now_ms = self._host.env.clock.now_ms()
        sizes_bytes = {log.name: sum(segment.size_bytes for segment in log.view().segments) for log in logs}
        on_bytes = counters_by_log(logs, progress, lambda log: sizes_bytes[log.name])

        def work(log: Log) -> RetentionResult:
            policies, remote = self._host.policies(log.config), self._opener.connect_remote(log)
            result = apply_retention(log, policies, remote, now_ms=now_ms, dry_run=dry_run)
            on_bytes[log.name](sizes_bytes[log.name])
            return result

        try:
            return tuple(for_each(logs, work, needs_store=lambda log: self._opener.remote_of(log) is not None))
        finally:
            if not dry_run:
                with contextlib.suppress(OutOfResourcesError):  # the disk is full: a later run writes the checkpoints
                    self.write_checkpoints()


def counters_by_log(
    logs: Sequence[Log], progress: Progress | None, size_of: Callable[[Log], int]
) -> dict[TopicPartition, OnBytes]:
    """Return the callbacks of ``counters``, with the name of each callback's log as key."""
    return dict(zip((log.name for log in logs), counters(progress, logs, size_of), strict=True))
