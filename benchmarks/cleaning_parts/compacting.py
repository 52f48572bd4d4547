"""Compaction of a fully dirty log, and of a log with little dirt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import stratalog
from cleaning_parts.logs import TOPIC, DirtyLog, Kind, link_copy, outcome_of
from codec_parts.python_peers import Aiokafka
from harness import KAFKA, Bound, Case, LocalSide, PreparedSide, Side, Worker, WorkerSide, WrongOutcomeError
from log_parts.logs import scratch_folder
from stratalog import Engine

OURS: Final = "stratalog"
AIOKAFKA: Final = "aiokafka, a loop"
COMPACT: Final = "compact/all-dirty"
LITTLE_DIRT: Final = "compact/little-dirt"
LITTLE_DIRT_KINDS: Final = {
    LITTLE_DIRT: Kind.PLAIN,
    f"{LITTLE_DIRT}-transactions": Kind.TRANSACTIONS,
    f"{LITTLE_DIRT}-v1": Kind.V1,
}
TWICE: Final = "stratalog, twice the log"
_TARGET: Final = "compaction, one thread"
_LITTLE_TARGET: Final = "a clean log that has little dirt"


def compact_bounds() -> list[Bound]:
    """Return the bounds: the required speed of sides, relative to other sides."""
    return [
        Bound(_TARGET, COMPACT, OURS, KAFKA, 3),
        Bound(_TARGET, COMPACT, OURS, AIOKAFKA, 10),
        *(Bound(_LITTLE_TARGET, name, TWICE, OURS, 0.8) for name in LITTLE_DIRT_KINDS),
    ]


def compact_case(dirty_log: DirtyLog, scratch: Path, jvm: Worker | None, aiokafka: Aiokafka | None) -> Case:
    """Return the case in which a call compacts a copy of the log once. Copying and opening the log is not measured."""
    side = CompactingSide(dirty_log, scratch)
    expected = side.outcome()
    sides: list[Side] = [side]
    if jvm is not None:
        jvm.load("log", dirty_log.folder)
        sides.append(WorkerSide(KAFKA, jvm, "compact", "log", scratch, _comparing(expected)))
    if aiokafka is not None:
        sides.append(
            LocalSide(AIOKAFKA, lambda: compact_by_loop(dirty_log, aiokafka), lambda: check_loop(dirty_log, aiokafka))
        )
    title = f"compact {dirty_log.size_bytes >> 20} MiB, {dirty_log.records:,} records of {dirty_log.keys:,} keys"
    return Case(COMPACT, title, sides, dirty_log.records, dirty_log.size_bytes)


def little_dirt_case(name: str, dirty_log: DirtyLog, longer_log: DirtyLog, scratch: Path, jvm: Worker | None) -> Case:
    """Return the case that compacts two clean logs with equally long dirty parts.

    ``longer_log`` is twice as long as ``dirty_log``. A call is one run of the cleaner. ``name`` is one of
    ``LITTLE_DIRT_KINDS``, and selects the kind of batches.
    """
    side = CompactingSide(dirty_log, scratch)
    sides: list[Side] = [side, CompactingSide(longer_log, scratch, TWICE)]
    if jvm is not None and LITTLE_DIRT_KINDS[name] is Kind.PLAIN:
        jvm.load("little", dirty_log.folder)
        sides.append(WorkerSide(KAFKA, jvm, "compact", "little", scratch, _comparing(side.outcome())))
    batch_kind = LITTLE_DIRT_KINDS[name].value
    title = f"compact what is dirty of {dirty_log.size_bytes >> 20} MiB of {batch_kind}, and of {longer_log.size_bytes >> 20} MiB"
    return Case(name, title, sides, dirty_log.records, dirty_log.size_bytes)


class CompactingSide(PreparedSide):
    """The side of stratalog, which compacts copies of a log.

    ``policy`` replaces the log's cleanup policy; "" keeps it.
    """

    def __init__(self, dirty_log: DirtyLog, scratch: Path, name: str = OURS, *, policy: str = "") -> None:
        super().__init__(name, self._prepare, self._check_kept)
        self._dirty_log, self._scratch, self._policy = dirty_log, scratch, policy

    def outcome(self) -> bytes:
        """Compact a copy outside of the measured time, and return what ``outcome_of`` returns for it."""
        with scratch_folder(self._scratch) as root:
            link_copy(self._dirty_log, root)
            with self._open(root) as engine:
                (result,) = engine.run_cleaner()
                return outcome_of(engine.log(TOPIC, 0), result.end, root / self._dirty_log.folder.name)

    @contextmanager
    def _prepare(self, calls: int) -> Iterator[Callable[[], object]]:
        with open_copies(self._dirty_log, self._scratch, calls, self._open) as engines:
            yield lambda: next(engines).run_cleaner()

    @contextmanager
    def _open(self, root: Path) -> Iterator[Engine]:
        with stratalog.open_engine(root) as engine:
            if self._policy:
                engine.alter_topic(TOPIC, {"cleanup.policy": self._policy})
            yield engine

    def _check_kept(self) -> None:
        with scratch_folder(self._scratch) as root:
            link_copy(self._dirty_log, root)
            with self._open(root) as engine:
                (result,) = engine.run_cleaner()
                remaining = sum(1 for _ in engine.log(TOPIC, 0).records())
        is_wrong = result.stats.records_read < self._dirty_log.records and not result.stats.segments_spared
        if result.error is not None or is_wrong or remaining != self._dirty_log.keys:
            raise WrongOutcomeError(f"{OURS}: {remaining} records are left of {self._dirty_log.keys} keys: {result}")


@contextmanager
def open_copies(
    dirty_log: DirtyLog, scratch: Path, count: int, open_engine: Callable[[Path], AbstractContextManager[Engine]]
) -> Iterator[Iterator[Engine]]:
    """Yield engines over ``count`` copies of a log, one for each call; then close the engines and delete the copies."""
    with scratch_folder(scratch) as folder, ExitStack() as stack:
        engines: list[Engine] = []
        for number in range(count):
            link_copy(dirty_log, folder / str(number))
            engines.append(stack.enter_context(open_engine(folder / str(number))))
        yield iter(engines)


def _comparing(expected: bytes) -> Callable[[bytes], None]:
    def check(outcome: bytes) -> None:
        if outcome != expected:
            raise WrongOutcomeError(f"{KAFKA} leaves other bytes than {OURS}: {outcome!r}, {expected!r}")

    return check


# --- loops that a user of a Python client would write ----------------------------------------------------------------


def compact_by_loop(dirty_log: DirtyLog, aiokafka: Aiokafka) -> int:
    """Compact in a loop, and return the number of remaining records.

    The loop keeps the latest offset of each key in a dictionary. Then it rebuilds every batch without the other
    records.
    """
    newest: dict[bytes, int] = {}
    for batch in batches_of(dirty_log, aiokafka):
        for record in batch:
            newest[record.key] = record.offset
    record_count, output, encode = 0, bytearray(), aiokafka.encoder("none")
    for batch in batches_of(dirty_log, aiokafka):
        remaining = [record for record in batch if newest[record.key] == record.offset]
        if remaining:
            output += encode([(record.timestamp, record.key, record.value, []) for record in remaining])
            record_count += len(remaining)
    return record_count


def batches_of(dirty_log: DirtyLog, aiokafka: Aiokafka) -> Iterator[Any]:
    """Yield all batches of the log. The CRC of each batch is checked."""
    for file in sorted(dirty_log.folder.glob("*.log")):
        yield from aiokafka.batches(file.read_bytes())


def check_loop(dirty_log: DirtyLog, aiokafka: Aiokafka) -> None:
    """Check that one record of each key remains after ``compact_by_loop``.

    Raises:
        WrongOutcomeError: the number of remaining records is not the number of keys.
    """
    remaining = compact_by_loop(dirty_log, aiokafka)
    if remaining != dirty_log.keys:
        raise WrongOutcomeError(f"{AIOKAFKA}: {remaining} records are left of {dirty_log.keys} keys")
