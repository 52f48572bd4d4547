"""Logs that cleaning leaves alone, because a round failed or a policy is wrong."""

from __future__ import annotations

import logging
from typing import Final

from stratalog.errors import StorageError
from stratalog.log.log import Log
from stratalog.model.events import LogUncleanable

_LOGGER: Final = logging.getLogger(__name__)


def mark_uncleanable(log: Log, error: StorageError, part: str = "local") -> None:
    """Do not compact a part of a log until the log is opened again, and notify listeners of the reason.

    The same reason is reported once, however often a policy fails with it.
    """
    reason = str(error)
    if log.maintenance.cleaning.mark_uncleanable(part, reason):
        _LOGGER.warning("%s is not cleaned until it is opened again: %s", log.name, reason)
        log.maintenance.notify(LogUncleanable(log=log.name, reason=reason))
