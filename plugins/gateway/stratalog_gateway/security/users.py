"""Users of PLAIN and SCRAM, and their file, which contains salted keys instead of passwords.

The file is JSON: ``{"version": 1, "users": {NAME: {MECHANISM: {"salt": ..., "stored_key": ..., "server_key": ...,
"iterations": ...}}}}``. Salt and keys are base64, as in Kafka's records of SCRAM credentials.

Source: RFC 5802 section 3; apache/kafka ScramFormatter, ScramCredentialUtils.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from stratalog.errors import ConfigError
from stratalog_gateway.security.json_file import read_field, replace_json
from stratalog_gateway.security.security_settings import SCRAM_SHA_256, SCRAM_SHA_512

ALGORITHMS: Final = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 1_000_000
DEFAULT_ITERATIONS: Final = 8192
_VERSION: Final = 1
_SALT_BYTES: Final = 24


class Credential(NamedTuple):
    """Salted keys of one user for one mechanism."""

    mechanism: str
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def accepts(self, password: str) -> bool:
        """Return True if the keys were computed from this password. The computation takes milliseconds."""
        computed = make_credential(self.mechanism, password, self.salt, self.iterations)
        return hmac.compare_digest(computed.stored_key, self.stored_key)


Users = Mapping[str, Mapping[str, Credential]]


def make_credential(
    mechanism: str, password: str, salt: bytes | None = None, iterations: int = DEFAULT_ITERATIONS
) -> Credential:
    """Return the keys of a password, with a random salt if ``salt`` is None. The computation takes milliseconds."""
    algorithm = ALGORITHMS[mechanism]
    salt = secrets.token_bytes(_SALT_BYTES) if salt is None else salt
    salted_password = hashlib.pbkdf2_hmac(algorithm, normalize(password).encode(), salt, iterations)
    return credential_of(mechanism, salted_password, salt, iterations)


def credential_of(mechanism: str, salted_password: bytes, salt: bytes, iterations: int) -> Credential:
    """Return the keys of the salted password ``salted_password``, which is the output of PBKDF2."""
    algorithm = ALGORITHMS[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", algorithm)
    stored_key = hashlib.new(algorithm, client_key).digest()
    return Credential(mechanism, salt, stored_key, hmac.digest(salted_password, b"Server Key", algorithm), iterations)


def normalize(text: str) -> str:
    """Return a name or a password in Unicode's normal form NFKC. Keys are computed from this form."""
    return unicodedata.normalize("NFKC", text)


def load_users(path: Path) -> Users:
    """Return the credentials in a file, by user name and mechanism."""
    users: Any = read_field(path, _VERSION, "users", dict)
    credentials: dict[str, dict[str, Credential]] = {}
    for name, by_mechanism in users.items():
        if not isinstance(by_mechanism, dict):
            raise ConfigError(f"{path}: user {name} is not an object")
        credentials[name] = {
            kind: _credential(kind, fields, f"{path}: user {name} {kind}") for kind, fields in by_mechanism.items()
        }
    return credentials


def _credential(mechanism: str, fields: object, place: str) -> Credential:
    if mechanism not in ALGORITHMS:
        raise ConfigError(f"{place}: the mechanism is not one of {', '.join(ALGORITHMS)}")
    size = hashlib.new(ALGORITHMS[mechanism]).digest_size
    try:
        assert isinstance(fields, dict)
        salt, stored_key, server_key = (
            base64.b64decode(fields[name], validate=True) for name in ("salt", "stored_key", "server_key")
        )
        iterations = fields["iterations"]
        is_valid = len(stored_key) == len(server_key) == size and salt and isinstance(iterations, int)
    except (AssertionError, KeyError, TypeError, ValueError, binascii.Error):
        is_valid = False
    if not is_valid or not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise ConfigError(f"{place}: salt, stored_key, server_key or iterations is wrong").advised(
            "set a new password with `stratalog users add`"
        )
    return Credential(mechanism, salt, stored_key, server_key, iterations)


def save_users(path: Path, users: Users) -> None:
    """Replace a file of users durably. Raise OSError if the file cannot be written."""
    table = {
        name: {
            kind: {
                "salt": base64.b64encode(credential.salt).decode(),
                "stored_key": base64.b64encode(credential.stored_key).decode(),
                "server_key": base64.b64encode(credential.server_key).decode(),
                "iterations": credential.iterations,
            }
            for kind, credential in by_mechanism.items()
        }
        for name, by_mechanism in sorted(users.items())
    }
    replace_json(path, {"version": _VERSION, "users": table})
