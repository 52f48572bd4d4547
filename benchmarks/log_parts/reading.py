"""Reading a whole log: raw batches, records, Arrow. Peers read the segment files directly."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from codec_parts.peer import arrow_of, consume, lists_of
from codec_parts.python_peers import Aiokafka
from harness import KAFKA, WARM_UP_TIMES, Bound, Case, LocalSide, Side, Worker, WorkerSide, WrongOutcomeError
from log_parts.logs import ClosedLog, open_log
from stratalog.env import PosixVfs
from stratalog.log.log import Log

OURS: Final = "stratalog"
AIOKAFKA: Final = "aiokafka"
PREAD: Final = "pread alone"
FETCH: Final = "read/fetch"
RECORDS: Final = "read/records"
ARROW: Final = "read/arrow"
ARROW_READ_IN: Final = "read/arrow-read-in"
STEP_BYTES: Final = 1 << 20
STEP_RECORDS: Final = 100_000
_TITLES: Final = {
    FETCH: "fetch of raw batches, 1 MiB a call",
    RECORDS: "records() over a log",
    ARROW: "to_arrow() over a log, 100,000 records a call",
    ARROW_READ_IN: "the same, once the log was read in from disk",
}


def read_bounds() -> list[Bound]:
    """Return the bounds: the required speed of stratalog, relative to other sides."""
    return [
        Bound(_TITLES[FETCH], FETCH, OURS, PREAD, 0.9),
        Bound(_TITLES[RECORDS], RECORDS, OURS, AIOKAFKA, 3),
        Bound(_TITLES[RECORDS], RECORDS, OURS, KAFKA, 0.7),
        *(Bound(_TITLES[name], name, OURS, AIOKAFKA, 30) for name in (ARROW, ARROW_READ_IN)),
        *(Bound(_TITLES[name], name, OURS, KAFKA, 1.5) for name in (ARROW, ARROW_READ_IN)),
    ]


def read_cases(
    closed_log: ClosedLog,
    scratch: Path,
    aiokafka: Aiokafka | None,
    jvm: Worker | None,
    wants: Callable[[str], bool],
    stack: ExitStack,
    *,
    read_in: bool = False,
) -> Iterator[Case]:
    """Yield the selected cases; a call reads the whole log.

    Args:
        closed_log: a log of one segment.
        scratch: a folder for the files of workers.
        aiokafka: None if it is not installed.
        jvm: a worker with Kafka's classes; None if there is no Java.
        wants: returns True for the name of a selected case.
        stack: closes the log at its exit.
        read_in: True for the cases that read a log after ``_read_into_cache``, False for all others. Measure True last,
            because it changes how the system caches the file.
    """
    names = [name for name in _TITLES if wants(name) and (name == ARROW_READ_IN) == read_in]
    if not names:
        return
    log = stack.enter_context(open_log(closed_log))
    (file,) = closed_log.folder.glob("*.log")
    descriptor = os.open(file, os.O_RDONLY)
    stack.callback(os.close, descriptor)
    if jvm is not None:
        jvm.load("log", closed_log.folder)
    local_sides: dict[str, list[Side]] = {
        FETCH: [
            _bytes_side(OURS, closed_log, lambda: map(bytes, _fetch(log)), lambda: _drop(_fetch(log))),
            _bytes_side(PREAD, closed_log, lambda: _steps(descriptor), lambda: _drop(_steps(descriptor))),
        ],
        RECORDS: [_sum_side(OURS, closed_log, partial(_record_sum, log), lambda: consume([log.records()]))],
        ARROW: [
            _sum_side(
                OURS, closed_log, lambda: _arrow_sum(_tables(log, closed_log)), lambda: _drop(_tables(log, closed_log))
            )
        ],
    }
    if aiokafka is not None:
        parts = partial(_parts, aiokafka, descriptor)
        local_sides[RECORDS].append(
            _sum_side(AIOKAFKA, closed_log, lambda: _peer_sum(parts()), lambda: consume(parts()))
        )
        local_sides[ARROW].append(
            _sum_side(AIOKAFKA, closed_log, lambda: _arrow_sum(_peer_tables(parts)), lambda: _drop(_peer_tables(parts)))
        )
    local_sides[ARROW_READ_IN] = list(local_sides[ARROW])
    if read_in:
        _read_into_cache(descriptor)
    for name in names:
        sides = local_sides[name]
        if jvm is not None:
            job, check = ("fetch", check_bytes) if name == FETCH else ("iterate", _check_java_sum)
            verify = partial(check, closed_log)
            sides.append(WorkerSide(KAFKA, jvm, job, "log", scratch, verify, warm_up_times=WARM_UP_TIMES))
        yield Case(
            name,
            f"{_TITLES[name]}; {closed_log.size_bytes >> 20} MiB",
            sides,
            closed_log.records,
            closed_log.size_bytes,
        )


# ---------------------------------------------------------------- the work


def _fetch(log: Log) -> Iterator[memoryview]:
    offset, end = 0, log.offsets().high_watermark
    while offset < end:
        with log.fetch(offset, STEP_BYTES) as fetched:
            offset = fetched.next_offset
            for piece in fetched.slices:
                yield piece.data


def _steps(descriptor: int) -> Iterator[bytes]:
    position = 0
    while data := os.pread(descriptor, STEP_BYTES, position):
        position += len(data)
        yield data


def _read_into_cache(descriptor: int) -> None:
    """Drop the file from the page cache, and read it in steps of 1 MiB.

    Then the page cache holds large pieces, as after a restart, instead of the small pieces of the appends.
    """
    PosixVfs().sync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    _drop(_steps(descriptor))


def _tables(log: Log, closed_log: ClosedLog) -> Iterator[Any]:
    for start in range(0, closed_log.records, STEP_RECORDS):
        yield log.to_arrow(start, start + STEP_RECORDS)


def _parts(library: Aiokafka, descriptor: int) -> Iterator[Any]:
    """Read the file in steps of 1 MiB, and yield the complete batches of each step.

    The next step starts at the first batch that is not complete in this step.
    """
    position = 0
    while data := os.pread(descriptor, STEP_BYTES, position):
        end = _whole_batches_end(data)
        position += end
        yield from library.batches(data[:end])


def _whole_batches_end(data: bytes) -> int:
    position = 0
    while position + 12 <= len(data):
        after = position + 12 + int.from_bytes(data[position + 8 : position + 12])
        if after > len(data):
            break
        position = after
    return position


def _peer_tables(parts: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    gathered, count = [], 0
    for batch in parts():
        gathered.append(batch)
        count += batch.next_offset - batch.base_offset
        if count >= STEP_RECORDS:
            yield arrow_of(lists_of(gathered))
            gathered, count = [], 0
    if gathered:
        yield arrow_of(lists_of(gathered))


def _drop(parts: Iterator[object]) -> None:
    for _ in parts:
        pass


# ---------------------------------------------------------------- checks of the outcomes


def _bytes_side(
    name: str, closed_log: ClosedLog, read: Callable[[], Iterator[bytes]], work: Callable[[], object]
) -> Side:
    def check() -> None:
        digest = hashlib.sha256()
        for data in read():
            digest.update(data)
        check_bytes(closed_log, f"{digest.hexdigest()}\n".encode(), name)

    return LocalSide(name, work, check)


def _sum_side(name: str, closed_log: ClosedLog, total: Callable[[], int], work: Callable[[], object]) -> Side:
    def check() -> None:
        _check_sum(closed_log, total(), name)

    return LocalSide(name, work, check)


def check_bytes(closed_log: ClosedLog, outcome: bytes, side: str = KAFKA) -> None:
    """Compare the SHA-256 hash of the read bytes with the hash of the segment file.

    Raises:
        WrongOutcomeError: the digests differ.
    """
    if outcome != f"{_digest(closed_log)}\n".encode():
        raise WrongOutcomeError(f"{side}: other bytes than the segment's")


def _check_java_sum(closed_log: ClosedLog, outcome: bytes) -> None:
    digest, total = outcome.decode().split()
    check_bytes(closed_log, f"{digest}\n".encode())
    _check_sum(closed_log, int(total), KAFKA)


def _check_sum(closed_log: ClosedLog, total: int, side: str) -> None:
    """Raise WrongOutcomeError if the sum of offsets, timestamps and lengths is not that of the log."""
    if total != closed_log.total:
        raise WrongOutcomeError(f"{side}: offsets, timestamps and lengths add up to {total}, not {closed_log.total}")


def _digest(closed_log: ClosedLog) -> str:
    (file,) = closed_log.folder.glob("*.log")
    with file.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _record_sum(log: Log) -> int:
    return sum(
        record.offset + record.timestamp_ms + len(record.headers) + len(record.key or b"") + len(record.value or b"")
        for record in log.records()
    )


def _peer_sum(parts: Iterator[Any]) -> int:
    return sum(
        record.offset + record.timestamp + len(record.headers) + len(record.key) + len(record.value)
        for part in parts
        for record in part
    )


def _arrow_sum(tables: Iterator[Any]) -> int:
    import pyarrow as pa  # noqa: PLC0415 - an extra: only these cases need it
    from pyarrow import compute  # noqa: PLC0415 - likewise

    total = 0
    for table in tables:
        stamps = table.column("timestamp").cast(pa.int64())
        columns = [table.column("offset"), compute.divide(stamps, 1000)]
        columns += [compute.binary_length(table.column(name)) for name in ("key", "value")]
        total += sum(compute.sum(column).as_py() for column in columns)
    return total
