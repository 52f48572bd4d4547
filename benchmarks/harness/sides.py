"""A side: one of the programs that a case compares. Each side does the work of the case as many times as requested."""

from __future__ import annotations

import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import repeat
from typing import Final

GATEWAY: Final = "stratalog serve"
_PROCESS_CLOCK: Final = 2  # Linux: with a process id, the clock of its processor time (clock_getcpuclockid)


class WrongOutcomeError(Exception):
    """A side does not do the work that it is measured for, so its figures would mean nothing."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Duration of one or more calls in seconds: wall time, and processor time of all threads of the side's process."""

    wall_s: float
    cpu_s: float

    def per_call(self, calls: int) -> Sample:
        """Return the mean of this many calls."""
        return Sample(self.wall_s / calls, self.cpu_s / calls)


def process_cpu_s(pid: int) -> float:
    """Return the processor time in seconds that all threads of a process have used until now."""
    return time.clock_gettime(~pid << 3 | _PROCESS_CLOCK)


class Side(ABC):
    """One of the programs that a case compares.

    Attributes:
        name: unique in its case.
        warm_up_times: factor for the duration of the warm-up.
    """

    name: str
    warm_up_times: float = 1

    @abstractmethod
    def check(self) -> None:
        """Do the work once, outside of the measured time, and check its outcome.

        Raises:
            WrongOutcomeError: the outcome is wrong.
        """

    @abstractmethod
    def sample(self, calls: int) -> Sample:
        """Return the time of this many calls in a row; their results are dropped immediately."""


class LocalSide(Side):
    """A side in this process.

    Args:
        name: unique in its case.
        call: does the work once.
        check: raises WrongOutcomeError if the work has a wrong outcome.
    """

    def __init__(self, name: str, call: Callable[[], object], check: Callable[[], None]) -> None:
        self.name, self._call, self._check = name, call, check

    def check(self) -> None:
        """Call the ``check`` of the constructor."""
        self._check()

    def sample(self, calls: int) -> Sample:
        """Return the time of this many calls; their results are dropped immediately."""
        return time_calls(self._call, calls)


class PreparedSide(Side):
    """A side in this process whose samples need a preparation before, and a clean-up after the measured time.

    Args:
        name: unique in its case.
        prepare: given a number of calls, returns a context manager; its value does the work of one call.
        check: raises WrongOutcomeError if the work has a wrong outcome.
    """

    def __init__(
        self,
        name: str,
        prepare: Callable[[int], AbstractContextManager[Callable[[], object]]],
        check: Callable[[], None],
    ) -> None:
        self.name, self._prepare, self._check = name, prepare, check

    def check(self) -> None:
        """Call the ``check`` of the constructor."""
        self._check()

    def sample(self, calls: int) -> Sample:
        """Return the time of this many calls with the prepared work."""
        with self._prepare(calls) as call:
            return time_calls(call, calls)


def time_calls(call: Callable[[], object], calls: int) -> Sample:
    """Return the time of this many calls.

    Before the calls, all garbage is collected. During the calls, the garbage collector runs as in any program.
    """
    gc.collect()
    cpu_ns, wall_ns = time.process_time_ns(), time.perf_counter_ns()
    for _ in repeat(None, calls):
        call()
    wall_ns, cpu_ns = time.perf_counter_ns() - wall_ns, time.process_time_ns() - cpu_ns
    return Sample(wall_ns / 1e9, cpu_ns / 1e9)
