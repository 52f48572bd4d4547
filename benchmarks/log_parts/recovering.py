"""Opening a log after an unclean shutdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import stratalog
from harness import KAFKA, WARM_UP_TIMES, Bound, Case, PreparedSide, Rate, Side, Worker, WorkerSide, WrongOutcomeError
from log_parts.logs import TOPIC, ClosedLog, scratch_folder, unclean_copy
from stratalog import Engine

OURS: Final = "stratalog"
BARE: Final = "recovery/no-indexes"
INDEXED: Final = "recovery/indexes"
NEAR_END: Final = "recovery/point-near-end"
_JOBS: Final = {BARE: "recover", INDEXED: "recover-indexed"}
_TITLES: Final = {
    BARE: "open an unclean log without indexes",
    INDEXED: "open an unclean log with its indexes",
    NEAR_END: "open an unclean log whose recovery point is near its end",
}
_TARGET: Final = "recovery of an unclean log"


def recovery_bounds(closed_log: ClosedLog) -> list[Bound | Rate]:
    """Return the required ratio and rate. The rate is met if the log is opened within two seconds."""
    return [Bound(_TARGET, BARE, OURS, KAFKA, 2), Rate(_TARGET, NEAR_END, OURS, closed_log.records / 2)]


def recovery_cases(
    closed_log: ClosedLog, scratch: Path, jvm: Worker | None, wants: Callable[[str], bool]
) -> Iterator[Case]:
    """Yield the selected cases; a call opens a copy of the log once."""
    for name, title in _TITLES.items():
        if not wants(name):
            continue
        sides: list[Side] = [_ours(name, closed_log, scratch)]
        if jvm is not None and name in _JOBS:
            jvm.load("log", closed_log.folder)
            verify = partial(check_end, KAFKA, closed_log)
            sides.append(WorkerSide(KAFKA, jvm, _JOBS[name], "log", scratch, verify, warm_up_times=WARM_UP_TIMES / 4))
        yield Case(
            name, f"{title}; {closed_log.size_bytes >> 20} MiB", sides, closed_log.records, closed_log.size_bytes
        )


def _ours(name: str, closed_log: ClosedLog, scratch: Path) -> Side:
    recovery_point = closed_log.records - closed_log.records // 100 if name == NEAR_END else 0

    @contextmanager
    def prepare(calls: int) -> Iterator[Callable[[], Engine]]:
        with scratch_folder(scratch) as folder, ExitStack() as stack:
            roots = [folder / str(call) for call in range(calls)]
            for root in roots:
                unclean_copy(closed_log, root, indexes=name != BARE, recovery_point=recovery_point)
            unopened_roots = iter(roots)

            def call() -> Engine:
                engine = stratalog.open_engine(next(unopened_roots))
                stack.callback(engine.close)
                return engine

            yield call

    def check() -> None:
        with prepare(1) as call:
            check_end(OURS, closed_log, f"{call().log(TOPIC, 0).offsets().log_end}\n".encode())

    return PreparedSide(OURS, prepare, check)


def check_end(side: str, closed_log: ClosedLog, outcome: bytes) -> None:
    """Check that the recovered log has all records.

    Raises:
        WrongOutcomeError: the log end offset is another one.
    """
    if outcome != f"{closed_log.records}\n".encode():
        raise WrongOutcomeError(f"{side}: the log ends elsewhere: {outcome!r} instead of {closed_log.records}")
