"""A side: one contestant of a case, which does the case's work so many times while the clocks run."""

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
    """A side does not do the work that it is measured at; its figures would mean nothing."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds of one or more calls: on the wall, and of the processor (all threads of the side's process)."""

    wall_s: float
    cpu_s: float

    def per_call(self, calls: int) -> Sample:
        """The mean of this many calls."""
        return Sample(self.wall_s / calls, self.cpu_s / calls)


def process_cpu_s(pid: int) -> float:
    """Return the processor time of all threads of a process until now."""
    return time.clock_gettime(~pid << 3 | _PROCESS_CLOCK)


class Side(ABC):
    """One contestant.

    Attributes:
        name: unique in its case.
        warm_up_times: how many times longer than others it warms up.
    """

    name: str
    warm_up_times: float = 1

    @abstractmethod
    def check(self) -> None:
        """Do the work once, off the clock, and look at what comes out.

        Raises:
            WrongOutcomeError: it is not what must come out.
        """

    @abstractmethod
    def sample(self, calls: int) -> Sample:
        """Return the time of this many calls in a row; their results are dropped immediately."""


class LocalSide(Side):
    """A side in this process.

    Args:
        name: unique in its case.
        call: the work.
        check: raises WrongOutcomeError.
    """

    def __init__(self, name: str, call: Callable[[], object], check: Callable[[], None]) -> None:
        self.name, self._call, self._check = name, call, check

    def check(self) -> None:
        """As the caller wants it checked."""
        self._check()

    def sample(self, calls: int) -> Sample:
        """Return the time of this many calls; their results are dropped immediately."""
        return timed(self._call, calls)


class PreparedSide(Side):
    """A side in this process whose samples need something that is made before the clocks run and removed after them.

    Args:
        name: unique in its case.
        prepare: given a number of calls, a context manager that gives the work of one call.
        check: raises WrongOutcomeError.
    """

    def __init__(
        self,
        name: str,
        prepare: Callable[[int], AbstractContextManager[Callable[[], object]]],
        check: Callable[[], None],
    ) -> None:
        self.name, self._prepare, self._check = name, prepare, check

    def check(self) -> None:
        """As the caller wants it checked."""
        self._check()

    def sample(self, calls: int) -> Sample:
        """Return the time of this many calls with the prepared work."""
        with self._prepare(calls) as call:
            return timed(call, calls)


def timed(call: Callable[[], object], calls: int) -> Sample:
    """The time of this many calls; the collector starts clean and runs during them as it does in any program."""
    gc.collect()
    cpu_ns, wall_ns = time.process_time_ns(), time.perf_counter_ns()
    for _ in repeat(None, calls):
        call()
    wall_ns, cpu_ns = time.perf_counter_ns() - wall_ns, time.process_time_ns() - cpu_ns
    return Sample(wall_ns / 1e9, cpu_ns / 1e9)
