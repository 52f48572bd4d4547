"""SASL authentication and re-authentication (KIP-368) of the client of a connection.

Source: apache/kafka SaslServerAuthenticator, KafkaChannel.maybeBeginServerReauthentication, SocketServer.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, Final

from stratalog.spi import Clock
from stratalog_gateway.error_codes import Code
from stratalog_gateway.handlers.request import Response
from stratalog_gateway.security.client import Client
from stratalog_gateway.security.mechanisms import AuthenticationError, Mechanism
from stratalog_gateway.settings import GatewaySection
from stratalog_gateway.wire.messages import API_VERSIONS, Header, Maker, encode, read_body, read_header
from stratalog_gateway.wire.primitives import I32, MalformedRequestError

SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
VERSIONS: Final[Mapping[int, tuple[int, int]]] = {
    SASL_HANDSHAKE: (0, 1),
    API_VERSIONS: (0, 4),
    SASL_AUTHENTICATE: (0, 2),
}
_LOGGER: Final = logging.getLogger(__name__)
_NS_PER_MS: Final = 1_000_000
_REAUTH_INTERVAL_NS: Final = 1_000_000_000
Dispatch = Callable[[memoryview, Client], Response]


class _State(Enum):
    """State of a connection. The comments name the requests that are expected next."""

    INITIAL = auto()  # ApiVersions or SaslHandshake
    HANDSHAKE = auto()  # SaslHandshake
    AUTHENTICATE = auto()  # tokens
    COMPLETE = auto()  # all requests
    WRONG_MECHANISM = auto()  # a token; the authentication then fails


class SaslRequests:
    """Handler of the requests of a connection with SASL. Not thread-safe.

    The handler answers SASL requests, and passes all other requests to ``dispatch`` after the authentication.

    Args:
        client: client of the connection. The authentication sets its principal.
        mechanisms: functions that begin an authentication, by the name of the mechanism.
    """

    def __init__(
        self,
        client: Client,
        dispatch: Dispatch,
        mechanisms: Mapping[str, Callable[[], Mechanism]],
        settings: GatewaySection,
        clock: Clock,
    ) -> None:
        self._client, self._dispatch, self._mechanisms = client, dispatch, mechanisms
        self._settings, self._clock = settings, clock
        self._state = _State.INITIAL
        self._has_headers = False  # tokens are in SaslAuthenticate requests, after SaslHandshake version 1
        self._name = ""  # name of the mechanism
        self._mechanism: Mechanism | None = None
        self._session_principal = ""  # principal of the session that the re-authentication renews
        self._session_mechanism = ""  # name of the mechanism of the session
        self._expires_ns: int | None = None
        self._reauth_ns: int | None = None  # time of the last start of a re-authentication

    @property
    def limit_bytes(self) -> int:
        """Maximum size of the next request (bytes)."""
        return self._settings.request_bytes if self._state == _State.COMPLETE else self._settings.sasl_bytes

    def __call__(self, frame: memoryview) -> Response:
        """Return the response to a request, or to a SASL token that is sent without a request header.

        If the authentication fails, wait, and return a response with ``is_last``.

        Raises:
            MalformedRequestError: the request is malformed or out of order, or the session has expired.
            Others: the errors of ``dispatch``.
        """
        if self._state == _State.COMPLETE:
            header = read_header(frame)
            if header.api != SASL_HANDSHAKE:
                if self._expires_ns is not None and self._clock.monotonic_ns() > self._expires_ns:
                    raise MalformedRequestError(f"the session of {self._client.principal} has expired")
                return self._dispatch(frame, self._client)
            if not self._try_renew():
                return self._dispatch(frame, self._client)
            return self._handshake(header, frame)
        if self._state in {_State.AUTHENTICATE, _State.WRONG_MECHANISM}:
            return self._token(frame)
        header = read_header(frame)
        if header.api == SASL_HANDSHAKE:
            return self._handshake(header, frame)
        if header.api == API_VERSIONS and self._state == _State.INITIAL:
            response = self._dispatch(frame, self._client)
            # after the error for an unknown version, the client sends a second ApiVersions request
            if header.version <= VERSIONS[API_VERSIONS][1]:
                self._state = _State.HANDSHAKE
            return response
        raise MalformedRequestError(f"a request of api {header.api} arrived before the authentication")

    def _try_renew(self) -> bool:
        """Store the time of a re-authentication, and the session's principal. Return False if it must not begin.

        A re-authentication may begin only if the session has a time limit, and at most once a second.
        """
        now_ns = self._clock.monotonic_ns()
        if self._expires_ns is None:
            return False
        if self._reauth_ns is not None and now_ns - self._reauth_ns < _REAUTH_INTERVAL_NS:
            return False
        self._reauth_ns = now_ns
        self._session_principal = self._client.principal
        return True

    def _handshake(self, header: Header, frame: memoryview) -> Response:
        first, last = VERSIONS[SASL_HANDSHAKE]
        if not first <= header.version <= last:
            raise MalformedRequestError(f"SaslHandshake version {header.version} is not announced")
        name, make = read_body(header, frame).mechanism, Maker(header)
        self._has_headers = header.version >= 1
        mechanisms = tuple(self._mechanisms)
        if name not in self._mechanisms:
            message = make(error_code=Code.UNSUPPORTED_SASL_MECHANISM, mechanisms=mechanisms)
            return self._end_after_failure(Response([encode(header, message)]), f"mechanism {name[:64]} is not offered")
        if self._session_mechanism and name != self._session_mechanism:
            self._state = _State.WRONG_MECHANISM
        else:
            self._name, self._mechanism, self._state = name, self._mechanisms[name](), _State.AUTHENTICATE
        return Response([encode(header, make(mechanisms=mechanisms))])

    def _token(self, frame: memoryview) -> Response:
        if not self._has_headers:
            try:
                answer = self._evaluate(bytes(frame))
            except AuthenticationError as error:
                return self._end_after_failure(Response([]), str(error))
            self._complete()
            return Response([I32.pack(len(answer)) + answer])
        header = read_header(frame)
        first, last = VERSIONS.get(header.api, (0, -1))
        if not first <= header.version <= last:
            raise MalformedRequestError(
                f"a request of api {header.api} version {header.version} arrived instead of a token"
            )
        make = Maker(header)
        if header.api != SASL_AUTHENTICATE:
            message = make(error_code=Code.ILLEGAL_SASL_STATE, mechanisms=(), api_keys=())
            return self._end_after_failure(
                Response([encode(header, message)]), f"a request of api {header.api} arrived instead of a token"
            )
        try:
            answer = self._evaluate(read_body(header, frame).auth_bytes)
        except AuthenticationError as error:
            kind = "re-authentication" if self._session_principal else "authentication"
            text = f"Authentication failed during {kind} due to invalid credentials with SASL mechanism {self._name}"
            message = make(
                error_code=Code.SASL_AUTHENTICATION_FAILED, error_message=error.message or text, auth_bytes=b"",
                session_lifetime=dt.timedelta(),
            )  # fmt: skip
            return self._end_after_failure(Response([encode(header, message)]), str(error))
        lifetime = dt.timedelta(milliseconds=self._complete())
        message = make(auth_bytes=answer, session_lifetime=lifetime)
        return Response([encode(header, message)])

    def _evaluate(self, token: bytes) -> bytes:
        """Return the mechanism's response to a token; raise AuthenticationError if the authentication fails."""
        if self._state == _State.WRONG_MECHANISM or self._mechanism is None:
            raise AuthenticationError(
                f"SASL mechanism differs from the mechanism of the first authentication, {self._session_mechanism}"
            )
        answer = self._mechanism.evaluate(token)
        principal = f"User:{self._mechanism.name}"
        if self._mechanism.name and self._session_principal and principal != self._session_principal:
            raise AuthenticationError(
                f"Cannot change principals during re-authentication from {self._session_principal}: {principal}"
            )
        return answer

    def _complete(self) -> int:
        """Begin the session if the mechanism has authenticated the client.

        Return the time (ms) until the session expires; 0 if the session never expires or has not begun.
        """
        mechanism = self._mechanism
        assert mechanism is not None
        if not mechanism.name:
            return 0
        self._client.principal = f"User:{mechanism.name}"
        self._session_mechanism, self._state = self._name, _State.COMPLETE
        self._mechanism, self._expires_ns = None, None
        limits = [self._settings.max_reauth_ms] if self._settings.max_reauth_ms else []
        if mechanism.expires_ms is not None:
            limits.append(max(mechanism.expires_ms - self._clock.now_ms(), 0))
        if not limits:
            return 0
        self._expires_ns = self._clock.monotonic_ns() + min(limits) * _NS_PER_MS
        return min(limits)

    def _end_after_failure(self, response: Response, reason: str) -> Response:
        """Log a failed authentication, wait, and return ``response`` with ``is_last``."""
        _LOGGER.info("authentication failed: %s host=%s", reason, self._client.host)
        self._clock.wait(threading.Event(), self._settings.failure_delay_ms)
        return response._replace(is_last=True)


def illegal_state(request: Any) -> Any:
    """Return the response to a SASL request that is not allowed now.

    The listener has no SASL, or no authentication is in progress.
    """
    return request.make(
        error_code=Code.ILLEGAL_SASL_STATE, mechanisms=(), error_message="SASL request received after successful "
        "authentication", auth_bytes=b"", session_lifetime=dt.timedelta(),
    )  # fmt: skip
