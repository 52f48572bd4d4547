"""The only way to the clock, files, threads and chance: one ``Env`` value, real by default, faked in tests."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from stratalog.env.clock import Clock, SystemClock
from stratalog.env.vfs import PosixVfs, Vfs


@dataclass(frozen=True, slots=True)
class Env:
    """The outside world as the engine sees it."""

    clock: Clock = field(default_factory=SystemClock)
    files: Vfs = field(default_factory=PosixVfs)
    chance: random.Random = field(default_factory=random.SystemRandom)


__all__ = ["Clock", "Env", "PosixVfs", "SystemClock", "Vfs"]
