"""The duties of an engine with a tier: offload segments, and delete objects in the tier that are no longer needed."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Final, NamedTuple

from stratalog.cleaning.plan.retention import relieve
from stratalog.config.keys import LONG_MAX
from stratalog.engine.for_each_log import for_each
from stratalog.engine.open.log_opener import LogOpener
from stratalog.engine.tiering.offload_log import OffloadResult, TierLag, offload_log, tier_lag
from stratalog.env.progress import OnBytes, uncounted
from stratalog.env.rate_limit import CopyRate
from stratalog.errors import PluginError, StorageError
from stratalog.log.log import Log
from stratalog.model.names import TopicPartition
from stratalog.reading.component_host import ComponentHost
from stratalog.tier.collect_all import TierCollection
from stratalog.tier.commit.append_change import is_unknown
from stratalog.tier.manifest.root import EMPTYING, ChangeKind, TopicNote
from stratalog.tier.store.log_listing import TierLogName
from stratalog.tier.store.store import is_of_store
from stratalog.tier.tier import Tier
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upkeep.collect import CollectReport

_LOGGER: Final = logging.getLogger(__name__)
_FIRST_PAUSE_MS: Final = 1000
_LONGEST_PAUSE_MS: Final = 300_000


class _Pause(NamedTuple):
    failures: int
    end_ns: int


class TierDuties:
    """Offload and collection of the logs of one engine. Thread-safe.

    Args:
        tier: the tier. This object does not close it.
    """

    def __init__(self, tier: Tier, opener: LogOpener, host: ComponentHost) -> None:
        self._tier, self._opener, self._clock = tier, opener, host.env.clock
        self._settings = settings = host.settings.engine
        rate = settings.copy_bytes_per_second
        self._rate = CopyRate(None if rate == LONG_MAX else rate, self._clock)
        self._lock = threading.Lock()
        self._errors: dict[TopicPartition, str] = {}  # of logs whose last attempt failed; protected by _lock
        self._pauses: dict[TopicPartition, _Pause] = {}  # pauses of logs whose plugin fails; protected by _lock
        self._collection = TierCollection(settings.tier_history_ms)
        self._has_searched_emptied = False
        self._closed = False

    @property
    def throttled_ms(self) -> int:
        """Total time (ms) that uploads have waited for the rate limit."""
        return self._rate.waited_ms

    def create(self, logs: Iterable[Log]) -> None:
        """Create the manifests of logs in the tier before their first offload, for readers of the tier.

        Skips logs that exist in the tier, followers, logs with ``remote.log.copy.disable``, and logs that are not
        connected to the tier. Errors are recorded and logged, not raised, and the next offload retries. A log that was
        fenced refuses appends from then on.
        """
        waiting, notes = [log for log in logs if self._may_create(log)], dict[str, TopicNote]()
        for topic in {log.name.topic for log in waiting}:
            notes[topic] = self._opener.note_of(topic)
        try:
            for_each(waiting, lambda log: self._create(log, notes[log.name.topic]), self._settings.copier_threads)
        except StorageError as error:
            _LOGGER.warning("the tier does not list all logs yet; this will be retried: error=%s", error)

    def _may_create(self, log: Log) -> bool:
        remote = self._opener.remote_of(log)
        if remote is None or not remote.is_here or not log.is_leader or log.config.remote_log_copy_disable:
            return False
        with contextlib.suppress(StorageError):  # if the head of a log cannot be read, its offload reports the error
            return is_unknown(remote.root)
        return False

    def _create(self, log: Log, topic: TopicNote) -> None:
        remote, view = self._opener.remote_of(log), log.view()
        assert remote is not None
        if not view.is_leader:  # it has become a follower since ``_may_create``
            return
        with self._noting(log.name), log.maintenance.stop_if_fenced(view.leader_epoch):
            remote.create(
                leader_epoch=view.leader_epoch,
                log_start=view.offsets.log_start,
                high_watermark=view.offsets.high_watermark,
                topic=topic,
            )

    def offload(self, log: Log, on_bytes: OnBytes = uncounted) -> OffloadResult | None:
        """Offload one log once, and evict local segments if ``local.hard.limit.bytes`` requires an eviction.

        Return None if the log has no tier, is a follower, or has ``remote.log.copy.disable`` set. If a follower exceeds
        the limit, only segments that its leader has offloaded are evicted. ``on_bytes`` is called with the sizes of the
        pieces that were sent. Raises the errors of ``offload_log`` and ``rejoin``.
        """
        with self._noting(log.name):
            remote = self._opener.connect_remote(log)
        if remote is not None and not log.is_leader:
            self._follow(log, remote)
        if remote is None:
            self._note(log.name, "")  # the log has left the tier
        if remote is None or log.config.remote_log_copy_disable or not log.is_leader:
            return None
        try:
            with self._noting(log.name):
                if self._may_create(log):
                    self._create(log, self._opener.note_of(log.name.topic))
                result = self._copy(log, remote, on_bytes)
                relieve(log)
                if _is_pressed(log) and result.tier_end >= log.view().segments[-1].base_offset:
                    log.roll()  # the remaining records are in the active segment; the next offload moves them
        except PluginError as error:
            self._pause(log.name, error)
            raise
        self._note(log.name, "")
        with self._lock:
            self._pauses.pop(log.name, None)
        return result

    def is_due(self, log: Log) -> bool:
        """Return False during the pause after a plugin has failed on the log. The pause doubles with each failure."""
        with self._lock:
            pause = self._pauses.get(log.name)
        return pause is None or pause.end_ns <= self._clock.monotonic_ns()

    def _pause(self, name: TopicPartition, error: PluginError) -> None:
        with self._lock:
            before = self._pauses.get(name)
            failures = 1 if before is None else before.failures + 1
            pause_ms = min(_FIRST_PAUSE_MS << min(failures - 1, 20), _LONGEST_PAUSE_MS)
            self._pauses[name] = _Pause(failures, self._clock.monotonic_ns() + pause_ms * 1_000_000)
        _LOGGER.warning("a plugin prevents offloading: log=%s next try in %d ms: %s", name, pause_ms, error)

    def failing(self) -> frozenset[TopicPartition]:
        """Return the names of the logs whose last offload failed, or whose first manifest root could not be created."""
        with self._lock:
            return frozenset(self._errors)

    def _follow(self, log: Log, remote: TierLog) -> None:
        """Evict segments that the leader has offloaded if ``local.hard.limit.bytes`` requires an eviction."""
        with self._noting(log.name):
            remote.refresh()
        self._note(log.name, "")
        log.maintenance.refresh_remote()
        relieve(log)

    def lag(self, logs: Iterable[Log]) -> tuple[TierLag, ...]:
        """Return the tier lag of each log that has a tier, with the error of its last offload."""
        now_ms = self._clock.now_ms()
        pairs = ((log, self._opener.remote_of(log)) for log in logs)
        return tuple(
            tier_lag(log, remote, now_ms, self._error_of(log, remote)) for log, remote in pairs if remote is not None
        )

    def _error_of(self, log: Log, remote: TierLog) -> str:
        with self._lock:
            error = self._errors.get(log.name, "")
        return error if error or remote.is_here else str(remote.availability.unavailable())

    def collect(self, logs: Iterable[Log]) -> CollectReport:
        """Delete the objects in the tier that no reader can need any longer.

        These are objects of ``logs``, of deleted topics, and of topics that left the tier. Logs without changes since
        the last collection are skipped.

        Raises:
            StoreError: the store refused a request or failed. The next call deletes the remaining objects.
            StorageError: error of the first log that failed, raised after all logs have been processed.
        """
        self._tier.availability.reach()
        logs = list(logs)
        with self._lock:
            for outcomes in (self._errors, self._pauses):
                for name in outcomes.keys() - {log.name for log in logs}:  # logs of deleted topics
                    del outcomes[name]
        remotes = [(remote, log) for log in logs if (remote := self._opener.remote_of(log)) is not None]
        remotes_and_epochs = [(remote, _epoch_if_leader(log)) for remote, log in remotes if self._is_joined(log)]
        log_by_id = {(log.name, log.topic_id): log for log in logs}  # topics may leave the tier during an upload
        emptied_logs = self._find_emptied({TierLogName(remote.name, remote.topic_id) for remote, _ in remotes})
        for emptied_log in emptied_logs:
            log = log_by_id.get((emptied_log.name, emptied_log.topic_id))
            remotes_and_epochs.append((emptied_log, None if log is None else _epoch_if_leader(log)))
        try:
            return self._collection.collect_all(takewhile(lambda _: not self._closed, remotes_and_epochs))
        finally:
            for emptied_log in emptied_logs:
                if self._collection.forget_deleted(emptied_log):
                    self._tier.release(emptied_log.name, emptied_log.topic_id)

    def close(self) -> None:
        """End running offloads after the current segment, and collections after the current log.

        Start no further upload. Does not wait.
        """
        self._closed = True

    def _is_joined(self, log: Log) -> bool:
        """Return True if a log can use its tier; False without a tier, or after an error of the log.

        Raises the errors of the whole store (``is_of_store``).
        """
        try:
            return self._opener.connect_remote(log) is not None
        except StorageError as error:
            if is_of_store(error):
                raise
            return False

    def _find_emptied(self, known_names: set[TierLogName]) -> list[TierLog]:
        """Return the logs of topics that were deleted or left the tier, without the logs in ``known_names``."""
        if not self._has_searched_emptied:  # the tier remembers the logs that this engine changes later
            for name in self._tier.logs():
                if name not in known_names:
                    self._tier.log(*name)
            self._has_searched_emptied = True
        opened_logs = [
            remote for remote in self._tier.open_logs() if TierLogName(remote.name, remote.topic_id) not in known_names
        ]
        return [remote for remote in opened_logs if _is_emptied(remote)]

    def _note(self, name: TopicPartition, error: str) -> None:
        """Record the outcome of the log's last offload; ``error`` is "" if it succeeded."""
        with self._lock:
            if error:
                self._errors[name] = error
            else:
                self._errors.pop(name, None)

    @contextlib.contextmanager
    def _noting(self, name: TopicPartition) -> Iterator[None]:
        """Record a StorageError of the block as the error of the log's last offload."""
        try:
            yield
        except StorageError as error:
            self._note(name, str(error))
            raise

    def _copy(self, log: Log, remote: TierLog, on_bytes: OnBytes) -> OffloadResult:
        """Offload the segments that wait now. No lock is held during a wait for the rate, which can take hours."""
        segments = size_bytes = refused_bytes = 0
        has_waited = False
        end_offset = log.view().segments[-1].base_offset  # do not wait for segments that are closed later

        def may_begin(segment_bytes: int) -> bool:
            nonlocal has_waited, refused_bytes
            is_allowed, has_waited = has_waited or self._rate.begin(segment_bytes), False
            refused_bytes = 0 if is_allowed else segment_bytes
            return is_allowed and not self._closed

        while True:
            refused_bytes = 0
            with log.maintenance.cleaning.local.busy:
                result = offload_log(log, remote, may_begin, partial(self._opener.note_of, log.name.topic), on_bytes)
            segments, size_bytes = segments + result.segments, size_bytes + result.size_bytes
            is_done = not refused_bytes or result.tier_end >= end_offset
            if is_done or not self._rate.take(refused_bytes, lambda: self._may_copy(log, remote)):
                return replace(result, segments=segments, size_bytes=size_bytes)
            has_waited = True

    def _may_copy(self, log: Log, remote: TierLog) -> bool:
        """Return False if a log is no longer the leader, is deleted, or has settings that forbid further copies."""
        copies = log.is_leader and not log.config.remote_log_copy_disable and self._opener.remote_of(log) is not None
        return copies and (remote.root is None or remote.root.change != ChangeKind.DELETE) and not self._closed


def _is_emptied(remote: TierLog) -> bool:
    """Return True if the newest root of a log in the tier is CLEAR or DELETE; False if the root is damaged."""
    try:
        return remote.root is not None and remote.root.change in EMPTYING
    except StorageError as error:
        if is_of_store(error):
            raise
        _LOGGER.warning("a log of the tier is skipped: log=%s error=%s", remote.name, error)
        return False


def _epoch_if_leader(log: Log) -> int | None:
    """Return the leader epoch of a log, or None if the log is a follower here."""
    view = log.view()
    return view.leader_epoch if view.is_leader else None


def _is_pressed(log: Log) -> bool:
    limit = log.config.local_hard_limit_bytes
    return 0 <= limit < sum(segment.size_bytes for segment in log.view().segments)
