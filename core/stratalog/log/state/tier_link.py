"""Link between a log and its tier: the tier part of the log, the tier note, and the limit of local disk."""

from __future__ import annotations

import logging
import threading
from typing import Final

from stratalog.env.lock_order import LockRank
from stratalog.epochs.epoch_cache import EpochCache
from stratalog.errors import LogDirOfflineError, OutOfResourcesError
from stratalog.log.folder.tier_note import TierNote, write_note
from stratalog.log.read.tier_view import RemoteLog, RemoteView
from stratalog.log.state.health import Health
from stratalog.model.names import TIER_NOTE_FILE
from stratalog.spi.segment_store import LogFiles

_LOGGER: Final = logging.getLogger(__name__)


class TierLink:
    """Link of one log to its tier. The methods are called under the log's lock, except the methods for the tier note.

    Attributes:
        is_pressed: True if the log's local size is above ``local.hard.limit.bytes``.
        room: condition of the log's lock; notified when ``is_pressed`` may have ended.
        noting: lock held while the tier note is replaced.
        noted_version: manifest version in the stored note; -1 if not known. Changed under ``noting``.
    """

    __slots__ = ("_files", "_health", "_last_comparison", "is_pressed", "noted_version", "noting", "room")

    def __init__(self, files: LogFiles, health: Health, lock: threading.RLock) -> None:
        self._files, self._health = files, health
        self._last_comparison: tuple[RemoteView, EpochCache, RemoteView] | None = (
            None  # view of the tier, the log's epochs, the tier part of the log
        )
        self.is_pressed, self.room = False, threading.Condition(lock)
        self.noting, self.noted_version = LockRank.TIER_NOTE.lock(), -1

    def select_own_part(self, remote: RemoteLog, epochs: EpochCache) -> RemoteView:
        """Return the segments of the tier that belong to the history of a log with these epochs.

        The first call may read from the store, and raises the errors of ``RemoteLog.view``.
        """
        tier_view, compared = remote.view(), self._last_comparison
        if compared is None or compared[0] is not tier_view or compared[1] is not epochs:
            compared = self._last_comparison = (tier_view, epochs, tier_view.within(epochs.entries))
        return compared[2]

    def press(self) -> bool:
        """Record that the log is above its local limit. Return True if it was not above the limit before."""
        was_pressed, self.is_pressed = self.is_pressed, True
        return not was_pressed

    def relieve(self) -> None:
        """Record that the log is below its local limit."""
        self.is_pressed = False

    def save_note(self, remote: RemoteLog | None) -> None:
        """Store the tier note durably, unless the stored note is up to date.

        Nothing is stored if the log is closed or has no tier, or while the tier is unavailable. On a full disk, the
        earlier note is kept: it is older, but still valid.

        Raises:
            LogDirOfflineError: the disk failed; the log is out of service.
        """
        if remote is None or remote.is_assumed or self._health.closed:
            return
        with self.noting:  # without the lock, a thread with an older tier view could replace a newer note
            note = TierNote.of(remote.view())
            if note.version == self.noted_version:
                return
            try:
                write_note(self._files, note)
                self.noted_version = note.version
            except OutOfResourcesError as error:
                log = self._health.name
                _LOGGER.warning("the note about the tier could not be written: log=%s error=%s", log, error)
            except LogDirOfflineError as error:
                self._health.fail(error)
                raise

    def forget_note(self) -> None:
        """Delete the log's tier note, durably. Call this method before the log leaves its tier.

        Raises:
            LogDirOfflineError: the disk failed.
        """
        with self.noting:
            self._files.remove(TIER_NOTE_FILE)
            self._files.sync()
            self.noted_version = -1
