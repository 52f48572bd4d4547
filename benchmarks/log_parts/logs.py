"""The logs that are read, looked into and recovered: made once, the same in every run."""

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
_SHAPES: Final = 997  # values and keys that come again and again
_GIB: Final = 1 << 30
LOOK_UPS: Final = 1000


@dataclass(frozen=True, slots=True)
class MadeLog:
    """A closed log.

    Attributes:
        root: the engine's directory.
        records: their offsets begin at 0, their timestamps ascend by 1 ms.
        size_bytes: of all segments.
        batch_records: of each batch.
    """

    root: Path
    records: int
    size_bytes: int
    batch_records: int

    @property
    def total(self) -> int:
        """Offsets, timestamps and lengths of keys and values of all records, added up: cheap to compare."""
        offsets = self.records * (self.records - 1) // 2
        return 2 * offsets + self.records * (FIRST_MS + _KEY_BYTES + _VALUE_BYTES)

    @property
    def folder(self) -> Path:
        """The log's own."""
        return self.root / f"{TOPIC}-0"


def make_log(root: Path, batches: int, *, batch_records: int = BATCH_RECORDS, segment_bytes: int = _GIB) -> MadeLog:
    """A log of 100-byte values in batches of one size."""
    chance = random.Random(11)  # noqa: S311 - the same bytes in every run
    shapes = [(b"%010d" % chance.randrange(10**10), chance.randbytes(_VALUE_BYTES)) for _ in range(_SHAPES)]
    offset = 0
    with engine_on(root) as engine:
        engine.create_topic(TOPIC, config={"segment.bytes": segment_bytes, "retention.ms": -1})
        log = engine.log(TOPIC, 0)
        for _ in range(batches):
            log.append([_record(at, shapes) for at in range(offset, offset + batch_records)])
            offset += batch_records
        size_bytes = sum(segment.size_bytes for segment in log.segments())
        log.flush()
    return MadeLog(root, offset, size_bytes, batch_records)


class _Unsynced(PosixVfs):
    """Files whose syncs are ignored."""

    def sync(self, descriptor: int) -> None:
        """Nothing."""

    def sync_folder(self, path: str) -> None:
        """Nothing."""


@contextmanager
def engine_on(root: Path) -> Iterator[Engine]:
    """An engine that forces nothing to disk, as Kafka's log does not whose flushes are dropped."""
    with stratalog.open_engine(root, env=Env(files=_Unsynced())) as engine:
        yield engine


@contextmanager
def opened(made: MadeLog) -> Iterator[Log]:
    """The log of an engine of its own."""
    with engine_on(made.root) as engine:
        yield engine.log(TOPIC, 0)


def unclean_copy(made: MadeLog, root: Path, *, indexes: bool, recovery_point: int = 0) -> None:
    """The same log in another folder as a crash leaves it: segments are linked, nothing is changed in them."""
    folder = root / made.folder.name
    folder.mkdir(parents=True)
    for file in made.folder.iterdir():
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


def wanted_offsets(records: int) -> list[int]:
    """Return the same offsets as in every other language: a linear congruential generator, with the same seed in each call."""
    state, offsets = 7, []
    for _ in range(LOOK_UPS):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        offsets.append((state >> 33) % records)
    return offsets


def _record(offset: int, shapes: list[tuple[bytes, bytes]]) -> Record:
    key, value = shapes[offset % _SHAPES]
    return Record(timestamp_ms=FIRST_MS + offset, key=key, value=value)
