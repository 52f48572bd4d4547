"""Opening an engine while the store of its tier is unavailable, and connecting its logs to the tier later.

A small note file in each log directory contains the URI of the tier with which the directory was opened. If the tier is
unavailable and no directory has a note about the tier, the tier may contain other logs with the same names. Then the
engine does not open.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Sequence
from typing import Final

from stratalog.errors import StorageError, StoreError, TierUnavailableError
from stratalog.log.log import Log
from stratalog.model.names import TIER_NOTE_FILE
from stratalog.spi.segment_store import SegmentStore
from stratalog.tier.tier import Tier
from stratalog.tier.tier_log import TierLog

_FORMAT_VERSION: Final = 1
_LOGGER: Final = logging.getLogger(__name__)


def refusal(error: StoreError, reason: str) -> TierUnavailableError:
    """Return the error for an engine that does not open because the store is unavailable and because of ``reason``."""
    return TierUnavailableError(
        f"the store of the tier is unavailable, {error.reason}; the engine does not open, because {reason}", error.key
    )


def check_known(tier: Tier, directories: Sequence[SegmentStore]) -> None:
    """Write the tier's URI to a note file in each directory. If the store is unavailable, only check the notes.

    Raises:
        TierUnavailableError: the store is unavailable, and no directory has a note with the tier's URI.
        LogDirError: the store is unavailable, and a note cannot be read. If the store is available, a note that cannot
            be written is only logged.
    """
    outage = tier.availability.error
    if outage is None:
        for directory in directories:
            _note(tier, directory)
    elif all(_read_noted_uri(directory) != tier.uri for directory in directories):
        reason = (
            f"{directories[0].path()} was never opened with {tier.uri}, so the segments of the tier are not known here"
        )
        raise refusal(outage, reason) from outage


def rejoin(log: Log, remote: TierLog) -> None:
    """Connect a log to its tier if the store was unavailable when the log was opened and is available now.

    The function does nothing if the log is connected already.

    Raises:
        TierUnavailableError: the store is still unavailable.
        StoreUntrustedError: the store failed its checks.
        FencedEpochError: another engine has taken over the log; the log refuses appends from now on.
        StoreError, CorruptManifestError: the newest manifest cannot be read; see ``TierLog.refresh``.
    """
    if remote.is_here:
        return
    remote.availability.reach()
    root = remote.rejoin()
    try:
        log.maintenance.rejoin_remote(-1 if root is None else root.leader_epoch)
    finally:
        log.maintenance.refresh_remote()


def _read_noted_uri(directory: SegmentStore) -> str:
    """Return the URI of the tier in a directory's note, or "" if there is no note or the note cannot be parsed."""
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        body = json.loads(directory.read_small(TIER_NOTE_FILE) or b"{}")
        if body["version"] == _FORMAT_VERSION:
            return str(body["tier"])
    return ""


def _note(tier: Tier, directory: SegmentStore) -> None:
    try:
        if _read_noted_uri(directory) != tier.uri:
            directory.replace_small(TIER_NOTE_FILE, json.dumps({"version": _FORMAT_VERSION, "tier": tier.uri}).encode())
    except StorageError as error:  # the engine opens without the note; the next open writes it
        _LOGGER.warning("the note about the tier was not stored: %s", error)
