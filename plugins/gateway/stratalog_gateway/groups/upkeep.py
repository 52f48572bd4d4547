"""Thread that regularly removes members whose deadlines have passed, and expires committed offsets."""

from __future__ import annotations

import logging
import threading
from typing import Final

from stratalog.errors import StorageError
from stratalog_gateway.groups.group_table import GroupTable
from stratalog_gateway.node import Node

_LOGGER: Final = logging.getLogger(__name__)
_STEP_MS: Final = 1000
_NS_PER_MS: Final = 1_000_000
_MS_PER_MINUTE: Final = 60_000


class GroupUpkeep:
    """Thread that calls ``step`` each second, from ``start`` to ``stop``."""

    def __init__(self, node: Node, groups: GroupTable) -> None:
        self._node, self._groups = node, groups
        self._next_ns = node.now_ns() + self._interval_ns
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stratalog-gateway-groups", daemon=True)

    @property
    def _interval_ns(self) -> int:
        return self._node.settings.retention_check_ms * _NS_PER_MS

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, wait_s: float) -> None:
        """Stop the thread. Idempotent; allowed before ``start``.

        Args:
            wait_s: maximum time to wait for the thread.
        """
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(wait_s)

    def step(self) -> None:
        """Remove members whose deadlines have passed, and expire offsets.

        Offsets expire only once per ``offsets.retention.check.interval.ms``. Errors of the expiration are logged.

        Raises:
            StorageError: the removal of a member could not be stored, or the names of groups cannot be read.
        """
        self._groups.advance_due()
        if self._node.now_ns() < self._next_ns:
            return
        self._next_ns = self._node.now_ns() + self._interval_ns
        retention_ms = self._node.settings.retention_minutes * _MS_PER_MINUTE
        for name in self._groups.names():
            try:
                self._groups.expire(name, retention_ms)
            except StorageError:
                _LOGGER.exception("the offsets of a group could not be expired group=%s", name)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._node.clock.wait(self._stopping, _STEP_MS)
            try:
                self.step()
            except BaseException:  # even a SystemExit of a plugin must not end this thread
                _LOGGER.exception("the deadlines of groups could not be checked")
