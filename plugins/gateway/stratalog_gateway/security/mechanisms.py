"""The server's side of SASL mechanisms: PLAIN, SCRAM and OAUTHBEARER.

Source: RFC 4616, RFC 5802, RFC 7677, RFC 7628; apache/kafka PlainSaslServer, ScramSaslServer, OAuthBearerSaslServer,
SaslChannelBuilder.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from stratalog_gateway.security.users import ALGORITHMS, DEFAULT_ITERATIONS, Credential, Users, normalize

_VALUE: Final = r"[\x01-\x2b\x2d-\x7f]+"
_PRINTABLE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_BASE64: Final = r"(?:[A-Za-z0-9/+]{4})*(?:[A-Za-z0-9/+]{3}=|[A-Za-z0-9/+]{2}==)?"
_EXTENSIONS: Final = rf"(?:,[A-Za-z]+={_VALUE})*"
_CLIENT_FIRST: Final = re.compile(
    rf"n,(?:a=(?P<authzid>(?:[^=,\0]|=2C|=3D)+))?,(?P<bare>(?:m={_VALUE},)?n=(?P<name>(?:[^=,\0]|=2C|=3D)+),"
    rf"r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS})\Z"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<without_proof>c=(?P<binding>{_BASE64}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})\Z"
)
_BEARER: Final = re.compile(r"bearer +([-A-Za-z0-9._~+/]+=*) *\Z", re.IGNORECASE)
_OTHER_NAME: Final = "Authentication failed: Client requested an authorization id that is different from username"


class AuthenticationError(Exception):
    """The client could not be authenticated.

    Attributes:
        message: text for the client; empty if the text could show which users exist.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(message or "the credentials are wrong")
        self.message = message


class Mechanism(ABC):
    """One authentication of one client, by the tokens that the client sends.

    Attributes:
        name: name of the user; "" until the authentication has succeeded.
        expires_ms: time (ms since 1970) at which the credentials expire; None if the credentials never expire.
    """

    def __init__(self) -> None:
        self.name = ""
        self.expires_ms: int | None = None

    @abstractmethod
    def evaluate(self, token: bytes) -> bytes:
        """Return the response to the client's next token; raise AuthenticationError if the authentication fails."""


