"""Example of an engine with several plugins: an object store, a codec and a cleanup policy, and an encrypted tier."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import own_codec
import prefix_budget
import sqlite_store
import stratalog

PLUGINS: Final = (own_codec, prefix_budget, sqlite_store)
TOPIC: Final[dict[str, Any]] = {
    "compression.type": "xz",
    "cleanup.policy": "prefix_budget,delete",
    "prefix_budget.records": 1000,
    "min.cleanable.dirty.ratio": 0,
    "tier.layout": "encrypted",
    "retention.ms": -1,
    "local.retention.bytes": 0,  # local segments are deleted as soon as the tier has them
}


def settings(keys_file: Path) -> dict[str, Any]:
    """Return the settings of an engine or a reader: Parquet files in the tier, encrypted with the keys in a file."""
    return {"plugins": {"encrypted": {"keys.file": str(keys_file), "over": "parquet"}}}


def open_composed(directory: Path, keys_file: Path) -> stratalog.Engine:
    """Open an engine whose logs are in ``directory / "data"``, and whose tier is the file ``directory / "tier.db"``."""
    (directory / "data").mkdir(parents=True, exist_ok=True)
    tier = f"sqlite://{directory.absolute() / 'tier.db'}"
    return stratalog.open_engine(directory / "data", tier=tier, plugins=list(PLUGINS), config=settings(keys_file))
