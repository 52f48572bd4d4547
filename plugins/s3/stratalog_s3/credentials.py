"""Credentials that change while a store is open: asked for again when they end, or when the store says that they did."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from stratalog.spi import Clock, ConfigError, StorePermissionError
from stratalog_s3.secret import SecretOptions

EARLY_MS: Final = 60_000  # asked for again so long before they end
_FIELDS: Final = frozenset({"key", "secret", "token", "expires_ms"})
CredentialProvider = Callable[[], Mapping[str, object]]


class RotatingCredentials:
    """What the user's function returned last. Never shown, never pickled. Thread-safe.

    Args:
        provider: returns ``key``, ``secret``, and if there are such ``token`` and ``expires_ms`` (Unix time).
        clock: tells when they end.
        secrets: learns them, to strike them out of texts.
    """

    def __init__(self, provider: CredentialProvider, clock: Clock, secrets: SecretOptions) -> None:
        self._provider, self._clock, self._secrets = provider, clock, secrets
        self._lock = threading.Lock()
        self._current: tuple[str, str, str | None] | None = None  # under _lock, with when they end
        self._expires_ms = 0

    def current(self) -> tuple[str, str, str | None]:
        """Key, secret and token; calls the provider if need be.

        Raises:
            StorePermissionError: it failed, or returned something else.
        """
        with self._lock:
            if self._current is None or (self._expires_ms and self._clock.now_ms() >= self._expires_ms - EARLY_MS):
                self._current, self._expires_ms = self._asked()
            return self._current

    def expired(self) -> None:
        """Ask again at the next use, because the store says that they ended."""
        with self._lock:
            self._current = None

    def _asked(self) -> tuple[tuple[str, str, str | None], int]:
        """Nothing here has a name that a traceback could show the value of."""
        try:
            found = self._sound(dict(self._provider()))
        except Exception as error:  # noqa: BLE001 - the user's function raises what it likes, maybe with a secret in it
            text = f"the function that gives credentials failed: {type(error).__name__}"
            raise StorePermissionError(text, "") from self._secrets.safe_cause(error)
        if found is None:
            text = "the function that gives credentials must return key, secret, token and expires_ms, as they are said"
            raise StorePermissionError(text, "")
        return found

    def _sound(self, said: Mapping[str, object]) -> tuple[tuple[str, str, str | None], int] | None:
        key, secret, token, expires_ms = (said.get(name) for name in ("key", "secret", "token", "expires_ms"))
        sound = isinstance(key, str) and isinstance(secret, str) and isinstance(token, str | None)
        if not sound or not isinstance(expires_ms, int | None) or set(said) - _FIELDS:
            return None
        self._secrets.learn(said)
        return (str(key), str(secret), None if token is None else str(token)), expires_ms or 0

    def __repr__(self) -> str:
        return "RotatingCredentials(***)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("credentials are not pickled")


def take_provider(options: dict[str, object]) -> CredentialProvider | None:
    """Take ``credentials`` out of the options.

    Raises:
        ConfigError: it is no function, or there are fixed credentials beside it.
    """
    provider = options.pop("credentials", None)
    if provider is None:
        return None
    if not callable(provider):
        raise ConfigError("tier option 'credentials' is a function that returns key, secret, token and expires_ms")
    fixed = sorted({"key", "secret", "token", "anon", "session"} & set(options))
    if fixed:
        raise ConfigError(f"tier options 'credentials' and {fixed[0]!r} exclude each other")
    return provider


def rotating_session(credentials: RotatingCredentials) -> Any:
    """A session of aiobotocore whose requests are signed with what ``credentials`` are then."""
    from aiobotocore.credentials import AioCredentials  # noqa: PLC0415 - an extra, and slow to import
    from aiobotocore.session import AioSession  # noqa: PLC0415 - the same
    from botocore.credentials import ReadOnlyCredentials  # noqa: PLC0415 - the same

    class Signing(AioCredentials):  # type: ignore[misc]  # published without types
        """Asks at each signature, on another thread: the user's function may wait."""

        async def get_frozen_credentials(self) -> Any:
            return ReadOnlyCredentials(*await asyncio.to_thread(credentials.current))

    class Given:
        """The first of the places where a session looks for credentials."""

        METHOD = CANONICAL_NAME = "stratalog"

        async def load(self) -> Any:
            return Signing("given", "at each request", method=self.METHOD)

    session = AioSession()
    session.get_component("credential_provider").insert_before("env", Given())
    return session