class Plain(Mechanism):
    """PLAIN: the client sends name and password, and the server compares the password with the user's salted keys."""

    def __init__(self, users: Users) -> None:
        super().__init__()
        self._users = users

    def evaluate(self, token: bytes) -> bytes:
        """Return empty bytes if name and password are right; otherwise raise AuthenticationError."""
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError as error:
            raise AuthenticationError("Invalid SASL/PLAIN response: not UTF-8") from error
        if len(parts) != 3:
            raise AuthenticationError(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        authzid, name, password = parts
        if not name or not password:
            missing = "password" if name else "username"
            raise AuthenticationError(f"Authentication failed: {missing} not specified")
        credential = next(iter(self._users.get(normalize(name), {}).values()), None)
        if credential is None:
            credential = _unknown_user(next(iter(ALGORITHMS)), name)  # takes as long as a known name
        if not credential.accepts(password):
            raise AuthenticationError("Authentication failed: Invalid username or password")
        if authzid not in {"", name}:
            raise AuthenticationError(_OTHER_NAME)
        self.name = normalize(name)
        return b""


class Scram(Mechanism):
    """SCRAM: the client proves that it knows the password, and the server proves that it has the user's keys."""

    def __init__(self, mechanism: str, users: Users) -> None:
        super().__init__()
        self._mechanism, self._users, self._algorithm = mechanism, users, ALGORITHMS[mechanism]
        self._user = self._client_first_bare = self._server_first = self._nonce = ""
        self._credential: Credential | None = None

    def evaluate(self, token: bytes) -> bytes:
        """Return the server's first message at the first call, and the server's final message at the second call.

        Raise AuthenticationError if a message of the client is malformed, or the client's proof is wrong.
        """
        try:
            text = token.decode()
        except UnicodeDecodeError as error:
            raise AuthenticationError from error
        return self._answer_final(text) if self._server_first else self._answer_first(text)

    def _answer_first(self, text: str) -> bytes:
        match = _CLIENT_FIRST.match(text)
        if match is None:
            raise AuthenticationError
        name = match["name"].replace("=2C", ",").replace("=3D", "=")
        self._user, self._client_first_bare = normalize(name), match["bare"]
        credential = self._users.get(self._user, {}).get(self._mechanism)
        if credential is not None and match["authzid"] not in {None, "", match["name"]}:
            raise AuthenticationError(_OTHER_NAME)
        self._credential = credential
        # the response must not reveal if the user exists
        shown_credential = credential or _unknown_user(self._mechanism, self._user)
        self._nonce = match["nonce"] + secrets.token_urlsafe(24)
        self._server_first = (
            f"r={self._nonce},s={base64.b64encode(shown_credential.salt).decode()},i={shown_credential.iterations}"
        )
        return self._server_first.encode()

    def _answer_final(self, text: str) -> bytes:
        match, credential = _CLIENT_FINAL.match(text), self._credential
        if match is None or credential is None or match["nonce"] != self._nonce:
            raise AuthenticationError
        if not base64.b64decode(match["binding"]).startswith(b"n,"):  # channel binding is not offered
            raise AuthenticationError
        auth_message = ",".join((self._client_first_bare, self._server_first, match["without_proof"])).encode()
        signature = hmac.digest(credential.stored_key, auth_message, self._algorithm)
        proof = base64.b64decode(match["proof"])
        if len(proof) != len(signature):
            raise AuthenticationError
        client_key = bytes(
            proof_byte ^ signature_byte for proof_byte, signature_byte in zip(proof, signature, strict=True)
        )
        if not hmac.compare_digest(hashlib.new(self._algorithm, client_key).digest(), credential.stored_key):
            raise AuthenticationError
        self.name, self._credential = self._user, None
        return b"v=" + base64.b64encode(hmac.digest(credential.server_key, auth_message, self._algorithm))


class OAuthBearer(Mechanism):
    """OAUTHBEARER: the client sends a token that an issuer has signed."""

    def __init__(self, check: Callable[[str], tuple[str, int]]) -> None:
        """Store ``check``. It returns name and expiry (ms since 1970) of a token, or raises AuthenticationError."""
        super().__init__()
        self._check, self._failure = check, ""

    def evaluate(self, token: bytes) -> bytes:
        """Return empty bytes if the message ``token`` contains a valid bearer token.

        If the bearer token is not valid, return an error status, and raise AuthenticationError at the next call. If the
        message is malformed, or its authorization id is not the name in the bearer token, raise AuthenticationError
        immediately.
        """
        if self._failure:
            raise AuthenticationError(self._failure)
        authzid, bearer = _bearer(token)
        try:
            name, expires_ms = self._check(bearer)
        except AuthenticationError as error:
            self._failure = f"Authentication failed: {error}"
            return b'{"status":"invalid_token"}'
        if authzid not in {"", name}:
            raise AuthenticationError(_OTHER_NAME.replace("username", "the token's principal name"))
        self.name, self.expires_ms = name, expires_ms
        return b""


def _bearer(response: bytes) -> tuple[str, str]:
    """Return authorization id and token of a client's first message. Raise AuthenticationError if it is malformed."""
    header, *pairs = response.decode("utf-8", "replace").split("\x01")
    fields = dict(pair.partition("=")[::2] for pair in pairs)
    match = _BEARER.match(fields.get("auth", ""))
    if match is None or pairs[-2:] != ["", ""] or header[:2] != "n," or header[-1:] != ",":
        raise AuthenticationError("Authentication failed: invalid OAUTHBEARER initial client response")
    authzid = header[2:-1].removeprefix("a=").replace("=2C", ",").replace("=3D", "=")
    return authzid, match[1]


_SECRET: Final = secrets.token_bytes(32)


def _unknown_user(mechanism: str, name: str) -> Credential:
    """Return a credential for an unknown user, which no password matches.

    Within one process, the salt of a name does not change, so the name looks like an existing user.
    """
    salt = hmac.digest(_SECRET, normalize(name).encode(), "sha256")[:24]
    size = hashlib.new(ALGORITHMS[mechanism]).digest_size
    return Credential(mechanism, salt, bytes(size), bytes(size), DEFAULT_ITERATIONS)
