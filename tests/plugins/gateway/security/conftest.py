from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kio", reason="the extra gateway is not installed")

from gateway_users import PASSWORDS
from stratalog_gateway.security.users import ALGORITHMS, make_credential, save_users


@pytest.fixture(scope="session")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of users with the passwords of PASSWORDS."""
    path = tmp_path_factory.mktemp("users") / "users.json"
    credentials = {
        name: {kind: make_credential(kind, password, iterations=4096) for kind in ALGORITHMS}
        for name, password in PASSWORDS.items()
    }
    save_users(path, credentials)
    return path


@pytest.fixture
def acl_file(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a file of ACLs.

    Each ACL is a text: ``alice allow Read Topic orders``, optionally with ``Prefixed`` at its end.
    """

    def write(*texts: str) -> Path:
        acls: list[dict[str, Any]] = []
        for text in texts:
            user, permission, operation, kind, name, *pattern = text.split()
            acls.append({
                "principal": f"User:{user}", "permissionType": permission, "operation": operation,
                "resourceType": kind, "resourceName": name, "patternType": pattern[0] if pattern else "Literal",
            })  # fmt: skip
        path = tmp_path / "acls.json"
        fresh = tmp_path / "acls.new"
        fresh.write_text(json.dumps({"version": 1, "acls": acls}))
        fresh.replace(path)
        return path

    return write
