"""The log that is compacted: made once, the same in every run."""

from __future__ import annotations

import hashlib
import random
import shutil
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

import stratalog
from stratalog import Record
from stratalog.log.log import Log
from stratalog.spi import BatchHeader

TOPIC: Final = "t"
VERSION: Final = "version"  # what latest_by_header looks for if nobody says otherwise
SEGMENT_BYTES: Final = 64 << 20
CONFIG: Final[dict[str, object]] = {
    "cleanup.policy": "compact",
    "segment.bytes": SEGMENT_BYTES,
    "min.cleanable.dirty.ratio": 0,
}
_FIRST_MS: Final = 1_700_000_000_000
_BATCH_RECORDS: Final = 150  # about 16 KiB
_VALUE_BYTES: Final = 84  # a record of about 110 bytes on disk
_PRODUCER: Final = 7
_TRANSACTION_BATCHES: Final = 10


@dataclass(frozen=True, slots=True)
class DirtyLog:
    """A closed log whose records are all dirt; the active segment is empty.

    Attributes:
        root: the engine's directory.
        records: their offsets begin at 0.
        keys: how many there are; all of them are in it.
        size_bytes: of all segments.
    """

    root: Path
    records: int
    keys: int
    size_bytes: int

    @property
    def folder(self) -> Path:
        """The log's own."""
        return self.root / f"{TOPIC}-0"


def make_dirty_log(root: Path, batches: int, keys: int, *, versioned: bool = False) -> DirtyLog:
    """Records with random keys; ``versioned`` records have a header with an ascending version."""
    chance = random.Random(5)  # noqa: S311 - the same bytes in every run
    value, offset, seen = chance.randbytes(_VALUE_BYTES), 0, set[int]()
    with stratalog.open_engine(root) as engine:
        engine.create_topic(TOPIC, config=CONFIG)
        log = engine.log(TOPIC, 0)
        for _ in range(batches):
            drawn = [chance.randrange(keys) for _ in range(_BATCH_RECORDS)]
            seen.update(drawn)
            log.append(
                [
                    Record(
                        key=b"key-%012d" % key,
                        value=value,
                        timestamp_ms=_FIRST_MS + at,
                        headers=((VERSION, at.to_bytes(8, "big")),) if versioned else (),
                    )
                    for at, key in enumerate(drawn, offset)
                ]
            )
            offset += _BATCH_RECORDS
        log.roll()
        size_bytes = sum(segment.size_bytes for segment in log.segments())
    return DirtyLog(root, offset, len(seen), size_bytes)


class Kind(Enum):
    """Of what the batches of a log are."""

    PLAIN = "record batches"
    TRANSACTIONS = "transactions of ten batches"
    V1 = "messages of V1"


def make_little_dirt(root: Path, batches: int, dirty_batches: int, kind: Kind = Kind.PLAIN) -> DirtyLog:
    """A compacted log in which each key occurs once, and a few dirty batches after it.

    Half of the dirty keys are those of the log's first records: one segment is rewritten for them. The others are new.
    """
    chance = random.Random(6)  # noqa: S311 - the same bytes in every run
    value, clean = chance.randbytes(_VALUE_BYTES), batches * _BATCH_RECORDS
    total = clean + dirty_batches * _BATCH_RECORDS
    with stratalog.open_engine(root) as engine:
        engine.create_topic(TOPIC, config=CONFIG | ({"record.version": 1} if kind is Kind.V1 else {}))
        log = engine.log(TOPIC, 0)
        writer = _Transactions(log) if kind is Kind.TRANSACTIONS else None
        for first in range(0, total, _BATCH_RECORDS):
            if first == clean:
                if writer is not None:
                    writer.end()
                log.roll()
                engine.run_cleaner()
            offsets = range(first, first + _BATCH_RECORDS)
            keys = [offset - clean if offset >= clean and offset % 2 else offset for offset in offsets]
            (log if writer is None else writer).append(
                [
                    Record(key=b"key-%012d" % key, value=value, timestamp_ms=_FIRST_MS + offset)
                    for key, offset in zip(keys, offsets, strict=True)
                ]
            )
        if writer is not None:
            writer.end()
        log.roll()
        size_bytes = sum(segment.size_bytes for segment in log.segments())
    return DirtyLog(root, total, total - dirty_batches * _BATCH_RECORDS // 2, size_bytes)


class _Transactions:
    """Appends in committed transactions of one producer."""

    def __init__(self, log: Log) -> None:
        self._log, self._format, self._sequence, self._batches = log, log.components.formats.of(2, "", 0), 0, 0

    def append(self, written: list[Record]) -> None:
        """One batch; every tenth ends its transaction."""
        header = BatchHeader(producer_id=_PRODUCER, producer_epoch=0, base_sequence=self._sequence, transactional=True)
        self._log.append_as_leader(self._format.encode(written, header, None, None))
        self._sequence, self._batches = self._sequence + len(written), self._batches + 1
        if self._batches == _TRANSACTION_BATCHES:
            self.end()

    def end(self) -> None:
        """Commit, if there is anything."""
        if self._batches:
            self._log.end_transaction(_PRODUCER, 0, commit=True, coordinator_epoch=0)
        self._batches = 0


def linked_copy(made: DirtyLog, root: Path) -> None:
    """The same log in another directory: segments are linked, since cleaning changes none; all else is copied."""
    folder = root / made.folder.name
    folder.mkdir(parents=True)
    for file in made.folder.iterdir():
        if file.suffix == ".log" and file.stat().st_size:
            (folder / file.name).hardlink_to(file)
        else:
            shutil.copyfile(file, folder / file.name)
    for file in made.root.iterdir():
        if file.is_file() and file.name != ".lock":
            shutil.copyfile(file, root / file.name)


def outcome_of(log: Log, end: int, folder: Path) -> bytes:
    """Return the end of the round, and a digest of all segments, for comparison with Kafka's cleaner."""
    digest = hashlib.sha256()
    for segment in log.view().segments:
        digest.update((folder / segment.file_name(".log")).read_bytes())
    return f"{end} {digest.hexdigest()}".encode()
