"""Service ``gateway``, which runs the gateway together with an engine, such as the engine of ``stratalog run``."""

from __future__ import annotations

import logging
import threading
from typing import Final

from stratalog import Engine
from stratalog.spi import Env, Service
from stratalog_gateway.faults import Faults
from stratalog_gateway.gateway import Gateway
from stratalog_gateway.settings import GatewaySection

_LOGGER: Final = logging.getLogger(__name__)
_NS_PER_S: Final = 1_000_000_000


class GatewayService(Service):
    """A gateway that is started and stopped with its engine."""

    def __init__(self, settings: GatewaySection, env: Env) -> None:
        self._settings, self._clock = settings, env.clock
        self._lock = threading.Lock()
        self._gateway: Gateway | None = None  # under _lock
        self._faults: Faults | None = None

    @property
    def address(self) -> str:
        """Advertised ``HOST:PORT`` of the first listener; "" before ``start`` and after ``stop``."""
        gateway = self._gateway
        return "" if gateway is None else gateway.address

    def faults(self) -> Faults:
        """Return the object through which a test injects faults. Call this method before ``start``."""
        if self._faults is None:
            self._faults = Faults(self._clock)
        return self._faults

    def start(self, engine: Engine) -> None:
        """Start the gateway for an engine. Raises the errors of ``Gateway`` and of ``Gateway.start``."""
        gateway = Gateway(engine, self._settings, self._clock, faults=self._faults)
        with self._lock:
            self._gateway = gateway
        gateway.start()
        _LOGGER.info("the gateway listens address=%s", gateway.address)

    def stop(self, deadline_ns: int) -> None:
        """Stop the gateway. The wait for each thread is limited to the time between the call and ``deadline_ns``."""
        with self._lock:
            gateway, self._gateway = self._gateway, None
        if gateway is not None:
            gateway.stop(max(deadline_ns - self._clock.monotonic_ns(), 0) / _NS_PER_S)
