"""Conversion of library errors to stratalog's errors, which ``ObjectStore`` documents.

This module does not import botocore, aiohttp or any cloud library. Errors are distinguished by S3's codes, HTTP
statuses and class names.
"""

from __future__ import annotations

import errno
from typing import Final, NamedTuple

from stratalog.errors import (
    BucketNotFoundError,
    ObjectNotFoundError,
    StorageError,
    StoreError,
    StorePermissionError,
    StoreThrottledError,
    StoreTimeoutError,
)
from stratalog.spi import Created
from stratalog_s3.secret import SecretOptions

_BY_CODE: Final[dict[str, type[StoreError]]] = {
    "NoSuchBucket": BucketNotFoundError, "NoSuchKey": ObjectNotFoundError, "NotFound": ObjectNotFoundError,
    "AccessDenied": StorePermissionError, "AllAccessDisabled": StorePermissionError,
    "ExpiredToken": StorePermissionError, "Forbidden": StorePermissionError,
    "InvalidAccessKeyId": StorePermissionError, "InvalidToken": StorePermissionError,
    "SignatureDoesNotMatch": StorePermissionError,
    "BandwidthLimitExceeded": StoreThrottledError, "ConditionalRequestConflict": StoreThrottledError,
    "OperationAborted": StoreThrottledError, "RequestLimitExceeded": StoreThrottledError,
    "ServiceUnavailable": StoreThrottledError, "SlowDown": StoreThrottledError, "Throttling": StoreThrottledError,
    "ThrottlingException": StoreThrottledError, "TooManyRequests": StoreThrottledError,
    "InternalError": StoreTimeoutError, "RequestTimeout": StoreTimeoutError,
}  # fmt: skip
_BY_STATUS: Final[dict[int, type[StoreError]]] = {
    401: StorePermissionError, 403: StorePermissionError, 404: ObjectNotFoundError, 408: StoreTimeoutError,
    409: StoreThrottledError,  # a conflicting request is in progress, and no request has succeeded yet
    429: StoreThrottledError, 500: StoreTimeoutError, 502: StoreTimeoutError, 503: StoreThrottledError,
    504: StoreTimeoutError,
}  # fmt: skip
_BY_CLASS_NAME: Final[dict[str, type[StoreError]]] = {
    "SSLError": StoreError,  # before its base class ConnectionError: a retry does not help if a certificate is wrong
    "NoCredentialsError": StorePermissionError, "PartialCredentialsError": StorePermissionError,
    "CredentialRetrievalError": StorePermissionError, "TokenRetrievalError": StorePermissionError,
    "UnauthorizedSSOTokenError": StorePermissionError, "SSOError": StorePermissionError,
    "HTTPClientError": StoreTimeoutError, "ConnectionError": StoreTimeoutError,
    "ClientConnectionError": StoreTimeoutError, "ClientPayloadError": StoreTimeoutError,
    "IncompleteReadError": StoreTimeoutError, "ResponseParserError": StoreTimeoutError,
    "ChecksumError": StoreTimeoutError, "FlexibleChecksumError": StoreTimeoutError,
    "FileNotFoundError": ObjectNotFoundError, "PermissionError": StorePermissionError,
    "TimeoutError": StoreTimeoutError,
}  # fmt: skip
_UNWRITTEN_ERRORS: Final = frozenset({
    "ClientConnectorError", "ConnectionRefusedError", "ConnectTimeoutError", "SSLError", "ProxyConnectionError",
    "ParamValidationError", "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError",
    "TokenRetrievalError", "UnauthorizedSSOTokenError", "SSOError",
    "FileNotFoundError", "PermissionError",  # refusals of file systems: for example, the bucket does not exist
})  # fmt: skip
_NO_CREDENTIALS_ERRORS: Final = frozenset({"NoCredentialsError", "PartialCredentialsError"})
_WHERE_TO_SET_CREDENTIALS: Final = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, in the environment"
WRONG_ENDPOINT: Final = "check endpoint_url, because the server may not be an S3 server"
_NO_ANSWER_ERRORS: Final = frozenset(
    {"HttpProcessingError"}
)  # of aiohttp, for a truncated response; "code" is not a status
_EXPIRED_CODES: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"})
_IGNORED_DIGITS: Final = 7  # a Retry-After with this number of digits, or more, is ignored
_GCS_FORBIDDEN: Final = "Forbidden: "  # gcsfs reports status 403 only in the text of an OSError
_FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Reply(NamedTuple):
    """Error response of a store: S3's error code, the HTTP status (or 0), and the message.

    If an S3 client gets a response without an error code, ``code`` is the status. Other clients have no ``code``.
    """

    code: str
    status: int
    message: str


