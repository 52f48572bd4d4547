"""Sides in turns, with wall and processor seconds of everything that Spark starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Final

from harness import Case, Figures, Result, Sample

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PARENT, _TIMES = 1, slice(11, 15)  # of the fields behind the name in /proc/PID/stat


def in_turns(sides: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[Sample]]:
    """So many samples of each side, every other round backwards; one before, which does not count."""
    found: dict[str, list[Sample]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name in list(sides) if turn % 2 else list(sides)[::-1]:
            taken = sample(sides[name])
            if turn:
                found[name].append(taken)
    return found


def result_of(
    name: str, title: str, records: int, found: Mapping[str, Sequence[Sample]], size_bytes: int = 0
) -> Result:
    """The samples of all sides as the result of a case, for a report; ``size_bytes`` is that of the records."""
    case = Case(name, title, (), records, size_bytes)
    return Result(case, {side: Figures(tuple(samples), 1) for side, samples in found.items()})


def sample(call: Callable[[], object]) -> Sample:
    """Call it once."""
    cpu, start = _cpu_seconds(), perf_counter()
    call()
    return Sample(perf_counter() - start, _cpu_seconds() - cpu)


def _cpu_seconds() -> float:
    """Of this process and all that it started, but brokers: those that ended are counted by who waited for them."""
    stats: dict[int, tuple[int, float]] = {}
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal():
            continue
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            command = (path / "cmdline").read_bytes()
        except OSError:
            continue  # it has just ended
        if b"kafka.Kafka" not in command:
            stats[int(path.name)] = int(fields[_PARENT]), sum(map(int, fields[_TIMES])) / _TICKS
    own, total = {os.getpid()}, 0.0
    while own:
        total += sum(stats[pid][1] for pid in own if pid in stats)
        own = {pid for pid, (parent, _) in stats.items() if parent in own}
    return total
