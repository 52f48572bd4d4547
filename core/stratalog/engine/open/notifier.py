"""Notification of the plugins' listeners about events. Each plugin has its own thread, which holds no lock."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import Final

from stratalog.env import SystemClock
from stratalog.env.threads import Worker
from stratalog.model.events import Event
from stratalog.registry.registry import Registry

_LOGGER: Final = logging.getLogger(__name__)
_NS: Final = 1_000_000


class Notifier:
    """Queues of events for the plugins' listeners. A plugin that hangs does not delay other plugins. Thread-safe.

    A plugin's queue has at most 10000 events; further events are dropped.

    Args:
        registry: registry of the listeners.
        stop_ms: maximum time that ``close`` waits for all listeners together.
    """

    def __init__(self, registry: Registry, stop_ms: int) -> None:
        self._registry, self._stop_ms = registry, stop_ms
        self._lock = threading.Lock()
        self._workers: dict[str, Worker] = {}  # by plugin; a thread starts at its first event; protected by _lock
        self._listening: dict[
            type[Event], tuple[tuple[str, Worker], ...]
        ] = {}  # by event class, filled at its first event; read without the lock
        self._closed = False

    def __call__(self, event: Event) -> None:
        """Queue an event for its listeners. Drop the event after ``close``, or if the system cannot start a thread."""
        kind = type(event)
        listeners = self._listening.get(kind)
        if listeners is None:
            listeners = self._find_listeners(kind)
        for plugin, worker in listeners:
            try:
                worker.submit(partial(self._registry.notify, event, plugin))
            except RuntimeError as error:  # the change is made already, so its caller must not get an error
                _LOGGER.warning("a listener misses an event: plugin=%s event=%s error=%s", plugin, kind.__name__, error)

    def drain(self) -> None:
        """Wait until the listeners have received all events that were queued before the call."""
        for worker in list(self._workers.values()):
            worker.drain()

    def close(self) -> None:
        """Deliver the queued events, then end the threads. Idempotent.

        After ``stop_ms``, a warning is logged for each plugin whose listener has not returned, and the plugin's queued
        events are dropped.
        """
        with self._lock:
            self._closed = True
            workers = dict(self._workers)
        clock = SystemClock()  # threads run in real time, for any clock of the engine
        end_ns = clock.monotonic_ns() + self._stop_ms * _NS
        for plugin, worker in workers.items():
            if not worker.close(max(0, end_ns - clock.monotonic_ns()) / (1000 * _NS)):
                _LOGGER.warning(
                    "a listener took too long to stop and was abandoned: plugin=%s thread=%s",
                    plugin,
                    worker.thread_name,
                )

    def _find_listeners(self, kind: type[Event]) -> tuple[tuple[str, Worker], ...]:
        with self._lock:
            if self._closed:
                return ()
            for plugin in self._registry.listening(kind):
                if plugin not in self._workers:
                    self._workers[plugin] = Worker(f"stratalog-notifier-{plugin}")
            self._listening[kind] = tuple((plugin, self._workers[plugin]) for plugin in self._registry.listening(kind))
            return self._listening[kind]
