"""Mutable state of a log that is open for writing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from stratalog.config.topic import TopicConfig
from stratalog.epochs.epoch_cache import EpochCache
from stratalog.errors import (
    ClosedError,
    CorruptBatchError,
    LogDirOfflineError,
    NotLeaderOrFollowerError,
    OutOfResourcesError,
    StorageError,
    SystemLimitError,
)
from stratalog.log.prepare.fast_path import PlainRules
from stratalog.log.read.tier_view import RemoteLog, RemoteView
from stratalog.log.read.view import LogView
from stratalog.log.state.cleaning_state import CleaningState
from stratalog.log.state.sync_turns import Turns
from stratalog.model.events import Event
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.offsets import LogOffsets, Watermark
from stratalog.producers.state import ProducerState
from stratalog.segment.appender import Appender
from stratalog.segment.components import Components
from stratalog.segment.segment import Segment
from stratalog.spi.segment_store import LogFiles

_WRITTEN: Final = Watermark.WRITTEN  # looked up at each append
_of: Final = tuple.__new__  # creates a named tuple from all its fields, with one call fewer than its class


@dataclass(slots=True)
class LogState:
    """State of one open log.

    Fields are changed under ``lock``, except ``failure``, which ``fail`` may set at any time. Writers to the log also
    read them under ``lock``. Without the lock, read single fields only; the value may be stale. Readers of records take
    no lock: they load ``published``, a value that is replaced as a whole.

    ``syncing`` is acquired before ``lock``. A thread that holds ``noting``, or the lock inside ``turns``, acquires no
    other of these locks.
    """

    log: TopicPartition
    topic_id: TopicId
    files: LogFiles
    parts: Components
    config: TopicConfig
    segments: tuple[Segment, ...]  # ascending; the last one is the active one
    appender: Appender  # of the active segment
    producers: ProducerState
    producer_expiration_ms: int  # producers silent for that long are not restored from a snapshot
    snapshot_offset: int  # of the newest snapshot when the log was loaded; -1 if those are obsolete
    epochs: EpochCache
    log_start: int
    recovery_point: int  # everything below this offset is durable
    leader_epoch: int
    # (base view, log end or None if the base view is current, recovery point, [full view]). The full view is built from
    # the other three values on first use; the list is empty before that.
    published: tuple[LogView, int | None, int, list[LogView]]
    notify: Callable[[Event], None]
    remote: RemoteLog | None = None
    # (the last seen tier view, our epochs at that time, the part of the tier that belongs to this log's history)
    compared: tuple[RemoteView, EpochCache, RemoteView] | None = None
    damage: CorruptBatchError | None = None  # the log cannot be read beyond its position; appends raise it
    failure: StorageError | None = None  # takes the log out of service: appends raise it, reads continue
    closed: bool = False
    folder_dirty: bool = True  # True if the folder has file names that are not durable
    leaving: list[tuple[int, str]] = field(default_factory=list)  # ``.deleted`` files: due time (monotonic ns), name
    is_leader: bool = True
    may_lag: bool = False  # True if other replicas exist: the tier may be ahead of this log
    noted_version: int = -1  # manifest version in the stored tier note; -1 if not known. Under ``noting``
    cleaning: CleaningState = field(default_factory=CleaningState)
    watermark: Watermark = Watermark.WRITTEN  # the rule that moves a leader's high watermark
    given_watermark: int = 0  # high watermark set by the caller, or sent by the leader
    synced_ns: int = 0  # end of the last sync (monotonic)
    sync_took_ns: int = 0
    on_offline: Callable[[StorageError], None] | None = None  # called when the whole directory has failed
    store_bounds: Callable[[], None] | None = None  # writes the directory's checkpoints
    on_moved: Callable[[], None] | None = None  # called when bounds have moved; returns at once
    turns: Turns = field(default_factory=Turns)  # group commit: the syncing thread, the waiters, the queued batches
    noting: threading.Lock = field(default_factory=threading.Lock)  # held while the note about the tier is replaced
    syncing: threading.RLock = field(default_factory=threading.RLock)  # held during a sync, and while bytes are removed
    lock: threading.RLock = field(default_factory=threading.RLock)
    is_pressed: bool = False  # True if the log's local size is above its limit
    rules: PlainRules | None = None  # derived from ``config`` at the next append; None before
    seen_extras: frozenset[str] | None = None  # the EXTRA indexes that the log's files were last compared with
    room: threading.Condition = field(init=False)  # notified when ``is_pressed`` may have ended

    def __post_init__(self) -> None:
        self.room = threading.Condition(self.lock)

    @property
    def log_end(self) -> int:
        """Offset of the next record."""
        return self.segments[-1].end_offset

    @property
    def healthy(self) -> bool:
        """True if the log can be written to and closed cleanly."""
        return self.failure is None and self.damage is None

    @property
    def takes_appends(self) -> bool:
        """True if ``check_writable`` and ``check_leads`` raise nothing."""
        return not self.closed and self.failure is None and self.damage is None and self.is_leader

    def configure(self, config: TopicConfig, parts: Components, remote: RemoteLog | None) -> None:
        """Apply new settings of the topic."""
        self.config, self.parts, self.remote, self.rules = config, parts, remote, None
        self.appender.configure(config)
        self.publish()

    def look_up_rules(self) -> PlainRules:
        """Return the settings' rules for plain batches, and keep them in ``rules`` until the settings change.

        Acquires the lock itself.
        """
        with self.lock:
            rules = self.rules = PlainRules(self.config, self.parts)
            return rules

    def check_writable(self) -> None:
        """Raise the error that makes the log not writable, if there is one."""
        if self.closed:
            raise ClosedError(f"log {self.log} is closed")
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        if self.damage is not None:
            raise self.damage.with_traceback(None)

    def check_leads(self) -> None:
        """Raise NotLeaderOrFollowerError unless the log leads."""
        if not self.is_leader:
            raise NotLeaderOrFollowerError(f"log {self.log} follows the leader of epoch {self.leader_epoch}")

    def fail(self, error: StorageError) -> None:
        """Take the log out of service, and report a failure of the disk to the directory. Needs no lock.

        Later calls raise ``error``. If ``error`` is a SystemLimitError, which allows a retry, later calls raise a
        ClosedError instead, with the advice to open the log again.
        """
        if self.failure is None:
            again = f"log {self.log} is out of service, as a change of it ended early, {error.reason}: open it again"
            self.failure = ClosedError(again) if isinstance(error, SystemLimitError) else error
        if isinstance(error, LogDirOfflineError) and self.on_offline is not None:
            self.on_offline(error)

    @contextlib.contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Take the log out of service if the guarded block fails; ``what`` describes the block in errors.

        The log stays in service if space or descriptors are missing, because such a call changes nothing. After Ctrl-C,
        for example, files may contain bytes that the state does not count; recovery finds them.
        """
        try:
            yield
        except BaseException as error:
            self.ended_early(what, error)
            raise

    def ended_early(self, what: str, error: BaseException) -> None:
        """Handle ``error`` as ``guarded`` does, for callers that avoid the cost of a context manager."""
        if isinstance(error, OutOfResourcesError):
            return
        if not isinstance(error, StorageError):
            reason = f"log {self.log} is out of service, as {what} ended early ({type(error).__name__}): open it again"
            error = ClosedError(reason)
        self.fail(error)

    @property
    def high_watermark(self) -> int:
        """The high watermark before it is limited to the log's bounds."""
        if not self.is_leader:
            return self.given_watermark
        if self.watermark is _WRITTEN:
            return self.segments[-1].end_offset
        return self.recovery_point if self.watermark is Watermark.DURABLE else self.given_watermark

    def publish(self) -> None:
        """Make the current state visible to readers, and call ``on_moved`` if bounds have moved."""
        before = None if self.on_moved is None else self.view.offsets
        remote = None if self.remote is None else self._counting(self.remote)
        offsets = _bounds(
            self.segments, self.producers, remote, self.log_start, self.recovery_point, self.high_watermark
        )
        fields = (self.log, self.segments, offsets, self.epochs, remote, self.damage, self.leader_epoch, self.is_leader)
        self.published = (_of(LogView, fields), None, 0, [])
        if self.on_moved is not None and offsets != before:
            self.on_moved()

    def publish_end(self) -> None:
        """Publish as ``publish`` does, after a change of only the log end, as nearly all appends make.

        The view is built when a reader first requests it, because reads are rarer than appends.
        """
        end, known = self.segments[-1].end_offset, self.published[0]
        if (
            self.remote is not None
            or not self.is_leader
            or self.watermark is not _WRITTEN
            or known.segments is not self.segments
            or known.epochs is not self.epochs
            or self.producers.first_unstable(end) is not None
        ):
            self.publish()
        else:
            self.published = (known, end, self.recovery_point, [])
            if self.on_moved is not None:
                self.on_moved()

    @property
    def view(self) -> LogView:
        """The view that readers see. Needs no lock, because it is built from one value."""
        known, end, recovery_point, made = self.published
        if end is None:
            return known
        if not made:
            made.append(known.grown_to(end, recovery_point))
        return made[0]

    def _counting(self, remote: RemoteLog) -> RemoteView:
        """Return the part of the tier that belongs to this log's history.

        The comparison runs only after the tier or the epochs have changed, not at each append.
        """
        seen, known = remote.view(), self.compared
        if known is None or known[0] is not seen or known[1] is not self.epochs:
            known = self.compared = (seen, self.epochs, seen.within(self.epochs.entries))
        return known[2]


