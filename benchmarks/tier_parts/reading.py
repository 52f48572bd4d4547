"""Reads of a tiered log from its start: cold compared with ranged GETs, warm compared with a log on local disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import fsspec
from crc32c import crc32c

from harness import Bound, Case, PreparedSide, WrongOutcomeError
from log_parts.pages import warm_memory
from stratalog import open_reader
from stratalog.config.engine_settings import EngineConfig, Limits
from stratalog.log.read.log_reader import LogReader
from tier_parts.logs import LOCAL, REMOTE, LocalLog, Store, engine_on, fetch_all

COLD_S3: Final = "tier/cold/s3"
COLD_DISK: Final = "tier/cold/disk"
COLD_FILE: Final = "tier/cold/file"
WARM: Final = "tier/warm"
_OURS: Final = "stratalog"
_GETS: Final = "ranged GETs alone"
_CHECKED: Final = "ranged GETs and a CRC"
_LOCAL: Final = "local disk"
_COLD_TITLE: Final = "sequential remote read, cold"
_WARM_TITLE: Final = "sequential remote read, warm from the cache on disk"
_WORTH: Final = 0.8
_MEMORY_BYTES: Final = 160 << 20  # more than any side allocates
_SURPLUS: Final = 1.02  # GETs also read indexes and footers
_SURPLUS_BYTES: Final = 10_000


def reading_bounds() -> list[Bound]:
    """Return the bounds: the required speed of stratalog, relative to GETs and to local disk."""
    cold = [Bound(_COLD_TITLE, case, _OURS, _GETS, _WORTH) for case in (COLD_S3, COLD_DISK, COLD_FILE)]
    return [*cold, Bound(_WARM_TITLE, WARM, _OURS, _LOCAL, _WORTH)]


class Cold:
    """Reads of raw batches by new readers, compared with GETs of all objects, and with GETs that also compute a CRC.

    Args:
        local_log: the log.
        store: location of the tier that has the log.
        from_disk: True if the objects are files that must not be in the page cache; they are dropped from it before
            each sample.
    """

    def __init__(self, local_log: LocalLog, store: Store, *, from_disk: bool = False) -> None:
        self._local_log, self._store, self._from_disk = local_log, store, from_disk

    def case(self, name: str) -> Case:
        """Return the case with this name. Each side reads the whole log in a call."""
        sides = [
            PreparedSide(_OURS, self._readers, lambda: self._check(self._readers)),
            PreparedSide(_GETS, self._gets, lambda: self._check(self._gets)),
            PreparedSide(_CHECKED, self._checked_gets, lambda: self._check(self._checked_gets)),
        ]
        from_what = ", files not in the system's cache" if self._from_disk else ""
        title = f"{_COLD_TITLE}{from_what}; {self._local_log.size_bytes >> 20} MiB"
        return Case(name, title, sides, self._local_log.records, self._local_log.size_bytes)

    @contextmanager
    def _readers(self, calls: int) -> Iterator[Callable[[], int]]:
        with ExitStack() as stack:
            readers = [
                stack.enter_context(open_reader(self._store.uri, tier_options=dict(self._store.options)))
                for _ in range(calls)
            ]
            logs = [reader.log(REMOTE, 0) for reader in readers]
            self._forget_files()
            warm_memory(_MEMORY_BYTES)
            yield lambda: fetch_all(logs.pop())

    @contextmanager
    def _gets(self, _calls: int) -> Iterator[Callable[[], int]]:
        self._forget_files()
        warm_memory(_MEMORY_BYTES)
        yield lambda: self._get_all(len)

    @contextmanager
    def _checked_gets(self, _calls: int) -> Iterator[Callable[[], int]]:
        self._forget_files()
        warm_memory(_MEMORY_BYTES)
        yield lambda: self._get_all(_size_and_crc)

    def _get_all(self, size_of: Callable[[bytes], int]) -> int:
        """GET every object in chunks, several at a time, drop each chunk, and return the sum of ``size_of``."""
        filesystem, root = fsspec.core.url_to_fs(self._store.uri, **self._store.options)
        chunk_bytes = Limits().fetch_chunk_bytes
        jobs = [
            (path, start, min(start + chunk_bytes, info["size"]))
            for path, info in filesystem.find(root, detail=True).items()
            if path.endswith(".seg")
            for start in range(0, info["size"], chunk_bytes)
        ]
        with ThreadPoolExecutor(EngineConfig().reader_threads) as pool:
            return sum(pool.map(lambda job: size_of(filesystem.cat_file(job[0], start=job[1], end=job[2])), jobs))

    def _forget_files(self) -> None:
        if self._from_disk:
            for file in Path(unquote(urlsplit(self._store.uri).path)).rglob("*.seg"):
                with file.open("rb") as stream:
                    os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def _check(self, prepare: Callable[[int], object]) -> None:
        with prepare(1) as call:  # type: ignore[attr-defined]  # both are context managers
            read_bytes = call()
        local_log = self._local_log
        if not local_log.size_bytes <= read_bytes <= local_log.size_bytes * _SURPLUS + _SURPLUS_BYTES:
            raise WrongOutcomeError(f"{read_bytes} bytes of {local_log.size_bytes}")


def _size_and_crc(data: bytes) -> int:
    crc32c(data)
    return len(data)


def warm_case(local_log: LocalLog, store: Store, stack: ExitStack) -> Case:
    """Return the case that reads records as columns: from the disk cache of a tier, and from a log on local disk."""
    cache = local_log.folder.with_name(f"{local_log.folder.name}-cache")
    engine = stack.enter_context(engine_on(local_log.folder, store, {"tier.cache.dir": str(cache)}))
    logs = {_OURS: engine.log(REMOTE, 0), _LOCAL: engine.log(LOCAL, 0)}
    fetch_all(logs[_OURS])

    def side(name: str, log: LogReader) -> PreparedSide:
        def count() -> int:
            return sum(columns.count for columns in log.columns())

        def check() -> None:
            if (record_count := count()) != local_log.records:
                raise WrongOutcomeError(f"{name}: {record_count} records of {local_log.records}")

        @contextmanager
        def prepare(_calls: int) -> Iterator[Callable[[], int]]:
            warm_memory(_MEMORY_BYTES)
            yield count

        return PreparedSide(name, prepare, check)

    sides = [side(name, log) for name, log in logs.items()]
    return Case(
        WARM, f"{_WARM_TITLE}; {local_log.size_bytes >> 20} MiB", sides, local_log.records, local_log.size_bytes
    )
