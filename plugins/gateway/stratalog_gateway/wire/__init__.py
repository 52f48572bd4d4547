"""Bytes of Kafka's protocol: frames, headers, and codecs of requests and responses."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def _import_kio() -> None:
    """Import kio's types without the testing library hypothesis, whose import takes 0.2 s."""
    modules: dict[str, Any] = sys.modules
    if "hypothesis" in modules:
        return
    modules["hypothesis"] = None  # with this entry, the import of hypothesis fails
    try:
        importlib.import_module("kio.static.primitive")
    finally:
        del modules["hypothesis"]


_import_kio()
