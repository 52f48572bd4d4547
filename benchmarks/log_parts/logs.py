"""The logs that are read, searched and recovered. Each log is made once, and has the same bytes in every run."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import stratalog
from stratalog import Engine, Record
from stratalog.env import Env, PosixVfs
from stratalog.log.log import Log

TOPIC: Final = "t"
FIRST_MS: Final = 1_700_000_000_000
BATCH_RECORDS: Final = 134  # about 16 KiB
_KEY_BYTES: Final = 10
_VALUE_BYTES: Final = 100
_SHAPES: Final = 997  # number of different pairs of a key and a value, which repeat
_GIB: Final = 1 << 30
LOOK_UPS: Final = 1000


@dataclass(frozen=True, slots=True)
class ClosedLog:
    """A log that was closed cleanly.

    Attributes:
        root: the engine's directory.
        records: number of records; offsets begin at 0, and timestamps increase by 1 ms.
        size_bytes: size of all segments.
        batch_records: number of records in each batch.
    """

    root: Path
    records: int
    size_bytes: int
    batch_records: int

    @property
    def total(self) -> int:
        """Sum of all offsets, timestamps, and lengths of keys and values, which every side must also compute."""
        offsets = self.records * (self.records - 1) // 2
        return 2 * offsets + self.records * (FIRST_MS + _KEY_BYTES + _VALUE_BYTES)

    @property
    def folder(self) -> Path:
        """The directory of the log."""
        return self.root / f"{TOPIC}-0"


def make_log(root: Path, batches: int, *, batch_records: int = BATCH_RECORDS, segment_bytes: int = _GIB) -> ClosedLog:
    """Make a log of ``batches`` batches, with values of 100 bytes."""
    chance = random.Random(11)  # noqa: S311 - the same bytes in every run
    shapes = [(b"%010d" % chance.randrange(10**10), chance.randbytes(_VALUE_BYTES)) for _ in range(_SHAPES)]
    offset = 0
    with engine_on(root) as engine:
        engine.create_topic(TOPIC, config={"segment.bytes": segment_bytes, "retention.ms": -1})
        log = engine.log(TOPIC, 0)
        for _ in range(batches):
            log.append([_record(number, shapes) for number in range(offset, offset + batch_records)])
            offset += batch_records
        size_bytes = sum(segment.size_bytes for segment in log.segments())
        log.flush()
    return ClosedLog(root, offset, size_bytes, batch_records)


class _Unsynced(PosixVfs):
    """Files whose syncs are ignored."""

    def sync(self, descriptor: int) -> None:
        """Do nothing."""

    def sync_folder(self, path: str) -> None:
        """Do nothing."""


@contextmanager
def engine_on(root: Path) -> Iterator[Engine]:
    """Yield an engine that never syncs files. Kafka's log is measured without syncs, too: its flushes are dropped."""
    with stratalog.open_engine(root, env=Env(files=_Unsynced())) as engine:
        yield engine


@contextmanager
def open_log(closed_log: ClosedLog) -> Iterator[Log]:
    """Yield the log, opened by a new engine."""
    with engine_on(closed_log.root) as engine:
        yield engine.log(TOPIC, 0)


def unclean_copy(closed_log: ClosedLog, root: Path, *, indexes: bool, recovery_point: int = 0) -> None:
    """Copy a log as a crash would leave it: segment files are hard links, and there is no mark of a clean shutdown."""
    folder = root / closed_log.folder.name
    folder.mkdir(parents=True)
    for file in closed_log.folder.iterdir():
        if file.suffix == ".log":
            (folder / file.name).hardlink_to(file)
        elif file.name == "partition.metadata" or (indexes and file.suffix.endswith("index")):
            shutil.copyfile(file, folder / file.name)
    (root / "recovery-point-offset-checkpoint").write_text(f"0\n1\n{TOPIC} 0 {recovery_point}\n", encoding="ascii")


@contextmanager
def scratch_folder(scratch: Path) -> Iterator[Path]:
    """Yield an empty folder, and delete it afterwards."""
    with tempfile.TemporaryDirectory(dir=scratch) as root:
        yield Path(root)


def random_offsets(records: int) -> list[int]:
    """Return 1,000 pseudo-random offsets below ``records``, the same in each call.

    LogBench.java computes the same offsets with the same linear congruential generator.
    """
    state, offsets = 7, []
    for _ in range(LOOK_UPS):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        offsets.append((state >> 33) % records)
    return offsets


def _record(offset: int, shapes: list[tuple[bytes, bytes]]) -> Record:
    key, value = shapes[offset % _SHAPES]
    return Record(timestamp_ms=FIRST_MS + offset, key=key, value=value)
