"""Durable appends: many threads that share syncs, compared with one fsync for each append, and latency at half load.

    python benchmarks/durable.py [--only PART] [--quick] [--rounds N] [--json]

Measured on the disk of the temporary folder, and on simulated slower disks: each sync also sleeps, and releases the
interpreter lock meanwhile, as the sync of a real disk does. benchmarks/README.md explains the output.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from harness import (
    Bound,
    Case,
    LocalSide,
    Machine,
    Options,
    PreparedSide,
    Reporter,
    Result,
    Side,
    Verdict,
    WrongOutcomeError,
    measure,
    parse_options,
)
from stratalog import Log, Record, open_engine
from stratalog.env import Env, PosixVfs

_THREADS: Final = 64
_APPENDS: Final = 256  # number of appends in one call
_SYNCS: Final = 50
_ALONE: Final = "one fsync each"
_SHARED: Final = f"{_THREADS} threads"
_DELAYS_MS: Final = {"this-disk": 0, "5ms-disk": 5, "12ms-disk": 12}
_TARGET: Final = "durable appends, 64 threads beside one fsync each"
_TIMES: Final = 30
_LATENCY_TARGET: Final = "99 % of durable appends at half load are done within three syncs"
_LATENCY_TIMES: Final = 3
_LATENCY_S: Final = 4.0
_QUICK_LATENCY_S: Final = 0.2
_RECORDS: Final = [Record(timestamp_ms=1, key=b"k" * 10, value=b"v" * 100)]


class _SlowVfs(PosixVfs):
    """Files whose syncs take ``delay_ms`` longer."""

    def __init__(self, delay_ms: int) -> None:
        self._delay_s = delay_ms / 1000

    def sync(self, descriptor: int) -> None:
        """Sync the file, then sleep."""
        super().sync(descriptor)
        if self._delay_s:
            time.sleep(self._delay_s)  # noqa: TID251 - what a slower disk does


def main(arguments: list[str] | None = None) -> int:
    """Measure the selected cases. Return 1 if a side has a wrong result, otherwise 0, even if a bound is missed."""
    options = parse_options(__doc__ or "", arguments)
    reporter = Reporter(as_json=options.json)
    reporter.machine(Machine.now(("stratalog",)))
    results: dict[str, Result] = {}
    verdicts: list[Verdict] = []
    for disk, delay_ms in _DELAYS_MS.items():
        name = f"durable/{disk}"
        if not options.wants(name):
            continue
        with tempfile.TemporaryDirectory(prefix="durable-benchmark-") as scratch, _open_log(scratch, delay_ms) as log:
            try:
                results[name] = measure(_case(name, log), options.plan)
            except WrongOutcomeError as error:
                print(f"wrong: {error}", file=sys.stderr)
                return 1
            reporter.result(results[name])
            verdicts.append(Bound(_TARGET, name, _SHARED, _ALONE, _TIMES).verdict(results))
            verdicts.append(_latency(name, log, results[name], Path(scratch), delay_ms, options))
    reporter.verdicts(sorted(verdicts, key=lambda verdict: verdict.target))
    return 0


@contextmanager
def _open_log(scratch: str, delay_ms: int) -> Iterator[Log]:
    with open_engine(Path(scratch) / "data", env=Env(files=_SlowVfs(delay_ms))) as engine:
        engine.create_topic("t", config={"retention.ms": -1})
        yield engine.log("t", 0)


def _case(name: str, log: Log) -> Case:
    def alone() -> None:
        for _ in range(_APPENDS):
            log.append(_RECORDS, "durable")

    def append_some(_: int) -> None:
        for _ in range(_APPENDS // _THREADS):
            log.append(_RECORDS, "durable")

    @contextmanager
    def prepare(calls: int) -> Iterator[Callable[[], object]]:
        del calls
        with ThreadPoolExecutor(_THREADS) as pool:
            start_barrier = threading.Barrier(_THREADS)
            list(pool.map(lambda _: start_barrier.wait(), range(_THREADS)))  # start the threads before the measurement
            yield lambda: list(pool.map(append_some, range(_THREADS)))

    def together() -> None:
        with prepare(1) as call:
            call()

    sides: list[Side] = [
        PreparedSide(_SHARED, prepare, _make_check(_SHARED, together, log)),
        LocalSide(_ALONE, alone, _make_check(_ALONE, alone, log)),
    ]
    title = f"durable appends of one record of 100 B; {name.removeprefix('durable/')}"
    return Case(name, title, sides, _APPENDS, _APPENDS * 100)


def _make_check(name: str, call: Callable[[], None], log: Log) -> Callable[[], None]:
    def check() -> None:
        before = log.offsets().log_end
        call()
        offsets = log.offsets()
        if offsets.log_end - before != _APPENDS or offsets.recovery_point != offsets.log_end:
            raise WrongOutcomeError(f"{name}: not all of {_APPENDS} appends are durable")

    return check


def _latency(name: str, log: Log, result: Result, scratch: Path, delay_ms: int, options: Options) -> Verdict:
    """Return the verdict on the latency at half the rate that all threads reach together.

    Each append has a set time. The latency of a late append counts from this set time.
    """
    rate = 0.5 * _APPENDS / result.figures[_SHARED].wall_s
    count = max(_THREADS, round(rate * (_QUICK_LATENCY_S if options.quick else _LATENCY_S)))
    begin = time.perf_counter() + 0.01

    def some(thread: int) -> list[float]:
        latencies_s = []
        for number in range(thread, count, _THREADS):
            due = begin + number / rate
            time.sleep(max(0.0, due - time.perf_counter()))  # noqa: TID251 - real time is what is measured
            log.append(_RECORDS, "durable")
            latencies_s.append(time.perf_counter() - due)
        return latencies_s

    with ThreadPoolExecutor(_THREADS) as pool:
        latencies_s = sorted(latency_s for part in pool.map(some, range(_THREADS)) for latency_s in part)
    percentile_s = latencies_s[min(len(latencies_s) - 1, round(len(latencies_s) * 0.99))]
    sync_s = _sync_s(scratch, delay_ms)
    measured = f"{percentile_s * 1e3:.1f} ms at {rate:,.0f} appends a second, a sync takes {sync_s * 1e3:.1f} ms"
    bound = f"at most {_LATENCY_TIMES} syncs"
    return Verdict(
        _LATENCY_TARGET, name, measured, bound, percentile_s / sync_s, percentile_s <= _LATENCY_TIMES * sync_s
    )


def _sync_s(scratch: Path, delay_ms: int) -> float:
    """Return the median time of a sync after a small write, without other threads."""
    files, took = _SlowVfs(delay_ms), []
    descriptor = os.open(scratch / "alone", os.O_CREAT | os.O_WRONLY)
    try:
        for number in range(_SYNCS):
            os.pwrite(descriptor, bytes(180), number * 180)
            began = time.perf_counter()
            files.sync(descriptor)
            took.append(time.perf_counter() - began)
    finally:
        os.close(descriptor)
    return statistics.median(took)


if __name__ == "__main__":
    sys.exit(main())
