"""The mutable part of a log that is open for writing."""

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
_of: Final = tuple.__new__  # makes a named tuple of all its fields; calling its class is a call more


@dataclass(slots=True)
class LogState:
    """Everything about one open log.

    Fields are changed under ``lock``, but for ``failure``, which ``fail`` may set at any time. Who writes to the log reads
    them under it, too; without it a single field may be read where a value of a moment ago will do. Readers of records take
    no lock: they load ``published``, a value that is replaced as a whole.

    ``syncing`` is taken before ``lock``. While ``noting``, or the lock that ``turns`` has, is held, none of the others is taken.
    """

    log: TopicPartition
    topic_id: TopicId
    files: LogFiles
    parts: Components
    config: TopicConfig
    segments: tuple[Segment, ...]  # ascending; the last one is the active one
    appender: Appender  # of the active segment
    producers: ProducerState
    producer_expiration_ms: int  # who is silent for so long is not taken from a snapshot
    snapshot_offset: int  # of the newest snapshot when the log was loaded; -1 where none of then counts any more
    epochs: EpochCache
    log_start: int
    recovery_point: int  # everything below this offset is durable
    leader_epoch: int
    # A view; the log's end if that is another one by now, else None; the recovery point then; and the view that was made of
    # these, in a list that is empty until somebody asks for it.
    published: tuple[LogView, int | None, int, list[LogView]]
    notify: Callable[[Event], None]
    remote: RemoteLog | None = None
    # The tier as it was seen, our epochs at that time, and what of the tier belongs to this log's history.
    compared: tuple[RemoteView, EpochCache, RemoteView] | None = None
    damage: CorruptBatchError | None = None  # where the log cannot be read on; appends raise it
    failure: StorageError | None = None  # takes the log out of service: appends raise it, reads go on
    closed: bool = False
    folder_dirty: bool = True  # whether the folder has names that are not durable
    leaving: list[tuple[int, str]] = field(default_factory=list)  # when (monotonic ns) which ``.deleted`` file may go
    is_leader: bool = True
    may_lag: bool = False  # whether others have replicas, so that the tier may be ahead of this log
    noted_version: int = -1  # of the manifest in the note that ``away`` keeps; -1 if it is not known. Under ``noting``
    cleaning: CleaningState = field(default_factory=CleaningState)
    watermark: Watermark = Watermark.WRITTEN  # what moves the high watermark of a leader
    given_watermark: int = 0  # the one from outside, or from a follower's leader
    synced_ns: int = 0  # when (monotonic) the last sync ended
    sync_took_ns: int = 0
    on_offline: Callable[[StorageError], None] | None = None  # told of a failure that the whole directory shares
    store_bounds: Callable[[], None] | None = None  # writes the directory's checkpoints
    on_moved: Callable[[], None] | None = None  # told when bounds have moved; returns at once
    turns: Turns = field(default_factory=Turns)  # who syncs for those who wait, and whose batches are to be written
    noting: threading.Lock = field(default_factory=threading.Lock)  # held while the note about the tier is replaced
    syncing: threading.RLock = field(default_factory=threading.RLock)  # held over a sync, and by what takes bytes away
    lock: threading.RLock = field(default_factory=threading.RLock)
    is_pressed: bool = False  # whether local disk holds more of the log than it may
    rules: PlainRules | None = None  # of ``config``; None until an append asks
    seen_extras: frozenset[str] | None = None  # the EXTRA indexes that the log's files were last compared with
    room: threading.Condition = field(init=False)  # told when ``is_pressed`` may be over

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
        """Take the log out of service, and tell the directory if it is the disk that failed. Needs no lock.

        Later calls raise ``error``, unless it says that the same call may succeed: then they say to open the log again.
        """
        if self.failure is None:
            again = f"log {self.log} is out of service, as a change of it ended early, {error.reason}: open it again"
            self.failure = ClosedError(again) if isinstance(error, SystemLimitError) else error
        if isinstance(error, LogDirOfflineError) and self.on_offline is not None:
            self.on_offline(error)

    @contextlib.contextmanager
    def guarded(self, what: str) -> Iterator[None]:
        """Take the log out of service if what is done inside, ``what`` in words, fails half-way.

        Not if the system lacks space or descriptors: a call that finds none leaves things as they were. After Ctrl-C, say, files may hold what the
        state does not count, which recovery finds.
        """
        try:
            yield
        except BaseException as error:
            self.ended_early(what, error)
            raise

    def ended_early(self, what: str, error: BaseException) -> None:
        """What ``guarded`` does with ``error``, for callers to whom a context manager costs too much."""
        if isinstance(error, OutOfResourcesError):
            return
        if not isinstance(error, StorageError):
            reason = f"log {self.log} is out of service, as {what} ended early ({type(error).__name__}): open it again"
            error = ClosedError(reason)
        self.fail(error)

    @property
    def high_watermark(self) -> int:
        """Where safe reads end, before that is brought between the log's bounds."""
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

        The view is not made before somebody asks for it, which happens less often than appends.
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
        """What of the tier belongs to this log's history: compared when one of the two has changed, not at each append."""
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

    With segments in the tier the log starts where the tier says, or later. Without, it starts at the first local segment, but
    not below what the tier says: a start offset never falls.
    """
    first, end = (segments[0].base_offset, segments[-1].end_offset) if segments else (log_start, log_start)
    if remote is not None and remote.segments:
        start = max(log_start, remote.log_start)
        if not segments:
            first = end = max(end, remote.end_offset)
    else:
        start = max(log_start, first)
        # All that the tier had may have been deleted since this log's start was stored in its checkpoint.
        if remote is not None and start < remote.log_start:
            start = min(remote.log_start, end)
    high_watermark = stable = _between(high_watermark, start, end)
    unstable = producers.first_unstable(high_watermark)
    if unstable is not None:
        stable = _between(unstable, start, high_watermark)
    local, synced = _between(first, start, end), _between(recovery_point, start, end)
    return _of(LogOffsets, (start, local, synced, high_watermark, stable, end))


def _between(value: int, least: int, most: int) -> int:
    """``value``, or the bound that it is beyond; ``most`` if ``least`` is above it."""
    if value < least:  # noqa: PLR1730 - each append asks several times, and a call costs more than all of it
        value = least
    return most if value > most else value  # noqa: FURB136 - the same
