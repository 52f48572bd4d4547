"""The duties that an engine has towards its tier: moving segments there, and deleting what is no longer needed."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable
from typing import Final, NamedTuple

from stratalog.cleaning.plan.retention import relieve
from stratalog.config.engine_settings import EngineConfig
from stratalog.config.keys import LONG_MAX
from stratalog.engine.for_each_log import for_each
from stratalog.engine.open.log_opener import LogOpener
from stratalog.engine.tiering.offload_log import OffloadResult, TierLag, offload_log, tier_lag
from stratalog.env import Clock
from stratalog.errors import PluginError, StorageError
from stratalog.log.log import Log
from stratalog.model.names import TopicPartition
from stratalog.tier.collect_all import Housekeeping
from stratalog.tier.manifest.root import ChangeKind, TopicNote
from stratalog.tier.store.store import is_of_store
from stratalog.tier.tier import Tier, TierLogName
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upkeep.collect import CollectReport
from stratalog.tier.upload.copy_rate import CopyRate
from stratalog.tier.upload.uploader import is_unknown

_LOGGER: Final = logging.getLogger(__name__)
_FIRST_PAUSE_MS: Final = 1000
_LONGEST_PAUSE_MS: Final = 300_000


class _Pause(NamedTuple):
    failures: int
    end_ns: int


class Tiering:
    """Offload and collection of the logs of one engine. Thread-safe.

    Args:
        tier: borrowed.
        opener: knows which log has a tier.
        settings: rate and history.
        clock: of the engine.
    """

    def __init__(self, tier: Tier, opener: LogOpener, settings: EngineConfig, clock: Clock) -> None:
        self._tier, self._opener, self._settings, self._clock = tier, opener, settings, clock
        rate = settings.copy_bytes_per_second
        self._rate = CopyRate(None if rate == LONG_MAX else rate, clock)
        self._lock = threading.Lock()
        self._errors: dict[TopicPartition, str] = {}  # of the last try of each log; under _lock
        self._pauses: dict[TopicPartition, _Pause] = {}  # of logs whose plugin fails; under _lock
        self._housekeeping = Housekeeping(settings.tier_history_ms)
        self._looked_for_deleted = False
        self._closed = False

    @property
    def throttled_ms(self) -> int:
        """How long uploads have waited for the rate so far, together."""
        return self._rate.waited_ms

    def create(self, logs: Iterable[Log]) -> None:
        """Make logs known to the tier before their first segment is there, several at once: two requests a log, once.

        A log that fails is served all the same: the error is noted, and the next pass of offload tries again.
        """
        waiting, notes = [log for log in logs if self._may_create(log)], dict[str, TopicNote]()
        for topic in {log.name.topic for log in waiting}:
            notes[topic] = self._opener.note_of(topic)
        try:
            for_each(waiting, lambda log: self._create(log, notes[log.name.topic]), self._settings.copier_threads)
        except StorageError as error:
            _LOGGER.warning("the tier does not list all logs yet, which is tried again: error=%s", error)

    def _may_create(self, log: Log) -> bool:
        remote = self._opener.remote_of(log)
        if remote is None or not remote.is_here or not log.is_leader or log.config.remote_log_copy_disable:
            return False
        with contextlib.suppress(StorageError):  # the offload of a log whose head cannot be read reports it
            return is_unknown(remote.root)
        return False

    def _create(self, log: Log, topic: TopicNote) -> None:
        remote = self._opener.remote_of(log)
        offsets = log.offsets()
        assert remote is not None
        try:
            with log.stopped_if_fenced():
                remote.create(
                    leader_epoch=log.leader_epoch,
                    log_start=offsets.log_start,
                    high_watermark=offsets.high_watermark,
                    topic=topic,
                )
        except StorageError as error:
            self._note(log.name, str(error))
            raise

    def offload(self, log: Log) -> OffloadResult | None:
        """One pass over one log; None if it has no tier, or takes no copies. Errors as ``offload_log``."""
        remote = self._joined(log)
        if remote is not None and not log.is_leader:
            self._follow(log, remote)
        if remote is None or log.config.remote_log_copy_disable or not log.is_leader:
            return None
        try:
            if self._may_create(log):
                self._create(log, self._opener.note_of(log.name.topic))
            with log.cleaning.busy:
                result = offload_log(log, remote, self._may_begin, self._opener.note_of(log.name.topic))
            relieve(log)
            if _is_pressed(log) and result.tier_end >= log.view().segments[-1].base_offset:
                log.roll()  # all that is left is in the active segment: the next pass moves it
        except StorageError as error:
            self._note(log.name, str(error))
            if isinstance(error, PluginError):
                self._pause(log.name, error)
            raise
        self._note(log.name, "")
        with self._lock:
            self._pauses.pop(log.name, None)
        return result

    def is_due(self, log: Log) -> bool:
        """True unless a plugin failed on the log, and the pause after that, which doubles each time, is not over."""
        with self._lock:
            pause = self._pauses.get(log.name)
        return pause is None or pause.end_ns <= self._clock.monotonic_ns()

    def _pause(self, name: TopicPartition, error: PluginError) -> None:
        with self._lock:
            before = self._pauses.get(name)
            failures = 1 if before is None else before.failures + 1
            pause_ms = min(_FIRST_PAUSE_MS << min(failures - 1, 20), _LONGEST_PAUSE_MS)
            self._pauses[name] = _Pause(failures, self._clock.monotonic_ns() + pause_ms * 1_000_000)
        _LOGGER.warning("a plugin keeps a log from its tier: log=%s next try in %d ms: %s", name, pause_ms, error)

    def _joined(self, log: Log) -> TierLog | None:
        """The tier of a log, None if it has none. What keeps the log from it is noted as the error of its last try."""
        try:
            return self._opener.joined(log)
        except StorageError as error:
            self._note(log.name, str(error))
            raise

    def failing(self) -> frozenset[TopicPartition]:
        """The logs whose last pass failed."""
        with self._lock:
            return frozenset(name for name, error in self._errors.items() if error)

    def _follow(self, log: Log, remote: TierLog) -> None:
        """See what the leader has moved, so that the follower's own disk can let go of it."""
        try:
            remote.refresh()
        except StorageError as error:
            self._note(log.name, str(error))
            raise
        self._note(log.name, "")
        log.refresh_remote()
        relieve(log)

    def lag(self, logs: Iterable[Log]) -> tuple[TierLag, ...]:
        """How far the tier is behind, for each log that has one."""
        now_ms = self._clock.now_ms()
        found = ((log, self._opener.remote_of(log)) for log in logs)
        return tuple(
            tier_lag(log, remote, now_ms, self._error_of(log, remote)) for log, remote in found if remote is not None
        )

    def _error_of(self, log: Log, remote: TierLog) -> str:
        with self._lock:
            known = self._errors.get(log.name, "")
        return known if known or remote.is_here else str(remote.unavailable())

    def collect(self, logs: Iterable[Log]) -> CollectReport:
        """Delete what the tier no longer needs of these logs, and of topics that were deleted.

        Logs about which there is no news are not looked at.

        Raises:
            StoreError: the store refused or failed; what was deleted is gone, the rest stays for the next time.
            StorageError: what was wrong with the first log that failed, after the others had their turn.
        """
        self._tier.reach.reach()
        remotes = [(remote, log) for log in logs if (remote := self._opener.remote_of(log)) is not None]
        led = [(remote, _led(log)) for remote, log in remotes if self._is_joined(log)]
        deleted = self._deleted({TierLogName(found.log, found.topic_id) for found, _ in remotes})
        return self._housekeeping.collect_all([*led, *((found, None) for found in deleted)])

    def close(self) -> None:
        """Let uploads begin no further segment."""
        self._closed = True

    def _is_joined(self, log: Log) -> bool:
        """Whether a log goes by its tier. If it cannot, its offload tells why, and the others are collected."""
        try:
            return self._opener.joined(log) is not None
        except StorageError as error:
            if is_of_store(error):
                raise
            return False

    def _deleted(self, known: set[TierLogName]) -> list[TierLog]:
        """Logs of deleted topics that are still there; looked for once, as others are deleted by this engine."""
        if not self._looked_for_deleted:
            for name in self._tier.logs():
                if name not in known:
                    self._tier.log(*name)
            self._looked_for_deleted = True
        opened = [found for found in self._tier.opened() if TierLogName(found.log, found.topic_id) not in known]
        return [found for found in opened if _is_deleted(found)]

    def _note(self, name: TopicPartition, error: str) -> None:
        with self._lock:
            self._errors[name] = error

    def _may_begin(self, size_bytes: int) -> bool:
        return self._rate.take(size_bytes, self._is_open)

    def _is_open(self) -> bool:
        return not self._closed


def _is_deleted(remote: TierLog) -> bool:
    """Whether a log of a topic that the engine does not have was deleted; one that cannot be read is somebody else's."""
    try:
        return remote.root is not None and remote.root.change == ChangeKind.DELETE
    except StorageError as error:
        if is_of_store(error):
            raise
        _LOGGER.warning("a log of the tier is not looked at: log=%s error=%s", remote.log, error)
        return False


def _led(log: Log) -> int | None:
    """The leader epoch of a log that we lead."""
    return log.leader_epoch if log.is_leader else None


def _is_pressed(log: Log) -> bool:
    limit = log.config.local_hard_limit_bytes
    return 0 <= limit < sum(segment.size_bytes for segment in log.view().segments)
