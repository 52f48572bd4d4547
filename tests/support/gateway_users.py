"""Users and passwords for tests of the gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PASSWORDS: Final[Mapping[str, str]] = {
    "alice": "secret of alice",
    "bob": "secret of bob",
    "admin": "secret of admin",
}
