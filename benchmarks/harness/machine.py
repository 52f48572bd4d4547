"""The machine of a benchmark and its load."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine and its load when a benchmark starts.

    Attributes:
        processor: model of the processor.
        processors: number of processors.
        system: kernel and architecture.
        python: implementation and version.
        load: mean number of runnable tasks in the last minute. Figures that were measured under load mean little.
        packages: version of each measured package; None if it is not installed.
    """

    processor: str
    processors: int
    system: str
    python: str
    load: float
    packages: dict[str, str | None]

    @classmethod
    def now(cls, packages: Iterable[str]) -> Machine:
        """Return a description of this machine and its current load, with the versions of these packages."""
        return cls(
            processor=_processor(),
            processors=os.cpu_count() or 1,
            system=f"{platform.system()} {platform.release()} {platform.machine()}",
            python=f"{platform.python_implementation()} {platform.python_version()}",
            load=os.getloadavg()[0],
            packages={name: _version(name) for name in packages},
        )

    def as_dict(self) -> dict[str, object]:
        """Return the attributes as a dictionary, for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the description of the machine in lines, for people."""
        packages = ", ".join(f"{name} {release or 'missing'}" for name, release in self.packages.items())
        busy = "  BUSY: the figures mean little" if self.load > 0.5 * self.processors else ""
        return [
            f"{self.processors} x {self.processor}, {self.system}, {self.python}",
            f"load {self.load:.2f}{busy}",
            packages,
        ]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
