"""Uncleanable logs: compaction skips a part of a log after a round failed there, or after a policy was wrong."""

from __future__ import annotations

import logging
from typing import Final

from stratalog.errors import StorageError
from stratalog.log.log import Log
from stratalog.model.events import LogUncleanable

_LOGGER: Final = logging.getLogger(__name__)


def mark_uncleanable(log: Log, error: StorageError, part: str = "local") -> None:
    """Mark a part of a log as uncleanable until the log is opened again; log the reason and notify listeners.

    ``part`` is "local" or "tier". If the part is already uncleanable for the same reason, do nothing.
    """
    reason = str(error)
    if log.maintenance.cleaning.mark_uncleanable(part, reason):
        _LOGGER.warning("%s is not cleaned until it is opened again: %s", log.name, reason)
        log.maintenance.notify(LogUncleanable(log=log.name, reason=reason))
