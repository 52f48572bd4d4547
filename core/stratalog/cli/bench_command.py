"""``stratalog bench``: measure the speed of log operations on this machine's disk and in a tier."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click

from stratalog.cli.options import LogPlace, TierPlace, json_option, place_options_with
from stratalog.cli.output import Output
from stratalog.engine.engine import Engine
from stratalog.engine.open_engine import open_engine
from stratalog.env import Env
from stratalog.errors import ConfigError, DiskFullError
from stratalog.log.log import Log
from stratalog.log.read.log_reader import LogReader
from stratalog.model.names import CLEAN_SHUTDOWN_FILE, RECOVERY_POINTS_FILE
from stratalog.model.records import Record
from stratalog.reading.component_host import split_scheme
from stratalog.reading.open_reader import open_host, open_settled, open_tier_store
from stratalog.reading.reader import Reader

_TOPIC: Final = "bench"
_COMPRESSIONS: Final = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
_RECORDS_A_CALL: Final = 1000
_FETCH_BYTES: Final = 1 << 20
_SMALL_BYTES: Final = 4096
_ENOUGH_NS: Final = 1_000_000_000  # duration of a measurement that repeats a call
_SPARE: Final = 3  # required free disk space, as a multiple of --size
_COLUMNS: Final = ("what", "figure", "unit", "slowest_1_percent", "detail")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. ``slowest`` is the 99th percentile of the single measurements, in the unit ``unit``."""

    name: str
    figure: float
    unit: str
    slowest: float | None = None
    detail: str = ""


@click.command()
@click.option("--size", "size_mib", default=64, type=click.IntRange(1), help="MiB of records to write and read.")
@click.option("--value-bytes", default=100, type=click.IntRange(0, 1 << 20), help="Size of each record's value.")
@click.option(
    "--compression", type=click.Choice(_COMPRESSIONS), default="uncompressed", help="Value of compression.type."
)
@click.option(
    "--threads", default=16, type=click.IntRange(1, 256), help="Threads that append durably at the same time."
)
@place_options_with("An existing directory. Default: the system's temporary folder.")
@json_option
def bench(place: LogPlace, output: Output, *, size_mib: int, value_bytes: int, compression: str, threads: int) -> int:
    """Measure the disk of --dir, and an object store if a tier is given.

    The command writes to a new folder in the directory and to a new prefix below the tier's URI. At the end, it removes
    the folder and the prefix. It changes no other data. Other programs on the machine make the results less exact.
    """
    parent = Path(place.directories[0] if place.directories else tempfile.gettempdir())
    if len(place.directories) > 1 or not parent.is_dir():
        raise ConfigError("give --dir one existing directory; the command creates a folder in it")
    if shutil.disk_usage(parent).free < _SPARE * (size_mib << 20):
        raise DiskFullError(f"{_SPARE} x {size_mib} MiB do not fit on this disk: use a smaller --size", str(parent))
    name = f"stratalog-bench-{secrets.token_hex(4)}"
    with contextlib.ExitStack() as stack:
        folder = parent / name
        folder.mkdir()
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        store = place.tier or place.settings().engine.tier
        output.note(f"measuring in {parent}" + (f" and {store}" if store else ""))
        tier = None
        if store is not None:
            tier = stack.enter_context(_prefix(TierPlace(store, place.config, place.tier_options), name))
        figures = list[Figure]()
        run = _Run(folder, replace(place, tier=tier), value_bytes, compression, threads)
        for figure in run.figures(size_mib << 20):
            output.note(f"{figure.name}: {_round(figure.figure):,.10g} {figure.unit}")
            figures.append(figure)
    output.table("bench", _COLUMNS, [_row(figure) for figure in figures])
    return 0


def _row(figure: Figure) -> tuple[object, ...]:
    slowest = None if figure.slowest is None else _round(figure.slowest)
    return figure.name, _round(figure.figure), figure.unit, slowest, figure.detail


