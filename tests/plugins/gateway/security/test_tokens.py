"""The check of tokens of OAUTHBEARER."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratalog.env.clock import ManualClock
from stratalog_gateway.security.mechanisms import AuthenticationError
from stratalog_gateway.settings import GatewaySection

jwt = pytest.importorskip("jwt", reason="the extra gateway-oauth is not installed")
tokens = pytest.importorskip("stratalog_gateway.security.tokens")
ec, rsa = (
    pytest.importorskip(f"cryptography.hazmat.primitives.asymmetric.{name}", reason="cryptography is not installed")
    for name in ("ec", "rsa")
)


def test_a_token_whose_algorithm_does_not_fit_the_key_is_not_valid(tmp_path: Path) -> None:
    public = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [{**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(public)), "kid": "1"}]}))
    other_key = ec.generate_private_key(ec.SECP256R1())
    token = jwt.encode({"sub": "alice", "exp": 1 << 40}, other_key, algorithm="ES256", headers={"kid": "1"})
    with pytest.raises(AuthenticationError):
        tokens.TokenCheck(GatewaySection(jwks_url=keys.as_uri()), ManualClock())(token)
