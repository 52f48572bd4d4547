"""Telling listeners: on a thread for each plugin that listens, with no lock held, after the fact."""

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
    """Hands events to the plugins' listeners. A plugin that hangs keeps the others from nothing. Thread-safe.

    Args:
        registry: knows who listens.
        stop_ms: how long ``close`` waits for all listeners together.
    """

    def __init__(self, registry: Registry, stop_ms: int) -> None:
        self._registry, self._stop_ms = registry, stop_ms
        self._lock = threading.Lock()
        self._workers: dict[str, Worker] = {}  # by plugin; each starts with its first event; under _lock
        self._listening: dict[
            type[Event], tuple[tuple[str, Worker], ...]
        ] = {}  # those asked for; read without the lock
        self._closed = False

    def __call__(self, event: Event) -> None:
        """Tell listeners of an event, soon."""
        kind = type(event)
        found = self._listening.get(kind)
        if found is None:
            found = self._found(kind)
        for plugin, worker in found:
            worker.submit(partial(self._registry.notify, event, plugin))

    def drain(self) -> None:
        """Wait until everything told so far has been heard."""
        for worker in list(self._workers.values()):
            worker.drain()

    def close(self) -> None:
        """Deliver what is queued, then stop. Twice is fine; a listener that does not end is left to its thread."""
        with self._lock:
            self._closed = True
            workers = dict(self._workers)
        clock = SystemClock()  # threads run in real time, whatever clock an engine has
        end_ns = clock.monotonic_ns() + self._stop_ms * _NS
        for plugin, worker in workers.items():
            if not worker.close(max(0, end_ns - clock.monotonic_ns()) / (1000 * _NS)):
                _LOGGER.warning("a listener is left behind: plugin=%s thread=%s", plugin, worker.thread_name)

    def _found(self, kind: type[Event]) -> tuple[tuple[str, Worker], ...]:
        with self._lock:
            if self._closed:
                return ()
            for plugin in self._registry.listening(kind):
                if plugin not in self._workers:
                    self._workers[plugin] = Worker(f"stratalog-notifier-{plugin}")
            self._listening[kind] = tuple((plugin, self._workers[plugin]) for plugin in self._registry.listening(kind))
            return self._listening[kind]
