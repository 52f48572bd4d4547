"""What all benchmarks share: sides that do the same work, measured in interleaved rounds, and how it is told."""

from __future__ import annotations

from harness.bounds import Bound, Verdict, ceiling
from harness.machine import Machine
from harness.memory import Peak, UnsupportedPlatformError, peak_of
from harness.options import Options, parse_options
from harness.report import Reporter
from harness.rounds import Case, Figures, Result, measure
from harness.sides import LocalSide, Sample, Side, WrongOutcomeError
from harness.workers import Job, Worker, WorkerError, WorkerSide, serve

__all__ = [
    "Bound",
    "Case",
    "Figures",
    "Job",
    "LocalSide",
    "Machine",
    "Options",
    "Peak",
    "Reporter",
    "Result",
    "Sample",
    "Side",
    "UnsupportedPlatformError",
    "Verdict",
    "Worker",
    "WorkerError",
    "WorkerSide",
    "WrongOutcomeError",
    "ceiling",
    "measure",
    "parse_options",
    "peak_of",
    "serve",
]
