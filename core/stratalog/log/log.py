"""A log of an engine: what the engine does to keep it. State, lock and delegation; no algorithm."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from stratalog.config.topic import TopicConfig
from stratalog.errors import FencedEpochError, StorageError
from stratalog.log.change.append_segments import append_segments
from stratalog.log.change.delete import drop_segments, remove_left
from stratalog.log.change.extra_indexes import ExtrasResult, make_extras
from stratalog.log.change.replace_segments import replace_segments
from stratalog.log.durability.sync import flush, is_sync_due
from stratalog.log.folder.write_rounds import Marks, end_round
from stratalog.log.log_writer import LogWriter
from stratalog.log.open_log import close_segments, end
from stratalog.log.read.tier_view import RemoteLog
from stratalog.log.state.cleaning_state import CleaningState
from stratalog.log.state.roll import roll
from stratalog.log.state.tier_link import forget_tier, note_tier, rejoined
from stratalog.model.events import EpochFenced
from stratalog.model.names import LOG_SUFFIX
from stratalog.segment.cleaned_segment import CleanedSegment, SpooledSegment
from stratalog.segment.components import Components
from stratalog.segment.segment import Segment


class Log(LogWriter):
    """One log of an engine. Any number of threads may read and append; appends are serialised by one lock.

    How to read and append stands in ``LogReader`` and ``LogWriter``. What is here is for the engine's duties: syncs,
    retention, compaction, the tier, and the end of the log.
    """

    def sync_if_due(self, interval_ms: int) -> bool:
        """Flush if something has waited for ``interval_ms`` or ``flush.ms``; whether it did."""
        due = is_sync_due(self._state, interval_ms)
        if due:
            flush(self._state)
        return due

    def forget_producers(self, silent_ms: int) -> int:
        """Forget idempotent producers whose last batch is as old as this, by its own time; how many.

        Not those with an open transaction. One that is forgotten may go on at any sequence.
        """
        state = self._state
        with state.lock:
            state.check_writable()
            return state.producers.forget_silent(state.parts.env.clock.now_ms() - silent_ms)

    def roll_if_due(self) -> bool:
        """Roll if the active segment has waited for ``segment.ms``, by the clock; whether it did."""
        state = self._state
        with state.lock:
            state.check_writable()
            if not state.appender.has_waited():
                return False
            roll(state)
            return True

    def configure(self, config: TopicConfig, parts: Components, remote: RemoteLog | None = None) -> None:
        """Take new settings of the topic: nothing is opened again, the active segment goes on under them."""
        with self._state.lock:
            self._state.configure(config, parts, remote)
            self._parts = parts

    def abandon(self) -> None:
        """Close without making anything durable: the log is about to be deleted. Twice is fine."""
        state = self._state
        with state.syncing, state.lock:
            if not state.closed:
                state.closed = True
                close_segments(state.segments)

    def take_offline(self, error: StorageError) -> None:
        """Refuse appends from now on with ``error``, as the log's directory failed; reads go on."""
        if self._state.failure is None:
            self._state.failure = error

    def fail(self, error: StorageError) -> None:
        """Take the log out of service, and its directory if ``error`` says that the disk failed; reads go on."""
        self._state.fail(error)

    @contextlib.contextmanager
    def stopped_if_fenced(self) -> Iterator[None]:
        """Stop acknowledging at once when work on the tier finds that another writer owns the log; reads go on."""
        try:
            yield
        except FencedEpochError as error:
            if self._state.failure is None:
                self._state.fail(error)
                self.notify(EpochFenced(log=self.name, leader_epoch=self.leader_epoch, reason=str(error)))
            raise

    def drop_local(self, end: int) -> list[Segment]:
        """Take closed segments below offset ``end`` off local disk: for retention, which knows that it may."""
        return drop_segments(self._state, end)

    @property
    def cleaning(self) -> CleaningState:
        """How far the log is compacted; changed by who compacts it."""
        return self._state.cleaning

    def resume_cleaning(self, dirty_start: int | None) -> None:
        """Take what a checkpoint says; one above the log's end is no more true, and would soon look as if it were."""
        with self._state.lock:
            is_true = dirty_start is not None and 0 <= dirty_start <= self._state.log_end
            self.cleaning.dirty_start = dirty_start if is_true else None

    def cleaned_up_to(self, end: int, ticket: int) -> None:
        """Note that everything below offset ``end`` is compacted, unless ``cleaning.changes`` is no more ``ticket``."""
        with self._state.lock:
            if ticket == self.cleaning.changes:
                self.cleaning.dirty_start = end

    def new_cleaned(self, base_offset: int) -> CleanedSegment:
        """Begin a segment that shall take the place of others; errors as ``append``."""
        state = self._state
        state.check_writable()
        return CleanedSegment(state.files, base_offset, state.parts, state.config)

    def new_spooled(self, base_offset: int) -> SpooledSegment:
        """Begin one that shall go to a tier; errors as ``append``."""
        state = self._state
        state.check_writable()
        return SpooledSegment(state.files, base_offset, state.parts, state.config)

    def replace(self, made: CleanedSegment, old: Sequence[Segment], ticket: int) -> bool:
        """Put a finished segment in the place of others; see ``replace_segments``."""
        return replace_segments(self._state, made, old, ticket)

    def append_segments(self, made: Sequence[CleanedSegment], end: int, mark: tuple[str, int] | None = None) -> None:
        """Add finished segments behind the end: all of them, or none; see ``append_segments`` of ``log/change/append_segments.py``."""
        append_segments(self._state, made, end, mark)

    def marks(self) -> Marks:
        """How far writers in numbered rounds have come; CorruptCheckpointError if that cannot be read."""
        with self._state.lock:
            self._state.check_writable()  # of one that is out of service nobody knows before it is opened again
            return end_round(self._state.files, self._state.log_end)

    def make_extra_indexes(self) -> ExtrasResult:
        """Make what EXTRA indexes (``index.extra``) closed segments on local disk lack; errors as ``make_extras``."""
        return make_extras(self._state)

    def remove_left(self) -> int:
        """Delete ``.deleted`` files whose delay is over; how many."""
        return remove_left(self._state)

    def leaving(self) -> list[tuple[str, int]]:
        """The ``.deleted`` logs that are still there, and when (ms since 1970) their time is over."""
        state = self._state
        with state.lock:
            clock = state.parts.env.clock
            now_ns, now_ms = clock.monotonic_ns(), clock.now_ms()
            return [
                (state.files.path(name), now_ms + max(due_ns - now_ns, 0) // 1_000_000)
                for due_ns, name in state.leaving
                if LOG_SUFFIX in name
            ]

    def settle_remote(self) -> bool:
        """Whether it is certain what the tier has; it is asked if a reply was lost. Errors as ``RemoteLog.refresh``."""
        remote = self._state.remote
        if remote is None or remote.is_settled:
            return True
        if remote.is_assumed:
            return False
        remote.refresh()
        self.refresh_remote()
        return remote.is_settled

    def refresh_remote(self) -> None:
        """Show readers what the tier holds since its last commit, and note it for when the store is away."""
        with self._state.lock:
            self._state.publish()
        note_tier(self._state)

    def rejoin_remote(self, leader_epoch: int) -> None:
        """Follow the tier again, now that its head was read; errors as ``away.rejoined``, after which no appends are taken."""
        with self.stopped_if_fenced():
            rejoined(self._state, leader_epoch)

    def leave_remote(self) -> int:
        """Begin where local disk does, and forget the tier, which is about to be emptied; the log start after it."""
        start = self.raise_log_start(self.offsets().local_log_start)
        forget_tier(self._state)
        return start

    def close(self) -> bool:
        """Flush, write the closing snapshot and index entries, close the files. Twice is fine.

        Returns:
            Whether the log was closed cleanly.
        """
        state = self._state
        with state.syncing, state.lock:
            if state.closed:
                return True
            return end(state)
