"""The environment of the engine: clock, files, threads and random source are used only through this package.

An ``Env`` has the real ones by default; tests replace them.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from stratalog.env.clock import Clock, SystemClock
from stratalog.env.helper_threads import HelperThreads
from stratalog.env.latencies import Watch
from stratalog.env.vfs import PosixVfs, Vfs

_SPARE_BUFFERS: Final = 4


@dataclass(frozen=True, slots=True)
class Env:
    """Clock, files and random source of an engine, and what its readers share.

    Attributes:
        clock: source of the time.
        files: file system.
        chance: source of random numbers.
        helpers: threads that help a reader of a long range.
        spare_buffers: buffers of reads that have ended, for the next reads.
        watch: what observes the operations.
    """

    clock: Clock = field(default_factory=SystemClock)
    files: Vfs = field(default_factory=PosixVfs)
    chance: random.Random = field(default_factory=random.SystemRandom)
    helpers: HelperThreads = field(default_factory=HelperThreads)
    spare_buffers: deque[bytearray] = field(default_factory=lambda: deque(maxlen=_SPARE_BUFFERS))
    watch: Watch = field(default_factory=Watch)


__all__ = ["Clock", "Env", "PosixVfs", "SystemClock", "Vfs"]
