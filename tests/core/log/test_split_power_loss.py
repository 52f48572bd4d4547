"""Power losses before every disk change of the split of a segment, and of the recovery that completes the split."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from log_bed import LogBed, records
from stratalog.config.topic import TopicConfig
from stratalog.errors import StorageError
from stratalog.log.read.log_reader import LogReader
from stratalog.model.messages.control import ControlType
from stratalog.model.names import LOG_SUFFIX
from stratalog.registry.registry import Registry
from stratalog.testing.power_loss import Image, LazyNames, PowerLossVfs

SPAN = 1 << 31
FAR = SPAN + 100
SAMPLES = 1
TOPIC = TopicConfig(index_interval_bytes=0)


def folder(bed: LogBed, first: int) -> Image:
    """Return the files of a segment that must be split in three, with transactions across the pieces.

    The segment begins at 0, and its first record is at ``first``.
    """

    def data(offset: int, sequence: int, producer: int) -> bytes:
        return bed.batch(offset, records(2, start=offset), producer=(producer, 0, sequence), transactional=True)

    batches = [
        data(first, 0, 1),
        data(first + 2, 0, 2),
        bed.marker(first + 4, 1, ControlType.ABORT),
        data(FAR, 2, 2),
        bed.marker(FAR + 2, 2, ControlType.ABORT),
        data(3 * SPAN, 3, 1),
        bed.marker(3 * SPAN + 2, 1, ControlType.COMMIT),
    ]
    bed.write_segment(0, batches)
    bed.write_segment(4 * SPAN, [bed.batch(4 * SPAN, records(2, start=4 * SPAN))])
    return bed.contents()


def content(log: LogReader) -> tuple[list[int], list[int]]:
    """Return the offsets of all records, and of the records that are not aborted."""
    offsets = ([record.offset for record in log.records(isolation=how)] for how in ("log_end", "read_committed"))
    everything, committed = offsets
    return everything, committed


@dataclass
class Search:
    """Splits a segment. Before each disk change, it opens some states that a crash could leave."""

    tmp_path: Path
    registry: Registry
    first: int
    clean: bool
    files_class: type[PowerLossVfs] = PowerLossVfs
    chance: random.Random = field(default_factory=lambda: random.Random(11))  # noqa: S311 - the same in every run
    seen: set[int] = field(default_factory=set)
    again: int = 0

    def bed(self, name: str, files_class: type[PowerLossVfs], image: Image, *, look: bool) -> LogBed:
        bed = LogBed(self.tmp_path / name, self.registry, TOPIC, recovery_point=4 * SPAN)
        bed.write(image)
        files = files_class(bed.folder, (lambda change: self.look(change, files)) if look else None)
        bed.files_port = files
        return bed

    def run(self) -> None:
        source_bed = LogBed(self.tmp_path / "made", self.registry, TOPIC)
        with source_bed:
            image = folder(source_bed, self.first)
            with source_bed:
                self.offsets = content(source_bed.open_reader())
        assert len(self.offsets[0]) == 10
        assert len(self.offsets[1]) == 4
        with self.bed("data", self.files_class, image, look=True) as bed:
            self.split(bed)

    def split(self, bed: LogBed) -> None:
        log = bed.open(clean=self.clean)
        assert content(log) == self.offsets
        bases = [segment.base_offset for segment in log.segments()]
        assert bases == [self.first, FAR, 3 * SPAN, 4 * SPAN]
        bed.close()
        logs = {name[:20] for name in bed.names() if name.endswith(LOG_SUFFIX)}
        assert logs == {f"{base:020d}" for base in bases}

    def look(self, change: str, files: PowerLossVfs) -> None:
        """Recover some of the possible states after a crash now. The file system calls this before each change."""
        del change
        for image in files.images(self.chance, SAMPLES):
            state = hash(frozenset(image.items()))
            if state not in self.seen:
                self.seen.add(state)
                self.recover(image)

    def recover(self, image: Image) -> None:
        """Check a reader and a writer of one state.

        The reader returns all records and changes nothing. The writer repairs the log, also after a second crash.
        """
        with self.bed(f"read{len(self.seen)}", PowerLossVfs, image, look=False) as reading:
            assert content(reading.open_reader(clean=False)) == self.offsets
            assert reading.contents() == image
        nested = not self.again and self.chance.random() < 0.1
        self.again += nested
        with self.bed(f"write{len(self.seen)}", PowerLossVfs, image, look=nested) as writing:
            self.split(writing)
        self.again -= nested


@pytest.mark.parametrize(("first", "clean"), [(0, True), (40, False)])
@pytest.mark.long
def test_a_split_survives_a_power_loss_at_any_moment(tmp_path: Path, bed: LogBed, first: int, *, clean: bool) -> None:
    search = Search(tmp_path, bed.registry, first, clean=clean)
    search.run()
    assert len(search.seen) > 40


@pytest.mark.long
def test_a_sync_of_names_that_is_left_out_is_found(tmp_path: Path, bed: LogBed) -> None:
    with pytest.raises((AssertionError, StorageError)):
        Search(tmp_path, bed.registry, 0, True, LazyNames).run()
