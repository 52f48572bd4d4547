"""Test vectors that were checked against Kafka: inputs, and the bytes or values that Kafka makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

VECTORS: Final[Any] = json.loads(  # Any: it is JSON
    (Path(__file__).parents[1] / "data" / "vectors.json").read_text(encoding="utf-8")
)
