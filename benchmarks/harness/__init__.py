"""Shared parts of all benchmarks. Several sides do the same work in interleaved rounds; a report shows the results."""

from __future__ import annotations

from harness.bounds import Bound, CpuBound, Rate, Verdict, ceiling
from harness.java import KAFKA, WARM_UP_TIMES, JavaMissingError, find_support, java_worker
from harness.machine import Machine
from harness.memory import Peak, UnsupportedPlatformError, peak_of
from harness.options import Options, parse_options
from harness.report import Reporter
from harness.rounds import Case, Figures, Plan, Result, measure
from harness.sides import GATEWAY, LocalSide, PreparedSide, Sample, Side, WrongOutcomeError, process_cpu_s
from harness.workers import Job, Worker, WorkerError, WorkerSide, serve

__all__ = [
    "GATEWAY",
    "KAFKA",
    "WARM_UP_TIMES",
    "Bound",
    "Case",
    "CpuBound",
    "Figures",
    "JavaMissingError",
    "Job",
    "LocalSide",
    "Machine",
    "Options",
    "Peak",
    "Plan",
    "PreparedSide",
    "Rate",
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
    "find_support",
    "java_worker",
    "measure",
    "parse_options",
    "peak_of",
    "process_cpu_s",
    "serve",
]
