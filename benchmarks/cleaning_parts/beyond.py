"""Compaction that Kafka's cleaner does not have: by timestamp, by a header, and with the erasure of a key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import stratalog
from cleaning_parts.compacting import AIOKAFKA, OURS, CompactingSide, batches_of, open_copies
from cleaning_parts.logs import TOPIC, VERSION, DirtyLog, link_copy
from codec_parts.python_peers import Aiokafka
from harness import Bound, Case, CpuBound, LocalSide, PreparedSide, Side, WrongOutcomeError
from log_parts.logs import scratch_folder

BY_TIMESTAMP: Final = "latest/by-timestamp"
BY_HEADER: Final = "latest/by-header"
ERASE: Final = "erase/one-key"
BY_OFFSET: Final = "stratalog, compact"
_POLICIES: Final = {BY_TIMESTAMP: "latest_by_timestamp", BY_HEADER: "latest_by_header"}
_ERASED: Final = b"key-%012d" % 1
_AT_MOST: Final = 2  # times the processor time of compaction
_AT_LEAST: Final = {BY_TIMESTAMP: 5, BY_HEADER: 5, ERASE: 2}  # times as fast as a loop

Loop = Callable[[DirtyLog, Aiokafka], int]
"""Compacts a log in Python and returns the number of remaining records."""


def beyond_bounds() -> list[Bound | CpuBound]:
    """Return the bounds: the required speed and processor time of stratalog, relative to other sides."""
    titles = {BY_TIMESTAMP: "by timestamp", BY_HEADER: "by a header", ERASE: "erasing a key"}
    return [
        *(CpuBound(title, case, OURS, BY_OFFSET, _AT_MOST) for case, title in titles.items()),
        *(Bound(title, case, OURS, AIOKAFKA, _AT_LEAST[case]) for case, title in titles.items()),
    ]


def latest_case(name: str, dirty_log: DirtyLog, scratch: Path, aiokafka: Aiokafka | None) -> Case:
    """Return the case that compares compaction by version with compaction by offset.

    Versions ascend with offsets, so both must leave the same bytes. ``name`` is ``BY_TIMESTAMP`` or ``BY_HEADER``.
    """
    side, by_offset = (
        CompactingSide(dirty_log, scratch, policy=_POLICIES[name]),
        CompactingSide(dirty_log, scratch, BY_OFFSET),
    )
    if side.outcome() != by_offset.outcome():
        raise WrongOutcomeError(f"{_POLICIES[name]} leaves other bytes than compact, though versions ascend")
    loop = compact_by_timestamp if name == BY_TIMESTAMP else compact_by_header
    title = (
        f"{_POLICIES[name]}: {dirty_log.size_bytes >> 20} MiB, {dirty_log.records:,} records of {dirty_log.keys:,} keys"
    )
    return Case(
        name,
        title,
        [side, by_offset, *_loops(loop, dirty_log, aiokafka, dirty_log.keys)],
        dirty_log.records,
        dirty_log.size_bytes,
    )


def erase_case(dirty_log: DirtyLog, scratch: Path, aiokafka: Aiokafka | None) -> Case:
    """Return the case in which a call erases one key from a copy of the log.

    Segments without the key are read, but not rewritten.
    """
    side = ErasingSide(dirty_log, scratch)
    sides = [
        side,
        CompactingSide(dirty_log, scratch, BY_OFFSET),
        *_loops(erase_by_loop, dirty_log, aiokafka, side.erase_copy()),
    ]
    title = f"erase a key of {dirty_log.keys:,} from {dirty_log.size_bytes >> 20} MiB, {dirty_log.records:,} records"
    return Case(ERASE, title, sides, dirty_log.records, dirty_log.size_bytes)


class ErasingSide(PreparedSide):
    """The side of stratalog, which erases one key."""

    def __init__(self, dirty_log: DirtyLog, scratch: Path) -> None:
        super().__init__(OURS, self._prepare, self._check)
        self._dirty_log, self._scratch = dirty_log, scratch

    def erase_copy(self) -> int:
        """Erase the key outside of the measured time, and return the number of remaining records."""
        with scratch_folder(self._scratch) as root:
            link_copy(self._dirty_log, root)
            with stratalog.open_engine(root) as engine:
                engine.erase(TOPIC, _ERASED)
                keys = [record.key for record in engine.log(TOPIC, 0).records()]
        if _ERASED in keys:
            raise WrongOutcomeError(f"{OURS}: the key is still there")
        return len(keys)

    @contextmanager
    def _prepare(self, calls: int) -> Iterator[Callable[[], object]]:
        with open_copies(self._dirty_log, self._scratch, calls, stratalog.open_engine) as engines:
            yield lambda: next(engines).erase(TOPIC, _ERASED)

    def _check(self) -> None:
        if not 0 < self.erase_copy() < self._dirty_log.records:
            raise WrongOutcomeError(f"{OURS}: nothing was erased, or everything")


# --- loops that a user of a Python client would write ----------------------------------------------------------------


def _loops(loop: Loop, dirty_log: DirtyLog, aiokafka: Aiokafka | None, expected: int) -> Iterator[Side]:
    """Yield the side of aiokafka, if it is installed: ``loop`` must leave ``expected`` records."""
    if aiokafka is None:
        return

    def check(client: Aiokafka) -> None:
        remaining = loop(dirty_log, client)
        if remaining != expected:
            raise WrongOutcomeError(f"{AIOKAFKA}: {remaining} records are left, not {expected}")

    yield LocalSide(AIOKAFKA, partial(loop, dirty_log, aiokafka), partial(check, aiokafka))


def compact_by_timestamp(dirty_log: DirtyLog, aiokafka: Aiokafka) -> int:
    """Compact by timestamp in a loop, and return the number of remaining records.

    The loop keeps the largest timestamp and its offset for each key in a dictionary. Then it rebuilds every batch
    without the other records.
    """
    greatest: dict[bytes, tuple[int, int]] = {}
    for batch in batches_of(dirty_log, aiokafka):
        for record in batch:
            version = (record.timestamp, record.offset)
            if greatest.get(record.key, version) <= version:
                greatest[record.key] = version
    return _rebuild(dirty_log, aiokafka, lambda record: greatest[record.key][1] == record.offset)


def compact_by_header(dirty_log: DirtyLog, aiokafka: Aiokafka) -> int:
    """Compact by the number in a header in a loop, and return the number of remaining records."""
    greatest: dict[bytes, tuple[int, int]] = {}
    for batch in batches_of(dirty_log, aiokafka):
        for record in batch:
            number = next(int.from_bytes(value, "big", signed=True) for key, value in record.headers if key == VERSION)
            version = (number, record.offset)
            if greatest.get(record.key, version) <= version:
                greatest[record.key] = version
    return _rebuild(dirty_log, aiokafka, lambda record: greatest[record.key][1] == record.offset)


def erase_by_loop(dirty_log: DirtyLog, aiokafka: Aiokafka) -> int:
    """Erase the key in a loop, and return the number of remaining records.

    The loop decodes each file until it finds the key, and rebuilds the batches of a file that has it.
    """
    erased_count, encode = 0, aiokafka.encoder("none")
    for file in sorted(dirty_log.folder.glob("*.log")):
        data, output = file.read_bytes(), bytearray()
        if not any(record.key == _ERASED for batch in aiokafka.batches(data) for record in batch):
            continue
        for batch in aiokafka.batches(data):
            records = list(batch)
            remaining = [record for record in records if record.key != _ERASED]
            erased_count += len(records) - len(remaining)
            if remaining:
                output += encode([(record.timestamp, record.key, record.value, record.headers) for record in remaining])
    return dirty_log.records - erased_count


def _rebuild(dirty_log: DirtyLog, aiokafka: Aiokafka, is_kept: Callable[[Any], bool]) -> int:
    record_count, output, encode = 0, bytearray(), aiokafka.encoder("none")
    for batch in batches_of(dirty_log, aiokafka):
        remaining = [record for record in batch if is_kept(record)]
        if remaining:
            output += encode([(record.timestamp, record.key, record.value, record.headers) for record in remaining])
            record_count += len(remaining)
    return record_count
