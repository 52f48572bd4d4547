"""Appending to the page cache: records, and batches that a producer encoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from codec_parts.python_peers import Aiokafka, inputs_of
from codec_parts.workloads import Shape, Workload, canonical, make, row_of
from harness import KAFKA, WARM_UP_TIMES, Bound, Case, PreparedSide, Side, Worker, WorkerSide, WrongOutcomeError
from log_parts.logs import TOPIC, engine_on, scratch_folder
from log_parts.pages import warm_pages
from stratalog import Record
from stratalog.log.log import Log

OURS: Final = "stratalog"
AIOKAFKA: Final = "aiokafka and write"
WRITE: Final = "write alone"
RECORDS: Final = "append/records"
SMALL: Final = "append/16KiB"
LARGE: Final = "append/1MiB"
_SHAPES: Final = {RECORDS: Shape(batch_records=1000), SMALL: Shape(batch_records=134), LARGE: Shape(batch_records=8500)}
_TITLES: Final = {
    RECORDS: "append 1,000 records of 100 B a call, to the page cache",
    SMALL: "append_as_leader of batches of 16 KiB, to the page cache",
    LARGE: "append_as_leader of batches of 1 MiB, to the page cache",
}
_SEGMENT_BYTES: Final = 1 << 30


def append_bounds() -> list[Bound]:
    """Return the bounds: the required speed of stratalog, relative to other sides."""
    return [
        Bound(_TITLES[RECORDS], RECORDS, OURS, AIOKAFKA, 2.5),
        Bound(_TITLES[RECORDS], RECORDS, OURS, KAFKA, 1.2),
        Bound(_TITLES[SMALL], SMALL, OURS, KAFKA, 1),
        Bound(_TITLES[LARGE], LARGE, OURS, KAFKA, 1.2),
    ]


def append_cases(
    scratch: Path, aiokafka: Aiokafka | None, jvm: Worker | None, wants: Callable[[str], bool], *, quick: bool
) -> Iterator[Case]:
    """Yield the selected cases. A call appends all batches of a workload (about 1 MiB), one append for each batch."""
    for name, shape in _SHAPES.items():
        if not wants(name):
            continue
        workload = make(shape, quick=quick)
        sides: list[Side] = [_ours(name, workload, scratch)]
        if name == RECORDS:
            sides += [] if aiokafka is None else [_aiokafka(aiokafka, workload, scratch)]
        else:
            sides.append(_write(workload, scratch))
        if jvm is not None:
            file = scratch / shape.name
            file.write_bytes(workload.data)
            jvm.load(name, file)
            job = "append-records" if name == RECORDS else "append"
            verify = partial(_compare, KAFKA, workload)
            sides.append(WorkerSide(KAFKA, jvm, job, name, scratch, verify, warm_up_times=WARM_UP_TIMES))
        yield Case(name, _TITLES[name], sides, workload.records, workload.raw_bytes)


def _compare(side: str, workload: Workload, outcome: bytes) -> None:
    """Raise WrongOutcomeError if the log does not have exactly the records of the workload."""
    if outcome != workload.rows:
        raise WrongOutcomeError(f"{side}: other records are in the log than were appended")


def _ours(name: str, workload: Workload, scratch: Path) -> Side:
    work = _append_records(workload) if name == RECORDS else _append_batches(workload)

    @contextmanager
    def prepare(calls: int) -> Iterator[Callable[[], object]]:
        with _empty_log(scratch) as log:
            work(log)  # the first call, with work that a log does only once, is not measured
            warm_pages(scratch, calls * len(workload.data))
            yield partial(work, log)

    def check() -> None:
        with _empty_log(scratch) as log:
            work(log)
            _compare(OURS, workload, canonical(map(row_of, log.records())))

    return PreparedSide(OURS, prepare, check)


def _append_records(workload: Workload) -> Callable[[Log], None]:
    batches = [
        [Record(timestamp_ms=stamp, key=key, value=value, headers=headers) for _, stamp, key, value, headers in rows]
        for rows in workload.batches
    ]

    def work(log: Log) -> None:
        for records in batches:
            log.append(records)

    return work


def _append_batches(workload: Workload) -> Callable[[Log], None]:
    batches = _split_batches(workload)

    def work(log: Log) -> None:
        for batch in batches:
            batch[:8] = bytes(8)  # reset the base offset, which the log assigned at the last append
            log.append_as_leader(batch)

    return work


def _split_batches(workload: Workload) -> list[bytearray]:
    """Return each batch in its own buffer, as a server receives it."""
    batches, data = [], workload.data
    while data:
        size = 12 + int.from_bytes(data[8:12])
        batches.append(bytearray(data[:size]))
        data = data[size:]
    return batches


@contextmanager
def _empty_log(scratch: Path) -> Iterator[Log]:
    with scratch_folder(scratch) as root, engine_on(root) as engine:
        engine.create_topic(TOPIC, config={"segment.bytes": _SEGMENT_BYTES, "retention.ms": -1})
        yield engine.log(TOPIC, 0)


def _aiokafka(library: Aiokafka, workload: Workload, scratch: Path) -> Side:
    encode, batches = library.encoder(workload.codec), inputs_of(workload)
    return _writing(AIOKAFKA, workload, scratch, lambda file: [file.write(encode(batch)) for batch in batches])


def _write(workload: Workload, scratch: Path) -> Side:
    batches = _split_batches(workload)
    return _writing(WRITE, workload, scratch, lambda file: [file.write(batch) for batch in batches])


def _writing(name: str, workload: Workload, scratch: Path, work: Callable[[BinaryIO], object]) -> Side:
    """Return a side that writes to a plain file instead of a log."""

    @contextmanager
    def prepare(calls: int) -> Iterator[Callable[[], object]]:
        with scratch_folder(scratch) as root, (root / "file").open("wb", buffering=0) as file:
            warm_pages(scratch, calls * len(workload.data))
            yield partial(work, file)

    def check() -> None:
        with scratch_folder(scratch) as root:
            with (root / "file").open("wb", buffering=0) as file:
                work(file)
            data = (root / "file").read_bytes()
        if len(data) != len(workload.data) or (name == WRITE and data != workload.data):
            raise WrongOutcomeError(f"{name}: other bytes are in the file than were to be written")

    return PreparedSide(name, prepare, check)
