"""Options with credentials among them: never shown, never pickled, struck out of texts."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Mapping
from typing import Final, NoReturn

_STARS: Final = "***"
_SECRET_WORDS: Final = ("key", "secret", "token", "password", "passphrase", "credential", "connection_string", "sas")
_SECRET_VARIABLES: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_LEARNED: Final = 12  # texts of credentials that rotate: the last few of them
_SHORTEST: Final = 4  # striking out less would only garble texts


class SecretOptions:
    """Options for a file system. ``reveal`` is the only way to the values."""

    __slots__ = ("_given", "_learned", "_options")

    def __init__(self, options: Mapping[str, object]) -> None:
        self._options = dict(options)
        found = {text for text in _secret_texts(self._options) if len(text) >= _SHORTEST}
        found |= {os.environ[name] for name in _SECRET_VARIABLES if len(os.environ.get(name, "")) >= _SHORTEST}
        self._given = frozenset(found)
        self._learned: tuple[str, ...] = ()

    def reveal(self) -> dict[str, object]:
        """A copy of the options, secrets included."""
        return dict(self._options)

    def learn(self, credentials: Mapping[str, object]) -> None:
        """Strike these out from now on, too; of those learned before, the last few stay known."""
        found = [text for text in _secret_texts(credentials) if len(text) >= _SHORTEST]
        self._learned = (*found, *(text for text in self._learned if text not in found))[:_LEARNED]

    def redact(self, text: str) -> str:
        """``text`` with every secret struck out."""
        for secret in sorted({*self._given, *self._learned}, key=len, reverse=True):  # one may hold another
            text = text.replace(secret, _STARS)
        return text

    def safe_cause(self, error: BaseException) -> BaseException | None:
        """``error``, to raise another one ``from`` it; None if its traceback would show a secret.

        The frames of libraries are dropped: their local names hold signed requests and options, which some programs log
        with every error. What is left says what went wrong.
        """
        text = "".join(traceback.format_exception(error))
        for one in _chain(error):
            one.__traceback__ = None
        return None if any(secret in text for secret in (*self._given, *self._learned)) else error

    def __repr__(self) -> str:
        return f"SecretOptions({_STARS})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("secret options are not pickled: ship them by a way that is meant for secrets")


def _secret_texts(value: object, *, secret: bool = False) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            named = any(word in str(name).lower() for word in _SECRET_WORDS)
            yield from _secret_texts(item, secret=secret or named)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secret_texts(item, secret=secret)
    elif secret and isinstance(value, str):
        yield value


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error, and all that it came from or was raised beside."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [other for other in (one.__cause__, one.__context__) if other is not None]
