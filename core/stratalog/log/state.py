"""The mutable part of a log that is open for writing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from stratalog.config.topic import TopicConfig
from stratalog.epochs.cache import EpochCache
from stratalog.errors import (
    ClosedError,
    CorruptBatchError,
    DiskFullError,
    LogDirOfflineError,
    NotLeaderOrFollowerError,
    StorageError,
)
from stratalog.log.cleaned import CleaningState
from stratalog.log.plain import PlainRules
from stratalog.log.remote import RemoteLog, RemoteView
from stratalog.log.turns import Turns
from stratalog.log.view import LogView
from stratalog.model.events import Event
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.offsets import LogOffsets, Watermark
from stratalog.producers.state import ProducerState
from stratalog.segment.appender import Appender
from stratalog.segment.components import Components
from stratalog.segment.segment import Segment
from stratalog.spi.segments import LogFiles

_WRITTEN: Final = Watermark.WRITTEN  # looked up at each append
_of: Final = tuple.__new__  # makes a named tuple of all its fields; calling its class is a call more


@dataclass(slots=True)
class LogState:
    """Everything about one open log. Every field is read and changed under ``lock`` only, but for ``published``.

    That is replaced as a whole, by ``publish``; readers load it without the lock: a view, the log's end and recovery point
    if they are others by now, and the view that was made of these, once somebody has asked. ``failure`` takes the log out of
    service: appends raise it, reads go on; ``on_offline`` is told of one that the whole directory shares.
    ``on_truncated`` stores the directory's checkpoints, which may be above the log's bounds then. ``watermark`` says what
    moves the high watermark of a leader; ``given_watermark`` is the one from outside, or from a follower's leader. ``syncing`` is held
    over a sync, taken before ``lock``; what takes bytes away holds it too. ``turns`` says who syncs for those
    who wait for it, and whose batches are still to be written. ``rules`` are of ``config``, None until an append asks, which needs no lock.
    ``is_pressed`` says whether local disk holds more than it may, ``room`` is told when that may be over. ``leaving`` holds ``.deleted`` files and when (monotonic ns) they may go.
    ``seen_extras`` are the EXTRA indexes that the log's files were compared with.
    ``may_lag``: others have replicas, so that the tier may be ahead. ``noted_version`` is of the manifest that ``away`` noted.
    """

    log: TopicPartition
    topic_id: TopicId
    files: LogFiles
    parts: Components
    config: TopicConfig
    segments: tuple[Segment, ...]
    appender: Appender
    producers: ProducerState
    epochs: EpochCache
    log_start: int
    recovery_point: int
    leader_epoch: int
    published: tuple[LogView, int | None, int, list[LogView]]
    notify: Callable[[Event], None]
    remote: RemoteLog | None = None
    compared: tuple[RemoteView, EpochCache, RemoteView] | None = (
        None  # the tier, our epochs, what of it counts with them
    )
    damage: CorruptBatchError | None = None
    failure: StorageError | None = None
    closed: bool = False
    folder_dirty: bool = True
    leaving: list[tuple[int, str]] = field(default_factory=list)
    is_leader: bool = True
    may_lag: bool = False
    noted_version: int = -1
    cleaning: CleaningState = field(default_factory=CleaningState)
    watermark: Watermark = Watermark.WRITTEN
    given_watermark: int = 0
    synced_ns: int = 0
    sync_took_ns: int = 0
    on_offline: Callable[[StorageError], None] | None = None
    on_truncated: Callable[[], None] | None = None
    on_moved: Callable[[], None] | None = None
    turns: Turns = field(default_factory=Turns)
    syncing: threading.RLock = field(default_factory=threading.RLock)
    lock: threading.RLock = field(default_factory=threading.RLock)
    is_pressed: bool = False
    rules: PlainRules | None = None
    seen_extras: frozenset[str] | None = None
    room: threading.Condition = field(init=False)

    def __post_init__(self) -> None:
        self.room = threading.Condition(self.lock)

    @property
    def log_end(self) -> int:
        """The offset of the next record."""
        return self.segments[-1].end_offset

    @property
    def healthy(self) -> bool:
        """Whether the log can be written to and closed cleanly."""
        return self.failure is None and self.damage is None

    @property
    def takes_appends(self) -> bool:
        """Whether ``check_writable`` and ``check_leads`` raise nothing."""
        return not self.closed and self.failure is None and self.damage is None and self.is_leader

    def configure(self, config: TopicConfig, parts: Components, remote: RemoteLog | None) -> None:
        """Take new settings of the topic."""
        self.config, self.parts, self.remote, self.rules = config, parts, remote, None
        self.appender.configure(config)
        self.publish()

    def look_up_rules(self) -> PlainRules:
        """What the settings say of plain batches, kept as ``rules`` until they change. Takes the lock itself."""
        with self.lock:
            rules = self.rules = PlainRules(self.config, self.parts)
            return rules

    def check_writable(self) -> None:
        """Raise what keeps the log from being written to, if anything does."""
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
        """Take the log out of service, and tell the directory if it is the disk that failed. Needs no lock."""
        if self.failure is None:
            self.failure = error
        if isinstance(error, LogDirOfflineError) and self.on_offline is not None:
            self.on_offline(error)

    @contextlib.contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Take the log out of service if what is done inside, ``what`` in words, fails half-way.

        Not for a full disk: whoever finds one leaves things as they were. After Ctrl-C, say, files may hold what the
        state does not count, which recovery finds.
        """
        try:
            yield
        except BaseException as error:
            self.ended_early(what, error)
            raise

    def ended_early(self, what: str, error: BaseException) -> None:
        """What ``guarded`` does of ``error``, for those to whom a context manager costs too much."""
        if isinstance(error, DiskFullError):
            return
        if isinstance(error, StorageError):
            self.fail(error)
            return
        reason = f"log {self.log} is out of service, as {what} ended early ({type(error).__name__}): open it again"
        self.failure = ClosedError(reason)

    @property
    def high_watermark(self) -> int:
        """Where readers of what counts as safe end, before it is brought between the log's bounds."""
        if not self.is_leader:
            return self.given_watermark
        if self.watermark is _WRITTEN:
            return self.segments[-1].end_offset
        return self.recovery_point if self.watermark is Watermark.DURABLE else self.given_watermark

    def publish(self) -> None:
        """Make the state as it is now visible to readers, and tell ``on_moved``, which returns at once."""
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
        """As ``publish``, where nothing but the log's end may have moved since: what nearly all appends do.

        The view is made by who asks for it: there are more appends than that.
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
        """What readers see. Needs no lock: all that it is made from is one value."""
        known, end, recovery_point, made = self.published
        if end is None:
            return known
        if not made:
            made.append(known.grown_to(end, recovery_point))
        return made[0]

    def _counting(self, remote: RemoteLog) -> RemoteView:
        """What of the tier is of this log's history: compared when one of the two has changed, not at each append."""
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
    """The view of a log that is not open for writing, or not yet."""
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
    """Bring the bounds of a log into one value, in the order that they must keep.

    With segments in the tier the log starts where the tier says, or later; without, at the first local segment, but not below
    what the tier says: a start offset never falls.
    """
    first, end = (segments[0].base_offset, segments[-1].end_offset) if segments else (log_start, log_start)
    if remote is not None and remote.segments:
        start = max(log_start, remote.log_start)
        if not segments:
            first = end = max(end, remote.end_offset)
    else:
        start = max(log_start, first)
        if (
            remote is not None and start < remote.log_start
        ):  # all that the tier had was deleted, and this log's checkpoint is older
            start = min(remote.log_start, end)
    high_watermark = stable = _between(high_watermark, start, end)
    unstable = producers.first_unstable(high_watermark)
    if unstable is not None:
        stable = _between(unstable, start, high_watermark)
    local, synced = _between(first, start, end), _between(recovery_point, start, end)
    return _of(LogOffsets, (start, local, synced, high_watermark, stable, end))


def _between(value: int, least: int, most: int) -> int:
    """``value``, or the bound that it passes; ``most`` if the bounds pass each other."""
    if value < least:  # noqa: PLR1730 - each append asks several times, and a call costs more than all of it
        value = least
    return most if value > most else value  # noqa: FURB136 - the same
