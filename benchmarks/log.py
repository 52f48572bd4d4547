"""Append to a log, read it, search it and recover it: compared with Kafka's own log, aiokafka, and plain files.

    python benchmarks/log.py [--only PART] [--quick | --full] [--rounds N] [--json]

benchmarks/README.md explains the output.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from codec_parts.formats import absences
from codec_parts.python_peers import Aiokafka
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
from log_parts.appending import append_bounds, append_cases
from log_parts.logs import BATCH_RECORDS, ClosedLog, make_log
from log_parts.lookups import lookup_bounds, lookup_cases, range_case
from log_parts.reading import read_bounds, read_cases
from log_parts.recovering import recovery_bounds, recovery_cases

_PACKAGES: Final = ("stratalog", "aiokafka", "pyarrow")
_BATCH_BYTES: Final = 16 << 10
_LOG_BYTES: Final = {"quick": 1 << 20, "full": 1 << 30, "": 256 << 20}
_SMALL_SEGMENT_BYTES: Final = 20 << 10  # each segment has one batch
_SEGMENTS: Final = {"quick": 20, "full": 10_000, "": 10_000}


def main(arguments: list[str] | None = None) -> int:
    """Measure the selected cases. Return 1 if a side has a wrong result, otherwise 0, even if a bound is missed."""
    options = parse_options(__doc__ or "", arguments)
    reporter = Reporter(as_json=options.json)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="log-benchmark-")))
        missing = absences()
        try:
            aiokafka = Aiokafka()
        except ImportError as error:
            aiokafka = None
            missing.append(f"{Aiokafka.name}: {error}; the dependency group 'bench' has it")
        try:
            jvm = stack.enter_context(java_worker("LogBench", scratch, str(scratch), heap="1g"))
        except JavaMissingError as error:
            jvm = None
            missing.append(str(error))
        reporter.machine(Machine.now(_PACKAGES))
        reporter.missing(missing)
        size = "quick" if options.quick else "full" if options.full else ""
        closed_log = make_log(scratch / "one", _LOG_BYTES[size] // _BATCH_BYTES)
        results: dict[str, Result] = {}
        try:
            for case in _cases(closed_log, scratch, aiokafka, jvm, options, _SEGMENTS[size]):
                results[case.name] = measure(case, options.plan)
                reporter.result(results[case.name])
        except WrongOutcomeError as error:
            print(f"wrong: {error}", file=sys.stderr)
            return 1
        bounds = [*append_bounds(), *read_bounds(), *lookup_bounds(), *recovery_bounds(closed_log)]
        reporter.verdicts([bound.verdict(results) for bound in bounds if options.wants(bound.case)])
    return 0


def _cases(
    closed_log: ClosedLog, scratch: Path, aiokafka: Aiokafka | None, jvm: Worker | None, options: Options, segments: int
) -> Iterator[Case]:
    yield from append_cases(scratch, aiokafka, jvm, options.wants, quick=options.quick)
    with ExitStack() as stack:
        yield from read_cases(closed_log, scratch, aiokafka, jvm, options.wants, stack)
    with ExitStack() as stack:
        yield from range_case(closed_log, options.wants, stack)
    if any(map(options.wants, ("lookup/offset", "lookup/timestamp"))):
        many = make_log(scratch / "many", segments, batch_records=BATCH_RECORDS, segment_bytes=_SMALL_SEGMENT_BYTES)
        with ExitStack() as stack:
            yield from lookup_cases(closed_log, many, scratch, jvm, options.wants, stack)
    yield from recovery_cases(closed_log, scratch, jvm, options.wants)
    with ExitStack() as stack:
        yield from read_cases(closed_log, scratch, aiokafka, jvm, options.wants, stack, read_in=True)


if __name__ == "__main__":
    sys.exit(main())
