"""Credentials that change while a store is open, from a function of the user."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from stratalog.errors import ConfigError, StorePermissionError
from stratalog.spi import Clock
from stratalog_s3.secret import SecretOptions

EARLY_MS: Final = 60_000  # time before expiry at which new credentials are requested
RETRY_MS: Final = 10_000  # time after a failed call of the user's function in which the old credentials are used
_FIELDS: Final = frozenset({"key", "secret", "token", "expires_ms"})
_LOGGER: Final = logging.getLogger("stratalog.s3")
CredentialProvider = Callable[[], Mapping[str, object]]


class RotatingCredentials:
    """The last credentials that the user's function returned. ``repr`` hides them, and pickling fails. Thread-safe.

    Args:
        provider: function of the user. Returns ``key``, ``secret``, and optionally ``token`` and ``expires_ms`` (Unix
            time).
        secrets: stores the credentials, to redact them in texts.
    """

    def __init__(self, provider: CredentialProvider, clock: Clock, secrets: SecretOptions) -> None:
        self._provider, self._clock, self._secrets = provider, clock, secrets
        self._lock = threading.Lock()
        self._current: tuple[str, str, str | None] | None = None  # under _lock, as are both below
        self._expires_ms = 0
        self._due_ms = 0  # time of the next call of the provider, if the credentials expire

    def current(self) -> tuple[str, str, str | None]:
        """Return key, secret and token. The token may be None.

        Call the user's function if this is the first call, if ``discard`` was called, or if the credentials expire
        within a minute. If the function then fails, log a warning, and use the old credentials until they expire. During
        this time, call the function again at most every ten seconds.

        Raises:
            StorePermissionError: the user's function failed, or returned invalid credentials.
        """
        with self._lock:
            now_ms = self._clock.now_ms()
            if self._current is None or (self._expires_ms and now_ms >= self._due_ms):
                try:
                    self._current, self._expires_ms = self._request_new()
                    self._due_ms = self._expires_ms - EARLY_MS
                except StorePermissionError as error:
                    if self._current is None or now_ms >= self._expires_ms:
                        raise
                    _LOGGER.warning("the old credentials are used until they expire: %s", error)
                    self._due_ms = min(self._clock.now_ms() + RETRY_MS, self._expires_ms)
            return self._current

    def discard(self) -> None:
        """Discard the credentials, because the store has reported that they have expired."""
        with self._lock:
            self._current = None

    def _request_new(self) -> tuple[tuple[str, str, str | None], int]:
        """Call the user's function. Return its credentials, and their expiry (ms since 1970; 0: never).

        When the method raises an error, no local variable contains a credential, because a traceback can show local
        variables.
        """
        try:
            credentials = self._parse_returned(dict(self._provider()))
        except Exception as error:  # noqa: BLE001 - the user's function may raise anything, maybe with a secret in it
            text = f"the credentials function failed: {type(error).__name__}"
            raise StorePermissionError(text, "") from self._secrets.safe_cause(error)
        if credentials is None:
            text = "the credentials function must return key, secret, token and expires_ms"
            raise StorePermissionError(text, "")
        return credentials

    def _parse_returned(self, returned: Mapping[str, object]) -> tuple[tuple[str, str, str | None], int] | None:
        key, secret, token, expires_ms = (returned.get(name) for name in ("key", "secret", "token", "expires_ms"))
        is_valid = isinstance(key, str) and isinstance(secret, str) and isinstance(token, str | None)
        if not is_valid or not isinstance(expires_ms, int | None) or set(returned) - _FIELDS:
            return None
        self._secrets.learn(returned)
        return (str(key), str(secret), None if token is None else str(token)), expires_ms or 0

    def __repr__(self) -> str:
        return "RotatingCredentials(***)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("credentials cannot be pickled")


def take_provider(options: dict[str, object]) -> CredentialProvider | None:
    """Remove the option ``credentials`` from ``options``, and return its value; None if the option is not set.

    Raises:
        ConfigError: ``credentials`` is not callable, or the options also contain fixed credentials.
    """
    provider = options.pop("credentials", None)
    if provider is None:
        return None
    if not callable(provider):
        raise ConfigError("tier option 'credentials' must be a function that returns key, secret, token and expires_ms")
    fixed_options = sorted({"key", "secret", "token", "anon", "session"} & set(options))
    if fixed_options:
        raise ConfigError(f"tier options 'credentials' and {fixed_options[0]!r} exclude each other")
    return provider


def rotating_session(credentials: RotatingCredentials) -> Any:
    """Return an aiobotocore session that signs each request with the current ``credentials``."""
    from aiobotocore.credentials import AioCredentials  # noqa: PLC0415 - an extra, and slow to import
    from aiobotocore.session import AioSession  # noqa: PLC0415 - an extra, and slow to import
    from botocore.credentials import ReadOnlyCredentials  # noqa: PLC0415 - an extra, and slow to import

    class Signing(AioCredentials):  # type: ignore[misc]  # published without types
        """Credentials that are read for each signature.

        Another thread reads them, because the user's function may block.
        """

        async def get_frozen_credentials(self) -> Any:
            return ReadOnlyCredentials(*await asyncio.to_thread(credentials.current))

    class Given:
        """Source of credentials with priority over botocore's own sources."""

        METHOD = CANONICAL_NAME = "stratalog"

        async def load(self) -> Any:
            return Signing("given", "at each request", method=self.METHOD)

    session = AioSession()
    session.get_component("credential_provider").insert_before("env", Given())
    return session
