"""Availability of a tier: an engine can be opened while the store is unavailable, and uses the store later.

A probe tests with a few requests if the store is available and creates objects atomically. An engine that was opened
without the store probes the store when it needs the tier, but not more often than every 5 seconds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from stratalog.env import Clock
from stratalog.env.forks import ends_with_fork
from stratalog.errors import StoreError, StoreUntrustedError, TierUnavailableError
from stratalog.model.events import TierAvailable, TierUnavailable
from stratalog.tier.store.probe import ProbeResult

_LOGGER: Final = logging.getLogger(__name__)
RETRY_MS: Final = 5_000  # minimal time from the end of a probe to the next one


class TierAvailability:
    """Availability of a tier's store. Thread-safe.

    Args:
        probed: result of the probe when the tier was opened; None if the store was unavailable.
        error: the error of that probe; None if the store was available.
        allow_offline: True if logs may be opened without the store.

    Attributes:
        shared: True if several writers may use the store; False while the store was never available.
        reason: the reason why several writers must not use the store; "" if this is allowed.
    """

    def __init__(
        self,
        uri: str,
        clock: Clock,
        probe: Callable[[], ProbeResult],
        probed: ProbeResult | None,
        error: StoreError | None = None,
        *,
        allow_offline: bool = False,
    ) -> None:
        self._uri, self._clock, self._probe, self._allow_offline = uri, clock, probe, allow_offline
        self.shared = probed is not None and probed.shared
        self.reason = probed.reason if probed is not None else "the store was unavailable and was not tested"
        self._error: StoreError | None = error  # read without the lock
        self._testing = threading.Lock()
        self._tested_ns = clock.monotonic_ns()
        self._on_event: Callable[[TierUnavailable | TierAvailable], None] | None = None
        ends_with_fork(self)
        if error is not None:
            _LOGGER.warning("the tier is not in use: uri=%s error=%s", uri, error)

    @property
    def error(self) -> StoreError | None:
        """The error because of which the tier is not used; None while the tier is used.

        It is a StoreUntrustedError if the store declares that it creates objects atomically, but does not.
        """
        return self._error

    @property
    def is_testing(self) -> bool:
        """True if a thread is testing the store now; that takes long if the store does not answer."""
        return self._testing.locked()

    def listen(self, on_event: Callable[[TierUnavailable | TierAvailable], None]) -> None:
        """Set the function that receives an event at each later change of availability.

        If the tier is not in use now, ``on_event`` is also called at once.
        """
        self._on_event = on_event
        if self._error is not None:
            on_event(TierUnavailable(uri=self._uri, reason=str(self._error)))

    def check(self) -> None:
        """Raise the error of ``unavailable`` if the tier cannot be used; send no request."""
        if self._error is not None:
            raise self.unavailable()

    def unavailable(self) -> StoreError:
        """Return the TierUnavailableError or StoreUntrustedError to raise for an operation that needs the tier."""
        error = self._error
        if isinstance(error, StoreUntrustedError):
            return StoreUntrustedError(error.reason, error.key)
        if error is None:
            return TierUnavailableError(
                "the store of the tier is available again, but the log has not reopened it yet", self._uri
            )
        return TierUnavailableError(
            f"the store of the tier has been unavailable since the engine opened: {error.reason}", self._uri
        )

    def allow_offline(self) -> None:
        """Allow logs to be opened without the store."""
        self._allow_offline = True

    def may_open_without(self, error: StoreError) -> bool:
        """Return True if a log may be opened without the tier after ``error``, an error of the store.

        That requires ``allow_offline`` and a retriable error. If True, the tier is not used until ``reach`` succeeds.
        """
        if isinstance(error, TierUnavailableError):
            return self._allow_offline
        if not self._allow_offline or not error.retriable:
            return False
        with self._testing:
            self._lose(error)
        return True

    def reach(self) -> None:
        """Test the store again if it was unavailable; return at once if the tier is in use.

        Raises:
            TierUnavailableError: the store is still unavailable, or the last test failed less than 5 seconds ago.
            StoreUntrustedError: the store declares that it creates objects atomically, but does not.
        """
        if self._error is not None:
            with self._testing:
                self._test_again()

    def _test_again(self) -> None:
        if self._error is None:  # another thread has tested the store
            return
        elapsed_ms = (self._clock.monotonic_ns() - self._tested_ns) // 1_000_000
        if isinstance(self._error, StoreUntrustedError) or elapsed_ms < RETRY_MS:
            raise self.unavailable()
        try:
            result = self._probe()
        except StoreError as error:
            self._error = error
            raise self.unavailable() from error
        finally:
            self._tested_ns = self._clock.monotonic_ns()
        if result.breaks_promise:
            self._lose(StoreUntrustedError(f"the store is available again, but {result.reason}", self._uri))
            raise self.unavailable()
        self.shared, self.reason, self._error = result.shared, result.reason, None
        _LOGGER.warning("the tier is in use again: uri=%s", self._uri)
        if self._on_event is not None:
            self._on_event(TierAvailable(uri=self._uri))

    def _lose(self, error: StoreError) -> None:
        old_error, self._error = self._error, error
        self._tested_ns = self._clock.monotonic_ns()
        if old_error is not None and not isinstance(error, StoreUntrustedError):
            return
        _LOGGER.warning("the tier is not in use: uri=%s error=%s", self._uri, error)
        if self._on_event is not None:
            self._on_event(TierUnavailable(uri=self._uri, reason=str(error)))
