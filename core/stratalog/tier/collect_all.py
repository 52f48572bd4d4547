"""Repeated collection of many logs; a log without a new commit is skipped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final

from stratalog.errors import StorageError
from stratalog.tier.manifest.root import ChangeKind
from stratalog.tier.store.store import is_of_store
from stratalog.tier.tier import TierLogName
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upkeep.collect import GRACE_MS, CollectReport

_NAMED_FAILURES: Final = 10


class TierCollection:
    """Collects unneeded objects of the logs of one tier. Thread-safe.

    Args:
        history_ms: superseded states are kept for at least this time.
    """

    def __init__(self, history_ms: int) -> None:
        self._history_ms = history_ms
        self._lock = threading.Lock()
        self._tidy: dict[TierLogName, int] = {}  # the version after which there was nothing to collect; under _lock
        self._swept: dict[TierLogName, int] = {}  # the epoch up to which there are no orphans; under _lock

    def collect(self, remote: TierLog, leader_epoch: int | None) -> CollectReport:
        """Collect one log; no request is made if nothing was left to collect after its last commit.

        Args:
            remote: the log.
            leader_epoch: of the log, if the caller leads it; if None, orphans of the latest epoch are kept.

        Raises:
            StoreError: the store refused or failed; the rest is collected by a later call.
            CorruptManifestError: a root is damaged.
        """
        name, root = TierLogName(remote.log, remote.topic_id), remote.root
        has_leftovers = remote.has_leftovers
        with self._lock:
            tidy_version, swept_epoch = self._tidy.get(name), self._swept.get(name, -1)
            if root is None:
                self._tidy.pop(name, None)
                self._swept.pop(name, None)
        is_new = root is not None and root.version == 1 and root.change == ChangeKind.CREATE
        if root is None or is_new or (tidy_version == root.version and not has_leftovers):
            return CollectReport()
        with_orphans = has_leftovers or swept_epoch < root.leader_epoch
        report = remote.collect(
            grace_ms=GRACE_MS, history_ms=self._history_ms, with_orphans=with_orphans, leader_epoch=leader_epoch
        )
        with self._lock:
            if not report.left:
                self._tidy[name] = root.version
                self._swept[name] = root.leader_epoch
            else:
                self._tidy.pop(name, None)
                if with_orphans:  # some may be younger than the grace time
                    self._swept.pop(name, None)
        return report

    def collect_all(
        self, led: Iterable[tuple[TierLog, int | None]], progress: Callable[[TierLog], None] | None = None
    ) -> CollectReport:
        """Collect several logs as ``collect``, each with its leader epoch; return the sum of their reports.

        If the store fails, the rest is left to the next call. If a single log fails, the others are still collected.

        Raises:
            StoreError: the store refused or failed.
            StorageError: the error of the first log that failed, with notes about the others.
        """
        total, failed = CollectReport(), list[StorageError]()
        for remote, leader_epoch in led:
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
            first, *others = failed
            for other in others[:_NAMED_FAILURES]:
                first.add_note(str(other))
            raise first
        return total
