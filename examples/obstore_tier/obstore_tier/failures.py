"""Conversion of obstore's errors to the errors of the store contract.

The library has error classes for refused requests and missing objects. All other errors have one class, and can be
distinguished only by their text.
"""

from __future__ import annotations

import re
from typing import Final

from obstore.exceptions import NotFoundError, PermissionDeniedError, UnauthenticatedError

from stratalog.errors import (
    BucketNotFoundError,
    ObjectNotFoundError,
    StorageError,
    StoreError,
    StorePermissionError,
    StoreThrottledError,
    StoreTimeoutError,
)

_STATUS: Final = re.compile(r"status[^0-9]{0,24}([45][0-9]{2})", re.IGNORECASE)
_THROTTLED: Final = re.compile(r"SlowDown|TooManyRequests|ConditionalRequestConflict|\b(?:409|429|503)\b")
_TRANSIENT: Final = re.compile(
    r"error sending request|connection|timed? ?out|decoding|\b(?:408|500|502|504)\b", re.IGNORECASE
)
_NEVER_SENT: Final = re.compile(r"tcp connect error|dns error|Connection refused", re.IGNORECASE)


def typed(error: Exception, key: str, uri: str) -> StorageError:
    """Return the contract's error for an error of the library; a StorageError is returned unchanged.

    The text of the result begins with the class and the first line of the library's error, except for a missing object.
    """
    if isinstance(error, StorageError):
        return error
    text = _said(error)
    message = f"{type(error).__name__}: {text.splitlines()[0][:300] if text else 'no text'}"
    if isinstance(error, FileNotFoundError | NotFoundError):
        return (
            BucketNotFoundError(message, uri) if "NoSuchBucket" in text else ObjectNotFoundError("no such object", key)
        )
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return StorePermissionError(message, key)
    if _THROTTLED.search(text):
        return StoreThrottledError(message, key)
    if isinstance(error, TimeoutError) or _TRANSIENT.search(text):
        return StoreTimeoutError(message, key)
    return StoreError(message, key)


def may_have_been_applied(error: Exception) -> bool:
    """Return False if a conditional upload that failed with ``error`` was certainly not carried out, else True."""
    if isinstance(
        error, PermissionDeniedError | UnauthenticatedError | FileNotFoundError | NotFoundError | StorageError
    ):
        return False
    text = _said(error)
    status = _STATUS.search(text)
    return not _NEVER_SENT.search(text) and not (status is not None and status[1] < "500" and status[1] != "408")


def is_past_the_end(error: Exception) -> bool:
    """Return True if a ranged read was refused because the object ends before the range starts."""
    return re.search(r"InvalidRange|\b416\b|range start|Requested Range Not Satisfiable", _said(error)) is not None


def _said(error: Exception) -> str:
    """Return the text of an error without the dump of the library's state, which can contain the word "timeout"."""
    return str(error).partition("Debug source:")[0]
