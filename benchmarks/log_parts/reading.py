"""Reading a whole log: raw batches, records, Arrow; what peers read of the files alone."""

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
from log_parts.logs import MadeLog, opened
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
    """Return the required ratios."""
    return [
        Bound(_TITLES[FETCH], FETCH, OURS, PREAD, 0.9),
        Bound(_TITLES[RECORDS], RECORDS, OURS, AIOKAFKA, 3),
        Bound(_TITLES[RECORDS], RECORDS, OURS, KAFKA, 0.7),
        *(Bound(_TITLES[name], name, OURS, AIOKAFKA, 30) for name in (ARROW, ARROW_READ_IN)),
        *(Bound(_TITLES[name], name, OURS, KAFKA, 1.5) for name in (ARROW, ARROW_READ_IN)),
    ]


def read_cases(
    made: MadeLog,
    scratch: Path,
    aiokafka: Aiokafka | None,
    jvm: Worker | None,
    wants: Callable[[str], bool],
    stack: ExitStack,
    *,
    read_in: bool = False,
) -> Iterator[Case]:
    """Yield the selected cases; a call reads all of the log.

    Args:
        made: one segment.
        scratch: a folder for what workers write.
        aiokafka: None if it is not installed.
        jvm: None if there is none.
        wants: by name.
        stack: closes what is opened.
        read_in: the cases of a log that was read in from disk, which it is from then on: they come last.
    """
    names = [name for name in _TITLES if wants(name) and (name == ARROW_READ_IN) == read_in]
    if not names:
        return
    log = stack.enter_context(opened(made))
    (file,) = made.folder.glob("*.log")
    descriptor = os.open(file, os.O_RDONLY)
    stack.callback(os.close, descriptor)
    if jvm is not None:
        jvm.load("log", made.folder)
    local: dict[str, list[Side]] = {
        FETCH: [
            _bytes_side(OURS, made, lambda: map(bytes, _fetched(log)), lambda: _drop(_fetched(log))),
            _bytes_side(PREAD, made, lambda: _steps(descriptor), lambda: _drop(_steps(descriptor))),
        ],
        RECORDS: [_sum_side(OURS, made, partial(_record_sum, log), lambda: consume([log.records()]))],
        ARROW: [_sum_side(OURS, made, lambda: _arrow_sum(_tables(log, made)), lambda: _drop(_tables(log, made)))],
    }
    if aiokafka is not None:
        parts = partial(_parts, aiokafka, descriptor)
        local[RECORDS].append(_sum_side(AIOKAFKA, made, lambda: _peer_sum(parts()), lambda: consume(parts())))
        local[ARROW].append(
            _sum_side(AIOKAFKA, made, lambda: _arrow_sum(_peer_tables(parts)), lambda: _drop(_peer_tables(parts)))
        )
    local[ARROW_READ_IN] = list(local[ARROW])
    if read_in:
        _read_in(descriptor)
    for name in names:
        sides = local[name]
        if jvm is not None:
            job, check = ("fetch", check_bytes) if name == FETCH else ("iterate", _check_java_sum)
            verify = partial(check, made)
            sides.append(WorkerSide(KAFKA, jvm, job, "log", scratch, verify, warm_up_times=WARM_UP_TIMES))
        yield Case(name, f"{_TITLES[name]}; {made.size_bytes >> 20} MiB", sides, made.records, made.size_bytes)


# ---------------------------------------------------------------- the work


def _fetched(log: Log) -> Iterator[memoryview]:
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


def _read_in(descriptor: int) -> None:
    """Have the system hold the file as it does after a restart: in large pieces, not in those that appends came in."""
    PosixVfs().sync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    _drop(_steps(descriptor))


def _tables(log: Log, made: MadeLog) -> Iterator[Any]:
    for start in range(0, made.records, STEP_RECORDS):
        yield log.to_arrow(start, start + STEP_RECORDS)


def _parts(library: Aiokafka, descriptor: int) -> Iterator[Any]:
    """Batches, whole ones from steps of 1 MiB: what a step has of a last one is read again with the next."""
    position = 0
    while data := os.pread(descriptor, STEP_BYTES, position):
        end = _whole(data)
        position += end
        yield from library.batches(data[:end])


def _whole(data: bytes) -> int:
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


# ---------------------------------------------------------------- what must come out


def _bytes_side(name: str, made: MadeLog, read: Callable[[], Iterator[bytes]], work: Callable[[], object]) -> Side:
    def check() -> None:
        digest = hashlib.sha256()
        for data in read():
            digest.update(data)
        check_bytes(made, f"{digest.hexdigest()}\n".encode(), name)

    return LocalSide(name, work, check)


def _sum_side(name: str, made: MadeLog, total: Callable[[], int], work: Callable[[], object]) -> Side:
    def check() -> None:
        _check_sum(made, total(), name)

    return LocalSide(name, work, check)


def check_bytes(made: MadeLog, outcome: bytes, side: str = KAFKA) -> None:
    """Compare the digest of what was read with that of the segment.

    Raises:
        WrongOutcomeError: it is something else.
    """
    if outcome != f"{_digest(made)}\n".encode():
        raise WrongOutcomeError(f"{side}: other bytes than the segment's")


def _check_java_sum(made: MadeLog, outcome: bytes) -> None:
    digest, total = outcome.decode().split()
    check_bytes(made, f"{digest}\n".encode())
    _check_sum(made, int(total), KAFKA)


def _check_sum(made: MadeLog, total: int, side: str) -> None:
    """Offsets, timestamps and lengths of all records, added up."""
    if total != made.total:
        raise WrongOutcomeError(f"{side}: offsets, timestamps and lengths add up to {total}, not {made.total}")


def _digest(made: MadeLog) -> str:
    (file,) = made.folder.glob("*.log")
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
