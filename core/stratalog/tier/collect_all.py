"""Repeated deletion of superseded manifest roots and unneeded objects of the logs of one tier."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final

from stratalog.errors import StorageError
from stratalog.tier.manifest.root import ChangeKind
from stratalog.tier.store.log_listing import TierLogName
from stratalog.tier.store.store import is_of_store
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upkeep.collect import GRACE_MS, CollectReport

_NAMED_FAILURES: Final = 10


class TierCollection:
    """Deletes superseded manifest roots and unneeded objects of the logs of one tier. Thread-safe.

    It remembers the logs that have nothing left to delete, and skips them until their next commit.

    Args:
        history_ms: superseded manifest roots, and the objects that they name, are kept for at least this time.
    """

    def __init__(self, history_ms: int) -> None:
        self._history_ms = history_ms
        self._lock = threading.Lock()
        self._tidy_versions: dict[TierLogName, int] = {}  # version at which nothing was left to collect; under _lock
        self._swept_epochs: dict[TierLogName, int] = {}  # leader epoch up to which orphans were deleted; under _lock

    def collect(self, remote: TierLog, leader_epoch: int | None) -> CollectReport:
        """Call ``TierLog.collect`` for one log, which deletes superseded roots and unneeded objects; return its report.

        The call deletes nothing and returns an empty report if an earlier call left nothing to delete, and since then
        no commit succeeded and no upload failed.

        Args:
            remote: the log. If it has no root, or only the root that created the log, the report is empty, too.
            leader_epoch: leader epoch of the log, if the caller leads the log. If None, orphans of the latest leader
                epoch are kept: objects that no root names.
        """
        name, root = TierLogName(remote.name, remote.topic_id), remote.root
        has_leftovers = remote.has_leftovers
        with self._lock:
            tidy_version, swept_epoch = self._tidy_versions.get(name), self._swept_epochs.get(name, -1)
            if root is None:
                self._tidy_versions.pop(name, None)
                self._swept_epochs.pop(name, None)
        is_new = root is not None and root.version == 1 and root.change == ChangeKind.CREATE
        if root is None or is_new or (tidy_version == root.version and not has_leftovers):
            return CollectReport()
        with_orphans = has_leftovers or swept_epoch < root.leader_epoch
        with self._lock:
            self._tidy_versions.pop(name, None)
            if with_orphans:  # the search may fail, and some orphans may be younger than the grace time
                self._swept_epochs.pop(name, None)
        report = remote.collect(
            grace_ms=GRACE_MS, history_ms=self._history_ms, with_orphans=with_orphans, leader_epoch=leader_epoch
        )
        if not report.left:
            with self._lock:
                self._tidy_versions[name] = root.version
                self._swept_epochs[name] = root.leader_epoch
        return report

    def forget_deleted(self, remote: TierLog) -> bool:
        """Forget a log if its topic was deleted and ``collect`` has left nothing to delete; return True if so."""
        name, root = TierLogName(remote.name, remote.topic_id), remote.root
        with self._lock:
            is_gone = (
                root is not None and root.change == ChangeKind.DELETE and self._tidy_versions.get(name) == root.version
            )
            if not is_gone or remote.has_leftovers:
                return False
            del self._tidy_versions[name]
            self._swept_epochs.pop(name, None)
            return True

    def collect_all(
        self, logs: Iterable[tuple[TierLog, int | None]], progress: Callable[[TierLog], None] | None = None
    ) -> CollectReport:
        """Call ``collect`` for several logs, each with its ``leader_epoch``; return the sum of the reports.

        If the whole store fails, the call raises the error at once. If one log fails, the call collects the other logs
        and then raises the error. ``progress`` is called after each log, even after a log that failed.

        Raises:
            StoreError: the store refused or failed.
            StorageError: the error of the first log that failed, with notes about up to 10 further failures.
        """
        total, failed = CollectReport(), list[StorageError]()
        for remote, leader_epoch in logs:
            try:
                report = self.collect(remote, leader_epoch)
            except StorageError as error:
                if is_of_store(error):
                    raise
                failed.append(error)
                continue
            finally:
                if progress is not None:
                    progress(remote)
            total = CollectReport(
                total.roots + report.roots,
                total.objects + report.objects,
                total.orphans + report.orphans,
                left=total.left + report.left,
            )
        if failed:
            first_error, *later_errors = failed
            for later_error in later_errors[:_NAMED_FAILURES]:
                first_error.add_note(str(later_error))
            raise first_error
        return total
