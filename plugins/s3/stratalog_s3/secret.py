"""Options that may contain credentials. ``repr`` hides the options, pickling fails, and error texts are redacted."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Mapping
from typing import Final, NoReturn

_STARS: Final = "***"
_SECRET_WORDS: Final = ("key", "secret", "token", "password", "passphrase", "credential", "connection_string", "sas")
_SECRET_VARIABLES: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_LEARNED_LIMIT: Final = 12  # number of learned secrets that are kept
_SHORTEST_SECRET: Final = 4  # shorter secrets are not redacted: their characters occur in many texts


class SecretOptions:
    """Options for a file system. Only ``reveal`` shows the values."""

    __slots__ = ("_initial", "_learned", "_options")

    def __init__(self, options: Mapping[str, object]) -> None:
        self._options = dict(options)
        secrets = {text for text in _secret_texts(self._options) if len(text) >= _SHORTEST_SECRET}
        secrets |= {os.environ[name] for name in _SECRET_VARIABLES if len(os.environ.get(name, "")) >= _SHORTEST_SECRET}
        self._initial = frozenset(secrets)
        self._learned: tuple[str, ...] = ()

    def reveal(self) -> dict[str, object]:
        """Return a copy of the options, including secrets."""
        return dict(self._options)

    def learn(self, credentials: Mapping[str, object]) -> None:
        """From now on, redact the secrets in ``credentials``, too. Only the last 12 learned secrets are kept."""
        secrets = [text for text in _secret_texts(credentials) if len(text) >= _SHORTEST_SECRET]
        self._learned = (*secrets, *(text for text in self._learned if text not in secrets))[:_LEARNED_LIMIT]

    def redact(self, text: str) -> str:
        """Return ``text`` with ``***`` instead of each secret of at least 4 characters."""
        # longest first, because one secret may contain another secret
        for secret in sorted({*self._initial, *self._learned}, key=len, reverse=True):
            text = text.replace(secret, _STARS)
        return text

    def safe_cause(self, error: BaseException) -> BaseException | None:
        """Return ``error`` for use in ``raise ... from``. Return None if its text or traceback contains a secret.

        The tracebacks of ``error`` and of its causes are removed. Programs may log the local variables in the frames of
        a traceback, and these variables contain signed requests and options.
        """
        text = "".join(traceback.format_exception(error))
        for cause in _chain(error):
            cause.__traceback__ = None
        return None if any(secret in text for secret in (*self._initial, *self._learned)) else error

    def __repr__(self) -> str:
        return f"SecretOptions({_STARS})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("secret options cannot be pickled: send them by a way that protects secrets")


def _secret_texts(value: object, *, secret: bool = False) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            is_secret_name = any(word in str(name).lower() for word in _SECRET_WORDS)
            yield from _secret_texts(item, secret=secret or is_secret_name)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secret_texts(item, secret=secret)
    elif secret and isinstance(value, str):
        yield value


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all its causes and contexts."""
    pending, seen_ids = [error], set[int]()
    while pending:
        current = pending.pop()
        if id(current) not in seen_ids:
            seen_ids.add(id(current))
            yield current
            pending += [linked for linked in (current.__cause__, current.__context__) if linked is not None]
