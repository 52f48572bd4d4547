"""Searches of power losses: before every disk change, they check what a power loss could leave of a log."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from log_bed import LogBed
from stratalog.config.topic import TopicConfig
from stratalog.log.log import Log
from stratalog.model.records import Record
from stratalog.registry.registry import Registry
from stratalog.testing.power_loss import Image, PowerLossVfs

SAMPLES = 2
STEPS = 12
PRODUCER = 7


@contextmanager
def power_losses(
    files: PowerLossVfs, left: LogBed, check: Callable[[Log], object], *, samples: int = 0
) -> Iterator[set[str]]:
    """Before each disk change in the block, call ``check`` with the log as it opens after a power loss.

    Args:
        files: file system of the log's folder.
        left: bed in which each different state of the disk is opened.
        check: fails if the log is wrong.
        samples: number of random states before each change.

    Yields:
        The names of all files that were in one of the states so far.
    """
    states, names, chance = set[int](), set[str](), random.Random(1)  # noqa: S311 - the same in every run

    def look(_: str) -> None:
        for image in files.images(chance, samples):
            state = hash(frozenset(image.items()))
            if state not in states:
                states.add(state)
                names.update(image)
                left.write(image)
                with left:
                    check(left.open(clean=False))

    files.before = look
    yield names
    files.before = None
    assert states, "the block changed nothing on the disk"


@dataclass
class PowerSearch:
    """One random script over a log. Before every disk change, it checks the files that a power loss could leave.

    ``attempted`` are the values written, by offset; the values below ``durable`` must survive.
    """

    tmp_path: Path
    registry: Registry
    seed: int
    files_class: type[PowerLossVfs] = PowerLossVfs
    nested: float = 0.1
    attempted: list[bytes] = field(default_factory=list)
    durable: int = 0
    checked: int = 0
    seen: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)  # noqa: S311 - the same script in every run
        self.topic = TopicConfig(segment_bytes=700, index_interval_bytes=self.chance.choice([0, 300]))
        self.bed = LogBed(self.tmp_path / "data", self.registry, self.topic)
        self.bed.folder.mkdir(parents=True)
        self.files = self.files_class(self.bed.folder, self.look)
        self.bed.files_port = self.files

    def run(self) -> None:
        log = self.bed.open()
        for _ in range(STEPS):
            log = self.step(log)
        self.bed.close()

    def step(self, log: Log) -> Log:
        """Run one random operation on the log, and update ``durable``. Return the log, which may be a new one."""
        draw = self.chance.random()
        if draw < 0.75:
            base = len(self.attempted)
            size = self.chance.choice([1, 40, 150])
            values = [b"%d " % (base + index) + b"x" * size for index in range(self.chance.choice([1, 1, 3]))]
            self.attempted += values
            durability = self.chance.choice(["written", "durable"])
            records = [Record(timestamp_ms=base, value=value) for value in values]
            if self.chance.random() < 0.5:
                log.append(records, durability=durability)
            else:
                batch = self.bed.batch(0, records, producer=(PRODUCER, 0, self.sequence(log)), transactional=False)
                log.append_as_leader(batch, durability=durability)
            if durability == "durable":
                self.durable = len(self.attempted)
        elif draw < 0.85:
            log.roll()
        elif draw < 0.93:
            log.flush()
            self.durable = len(self.attempted)
        else:
            assert log.close()
            self.durable = len(self.attempted)
            self.bed.recovery_point = self.durable
            for image in self.files.images(self.chance, SAMPLES):  # from now on, a clean shutdown marker may exist
                self.recover(image, clean=True)
            log = self.bed.open()
        return log

    def sequence(self, log: Log) -> int:
        producers = {entry.producer_id: entry for entry in log.producers()}
        return producers[PRODUCER].last_sequence + 1 if PRODUCER in producers else 0

    def look(self, what: str) -> None:
        """Recover some of the possible states after a power loss now. The file system calls this before each change."""
        del what
        for image in self.files.images(self.chance, SAMPLES):
            state = (self.durable, hash(frozenset(image.items())))
            if state not in self.seen:
                self.seen.add(state)
                self.recover(image, clean=False)

    def recover(self, image: Image, *, clean: bool) -> None:
        """Open the log from these files, check it, and continue it. Sometimes the power fails again in recovery."""
        nested_images: list[Image] = []
        bed = LogBed(self.tmp_path / "after", self.registry, self.topic)
        bed.recovery_point = self.chance.choice([0, self.durable])  # the checkpoint may be an old one
        bed.write(image)
        files = PowerLossVfs(bed.folder)
        if self.chance.random() < self.nested:
            files = PowerLossVfs(bed.folder, lambda _: nested_images.extend(files.images(self.chance, 1)))
        bed.files_port = files
        with bed:
            recovered = self.compared(bed.open(clean=clean))
            log = bed.open(clean=self.chance.random() < 0.5)  # both are allowed: the log was closed cleanly
            log.append([Record(value=b"later")], durability="durable")
            after = [*recovered, b"later"]
            assert [record.value for record in log.records()] == after
        for second in self.chance.sample(nested_images, min(len(nested_images), 4)):
            bed = LogBed(self.tmp_path / "again", self.registry, self.topic, recovery_point=bed.recovery_point)
            bed.write(second)
            bed.files_port = PowerLossVfs(bed.folder)
            with bed:
                values = [record.value for record in bed.open(clean=False).records()]
                assert values[: self.durable] == self.attempted[: self.durable]
                assert [value for value in values if value != b"later"] == self.attempted[: len(recovered)][
                    : len(values)
                ]

    def compared(self, log: Log) -> list[bytes | None]:
        """Check that the log has a prefix of all attempted records, with all durable ones. Return its values."""
        self.checked += 1
        records = list(log.records())
        values = [record.value for record in records]
        assert [record.offset for record in records] == list(range(log.offsets().log_end))
        assert len(values) >= self.durable
        assert values == self.attempted[: len(values)]
        for offset in range(0, len(values), 3):
            assert next(iter(log.records(offset))).value == values[offset]
        return values
