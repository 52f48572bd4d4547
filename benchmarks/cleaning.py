"""Compaction of a fully or slightly dirty log, by offset or by version, and erasure of a key.

Compared with Kafka's own cleaner and with loops in Python.

    python benchmarks/cleaning.py [--only PART] [--quick | --full] [--rounds N] [--json]

benchmarks/README.md explains the output.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from cleaning_parts.beyond import BY_HEADER, BY_TIMESTAMP, ERASE, beyond_bounds, erase_case, latest_case
from cleaning_parts.compacting import COMPACT, LITTLE_DIRT_KINDS, compact_bounds, compact_case, little_dirt_case
from cleaning_parts.logs import make_dirty_log, make_little_dirt
from codec_parts.formats import absences
from codec_parts.python_peers import Aiokafka
from harness import (
    Case,
    JavaMissingError,
    Machine,
    Reporter,
    Worker,
    WrongOutcomeError,
    java_worker,
    measure,
    parse_options,
)

_PACKAGES: Final = ("stratalog", "aiokafka")
_BATCHES: Final = {"quick": 50, "full": 33_334, "": 8_000}
_KEYS: Final = {"quick": 2_000, "full": 1_000_000, "": 250_000}
_DIRTY_SHARE: Final = 40  # in logs with little dirt, one batch in 40 is dirty


def main(arguments: list[str] | None = None) -> int:
    """Measure the selected cases. Return 1 if a side has a wrong result, otherwise 0, even if a bound is missed."""
    options = parse_options(__doc__ or "", arguments)
    reporter = Reporter(as_json=options.json)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cleaning-benchmark-")))
        missing, aiokafka, jvm = absences(), None, None
        try:
            aiokafka = Aiokafka()
        except ImportError as error:
            missing.append(f"{Aiokafka.name}: {error}; the dependency group 'bench' has it")
        try:
            jvm = stack.enter_context(java_worker("CleanerBench", scratch, str(scratch), heap="1g"))
        except JavaMissingError as error:
            missing.append(str(error))
        reporter.machine(Machine.now(_PACKAGES))
        reporter.missing(missing)
        size = "quick" if options.quick else "full" if options.full else ""
        results = {}
        try:
            if any(map(options.wants, (COMPACT, BY_TIMESTAMP, ERASE))):
                dirty_log = make_dirty_log(scratch / "dirty", _BATCHES[size], _KEYS[size])
            if options.wants(COMPACT):
                results[COMPACT] = measure(compact_case(dirty_log, scratch, jvm, aiokafka), options.plan)
                reporter.result(results[COMPACT])
            if options.wants(BY_TIMESTAMP):
                results[BY_TIMESTAMP] = measure(latest_case(BY_TIMESTAMP, dirty_log, scratch, aiokafka), options.plan)
                reporter.result(results[BY_TIMESTAMP])
            if options.wants(ERASE):
                results[ERASE] = measure(erase_case(dirty_log, scratch, aiokafka), options.plan)
                reporter.result(results[ERASE])
            if options.wants(BY_HEADER):
                versioned = make_dirty_log(scratch / "versioned", _BATCHES[size], _KEYS[size], versioned=True)
                results[BY_HEADER] = measure(latest_case(BY_HEADER, versioned, scratch, aiokafka), options.plan)
                reporter.result(results[BY_HEADER])
            for name in filter(options.wants, LITTLE_DIRT_KINDS):
                results[name] = measure(_little_dirt(name, size, scratch, jvm), options.plan)
                reporter.result(results[name])
        except WrongOutcomeError as error:
            print(f"wrong: {error}", file=sys.stderr)
            return 1
        bounds = [*compact_bounds(), *beyond_bounds()]
        reporter.verdicts([bound.verdict(results) for bound in bounds if options.wants(bound.case)])
    return 0


def _little_dirt(name: str, size: str, scratch: Path, jvm: Worker | None) -> Case:
    kind, batches = LITTLE_DIRT_KINDS[name], _BATCHES[size]
    dirty = max(batches // _DIRTY_SHARE, 1)
    short_log = make_little_dirt(scratch / f"short-{kind.name}", batches, dirty, kind)
    long_log = make_little_dirt(scratch / f"longer-{kind.name}", 2 * batches, dirty, kind)
    return little_dirt_case(name, short_log, long_log, scratch, jvm)


if __name__ == "__main__":
    sys.exit(main())
