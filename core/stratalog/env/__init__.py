"""The environment of the engine: clock, files, threads and random source are used only through this package.

An ``Env`` has the real ones by default; tests replace them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from stratalog.env.clock import Clock, SystemClock
from stratalog.env.vfs import PosixVfs, Vfs


@dataclass(frozen=True, slots=True)
class Env:
    """Clock, files and random source of an engine."""

    clock: Clock = field(default_factory=SystemClock)
    files: Vfs = field(default_factory=PosixVfs)
    chance: random.Random = field(default_factory=random.SystemRandom)


__all__ = ["Clock", "Env", "PosixVfs", "SystemClock", "Vfs"]
