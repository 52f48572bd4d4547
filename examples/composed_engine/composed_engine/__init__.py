"""An engine of other people's parts: a tier in a SQLite file, encrypted, with a codec and a cleanup policy of plugins."""

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
    "local.retention.bytes": 0,  # as soon as the tier has a segment
}


def settings(keys_file: Path) -> dict[str, Any]:
    """Return the settings of an engine or a reader: encrypted Parquet files, under the keys of a file."""
    return {"plugins": {"encrypted": {"keys.file": str(keys_file), "over": "parquet"}}}


def open_composed(directory: Path, keys_file: Path) -> stratalog.Engine:
    """Open an engine whose logs are in a directory, and whose tier is ``tier.db`` beside them."""
    (directory / "data").mkdir(parents=True, exist_ok=True)
    tier = f"sqlite://{directory.absolute() / 'tier.db'}"
    return stratalog.open_engine(directory / "data", tier=tier, plugins=list(PLUGINS), config=settings(keys_file))