def _round(value: float) -> float:
    """Round to four significant digits, because further digits differ in each run."""
    return float(f"{value:.4g}")


class _Run:
    def __init__(self, folder: Path, place: LogPlace, value_bytes: int, compression: str, threads: int) -> None:
        self._folder, self._place, self._threads = folder, place, threads
        self._clock, self._files = Env().clock, Env().files
        self._topic: dict[str, object] = {"compression.type": compression}
        self._records = [
            Record(key=b"%d" % number, value=secrets.token_bytes(value_bytes)) for number in range(_RECORDS_A_CALL)
        ]

    def figures(self, size_bytes: int) -> Iterator[Figure]:
        """Yield all figures, each as soon as it is measured."""
        yield self._disk()
        with self._engine() as engine:
            engine.create_topic(_TOPIC, config=self._topic)
            engine.create_topic("durable", partitions=self._threads)
            log = engine.log(_TOPIC, 0)
            yield self._append(log, size_bytes)
            yield self._durable(engine.log("durable", 0))
            yield self._durable_threads(engine)
            yield self._read(log)
            yield self._fetch(log)
            yield from self._find(log)
            if self._place.tier is not None:
                yield self._offload(engine, log)
        if self._place.tier is not None:
            for measure in (self._read, self._fetch):
                with self._cold(self._place.tier) as reader:
                    yield measure(reader.log(_TOPIC, 0), "tier, cold: ")
        yield self._recovery()

    def _engine(self) -> Engine:
        place = self._place
        return open_engine(self._folder, tier=place.tier, tier_options=place.tier_options, config=place.config)

    # --- measurements of one figure ----------------------------------------------------------------------------------

    def _disk(self) -> Figure:
        descriptor = self._files.open(os.fspath(self._folder / "sync"), write=True, create=True)
        try:
            block = bytes(_SMALL_BYTES)

            def write(number: int) -> None:
                self._files.write(descriptor, number * _SMALL_BYTES, block)
                self._files.sync(descriptor)

            times = self._measure(write)
        finally:
            self._files.close(descriptor)
        return _latency("write 4 KiB and fsync", times, "the disk alone: no durable append is faster")

    def _append(self, log: Log, size_bytes: int) -> Figure:
        count, began_ns = 0, self._clock.monotonic_ns()
        while sum(segment.size_bytes for segment in log.view().segments) < size_bytes:
            log.append(self._records)
            count += len(self._records)
        return self._rate("append", count, began_ns, f"{_RECORDS_A_CALL} records a call, to the page cache")

    def _durable(self, log: Log) -> Figure:
        times = self._measure(lambda _: log.append(self._records[:1], durability="durable"))
        return _latency("append durably", times, "one record a call, one thread")

    def _durable_threads(self, engine: Engine) -> Figure:
        counts, began_ns = [0] * self._threads, self._clock.monotonic_ns()

        def work(number: int) -> None:
            log = engine.log("durable", number)
            while not counts[number] or self._clock.monotonic_ns() - began_ns < _ENOUGH_NS:
                log.append(self._records[:1], durability="durable")
                counts[number] += 1

        with ThreadPoolExecutor(self._threads) as workers:
            list(workers.map(work, range(self._threads)))
        return self._rate("append durably, in threads", sum(counts), began_ns, f"{self._threads} threads, a log each")

    def _cold(self, tier: str) -> Reader:
        """Open a reader of ``tier`` with empty caches in memory, and without the disk cache of the settings."""
        settings = self._place.settings()
        engine = settings.engine.replaced({"tier.cache.dir": None}, "bench")
        return open_settled(tier, replace(settings, engine=engine), tier_options=self._place.tier_options)

    def _read(self, log: LogReader, where: str = "") -> Figure:
        began_ns = self._clock.monotonic_ns()
        count = sum(1 for _ in log.records(isolation="log_end"))
        return self._rate(f"{where}read records", count, began_ns, "as Record objects")

    def _fetch(self, log: LogReader, where: str = "") -> Figure:
        began_ns, offset, fetched_bytes = self._clock.monotonic_ns(), 0, 0
        while True:
            with log.fetch(offset, _FETCH_BYTES, "log_end") as fetched:
                if not fetched.size_bytes:
                    break
                fetched_bytes += fetched.size_bytes
                offset = fetched.next_offset
        return self._speed(f"{where}fetch", fetched_bytes, began_ns, "raw batches, 1 MiB a call")

    def _find(self, log: LogReader) -> Iterator[Figure]:
        end = log.offsets().log_end
        began_ns, count = self._clock.monotonic_ns(), 0
        while not count or self._clock.monotonic_ns() - began_ns < _ENOUGH_NS:
            with log.fetch(secrets.randbelow(end), 1):
                count += 1
        yield self._rate("find by offset", count, began_ns, "one batch each, anywhere in the log")

    def _offload(self, engine: Engine, log: Log) -> Figure:
        log.roll()
        began_ns = self._clock.monotonic_ns()
        offloaded_bytes = sum(result.size_bytes for result in engine.offload([log.name]))
        return self._speed("offload", offloaded_bytes, began_ns, "to the tier, roots included")

    def _recovery(self) -> Figure:
        """Delete the files of the clean shutdown, as if the engine had crashed, and measure the recovery."""
        for path in (self._folder / CLEAN_SHUTDOWN_FILE, self._folder / RECOVERY_POINTS_FILE):
            path.unlink(missing_ok=True)
        size_bytes = sum(path.stat().st_size for path in self._folder.rglob("*.log"))
        began_ns = self._clock.monotonic_ns()
        with self._engine():
            return self._speed("recover", size_bytes, began_ns, "as after a crash, every batch checked")

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _measure(self, work: Callable[[int], object]) -> list[float]:
        """Call ``work`` repeatedly for about a second, at least once. Return the duration of each call in ms."""
        times, began_ns = list[float](), self._clock.monotonic_ns()
        while (start_ns := self._clock.monotonic_ns()) - began_ns < _ENOUGH_NS or not times:
            work(len(times))
            times.append((self._clock.monotonic_ns() - start_ns) / 1e6)
        return times

    def _rate(self, name: str, count: int, began_ns: int, detail: str) -> Figure:
        return Figure(name, count / self._seconds(began_ns), "records/s", detail=detail)

    def _speed(self, name: str, size_bytes: int, began_ns: int, detail: str) -> Figure:
        return Figure(name, size_bytes / 1e6 / self._seconds(began_ns), "MB/s", detail=detail)

    def _seconds(self, began_ns: int) -> float:
        return max(self._clock.monotonic_ns() - began_ns, 1) / 1e9


def _latency(name: str, times: list[float], detail: str) -> Figure:
    return Figure(name, statistics.median(times), "ms", sorted(times)[len(times) * 99 // 100], detail)


@contextlib.contextmanager
def _prefix(place: TierPlace, name: str) -> Iterator[str]:
    """Yield the URI of a new prefix in the tier's store. At the end of the ``with`` block, delete its objects."""
    uri = place.uri.rstrip("/") + f"/{name}"
    scheme, path = split_scheme(uri)
    if scheme == "file":  # the folder is the bucket, and a store does not create its bucket
        Path(path).mkdir()
    try:
        yield uri
    finally:
        _empty(replace(place, uri=uri))
        if scheme == "file":
            shutil.rmtree(path, ignore_errors=True)


def _empty(place: TierPlace) -> None:
    """Delete every object of a store; raise StoreError if an object could not be deleted."""
    with (
        open_host(place.settings()) as host,
        contextlib.closing(open_tier_store(host, place.uri, place.tier_options, read_only=False)) as store,
    ):
        store.delete_or_raise([item.key for item in store.list_all("")])