def reply_of(error: BaseException) -> Reply | None:
    """Return the store's error response that ``error`` or its cause contains; None if neither contains one."""
    for raised in (error, error.__cause__):
        if any(kind.__name__ in _NO_ANSWER_ERRORS for kind in type(raised).__mro__):
            continue
        response = getattr(raised, "response", None)
        if isinstance(response, dict) and isinstance(response.get("Error"), dict):
            answer = response["Error"]
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return Reply(str(answer.get("Code") or status), _status(status), str(answer.get("Message", "")))
        for name in ("status", "status_code", "code"):
            status = _status(getattr(raised, name, 0))
            if status:
                return Reply("", status, str(raised))
        if type(raised) is OSError and str(raised).startswith(_GCS_FORBIDDEN):
            return Reply("", 403, str(raised))
    return None


def convert_error(error: Exception, key: str, uri: str, secrets: SecretOptions) -> StorageError:
    """Return stratalog's error for a library's error. The caller raises it ``from secrets.safe_cause(error)``.

    A StorageError is returned unchanged. The error names ``key``. It names ``uri`` if ``key`` is empty, or if the
    bucket does not exist.
    """
    if isinstance(error, StorageError):
        return error
    reply = reply_of(error)
    if reply is not None:
        problem = convert_reply(reply, key, uri, secrets)
        if isinstance(problem, StoreThrottledError):
            problem.retry_after_ms = retry_after_ms(error)
        return problem
    if isinstance(error, OSError) and error.errno in _FULL_ERRNOS:
        return StoreError("the store is full", key or uri).advised(
            "free space on the disk of the store, then repeat the call"
        )
    kind = _kind_by_class(error)
    if type(error).__name__ in _NO_CREDENTIALS_ERRORS:
        return kind("no credentials were found", key or uri).advised(_WHERE_TO_SET_CREDENTIALS)
    text = secrets.redact(str(error)) or "the store did not answer before the deadline"
    return kind(f"{type(error).__name__}: {text}", key or uri)


def convert_reply(reply: Reply, key: str, uri: str, secrets: SecretOptions) -> StoreError:
    """Return stratalog's error for an error response.

    The error names ``key``. It names ``uri`` if ``key`` is empty, or if the bucket does not exist.
    """
    kind = _BY_CODE.get(reply.code) or _BY_STATUS.get(reply.status) or StoreError
    if reply.code == str(reply.status) and kind in {ObjectNotFoundError, StoreError}:  # botocore found no code of S3
        text = f"the server responded with status {reply.status}, but without an error code of S3"
        return kind(text, key or uri).advised(WRONG_ENDPOINT)
    text = f"{reply.code or reply.status}: {secrets.redact(reply.message)}"
    return kind(text, uri if kind is BucketNotFoundError or not key else key)


def create_outcome(error: Exception, key: str, uri: str, secrets: SecretOptions) -> Created | StorageError:
    """Return the result of a conditional create that raised ``error``.

    Returns:
        ``Created.EXISTS`` if the store reported that the object exists. If certainly nothing was written, because the
        request was refused or never sent: an error, which the caller must raise. Status 409 counts as a refusal,
        because the store requests a retry, and the object may not exist. Otherwise ``Created.UNKNOWN``: there was no
        response, or the status is 408 or at least 500. A proxy between the client and the store may have sent such a
        status.
    """
    reply = reply_of(error)
    if reply is None:
        unwritten = isinstance(error, StorageError) or _is_unwritten(error)
        return convert_error(error, key, uri, secrets) if unwritten else Created.UNKNOWN
    if reply.status == 412 or reply.code == "PreconditionFailed":
        return Created.EXISTS
    if reply.status >= 500 or reply.status == 408:
        return Created.UNKNOWN
    return convert_error(error, key, uri, secrets)


def is_expired(error: Exception) -> bool:
    """Return True if the store refused a request because the credentials have expired."""
    reply = reply_of(error)
    return reply is not None and reply.code in _EXPIRED_CODES


def retry_after_ms(error: BaseException) -> int:
    """Return the delay (ms) before a retry that the store requests, or 0 if the store requests no delay."""
    for raised in (error, error.__cause__):
        response = getattr(raised, "response", None)
        if isinstance(response, dict):
            delay_s = response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("retry-after", "")
            return (
                int(delay_s) * 1000 if delay_s.isascii() and delay_s.isdigit() and len(delay_s) < _IGNORED_DIGITS else 0
            )
    return 0


def is_past_the_end(error: Exception) -> bool:
    """Return True if the store refused a read because the object ends at or before the start of the range."""
    reply = reply_of(error)
    return reply is not None and (reply.status == 416 or reply.code == "InvalidRange")


def _kind_by_class(error: BaseException) -> type[StoreError]:
    names = [kind.__name__ for kind in type(error).__mro__]
    return next((_BY_CLASS_NAME[name] for name in names if name in _BY_CLASS_NAME), StoreError)


def _is_unwritten(error: BaseException) -> bool:
    """Return True if certainly no request was sent, or the file system refused it.

    aiobotocore raises the same class of errors if a connection could not be opened and if a connection broke. Therefore
    the inner error decides.
    """
    inner = getattr(error, "kwargs", {}).get("error")
    return any(kind.__name__ in _UNWRITTEN_ERRORS for kind in (*type(error).__mro__, *type(inner).__mro__))


def _status(value: object) -> int:
    return value if isinstance(value, int) and 400 <= value < 600 else 0
