"""The services that run beside an engine."""

from __future__ import annotations

import logging
import threading
from typing import Final

from stratalog.errors import PluginError
from stratalog.reading.parts import ComponentHost
from stratalog.spi.services import EngineHandle, Service

_LOGGER: Final = logging.getLogger(__name__)
_NS: Final = 1_000_000


class Services:
    """The services that the settings name, in that order; opened here. Thread-safe.

    Args:
        host: opens them.

    Raises:
        UnknownComponentError: nobody offers one of them.
        PluginImportError: it needs something that is not installed.
    """

    def __init__(self, host: ComponentHost) -> None:
        settings = host.settings.engine
        self._clock, self._stop_ms = host.env.clock, settings.service_stop_ms
        self._found: dict[str, Service] = {name: host.service(name) for name in settings.services}
        self._lock = threading.Lock()
        self._started = self._stopped = False

    def start(self, engine: EngineHandle) -> None:
        """Start all of them. Twice is fine.

        Raises:
            PluginError: one did not start; those before it run until ``close``, those after it were not begun.
        """
        with self._lock:
            if self._started or self._stopped:
                return
            self._started = True
            for name, service in self._found.items():
                try:
                    service.start(engine)
                except Exception as error:
                    raise PluginError(f"service {name} did not start: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Stop all of them, the last one first; together they have ``service.stop.ms``. Twice is fine.

        One that fails is logged, and keeps nothing else from its end.
        """
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            deadline_ns = self._clock.monotonic_ns() + self._stop_ms * _NS
            for name, service in reversed(self._found.items()):
                try:
                    service.stop(deadline_ns)
                except Exception:  # whatever a service raises, the others and the logs are to end well
                    _LOGGER.warning("service %s did not stop in order", name, exc_info=True)
