"""Decode and encode record batches: compared with Python clients, Kafka's own classes, and calls of the libraries.

    python benchmarks/codec.py [--only PART] [--quick | --full] [--rounds N] [--json]

benchmarks/README.md explains the output.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from codec_parts.cases import TARGET, Assembly, bounds, shapes
from codec_parts.formats import absences
from codec_parts.java import PROGRAM
from codec_parts.libraries import library_bounds, library_cases
from codec_parts.memory import memory_verdicts
from codec_parts.python_peers import python_peers
from codec_parts.workloads import Shape
from harness import (
    Case,
    JavaMissingError,
    Machine,
    Options,
    Reporter,
    Result,
    Worker,
    WrongOutcomeError,
    java_worker,
    measure,
    parse_options,
)
from stratalog.extensions import SWITCH

_WORKER: Final = Path(__file__).resolve().parent / "codec_parts" / "worker.py"
_PACKAGES: Final = (
    "stratalog",
    "aiokafka",
    "kafka-python",
    "pyarrow",
    "crc32c",
    "cramjam",
    "lz4",
    "zstandard",
)
_LIBRARY_SHAPES: Final = (TARGET, Shape(value_bytes=1024), Shape(batch_records=10))


def main(arguments: list[str] | None = None) -> int:
    """Measure the selected cases. Return 1 if a side has a wrong result, otherwise 0, even if a bound is missed."""
    options = parse_options(__doc__ or "", arguments)
    reporter = Reporter(as_json=options.json)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="codec-benchmark-")))
        peers, missing = python_peers()
        missing += absences()
        pure = None if absences() else stack.enter_context(_pure_worker())
        try:
            jvm = stack.enter_context(java_worker(PROGRAM, scratch))
        except JavaMissingError as error:
            jvm = None
            missing.append(str(error))
        reporter.machine(Machine.now(_PACKAGES))
        reporter.missing(missing)
        assembly = Assembly(peers, pure, jvm, scratch, quick=options.quick)
        results: dict[str, Result] = {}
        try:
            for case in _cases(assembly, options):
                results[case.name] = measure(case, options.plan)
                reporter.result(results[case.name])
        except WrongOutcomeError as error:
            print(f"wrong: {error}", file=sys.stderr)
            return 1
        selected = [bound for bound in (*bounds(), *library_bounds(TARGET)) if options.wants(bound.case)]
        verdicts = [bound.verdict(results) for bound in selected]
        verdicts += memory_verdicts(options, reporter, scratch)
        reporter.missing(assembly.skipped)
        reporter.verdicts(verdicts)
    return 0


def _cases(assembly: Assembly, options: Options) -> Iterator[Case]:
    for shape in shapes(quick=options.quick, full=options.full):
        yield from assembly.cases(shape, options.wants)
    yield from (case for case in library_cases(_LIBRARY_SHAPES) if options.wants(case.name))


def _pure_worker() -> Worker:
    return Worker([sys.executable, str(_WORKER)], {**os.environ, SWITCH: "1"})


if __name__ == "__main__":
    sys.exit(main())
