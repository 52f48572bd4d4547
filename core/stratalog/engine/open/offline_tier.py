"""What an engine does about a store that is away when it is opened, and how its logs join their tier again.

A small file in each log directory notes which tier the engine has worked with. Without that note nobody knows whether
a tier that does not answer holds the logs of these directories or others of the same names, so the engine does not open.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Final

from stratalog.errors import OutOfResourcesError, StoreError, TierUnavailableError
from stratalog.log.log import Log
from stratalog.model.names import TIER_NOTE_FILE
from stratalog.spi.segment_store import SegmentStore
from stratalog.tier.tier import Tier
from stratalog.tier.tier_log import TierLog

_FORMAT_VERSION: Final = 1


def refusal(error: StoreError, reason: str) -> TierUnavailableError:
    """What opening an engine raises because the store is away."""
    return TierUnavailableError(
        f"the store of the tier is away, {error.reason}; the engine does not open, as {reason}", error.key
    )


def check_known(tier: Tier, directories: Sequence[SegmentStore]) -> None:
    """See whether the engine may open, if the store is away; else note that its directories belong to the tier.

    Raises:
        TierUnavailableError: it may not, and why.
        LogDirError: the note cannot be read, or written but for a full disk.
    """
    away = tier.reach.away
    if away is None:
        for directory in directories:
            _note(tier, directory)
    elif all(_noted(directory) != tier.uri for directory in directories):
        reason = f"{directories[0].path()} has never been opened with {tier.uri}: what it holds of these logs is not known here"
        raise refusal(away, reason) from away


def rejoin(log: Log, remote: TierLog) -> None:
    """Probe the store if it was away when the log was opened; once it answers, let the log follow its tier again.

    The log is then as if the store had been there from the start. Does nothing for a log that has joined its tier.

    Raises:
        TierUnavailableError: the store is still away.
        StoreUntrustedError: it does not keep what it promises.
        FencedEpochError: another engine took the log over; it takes no appends any more.
        StoreError, CorruptManifestError: as ``TierLog.refresh``.
    """
    if remote.is_here:
        return
    remote.reach()
    root = remote.rejoin()
    try:
        log.rejoin_remote(-1 if root is None else root.leader_epoch)
    finally:
        log.refresh_remote()


def _noted(directory: SegmentStore) -> str:
    """The tier that the note names; "" if there is no note, or it cannot be read."""
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        body = json.loads(directory.read_small(TIER_NOTE_FILE) or b"{}")
        if body["version"] == _FORMAT_VERSION:
            return str(body["tier"])
    return ""


def _note(tier: Tier, directory: SegmentStore) -> None:
    if _noted(directory) != tier.uri:
        with contextlib.suppress(OutOfResourcesError):  # the engine opens all the same, and notes it next time
            directory.replace_small(TIER_NOTE_FILE, json.dumps({"version": _FORMAT_VERSION, "tier": tier.uri}).encode())
