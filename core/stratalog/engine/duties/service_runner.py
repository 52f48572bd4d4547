"""The services of plugins that run beside an engine."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from stratalog.env.deadlines import OverdueError
from stratalog.errors import ConfigError, StorageError
from stratalog.reading.component_host import ComponentHost
from stratalog.registry.guard import Guard
from stratalog.spi.service_contract import Service

_LOGGER: Final = logging.getLogger(__name__)
_NS: Final = 1_000_000
_LEAST_S: Final = 0.1  # each service gets at least this long to stop


class Services:
    """The services of an engine, in the order of the setting ``services``. Thread-safe.

    The constructor opens the services.

    Raises:
        UnknownComponentError: no plugin offers one of the services.
        PluginError: a service cannot be opened, for example because a package is not installed.
    """

    def __init__(self, host: ComponentHost) -> None:
        settings, offers = host.settings.engine, host.registry.services()
        self._clock, self._stop_ms, self._calls = host.env.clock, settings.service_stop_ms, host.registry.calls
        self._services: dict[str, Service] = {name: host.service(name) for name in settings.services}
        self._guards = {name: offers.guard(offers.by_name(name)) for name in self._services}
        self._lock = threading.Lock()
        self._started = self._stopped = False

    def get(self, name: str) -> Service:
        """Return the service with this name, or raise ConfigError if the setting ``services`` does not contain it."""
        service = self._services.get(name)
        if service is None:
            names = ", ".join(self._services) or "none"
            raise ConfigError(f"there is no service {name!r}, the services are: {names}").advised(
                f"add {name} to services in the settings"
            )
        return service

    def start(self, start: Callable[[Service], object]) -> None:
        """Start all services in order: call ``start`` with each service.

        A call after ``close`` does nothing. A second call does nothing, even if the first call failed.

        Raises:
            PluginError: a service raised an error, or did not start within ``plugin.deadline.ms``. The services before
                it run until ``close``; the services after it are not started.
        """
        with self._lock:
            if self._started or self._stopped:
                return
            self._started = True
            for name, service in self._services.items():
                guard = self._guards[name]
                guard.check_none("start", guard.call("start", partial(start, service)))

    def close(self) -> None:
        """Stop all services in reverse order, even services that were not started. Idempotent.

        The services together have ``service.stop.ms`` to stop, but each service has at least 0.1 s. If a service fails
        to stop, or does not stop in time, a warning is logged, and the other services are still stopped.
        """
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            deadline_ns = self._clock.monotonic_ns() + self._stop_ms * _NS
            for name, service in reversed(self._services.items()):
                guard = self._guards[name]
                left_s = max((deadline_ns - self._clock.monotonic_ns()) / 1_000_000_000, _LEAST_S)
                try:
                    self._calls.call(str(guard), "stop", partial(self._stop, service, guard, deadline_ns), left_s)
                except (StorageError, OverdueError):  # the other services and the logs must still be closed
                    _LOGGER.warning("service %s failed to stop", name, exc_info=True)

    @staticmethod
    def _stop(service: Service, guard: Guard, deadline_ns: int) -> None:
        with guard.converting("stop"):
            stop: Callable[[int], object] = service.stop  # a plugin may return anything
            result = stop(deadline_ns)
        guard.check_none("stop", result)
