"""Reading a tier: cold beside plain ranged GETs of the same bytes, warm beside the same log on local disk.

    python benchmarks/tier.py [--only PART] [--quick] [--rounds N] [--json]

A log of 256 MiB in a folder, and one of 48 MiB in an S3 server on loopback, which runs in this process. Cold means that
nothing but the root is known; the GETs are fsspec's, on as many threads as read ahead, of chunks of the same size. Warm
means that the chunks are in a cache on disk and the pages of both logs in the system's cache.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import fsspec

from harness import (
    Bound,
    Case,
    LocalSide,
    Machine,
    Options,
    PreparedSide,
    Reporter,
    Result,
    WrongOutcomeError,
    measure,
    parse_options,
)
from stratalog import Record, open_engine, open_reader
from stratalog.config.engine import EngineConfig, Limits
from stratalog.log.reader import LogReader
from stratalog.testing.s3 import local_s3

_OURS: Final = "stratalog"
_GETS: Final = "ranged GETs alone"
_LOCAL: Final = "local disk"
_COLD: Final = "sequential remote read, cold"
_WARM: Final = "sequential remote read, warm from the cache on disk"
_WORTH: Final = 0.8
_BATCH_RECORDS: Final = 8_000
_S3_BYTES: Final = 48 << 20  # the server is slow


def main(arguments: list[str] | None = None) -> int:
    """Measure what the command line asks for; 1 if a side does something wrong, else 0, whatever was reached."""
    options = parse_options(__doc__ or "", arguments)
    reporter, results = Reporter(as_json=options.json), dict[str, Result]()
    reporter.machine(Machine.now(("stratalog", "fsspec", "s3fs")))
    with tempfile.TemporaryDirectory(prefix="tier-benchmark-") as scratch, ExitStack() as stack:
        try:
            for case in _cases(Path(scratch), options, stack):
                results[case.name] = measure(case, options.plan)
                reporter.result(results[case.name])
        except WrongOutcomeError as error:
            print(f"wrong: {error}", file=sys.stderr)
            return 1
    bounds = [
        Bound(_COLD, "tier/cold/file", _OURS, _GETS, _WORTH),
        Bound(_COLD, "tier/cold/s3", _OURS, _GETS, _WORTH),
        Bound(_WARM, "tier/warm", _OURS, _LOCAL, _WORTH),
    ]
    reporter.verdicts([bound.verdict(results) for bound in bounds if options.wants(bound.case)])
    return 0


def _cases(scratch: Path, options: Options, stack: ExitStack) -> Iterator[Case]:
    size_bytes = (2 << 20) if options.quick else (256 << 20)
    if any(map(options.wants, ("tier/cold/file", "tier/warm"))):
        (scratch / "bucket").mkdir()
        made = _Made(scratch / "file", (scratch / "bucket").as_uri(), {}, size_bytes)
        if options.wants("tier/cold/file"):
            yield made.cold("tier/cold/file")
        if options.wants("tier/warm"):
            yield made.warm("tier/warm", stack)
    if options.wants("tier/cold/s3"):
        server = stack.enter_context(local_s3())
        made = _Made(scratch / "s3", server.uri("tier"), server.options, min(size_bytes, _S3_BYTES))
        yield made.cold("tier/cold/s3")


class _Made:
    """A log with all but its active segment in a tier, and one that is the same on local disk alone."""

    def __init__(self, folder: Path, uri: str, store: Mapping[str, Any], size_bytes: int) -> None:
        self._folder, self._uri, self._store = folder, uri, store
        self.records = 0
        config = {"segment.bytes": min(64 << 20, size_bytes // 2)}
        remote = {"remote.storage.enable": True, "local.retention.bytes": 1}
        with self._engine() as engine:
            engine.create_topic("remote", config={**config, **remote})
            engine.create_topic("local", config={**config, "remote.storage.enable": False})
            logs = engine.log("remote", 0), engine.log("local", 0)
            batch = [Record(key=b"k%09d" % row, value=os.urandom(50).hex().encode()) for row in range(_BATCH_RECORDS)]
            written = 0
            while written < size_bytes:
                for log in logs:
                    log.append(batch)
                self.records += len(batch)
                written += len(batch) * 118
            logs[0].roll()
            engine.offload()
            engine.apply_retention()
            self.size_bytes = sum(found.size_bytes for found in logs[0].segments())

    def cold(self, name: str) -> Case:
        """The raw batches through a reader that was just opened."""
        ours = PreparedSide(_OURS, self._cold_readers, lambda: self._check(self._read_cold()))
        gets = LocalSide(_GETS, self._get_all, lambda: self._check(self._get_all()))
        return Case(name, f"{_COLD}; {self.size_bytes >> 20} MiB", [ours, gets], self.records, self.size_bytes)

    def warm(self, name: str, stack: ExitStack) -> Case:
        """The records as columns."""
        engine = stack.enter_context(self._engine({"tier.cache.dir": str(self._folder / "cache")}))
        remote, local = engine.log("remote", 0), engine.log("local", 0)
        _fetch_all(remote)
        sides = [
            LocalSide(side, _counter(log), lambda log=log: self._check_records(log))  # type: ignore[misc]  # bound at once
            for side, log in ((_OURS, remote), (_LOCAL, local))
        ]
        return Case(name, f"{_WARM}; {self.size_bytes >> 20} MiB", sides, self.records, self.size_bytes)

    def _engine(self, settings: Mapping[str, object] | None = None) -> Any:
        config = {"log.dirs": [str(self._folder)], **(settings or {})}
        return open_engine(config=config, tier=self._uri, tier_options=dict(self._store))

    @contextmanager
    def _cold_readers(self, calls: int) -> Iterator[Callable[[], object]]:
        with ExitStack() as stack:
            readers = [
                stack.enter_context(open_reader(self._uri, tier_options=dict(self._store))) for _ in range(calls)
            ]
            logs = [reader.log("remote", 0) for reader in readers]
            yield lambda: _fetch_all(logs.pop())

    def _read_cold(self) -> int:
        with self._cold_readers(1) as call:
            found = call()
        assert isinstance(found, int)
        return found

    def _get_all(self) -> int:
        """Every object in chunks, several at a time, dropped as they come."""
        filesystem, root = fsspec.core.url_to_fs(self._uri, **self._store)
        chunk = Limits().fetch_chunk_bytes
        jobs = [
            (path, start, min(start + chunk, found["size"]))
            for path, found in filesystem.find(root, detail=True).items()
            if path.endswith(".seg")
            for start in range(0, found["size"], chunk)
        ]
        with ThreadPoolExecutor(EngineConfig().reader_threads) as pool:
            sizes = pool.map(lambda job: len(filesystem.cat_file(job[0], start=job[1], end=job[2])), jobs)
            return sum(sizes)

    def _check(self, size_bytes: int) -> None:
        if not self.size_bytes <= size_bytes <= self.size_bytes * 1.02 + 10_000:  # GETs read indexes and footers, too
            raise WrongOutcomeError(f"{size_bytes} bytes of {self.size_bytes}")

    def _check_records(self, log: LogReader) -> None:
        found = _counter(log)()
        if found != self.records:
            raise WrongOutcomeError(f"{found} records of {self.records}")


def _fetch_all(log: LogReader) -> int:
    offset, size_bytes = 0, 0
    while True:
        with log.fetch(offset) as fetched:
            if fetched.next_offset == offset:
                return size_bytes
            offset = fetched.next_offset
            size_bytes += fetched.size_bytes


def _counter(log: LogReader) -> Callable[[], int]:
    return lambda: sum(columns.count for columns in log.columns())


if __name__ == "__main__":
    sys.exit(main())
