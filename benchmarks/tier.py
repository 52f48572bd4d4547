"""A tier: offloads and reads compared with plain requests, time of the first records, and memory.

    python benchmarks/tier.py [--only PART] [--quick] [--rounds N] [--json]

benchmarks/README.md explains the output.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from harness import (
    Case,
    JavaMissingError,
    Machine,
    Options,
    Reporter,
    Result,
    Verdict,
    WrongOutcomeError,
    measure,
    parse_options,
)
from manifest import ATTACH_CASES, attach_verdicts
from tier_parts.first import FIRST, first_verdicts
from tier_parts.kafka import KAFKA_CASES, kafka_bounds, kafka_cases, kafka_plan
from tier_parts.logs import Store, make_log, offload
from tier_parts.memory import READER, UPLOAD, memory_verdicts
from tier_parts.offloading import OFFLOAD, offload_bounds, offload_case
from tier_parts.reading import COLD_DISK, COLD_FILE, COLD_S3, WARM, Cold, reading_bounds, warm_case
from tier_parts.server import LoopbackS3, loopback_s3

_PACKAGES: Final = ("stratalog", "fsspec", "s3fs", "aiobotocore")
_MIB: Final = 1 << 20
_LOG_BYTES: Final = 256 * _MIB
_SEGMENT_BYTES: Final = 128 * _MIB
_QUICK_LOG_BYTES: Final = 2 * _MIB
_QUICK_SEGMENT_BYTES: Final = _MIB


def main(arguments: list[str] | None = None) -> int:
    """Measure the selected cases. Return 1 if a side has a wrong result, otherwise 0, even if a bound is missed."""
    options = parse_options(__doc__ or "", arguments)
    reporter, results, verdicts = Reporter(as_json=options.json), dict[str, Result](), list[Verdict]()
    reporter.machine(Machine.now(_PACKAGES))
    with tempfile.TemporaryDirectory(prefix="tier-benchmark-") as scratch, ExitStack() as stack:
        try:
            for measurement in _measurements(Path(scratch), options, reporter, stack):
                if isinstance(measurement, Case):
                    plan = (
                        kafka_plan(measurement.name, options.plan) if measurement.name in KAFKA_CASES else options.plan
                    )
                    results[measurement.name] = measure(measurement, plan)
                    reporter.result(results[measurement.name])
                else:
                    verdicts.append(measurement)
        except WrongOutcomeError as error:
            print(f"wrong: {error}", file=sys.stderr)
            return 1
    bounds = [*offload_bounds(), *reading_bounds(), *kafka_bounds()]
    reporter.verdicts([*(bound.verdict(results) for bound in bounds if options.wants(bound.case)), *verdicts])
    return 0


def _measurements(scratch: Path, options: Options, reporter: Reporter, stack: ExitStack) -> Iterator[Case | Verdict]:
    """Yield cases and verdicts.

    Measure each case before you request the next one, which deletes the data of the case. Verdicts are figures without
    a peer.
    """
    if any(map(options.wants, (OFFLOAD, COLD_S3, UPLOAD, READER))):
        server = stack.enter_context(loopback_s3())
        if any(map(options.wants, (OFFLOAD, COLD_S3))):
            yield from _measure_on_s3(scratch, options, server)
            server.forget()
        if any(map(options.wants, (UPLOAD, READER))):
            yield from memory_verdicts(server, scratch, options, reporter)
    if any(map(options.wants, KAFKA_CASES)):
        try:
            yield from kafka_cases(scratch / "kafka", options, stack)
        except JavaMissingError as error:
            reporter.missing([str(error)])
    if any(map(options.wants, (FIRST, COLD_FILE, COLD_DISK, WARM))):
        yield from _measure_on_files(scratch, options, stack)
    if any(map(options.wants, ATTACH_CASES)):
        yield from attach_verdicts(scratch / "manifest", options)


def _measure_on_s3(scratch: Path, options: Options, server: LoopbackS3) -> Iterator[Case]:
    store = Store(server.uri("tier"), server.options)
    local_log = make_log(scratch / "s3", store, *_sizes(options))
    if options.wants(OFFLOAD):
        yield offload_case(local_log, scratch, server)
    if options.wants(COLD_S3):
        offload(local_log, store)
        yield Cold(local_log, store).case(COLD_S3)


def _measure_on_files(scratch: Path, options: Options, stack: ExitStack) -> Iterator[Case | Verdict]:
    (scratch / "bucket").mkdir()
    store = Store((scratch / "bucket").as_uri(), {})
    local_log = make_log(scratch / "file", store, *_sizes(options), with_local=True)
    offload(local_log, store)
    if options.wants(FIRST):
        yield from first_verdicts(local_log, store)
    for name in filter(options.wants, (COLD_FILE, COLD_DISK)):
        yield Cold(local_log, store, from_disk=name == COLD_DISK).case(name)
    if options.wants(WARM):
        yield warm_case(local_log, store, stack)


def _sizes(options: Options) -> tuple[int, int]:
    """Return the sizes of a log and of its segments in bytes."""
    return (_QUICK_LOG_BYTES, _QUICK_SEGMENT_BYTES) if options.quick else (_LOG_BYTES, _SEGMENT_BYTES)


if __name__ == "__main__":
    sys.exit(main())
