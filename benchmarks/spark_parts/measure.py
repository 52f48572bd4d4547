"""Sides in turns, with wall and processor seconds of everything that Spark starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PARENT, _TIMES = 1, slice(11, 15)  # of the fields behind the name in /proc/PID/stat


@dataclass(frozen=True, slots=True)
class Sample:
    """One call: seconds on the wall, and of processors."""

    wall: float
    cpu: float


def in_turns(sides: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[Sample]]:
    """So many samples of each side, every other round backwards; one before, which does not count."""
    found: dict[str, list[Sample]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name in list(sides) if turn % 2 else list(sides)[::-1]:
            taken = sample(sides[name])
            if turn:
                found[name].append(taken)
    return found


def tell(case: str, count: int, found: Mapping[str, list[Sample]], unit: str = "rows") -> None:
    """Medians of each side, and how many times as fast the first is as the second."""
    medians = {name: median(each.wall for each in samples) for name, samples in found.items()}
    print(f"\n{case}: {count:,} {unit}")
    for name, samples in found.items():
        wall, cpu = medians[name], median(each.cpu for each in samples)
        spread = (max(each.wall for each in samples) - min(each.wall for each in samples)) / wall
        print(
            f"  {name:36} {wall:8.2f} s  {count / wall / 1e6:8.3f} M/s  cpu {cpu:7.2f} s  "
            f"{cpu / count * 1e6:7.3f} s/M  spread {spread:4.0%}"
        )
    if len(found) > 1:
        first, second = (samples for samples in list(found.values())[:2])
        names = list(medians)
        cpu = median(each.cpu for each in second) / max(median(each.cpu for each in first), 1e-9)
        print(
            f"  {names[0]} is {medians[names[1]] / medians[names[0]]:.2f} times as fast, with 1/{cpu:.2f} of the processor time"
        )


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