def make_view(
    log: TopicPartition,
    segments: Sequence[Segment],
    producers: ProducerState,
    epochs: EpochCache,
    *,
    log_start: int,
    recovery_point: int,
    high_watermark: int,
    remote: RemoteView | None,
    damage: CorruptBatchError | None,
) -> LogView:
    """Return the view of a log that is not open for writing, or not yet."""
    return LogView(
        log,
        tuple(segments),
        _bounds(segments, producers, remote, log_start, recovery_point, high_watermark),
        epochs,
        remote,
        damage,
        epochs.latest,
    )


def _bounds(
    segments: Sequence[Segment],
    producers: ProducerState,
    remote: RemoteView | None,
    log_start: int,
    recovery_point: int,
    high_watermark: int,
) -> LogOffsets:
    """Return the bounds of a log as one value, limited to their required order.

    If the tier has segments, the log starts at the tier's log start or later. Otherwise it starts at the first local
    segment, but not below the tier's log start: a log start offset never falls.
    """
    first, end = (segments[0].base_offset, segments[-1].end_offset) if segments else (log_start, log_start)
    if remote is not None and remote.segments:
        start = max(log_start, remote.log_start)
        if not segments:
            first = end = max(end, remote.end_offset)
    else:
        start = max(log_start, first)
        # All segments of the tier may have been deleted after this log's start was stored in its checkpoint.
        if remote is not None and start < remote.log_start:
            start = min(remote.log_start, end)
    high_watermark = stable = _between(high_watermark, start, end)
    unstable = producers.first_unstable(high_watermark)
    if unstable is not None:
        stable = _between(unstable, start, high_watermark)
    local, synced = _between(first, start, end), _between(recovery_point, start, end)
    return _of(LogOffsets, (start, local, synced, high_watermark, stable, end))


def _between(value: int, least: int, most: int) -> int:
    """Return ``value`` limited to [least, most]; ``most`` if ``least`` is above ``most``."""
    if value < least:  # noqa: PLR1730 - each append runs it several times, and a call of max() costs more
        value = least
    return most if value > most else value  # noqa: FURB136 - the same
