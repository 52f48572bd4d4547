"""What an engine does to many of its logs: when it is asked to, and on a schedule."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from stratalog.cleaning.plan.retention import RetentionResult, apply_retention
from stratalog.config.engine_settings import EngineConfig
from stratalog.engine.duties.cleaner import Cleaner, Policies
from stratalog.engine.duties.scheduler import Duty, DutyStatus, Scheduler
from stratalog.engine.for_each_log import for_each
from stratalog.engine.open.log_opener import LogOpener
from stratalog.engine.open.open_logs import LogShelf
from stratalog.engine.tiering.offload_log import OffloadResult
from stratalog.engine.tiering.tier_duties import Tiering
from stratalog.env import Clock
from stratalog.errors import ConfigError, OutOfResourcesError, PluginError
from stratalog.log.change.extra_indexes import ExtrasResult
from stratalog.log.log import Log
from stratalog.model.names import TopicPartition
from stratalog.tier.upkeep.collect import CollectReport

LONGEST_SYNC_TICK_MS: Final = 1000  # flush.ms of topics is looked at so often, whatever sync.interval.ms says
DELETE_TICK_MS: Final = 1000
TRANSACTIONS_TICK_MS: Final = 10_000  # as brokers look for transactions that take too long


class Duties:
    """The duties of one engine. Thread-safe; all but ``cleaner`` and ``tiering`` is borrowed.

    Where a duty fails with one log, the others still have their turn; what went wrong first is raised after them.

    Args:
        settings: how often, and how many at once.
        clock: says what is due.
        shelf: the logs.
        opener: knows which log has a tier.
        policies: opens the cleanup policies of a topic.
        cleaner: compacts.
        tiering: offloads and collects; None without a tier.
        abort_expired: aborts transactions that take too long.
    """

    def __init__(
        self,
        settings: EngineConfig,
        clock: Clock,
        shelf: LogShelf,
        opener: LogOpener,
        policies: Policies,
        cleaner: Cleaner,
        tiering: Tiering | None,
        abort_expired: Callable[[], object],
    ) -> None:
        self._settings, self._clock, self._shelf, self._opener = settings, clock, shelf, opener
        self._policies, self._cleaner, self._tiering = policies, cleaner, tiering
        self._schedulers = (
            Scheduler(clock, self._everyday(abort_expired)),
            # on threads of their own: a plugin's policy, or an upload, may take minutes, and syncs do not wait; a round over
            # what a tier has may take hours, and retention does not wait either
            Scheduler(clock, self._retention(), "stratalog-retention"),
            Scheduler(clock, self._cleaning(), "stratalog-cleaning"),
            Scheduler(clock, self._tier(), "stratalog-tier"),
            Scheduler(clock, self._extras(), "stratalog-extras"),
        )

    # --- on a schedule -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Do what is due on threads from now on. Twice is fine."""
        for scheduler in self._schedulers:
            scheduler.start()

    def run_due(self) -> int:
        """Do what is due now, on this thread; how long (ms) until something is due again."""
        return min(scheduler.run_due() for scheduler in self._schedulers)

    def status(self) -> tuple[DutyStatus, ...]:
        """How the duties fare."""
        return tuple(status for scheduler in self._schedulers for status in scheduler.status())

    def close(self) -> None:
        """Begin nothing further, and wait for what is under way to end soon. Twice is fine."""
        self._cleaner.stop()
        if self._tiering is not None:
            self._tiering.close()
        for scheduler in reversed(self._schedulers):
            scheduler.close()

    def _everyday(self, abort_expired: Callable[[], object]) -> Sequence[Duty]:
        settings = self._settings
        return (
            Duty("sync", min(max(settings.sync_interval_ms // 2, 1), LONGEST_SYNC_TICK_MS), self._sync_due),
            Duty("delete", DELETE_TICK_MS, self._delete_due),
            Duty("transactions", TRANSACTIONS_TICK_MS, abort_expired),
            Duty("high watermarks", settings.watermark_interval_ms, self._write_high_watermarks),
            Duty("checkpoints", max(settings.checkpoint_interval_ms, 1), self.write_checkpoints),
            Duty("producers", settings.producer_expiration_interval_ms, self._forget_producers),
            Duty("roll", settings.retention_interval_ms, lambda: for_each(self._serving(), Log.roll_if_due)),
        )

    def _retention(self) -> Sequence[Duty]:
        interval_ms = self._settings.retention_interval_ms
        return (Duty("retention", interval_ms, lambda: self.apply_retention(self._serving())),)

    def _cleaning(self) -> Sequence[Duty]:
        if not self._settings.cleaner_enable:
            return ()
        return (Duty("cleaner", self._settings.cleaner_backoff_ms, lambda: self._cleaner.run(self._serving())),)

    def _tier(self) -> Sequence[Duty]:
        if self._tiering is None:
            return ()
        return (
            Duty("offload", self._settings.offload_interval_ms, self._offload_due),
            Duty("collect", self._settings.collect_interval_ms, self.collect),
        )

    def _offload_due(self) -> None:
        """Offload on schedule; a plugin that fails on some logs delays those, and no others."""
        if self._tiering is not None:
            with contextlib.suppress(PluginError):  # it is logged, and shown in the lag of its log
                self.offload([log for log in self._serving() if self._tiering.is_due(log)])

    def _extras(self) -> Sequence[Duty]:
        return (Duty("EXTRA indexes", self._settings.extra_interval_ms, lambda: self.make_extras(self._serving())),)

    def _serving(self) -> list[Log]:
        """Logs that can be written to: what failed once does not fail every duty again."""
        return [log for log in self.chosen(None) if log.healthy]

    def _sync_due(self) -> None:
        interval_ms = self._settings.sync_interval_ms // 2
        for_each(self._serving(), lambda log: log.sync_if_due(interval_ms))

    def _forget_producers(self) -> None:
        silent_ms = self._settings.producer_expiration_ms
        for_each(self._serving(), lambda log: log.forget_producers(silent_ms))

    def _delete_due(self) -> None:
        for_each(self._serving(), Log.remove_left)
        for directory in self._shelf.dirs:
            directory.remove_left()

    def _write_high_watermarks(self) -> None:
        with contextlib.ExitStack() as stack:
            for directory in self._shelf.dirs:
                stack.callback(directory.write_high_watermarks)

    # --- when asked to -----------------------------------------------------------------------------------------------

    def chosen(self, names: Iterable[TopicPartition] | None) -> list[Log]:
        """Logs by name; None is all that could be opened, sorted. Errors as ``LogShelf.log``."""
        if names is None:
            return [log for _, log in sorted(self._shelf.logs.items())]
        return [self._shelf.log(name) for name in names]

    def flush(self) -> None:
        """Make everything written durable, and store the checkpoints."""
        try:
            for_each(self.chosen(None), Log.flush)
        finally:
            self.write_checkpoints()

    def write_checkpoints(self) -> None:
        """Store the checkpoint files of all directories."""
        with contextlib.ExitStack() as stack:  # a directory that fails does not keep the others from theirs
            for directory in self._shelf.dirs:
                stack.callback(directory.write_checkpoints)

    def offload(self, logs: Sequence[Log]) -> tuple[OffloadResult, ...]:
        """One pass over logs, several at once; a result for each that has a tier and leads. ConfigError without a tier."""
        if self._tiering is None:
            raise ConfigError(
                "there is no tier to move segments to: open_engine(tier=URI), --tier URI, or tier in the settings"
            )
        found = for_each(logs, self._tiering.offload, self._settings.copier_threads)
        return tuple(result for result in found if result is not None)

    def collect(self) -> CollectReport:
        """Delete what no reader of the tier can need any more, of all logs."""
        return CollectReport() if self._tiering is None else self._tiering.collect(self.chosen(None))

    def make_extras(self, logs: Sequence[Log]) -> tuple[ExtrasResult, ...]:
        """Make the EXTRA indexes that closed segments lack."""
        return tuple(for_each(logs, Log.make_extra_indexes))

    def apply_retention(self, logs: Sequence[Log], *, dry_run: bool = False) -> tuple[RetentionResult, ...]:
        """Delete and evict what the cleanup policies say."""
        now_ms = self._clock.now_ms()

        def work(log: Log) -> RetentionResult:
            policies, remote = self._policies(log.config), self._opener.joined(log)
            return apply_retention(log, policies, remote, now_ms=now_ms, dry_run=dry_run)

        try:
            return tuple(for_each(logs, work, needs_store=lambda log: self._opener.remote_of(log) is not None))
        finally:
            if not dry_run:
                with contextlib.suppress(OutOfResourcesError):  # deleting makes room; they are written again later
                    self.write_checkpoints()
