"""Look-ups of one record by offset and by timestamp, in a log of one segment and in a log of very many segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from harness import KAFKA, WARM_UP_TIMES, Bound, Case, LocalSide, Rate, Side, Worker, WorkerSide, WrongOutcomeError
from log_parts.logs import FIRST_MS, LOOK_UPS, ClosedLog, open_log, random_offsets
from stratalog.log.log import Log

OURS: Final = "stratalog"
MANY: Final = "stratalog, many segments"
OFFSETS: Final = "lookup/offset"
TIMESTAMPS: Final = "lookup/timestamp"
RANGES: Final = "lookup/range"
FETCHED: Final = "fetch, which reads it"
_JOBS: Final = {OFFSETS: "offsets", TIMESTAMPS: "timestamps"}
_TITLES: Final = {OFFSETS: "fetch one record by offset, anywhere", TIMESTAMPS: "offset_for_timestamp, anywhere"}
_FLAT: Final = 0.8  # least speed with many segments, relative to the speed with one segment
_RANGE_TITLE: Final = "transfer of 1 MiB from anywhere, ready to be sent"
_RANGE_BYTES: Final = 1 << 20


def lookup_bounds() -> list[Bound | Rate]:
    """Return the bounds: the required look-ups per second, and the required speed relative to other sides."""
    return [
        Rate(_TITLES[OFFSETS], OFFSETS, OURS, 60_000),
        Rate(_TITLES[TIMESTAMPS], TIMESTAMPS, OURS, 25_000),
        Bound("look-ups are flat: as fast in many segments", OFFSETS, MANY, OURS, _FLAT),
        Bound("look-ups are flat: as fast in many segments", TIMESTAMPS, MANY, OURS, _FLAT),
        Rate(_RANGE_TITLE, RANGES, OURS, 33_000),
        Bound(_RANGE_TITLE, RANGES, OURS, FETCHED, 2),
    ]


def lookup_cases(
    small_log: ClosedLog,
    large_log: ClosedLog,
    scratch: Path,
    jvm: Worker | None,
    wants: Callable[[str], bool],
    stack: ExitStack,
) -> Iterator[Case]:
    """Yield the selected cases; a call looks up 1,000 records.

    Args:
        small_log: a log of one segment.
        large_log: a log of many segments.
        scratch: a folder for the files of workers.
        jvm: a worker with Kafka's classes; None if there is no Java.
        wants: returns True for the name of a selected case.
        stack: closes the logs at its exit.
    """
    names = [name for name in _TITLES if wants(name)]
    if not names:
        return
    logs = {
        name: (closed_log, stack.enter_context(open_log(closed_log)))
        for name, closed_log in ((OURS, small_log), (MANY, large_log))
    }
    if jvm is not None:
        jvm.load("log", small_log.folder)
    for name in names:
        sides: list[Side] = [_side(side, name, closed_log, log) for side, (closed_log, log) in logs.items()]
        if jvm is not None:
            verify = partial(check_found, KAFKA, name, small_log)
            sides.append(WorkerSide(KAFKA, jvm, _JOBS[name], "log", scratch, verify, warm_up_times=WARM_UP_TIMES))
        segments = len(logs[MANY][1].segments())
        yield Case(name, f"{_TITLES[name]}; 1 segment, and {segments:,}", sides, LOOK_UPS, 0)


def range_case(closed_log: ClosedLog, wants: Callable[[str], bool], stack: ExitStack) -> Iterator[Case]:
    """Yield the case that finds the byte ranges of transfers, compared with fetches of the same bytes.

    A call finds 1,000 ranges. No case is yielded if it is not selected.
    """
    if not wants(RANGES):
        return
    log = stack.enter_context(open_log(closed_log))
    offsets = random_offsets(closed_log.records)
    expected = _fetch_ranges(log, offsets)

    def side(name: str, ranges: Callable[[Log, list[int]], list[tuple[int, int]]]) -> Side:
        def check() -> None:
            if ranges(log, offsets) != expected:
                raise WrongOutcomeError(f"{name}: other batches than those of a fetch")

        return LocalSide(name, partial(ranges, log, offsets), check)

    sides = [side(OURS, _transfer_ranges), side(FETCHED, _fetch_ranges)]
    yield Case(RANGES, _RANGE_TITLE, sides, LOOK_UPS, 0)


def _transfer_ranges(log: Log, offsets: list[int]) -> list[tuple[int, int]]:
    ranges = []
    for offset in offsets:
        with log.transfer(offset, _RANGE_BYTES) as ready:
            ranges.append((ready.next_offset, ready.size_bytes))
    return ranges


def _fetch_ranges(log: Log, offsets: list[int]) -> list[tuple[int, int]]:
    ranges = []
    for offset in offsets:
        with log.fetch(offset, _RANGE_BYTES) as fetched:
            ranges.append((fetched.next_offset, fetched.size_bytes))
    return ranges


def _side(side: str, name: str, closed_log: ClosedLog, log: Log) -> Side:
    offsets = random_offsets(closed_log.records)
    stamps = [FIRST_MS + offset for offset in offsets]

    def work() -> Sequence[int | None]:
        return _fetch_all(log, offsets) if name == OFFSETS else _find_all(log, stamps)

    def check() -> None:
        check_found(side, name, closed_log, "".join(f"{offset}\n" for offset in work()).encode())

    return LocalSide(side, work, check)


def _fetch_all(log: Log, offsets: list[int]) -> list[int]:
    """Fetch the records at these offsets, and return the base offset of the batch of each record."""
    base_offsets = []
    for offset in offsets:
        with log.fetch(offset, 1) as fetched:
            base_offsets.append(int.from_bytes(fetched.slices[0].data[:8]))
    return base_offsets


def _find_all(log: Log, timestamps_ms: list[int]) -> list[int | None]:
    return [log.offset_for_timestamp(stamp) for stamp in timestamps_ms]


def check_found(side: str, name: str, closed_log: ClosedLog, outcome: bytes) -> None:
    """Check that a side looked up the right records.

    Raises:
        WrongOutcomeError: the outcome has other offsets than the expected ones.
    """
    offsets = random_offsets(closed_log.records)
    if name == OFFSETS:
        offsets = [offset - offset % closed_log.batch_records for offset in offsets]
    if outcome != "".join(f"{offset}\n" for offset in offsets).encode():
        raise WrongOutcomeError(f"{side}: looked up other records than those wanted")
