"""What every Python worker of Spark does once."""

from __future__ import annotations

import gc
from functools import cache


@cache
def freeze_once() -> None:
    """Spark's worker collects garbage after each task, 40 ms for the imported modules alone: keep those out of it."""
    gc.collect()
    gc.freeze()
