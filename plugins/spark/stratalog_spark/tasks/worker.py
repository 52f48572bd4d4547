"""Garbage collection in the Python processes of Spark."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@cache
def freeze_once() -> None:
    """Exclude the imported modules from garbage collection. Further calls in the same process have no effect.

    Spark's worker collects garbage after each task, which takes 40 ms for the imported modules.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def pause_collection() -> Iterator[None]:
    """Return a context manager without garbage collection, for work that creates very many objects without cycles.

    The collector would examine the objects of a large plan dozens of times, which takes longer than the plan.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
