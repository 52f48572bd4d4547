"""Copies of one golden log that tests damage, and the results of reading or recovering them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import stratalog
from dump_parser import DumpedBatch
from golden_data import Expected, Golden
from golden_reading import hashes
from stratalog import Record, TopicPartition
from stratalog.errors import StorageError
from stratalog.model.names import CLEAN_SHUTDOWN_FILE, RECOVERY_POINTS_FILE


@dataclass(frozen=True, slots=True)
class Outcome:
    """The records that were read, and the error that ended the read, or None."""

    records: list[Record]
    error: StorageError | None


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of a ``.log`` file: its position and its offsets, [first_offset, next_offset).

    A wrapper of V0 or V1 contains only its last offset. Its first offset is the one after the previous batch.
    """

    magic: int
    position: int
    size_bytes: int
    first_offset: int
    next_offset: int


class DamagedLog:
    """A copy of one log of a golden directory.

    Attributes:
        folder: the copied log directory, which has only this log.
        log_folder: the folder of the log.
        expected: the records that a Kafka client read from the undamaged log.
        files: the ``.log`` files in ascending order.
    """

    def __init__(self, golden: Golden, name: TopicPartition, folder: Path) -> None:
        self.name, self.folder = name, golden.copy_logs(folder, name)
        self.log_folder = folder / str(name)
        self.expected: Expected = golden.expected(name, "read_uncommitted")
        self.files: Final = sorted(self.log_folder.glob("*.log"))
        dump = golden.dump(f"{name}.txt")
        self._batches = {file: _batches(dump.files[file.name].batches, int(file.stem)) for file in self.files}
        self._original = {file: file.read_bytes() for file in self.files}

    def batches(self, file: Path) -> list[Batch]:
        """Return the batches that a ``.log`` file had before it was damaged."""
        return self._batches[file]

    def original(self, file: Path) -> bytes:
        """Return the bytes that a ``.log`` file had before it was damaged."""
        return self._original[file]

    def records_below(self, offset: int) -> list[Record]:
        """Return the expected records below an offset."""
        return [record for record in self.expected.records if record.offset < offset]

    def read(self, isolation: str = "read_uncommitted") -> Outcome:
        """Read all records with a reader, and check that the reader changes no file."""
        before = hashes(self.folder)
        with stratalog.open_reader(self.folder) as reader:
            outcome = read_all(reader.log(*self.name), isolation)
        assert hashes(self.folder) == before
        return outcome


def forget_the_stop(folder: Path) -> None:
    """Delete the files of a clean shutdown and the recovery points, as if the writer had been killed."""
    for name in (CLEAN_SHUTDOWN_FILE, RECOVERY_POINTS_FILE):
        (folder / name).unlink(missing_ok=True)


def repeatable(seed: int) -> random.Random:
    """Return a random generator that causes the same damage in every run."""
    return random.Random(seed)  # noqa: S311 - a test must be repeatable


def read_all(log: stratalog.LogReader, isolation: str = "read_uncommitted") -> Outcome:
    """Return all records of a log up to the first error, and the error."""
    records: list[Record] = []
    try:
        for record in log.records(isolation=isolation):
            records.append(record)  # noqa: PERF402 - those read before an error are kept
    except StorageError as error:
        return Outcome(records, error)
    return Outcome(records, None)


def _batches(dumped: Sequence[DumpedBatch], base_offset: int) -> list[Batch]:
    batches, next_offset = [], base_offset
    for batch in dumped:
        first_offset = next_offset if batch.base_offset is None else batch.base_offset
        next_offset = batch.last_offset + 1
        batches.append(Batch(batch.magic, batch.position, batch.size_bytes, first_offset, next_offset))
    return batches
