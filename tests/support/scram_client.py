"""The client's side of SCRAM, for tests that send single messages."""

from __future__ import annotations

import base64
import hashlib
import hmac


class ScramClient:
    """One authentication: send ``first``, then ``final`` with the server's response."""

    def __init__(self, algorithm: str, name: str, password: str, *, nonce: str = "abcdefgh") -> None:
        self._algorithm, self._password = algorithm, password
        self._bare = f"n={name.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self.first = f"n,,{self._bare}".encode()

    def final(self, server_first: bytes, *, binding: str = "biws") -> bytes:
        """Return the final message, and set ``expected`` to the signature that the server must send."""
        fields = dict(part.split("=", 1) for part in server_first.decode().split(","))
        salt, rounds = base64.b64decode(fields["s"]), int(fields["i"])
        salted = hashlib.pbkdf2_hmac(self._algorithm, self._password.encode(), salt, rounds)
        client_key = hmac.digest(salted, b"Client Key", self._algorithm)
        stored_key = hashlib.new(self._algorithm, client_key).digest()
        without_proof = f"c={binding},r={fields['r']}"
        signed = f"{self._bare},{server_first.decode()},{without_proof}".encode()
        signature = hmac.digest(stored_key, signed, self._algorithm)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", self._algorithm)
        self.expected = b"v=" + base64.b64encode(hmac.digest(server_key, signed, self._algorithm))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()
