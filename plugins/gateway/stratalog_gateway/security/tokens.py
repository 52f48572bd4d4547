"""Tokens of OAUTHBEARER: JSON Web Tokens that an issuer has signed. This module needs the extra ``gateway-oauth``.

Source: apache/kafka BrokerJwtValidator, OAuthBearerValidatorCallbackHandler.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import jwt

from stratalog.errors import ConfigError
from stratalog.spi import Clock
from stratalog_gateway.security.mechanisms import AuthenticationError
from stratalog_gateway.security.security_settings import SecuritySection
from stratalog_gateway.security.watched_files import WatchedFiles

_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_FETCH_S: Final = 10  # time limit for a request to the issuer


class TokenCheck:
    """Check of the signature, expiry, audience, issuer and principal of tokens. Thread-safe.

    Raises:
        ConfigError: the location of the keys is not an http, https or file URL, or the file is missing or wrong.
    """

    def __init__(self, settings: SecuritySection, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        url = urlsplit(settings.jwks_url)
        self._file: WatchedFiles[jwt.PyJWKSet] | None = None
        self._issuer: jwt.PyJWKClient | None = None
        if url.scheme == "file":
            path = Path(unquote(url.path))
            self._file = WatchedFiles((path,), lambda: _keys(path), clock)
        elif url.scheme in {"http", "https"}:
            self._issuer = jwt.PyJWKClient(settings.jwks_url, timeout=_FETCH_S)
        else:
            raise ConfigError("sasl.oauthbearer.jwks.endpoint.url must be an http, https or file URL")

    def __call__(self, token: str) -> tuple[str, int]:
        """Return the name of a token's principal, and the expiry of the token (ms since 1970).

        Raises:
            AuthenticationError: the token is not valid or names no principal, or its key cannot be fetched.
        """
        settings = self._settings
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                self._key(token),
                algorithms=_ALGORITHMS,
                audience=settings.expected_audience or None,
                issuer=settings.expected_issuer or None,
                leeway=settings.clock_skew_s,
                options={"require": ["exp"], "verify_aud": bool(settings.expected_audience), "verify_sub": False},
            )
        except (jwt.PyJWTError, TypeError) as error:  # TypeError: the algorithm of the token does not fit the key
            raise AuthenticationError(str(error)) from error
        name = claims.get(settings.subject_claim)
        if not isinstance(name, str) or not name:
            raise AuthenticationError(f"the token has no claim {settings.subject_claim}")
        return name, int(claims["exp"]) * 1000

    def _key(self, token: str) -> Any:
        if self._issuer is not None:
            return self._issuer.get_signing_key_from_jwt(token).key
        key_id = jwt.get_unverified_header(token).get("kid")
        assert self._file is not None
        matching = [key for key in self._file.value().keys if key_id is None or key.key_id == key_id]
        if len(matching) != 1:
            raise AuthenticationError("no key of the issuer has the token's kid")
        return matching[0].key


def _keys(path: Path) -> jwt.PyJWKSet:
    try:
        return jwt.PyJWKSet.from_json(path.read_text("utf-8"))
    except jwt.PyJWTError as error:
        raise ConfigError(f"{path}: {error}") from error
