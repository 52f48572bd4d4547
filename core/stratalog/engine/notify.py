"""Telling listeners: on a thread of its own, with no lock held, after the fact."""

from __future__ import annotations

from functools import partial

from stratalog.env.threads import Worker
from stratalog.model.events import Event
from stratalog.registry.registry import Registry


class Notifier:
    """Hands events to the plugins' listeners. The thread starts with the first event."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._worker = Worker("stratalog-notifier")

    def __call__(self, event: Event) -> None:
        """Tell listeners of an event, soon."""
        self._worker.submit(partial(self._registry.notify, event))

    def drain(self) -> None:
        """Wait until everything told so far has been heard."""
        self._worker.drain()

    def close(self) -> None:
        """Deliver what is queued, then stop. Twice is fine."""
        self._worker.close()
