"""Compaction that Kafka's cleaner does not have: by timestamp, by a header, and with the erasure of a key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import stratalog
from cleaning_parts.compacting import AIOKAFKA, OURS, CompactingSide, batches_of, opened_copies
from cleaning_parts.logs import TOPIC, VERSION, DirtyLog, linked_copy
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


def latest_case(name: str, made: DirtyLog, scratch: Path, aiokafka: Aiokafka | None) -> Case:
    """Return the case that compares compaction by version with compaction by offset.

    Versions ascend with offsets, so both must leave the same bytes. ``name`` is ``BY_TIMESTAMP`` or ``BY_HEADER``.
    """
    ours, by_offset = CompactingSide(made, scratch, policy=_POLICIES[name]), CompactingSide(made, scratch, BY_OFFSET)
    if ours.outcome() != by_offset.outcome():
        raise WrongOutcomeError(f"{_POLICIES[name]} leaves other bytes than compact, though versions ascend")
    loop = by_timestamp if name == BY_TIMESTAMP else by_header
    title = f"{_POLICIES[name]}: {made.size_bytes >> 20} MiB, {made.records:,} records of {made.keys:,} keys"
    return Case(name, title, [ours, by_offset, *_loops(loop, made, aiokafka, made.keys)], made.records, made.size_bytes)


def erase_case(made: DirtyLog, scratch: Path, aiokafka: Aiokafka | None) -> Case:
    """Return the case in which a call erases one key from a copy of the log.

    Segments without the key are read, but not rewritten.
    """
    ours = ErasingSide(made, scratch)
    sides = [ours, CompactingSide(made, scratch, BY_OFFSET), *_loops(erase_by_loop, made, aiokafka, ours.kept())]
    title = f"erase a key of {made.keys:,} from {made.size_bytes >> 20} MiB, {made.records:,} records"
    return Case(ERASE, title, sides, made.records, made.size_bytes)


class ErasingSide(PreparedSide):
    """The side of stratalog, which erases one key."""

    def __init__(self, made: DirtyLog, scratch: Path) -> None:
        super().__init__(OURS, self._prepared, self._check)
        self._made, self._scratch = made, scratch

    def kept(self) -> int:
        """Erase the key outside of the measured time, and return the number of remaining records."""
        with scratch_folder(self._scratch) as root:
            linked_copy(self._made, root)
            with stratalog.open_engine(root) as engine:
                engine.erase(TOPIC, _ERASED)
                keys = [record.key for record in engine.log(TOPIC, 0).records()]
        if _ERASED in keys:
            raise WrongOutcomeError(f"{OURS}: the key is still there")
        return len(keys)

    @contextmanager
    def _prepared(self, calls: int) -> Iterator[Callable[[], object]]:
        with opened_copies(self._made, self._scratch, calls, stratalog.open_engine) as engines:
            yield lambda: next(engines).erase(TOPIC, _ERASED)

    def _check(self) -> None:
        if not 0 < self.kept() < self._made.records:
            raise WrongOutcomeError(f"{OURS}: nothing was erased, or everything")


# --- loops that a user of a Python client would write ----------------------------------------------------------------


def _loops(loop: Loop, made: DirtyLog, aiokafka: Aiokafka | None, wanted: int) -> Iterator[Side]:
    """Yield the side of aiokafka, if it is installed: ``loop`` must leave ``wanted`` records."""
    if aiokafka is None:
        return

    def check(client: Aiokafka) -> None:
        kept = loop(made, client)
        if kept != wanted:
            raise WrongOutcomeError(f"{AIOKAFKA}: {kept} records are left, not {wanted}")

    yield LocalSide(AIOKAFKA, partial(loop, made, aiokafka), partial(check, aiokafka))


def by_timestamp(made: DirtyLog, aiokafka: Aiokafka) -> int:
    """Compact by timestamp in a loop, and return the number of remaining records.

    The loop keeps the largest timestamp and its offset for each key in a dictionary. Then it rebuilds every batch
    without the other records.
    """
    greatest: dict[bytes, tuple[int, int]] = {}
    for batch in batches_of(made, aiokafka):
        for record in batch:
            version = (record.timestamp, record.offset)
            if greatest.get(record.key, version) <= version:
                greatest[record.key] = version
    return _rebuilt(made, aiokafka, lambda record: greatest[record.key][1] == record.offset)


def by_header(made: DirtyLog, aiokafka: Aiokafka) -> int:
    """Compact by the number in a header in a loop, and return the number of remaining records."""
    greatest: dict[bytes, tuple[int, int]] = {}
    for batch in batches_of(made, aiokafka):
        for record in batch:
            number = next(int.from_bytes(value, "big", signed=True) for key, value in record.headers if key == VERSION)
            version = (number, record.offset)
            if greatest.get(record.key, version) <= version:
                greatest[record.key] = version
    return _rebuilt(made, aiokafka, lambda record: greatest[record.key][1] == record.offset)


def erase_by_loop(made: DirtyLog, aiokafka: Aiokafka) -> int:
    """Erase the key in a loop, and return the number of remaining records.

    The loop decodes each file until it finds the key, and rebuilds the batches of a file that has it.
    """
    gone, encode = 0, aiokafka.encoder("none")
    for file in sorted(made.folder.glob("*.log")):
        data, out = file.read_bytes(), bytearray()
        if not any(record.key == _ERASED for batch in aiokafka.batches(data) for record in batch):
            continue
        for batch in aiokafka.batches(data):
            records = list(batch)
            left = [record for record in records if record.key != _ERASED]
            gone += len(records) - len(left)
            if left:
                out += encode([(record.timestamp, record.key, record.value, record.headers) for record in left])
    return made.records - gone


def _rebuilt(made: DirtyLog, aiokafka: Aiokafka, stays: Callable[[Any], bool]) -> int:
    kept, out, encode = 0, bytearray(), aiokafka.encoder("none")
    for batch in batches_of(made, aiokafka):
        left = [record for record in batch if stays(record)]
        if left:
            out += encode([(record.timestamp, record.key, record.value, record.headers) for record in left])
            kept += len(left)
    return kept
