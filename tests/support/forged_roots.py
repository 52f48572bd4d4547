"""Manifest roots of a bucket in a folder, changed as an attacker with write access can change them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stratalog.tier.manifest.json_fields import canonical
from stratalog.tier.manifest.root_codec import seal


def root_paths(bucket: Path, log: str = "*/*") -> list[Path]:
    """Return the paths of the roots of one log, the oldest first."""
    return sorted(bucket.glob(f"{log}/manifest/*"))


def read_root(path: Path) -> dict[str, Any]:
    """Return the fields of a root, without ``body_sha256``."""
    value: dict[str, Any] = json.loads(path.read_bytes())
    del value["body_sha256"]
    return value


def write_root(path: Path, value: dict[str, Any]) -> None:
    """Write a root with the correct ``body_sha256``."""
    path.write_bytes(seal(canonical(value)))


def forge_root(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the fields of a root in place, and correct its ``body_sha256``."""
    value = read_root(path)
    change(value)
    write_root(path, value)
