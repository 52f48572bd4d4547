"""The logs that are compacted. Each log is made once, and has the same bytes in every run."""

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
VERSION: Final = "version"  # the header that latest_by_header reads by default
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
    """A closed log with a dirty part, usually the whole log. The active segment is empty.

    Attributes:
        root: the engine's directory.
        records: number of records; their offsets begin at 0.
        keys: number of different keys in the log.
        size_bytes: size of all segments.
    """

    root: Path
    records: int
    keys: int
    size_bytes: int

    @property
    def folder(self) -> Path:
        """The directory of the log."""
        return self.root / f"{TOPIC}-0"


def make_dirty_log(root: Path, batches: int, keys: int, *, versioned: bool = False) -> DirtyLog:
    """Make a log with random keys that was never compacted.

    With ``versioned``, each record has a header with an ascending version.
    """
    chance = random.Random(5)  # noqa: S311 - the same bytes in every run
    value, offset, used_keys = chance.randbytes(_VALUE_BYTES), 0, set[int]()
    with stratalog.open_engine(root) as engine:
        engine.create_topic(TOPIC, config=CONFIG)
        log = engine.log(TOPIC, 0)
        for _ in range(batches):
            batch_keys = [chance.randrange(keys) for _ in range(_BATCH_RECORDS)]
            used_keys.update(batch_keys)
            log.append(
                [
                    Record(
                        key=b"key-%012d" % key,
                        value=value,
                        timestamp_ms=_FIRST_MS + number,
                        headers=((VERSION, number.to_bytes(8, "big")),) if versioned else (),
                    )
                    for number, key in enumerate(batch_keys, offset)
                ]
            )
            offset += _BATCH_RECORDS
        log.roll()
        size_bytes = sum(segment.size_bytes for segment in log.segments())
    return DirtyLog(root, offset, len(used_keys), size_bytes)


class Kind(Enum):
    """Kind of batches in a log."""

    PLAIN = "record batches"
    TRANSACTIONS = "transactions of ten batches"
    V1 = "messages of V1"


def make_little_dirt(root: Path, batches: int, dirty_batches: int, kind: Kind = Kind.PLAIN) -> DirtyLog:
    """Make a compacted log in which each key occurs once, and append a few dirty batches.

    Half of the dirty keys are those of the log's first records, so the cleaner must rewrite one segment for them. The
    other half are new keys.
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
    """Appends batches in committed transactions of one producer."""

    def __init__(self, log: Log) -> None:
        self._log, self._format, self._sequence, self._batches = log, log.components.formats.of(2, "", 0), 0, 0

    def append(self, records: list[Record]) -> None:
        """Append one batch. Every tenth batch ends its transaction."""
        header = BatchHeader(producer_id=_PRODUCER, producer_epoch=0, base_sequence=self._sequence, transactional=True)
        self._log.append_as_leader(self._format.encode(records, header, None, None))
        self._sequence, self._batches = self._sequence + len(records), self._batches + 1
        if self._batches == _TRANSACTION_BATCHES:
            self.end()

    def end(self) -> None:
        """Commit the open transaction, if there is one."""
        if self._batches:
            self._log.end_transaction(_PRODUCER, 0, commit=True, coordinator_epoch=0)
        self._batches = 0


def link_copy(dirty_log: DirtyLog, root: Path) -> None:
    """Copy a log to another directory.

    Segment files are hard links, since cleaning does not change existing files. All other files are copied.
    """
    folder = root / dirty_log.folder.name
    folder.mkdir(parents=True)
    for file in dirty_log.folder.iterdir():
        if file.suffix == ".log" and file.stat().st_size:
            (folder / file.name).hardlink_to(file)
        else:
            shutil.copyfile(file, folder / file.name)
    for file in dirty_log.root.iterdir():
        if file.is_file() and file.name != ".lock":
            shutil.copyfile(file, root / file.name)


def outcome_of(log: Log, end: int, folder: Path) -> bytes:
    """Return the end offset of the cleaning and a hash of all segments, to compare them with Kafka's cleaner."""
    digest = hashlib.sha256()
    for segment in log.view().segments:
        digest.update((folder / segment.file_name(".log")).read_bytes())
    return f"{end} {digest.hexdigest()}".encode()
