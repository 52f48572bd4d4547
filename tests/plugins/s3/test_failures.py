from __future__ import annotations

import errno
from typing import Any

import aiohttp
import botocore.exceptions
import pytest

from stratalog.errors import (
    BucketNotFoundError,
    ConfigError,
    ObjectNotFoundError,
    StoreError,
    StorePermissionError,
    StoreThrottledError,
    StoreTimeoutError,
)
from stratalog.spi import Created
from stratalog_s3.failures import convert_error, create_outcome
from stratalog_s3.secret import SecretOptions

NO_SECRETS = SecretOptions({})
ADDRESS = "http://127.0.0.1:9"


def client_error(code: str, status: int) -> botocore.exceptions.ClientError:
    answer: Any = {"Error": {"Code": code, "Message": "a sentence"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return botocore.exceptions.ClientError(answer, "GetObject")


def translated(code: str, status: int) -> OSError:
    """Return an error as s3fs raises it: an OSError whose cause is botocore's error."""
    error = OSError(errno.EIO, "a sentence")
    error.__cause__ = client_error(code, status)
    return error


def never_connected() -> Any:
    inner = aiohttp.ClientConnectorError(_connection_key(), ConnectionRefusedError(errno.ECONNREFUSED, "refused"))
    return botocore.exceptions.EndpointConnectionError(endpoint_url=ADDRESS, error=inner)


def _connection_key() -> Any:
    from aiohttp.client_reqrep import ConnectionKey  # noqa: PLC0415 - private enough to be looked for at use only

    return ConnectionKey(
        host="127.0.0.1", port=9, is_ssl=False, ssl=True, proxy=None, proxy_auth=None, proxy_headers_hash=None
    )


def broke() -> Any:
    """Return botocore's error for a connection that broke during a request."""
    return botocore.exceptions.EndpointConnectionError(endpoint_url=ADDRESS, error=aiohttp.ClientOSError("reset"))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (client_error("NoSuchBucket", 404), BucketNotFoundError),
        (client_error("NoSuchKey", 404), ObjectNotFoundError),
        (client_error("404", 404), ObjectNotFoundError),
        (client_error("AccessDenied", 403), StorePermissionError),
        (client_error("SignatureDoesNotMatch", 403), StorePermissionError),
        (client_error("403", 403), StorePermissionError),
        (client_error("Unheard", 401), StorePermissionError),
        (client_error("SlowDown", 503), StoreThrottledError),
        (client_error("Unheard", 503), StoreThrottledError),
        (client_error("Unheard", 429), StoreThrottledError),
        (client_error("ConditionalRequestConflict", 409), StoreThrottledError),
        (client_error("RequestTimeout", 400), StoreTimeoutError),
        (client_error("InternalError", 500), StoreTimeoutError),
        (client_error("Unheard", 400), StoreError),
        (translated("NoSuchBucket", 404), BucketNotFoundError),
        (translated("AccessDenied", 403), StorePermissionError),
        (botocore.exceptions.NoCredentialsError(), StorePermissionError),
        (botocore.exceptions.ReadTimeoutError(endpoint_url=ADDRESS), StoreTimeoutError),
        (botocore.exceptions.ConnectTimeoutError(endpoint_url=ADDRESS), StoreTimeoutError),
        (botocore.exceptions.ConnectionClosedError(endpoint_url=ADDRESS), StoreTimeoutError),
        (botocore.exceptions.FlexibleChecksumError(error_msg="differs"), StoreTimeoutError),
        (botocore.exceptions.SSLError(endpoint_url=ADDRESS, error="certificate"), StoreError),
        (never_connected(), StoreTimeoutError),
        (broke(), StoreTimeoutError),
        (aiohttp.ClientPayloadError("cut"), StoreTimeoutError),
        (aiohttp.ServerDisconnectedError(), StoreTimeoutError),
        (FileNotFoundError("gone"), ObjectNotFoundError),
        (PermissionError("no"), StorePermissionError),
        (TimeoutError(), StoreTimeoutError),
        (ConnectionResetError("reset"), StoreTimeoutError),
        (OSError(errno.ENOSPC, "full"), StoreError),
        (OSError(errno.EIO, "broken"), StoreError),
        (RuntimeError("odd"), StoreError),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else f"{type(value).__name__}-{value}"[:50],
)
def test_errors_of_libraries_become_those_of_the_contract(error: Exception, kind: type[StoreError]) -> None:
    problem = convert_error(error, "the/key", "s3://bucket", NO_SECRETS)
    assert type(problem) is kind
    assert ("s3://bucket" if kind is BucketNotFoundError else "the/key") in str(problem)


def test_an_error_about_no_key_names_the_store() -> None:
    for error in (client_error("AccessDenied", 403), TimeoutError(), OSError(errno.ENOSPC, "full")):
        assert "s3://bucket/prefix" in str(convert_error(error, "", "s3://bucket/prefix", NO_SECRETS))


def test_the_error_for_missing_credentials_names_the_places_searched() -> None:
    text = str(convert_error(botocore.exceptions.NoCredentialsError(), "", "s3://bucket", NO_SECRETS))
    assert "AWS_ACCESS_KEY_ID" in text
    assert "s3://bucket" in text
    assert "NoCredentialsError" not in text


def test_errors_of_other_clouds_are_recognised_by_their_status() -> None:
    class HttpError(Exception):
        code = 429

    class ResponseError(Exception):
        status_code = 404

    assert type(convert_error(HttpError(), "k", "gs://b", NO_SECRETS)) is StoreThrottledError
    assert type(convert_error(ResponseError(), "k", "abfs://b", NO_SECRETS)) is ObjectNotFoundError


@pytest.mark.parametrize(
    ("said", "pause_ms"), [("2", 2_000), ("0", 0), ("", 0), ("-1", 0), ("99999999", 0), ("Wed, 21 Oct 2026", 0)]
)
def test_a_store_may_set_the_time_until_the_next_request(said: str, pause_ms: int) -> None:
    error = translated("SlowDown", 503)
    error.__cause__.response["ResponseMetadata"]["HTTPHeaders"] = {"retry-after": said}  # type: ignore[union-attr]  # a ClientError
    problem = convert_error(error, "k", "s3://b", NO_SECRETS)
    assert isinstance(problem, StoreThrottledError)
    assert problem.retry_after_ms == pause_ms


def test_a_reply_that_is_cut_short_is_no_answer_of_the_store() -> None:
    """aiohttp reports the code 400 for an incomplete response. This code must not prevent a retry."""
    error = aiohttp.ClientPayloadError("not completed")
    error.__cause__ = aiohttp.http_exceptions.ContentLengthError("50 of 100 bytes")
    assert type(convert_error(error, "k", "s3://b", NO_SECRETS)) is StoreTimeoutError
    assert create_outcome(error, "k", "s3://b", NO_SECRETS) is Created.UNKNOWN


def test_errors_of_the_contract_pass() -> None:
    error = ConfigError("as it is")
    assert convert_error(error, "k", "s3://b", NO_SECRETS) is error


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (client_error("PreconditionFailed", 412), Created.EXISTS),
        (translated("PreconditionFailed", 412), Created.EXISTS),
        (client_error("412", 412), Created.EXISTS),
        (client_error("InternalError", 500), Created.UNKNOWN),
        (client_error("SlowDown", 503), Created.UNKNOWN),
        (botocore.exceptions.ReadTimeoutError(endpoint_url=ADDRESS), Created.UNKNOWN),
        (botocore.exceptions.ConnectionClosedError(endpoint_url=ADDRESS), Created.UNKNOWN),
        (broke(), Created.UNKNOWN),
        (TimeoutError(), Created.UNKNOWN),
        (RuntimeError("nobody knows what it did"), Created.UNKNOWN),
    ],
    ids=str,
)
def test_a_create_that_raised_may_have_an_outcome(error: Exception, outcome: Created) -> None:
    assert create_outcome(error, "k", "s3://b", NO_SECRETS) is outcome


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (client_error("ConditionalRequestConflict", 409), StoreThrottledError),
        (client_error("TooManyRequests", 429), StoreThrottledError),
        (client_error("AccessDenied", 403), StorePermissionError),
        (client_error("NoSuchBucket", 404), BucketNotFoundError),
        (never_connected(), StoreTimeoutError),
        (botocore.exceptions.ConnectTimeoutError(endpoint_url=ADDRESS), StoreTimeoutError),
        (botocore.exceptions.SSLError(endpoint_url=ADDRESS, error="certificate"), StoreError),
        (botocore.exceptions.NoCredentialsError(), StorePermissionError),
        (StoreTimeoutError("the deadline has passed before the request", "k"), StoreTimeoutError),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value)[:50],
)
def test_a_create_raises_only_if_nothing_was_written(error: Exception, kind: type[StoreError]) -> None:
    assert type(create_outcome(error, "k", "s3://b", NO_SECRETS)) is kind
