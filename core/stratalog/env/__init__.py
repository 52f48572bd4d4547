"""The environment of the engine: clock, file system, threads and random source.

The engine uses the clock, the file system and the random source only through an ``Env``. By default, an ``Env`` has the
clock, the file system and the random source of the operating system. Tests replace them.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from stratalog.env.clock import Clock, SystemClock
from stratalog.env.helper_threads import HelperThreads
from stratalog.env.latencies import Watch
from stratalog.env.posix_vfs import PosixVfs
from stratalog.env.vfs import Vfs

_SPARE_BUFFERS: Final = 4


@dataclass(frozen=True, slots=True)
class Env:
    """Clock, file system and random source of an engine, with the threads, buffers and observers that its logs share.

    Attributes:
        clock: source of the time.
        files: file system.
        chance: source of random numbers.
        helpers: threads that help a reader of many records.
        spare_buffers: buffers of finished reads; later reads use them again.
        watch: measures and traces operations.
    """

    clock: Clock = field(default_factory=SystemClock)
    files: Vfs = field(default_factory=PosixVfs)
    chance: random.Random = field(default_factory=random.SystemRandom)
    helpers: HelperThreads = field(default_factory=HelperThreads)
    spare_buffers: deque[bytearray] = field(default_factory=lambda: deque(maxlen=_SPARE_BUFFERS))
    watch: Watch = field(default_factory=Watch)


__all__ = ["Clock", "Env", "PosixVfs", "SystemClock", "Vfs"]
