"""Alternating samples of sides, with wall and processor seconds of all processes that Spark starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Final

from harness import Case, Figures, Result, Sample

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PARENT, _TIMES = 1, slice(11, 15)  # positions among the fields after the process name in /proc/PID/stat


def sample_in_turns(sides: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[Sample]]:
    """Return ``rounds`` samples of each side. A round calls every side once; every other round has the reverse order.

    One more round comes first, as a warm-up that does not count.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name in list(sides) if turn % 2 else list(sides)[::-1]:
            call_sample = sample(sides[name])
            if turn:
                samples[name].append(call_sample)
    return samples


def result_of(
    name: str, title: str, records: int, samples_by_side: Mapping[str, Sequence[Sample]], size_bytes: int = 0
) -> Result:
    """Return the samples of all sides as the result of a case; ``size_bytes`` is the size of the records."""
    case = Case(name, title, (), records, size_bytes)
    return Result(case, {side: Figures(tuple(samples), 1) for side, samples in samples_by_side.items()})


def sample(call: Callable[[], object]) -> Sample:
    """Call it once, and return the wall and processor seconds of the call."""
    cpu, start = _cpu_seconds(), perf_counter()
    call()
    return Sample(perf_counter() - start, _cpu_seconds() - cpu)


def _cpu_seconds() -> float:
    """Return the processor seconds of this process and all its descendants, except brokers.

    The kernel adds the time of an ended process to that of its parent when the parent has waited for it.
    """
    stats: dict[int, tuple[int, float]] = {}
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal():
            continue
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            command = (path / "cmdline").read_bytes()
        except OSError:
            continue  # the process has just ended
        if b"kafka.Kafka" not in command:
            stats[int(path.name)] = int(fields[_PARENT]), sum(map(int, fields[_TIMES])) / _TICKS
    pids, total = {os.getpid()}, 0.0
    while pids:
        total += sum(stats[pid][1] for pid in pids if pid in stats)
        pids = {pid for pid, (parent, _) in stats.items() if parent in pids}
    return total
