"""Power losses before every disk change of truncations: the log has a prefix of the records before or after."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from log_bed import LogBed
from stratalog.config.topic import TopicConfig
from stratalog.errors import StorageError
from stratalog.log.load.producer_replay import replay_range
from stratalog.log.log import Log
from stratalog.model.records import Record
from stratalog.producers.state import ProducerState
from stratalog.registry.registry import Registry
from stratalog.testing.power_loss import Image, LazyNames, LazySync, PowerLossVfs

STEPS = 14
PRODUCER = 7


class AllowedContents(NamedTuple):
    """Contents of a log that a crash may leave.

    ``values`` are by offset from ``start`` on. The values below ``durable`` must exist.
    """

    start: int
    values: tuple[bytes, ...]
    durable: int

    @property
    def end(self) -> int:
        return self.start + len(self.values)


@dataclass
class Search:
    """One random script of appends and truncations.

    ``allowed`` are the contents that a crash may leave now: the log before the running change, or after it.
    """

    tmp_path: Path
    registry: Registry
    seed: int
    files_class: type[PowerLossVfs] = PowerLossVfs
    held: AllowedContents = field(default_factory=lambda: AllowedContents(0, (), 0))
    allowed: list[AllowedContents] = field(default_factory=list)
    bounds: list[int] = field(default_factory=lambda: [0])  # where batches begin
    serial: int = 0
    checked: int = 0
    seen: set[tuple[object, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)  # noqa: S311 - the same script in every run
        self.topic = TopicConfig(segment_bytes=600, index_interval_bytes=self.chance.choice([0, 300]))
        self.bed = LogBed(self.tmp_path / "data", self.registry, self.topic)
        self.bed.folder.mkdir(parents=True)
        self.files = self.files_class(self.bed.folder, self.look)
        self.bed.files_port = self.files
        self.allowed = [self.held]

    def run(self) -> None:
        log = self.bed.open()
        for step in range(STEPS):
            draw = self.chance.random()
            if step % 4 == 3:
                self.truncate(log)
            elif draw < 0.8:
                self.append(log)
            else:
                log.roll()
        self.bed.close()

    def append(self, log: Log) -> None:
        """Append values that are used only once, to distinguish truncated records from later ones."""
        if self.chance.random() < 0.4:
            log.lead(log.leader_epoch + 1)
        count, size = self.chance.choice([1, 1, 3]), self.chance.choice([1, 60])
        values = [b"%d " % (self.serial + index) + b"x" * size for index in range(count)]
        self.serial += count
        self.settle(self.held._replace(values=(*self.held.values, *values)))
        new_records = [Record(timestamp_ms=self.bed.clock.now_ms(), value=value) for value in values]
        durability = self.chance.choice(["written", "durable"])
        batch = self.bed.batch(0, new_records, producer=(PRODUCER, log.leader_epoch, self.sequence(log)))
        log.append_as_leader(batch, durability=durability)
        self.bounds.append(self.held.end)
        if durability == "durable":
            self.settle(self.held._replace(durable=self.held.end))
            self.bed.recovery_point = self.chance.choice([self.bed.recovery_point, self.held.end])

    def truncate(self, log: Log) -> None:
        before = self.held
        target = self.chance.choice(self.bounds)
        if self.chance.random() < 0.35:
            target = self.chance.choice([target, before.end + 3])
            after = AllowedContents(target, (), target)
        else:
            after = AllowedContents(before.start, before.values[: target - before.start], min(before.durable, target))
        self.held = after
        self.allowed = [before._replace(durable=min(before.durable, target)), after]
        if not after.values:
            self.allowed = [
                before._replace(durable=before.start),
                AllowedContents(before.start, (), before.start),
                after,
            ]
        if after.start == before.start and after.values:
            log.truncate_to(target)
        else:
            log.truncate_fully_and_start_at(target)
        self.bounds = [bound for bound in self.bounds if after.start <= bound <= after.end] or [after.start]
        self.settle(after)
        self.look("after")

    def settle(self, contents: AllowedContents) -> None:
        self.held, self.allowed = contents, [contents]

    def sequence(self, log: Log) -> int:
        entries = [entry for entry in log.producers() if entry.producer_id == PRODUCER]
        same = bool(entries) and entries[0].producer_epoch == log.leader_epoch
        return entries[0].last_sequence + 1 if same else 0

    def look(self, change: str) -> None:
        """Recover some of the possible states after a crash now. The file system calls this before each change."""
        del change
        for image in self.files.images(self.chance, 2):
            state = (tuple(self.allowed), hash(frozenset(image.items())))
            if state not in self.seen:
                self.seen.add(state)
                self.recover(image)

    def recover(self, image: Image) -> None:
        bed = LogBed(self.tmp_path / "after", self.registry, self.topic, clock=self.bed.clock)
        bed.recovery_point, bed.log_start = self.chance.choice([0, self.bed.recovery_point]), self.bed.log_start
        bed.write(image)
        with bed:
            log = bed.open(clean=False)
            self.check(log)
            end = log.offsets().log_end
            log.append([Record(value=b"later")], durability="durable")
            assert bed.open(clean=False).offsets().log_end == end + 1

    def check(self, log: Log) -> None:
        self.checked += 1
        offsets, log_records = log.offsets(), list(log.records())
        assert [record.offset for record in log_records] == list(
            range(offsets.log_end - len(log_records), offsets.log_end)
        )
        values = tuple(record.value for record in log_records)
        assert offsets.recovery_point <= offsets.log_end
        assert any(_fits(values, offsets.log_end, contents) for contents in self.allowed), (values, self.allowed)
        assert all(log.view().epochs.epoch_at(record.offset) == record.leader_epoch for record in log_records)
        replayed = ProducerState()
        replay_range(replayed, log.view().segments, 0, offsets.log_end, log.components)
        assert log.producers() == replayed.entries()


def _fits(values: tuple[bytes | None, ...], end: int, contents: AllowedContents) -> bool:
    if not values:
        return end >= contents.durable and (end == contents.start or contents.durable <= contents.start)
    return end - len(values) == contents.start and contents.values[: len(values)] == values and end >= contents.durable


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.long
def test_a_crash_leaves_a_beginning_of_the_log(tmp_path: Path, bed: LogBed, seed: int) -> None:
    search = Search(tmp_path, bed.registry, seed)
    search.run()
    assert search.checked > 50


@pytest.mark.parametrize("target", [2, 12])
@pytest.mark.long
def test_where_a_log_was_cut_inside_a_batch_is_durable(tmp_path: Path, bed: LogBed, target: int) -> None:
    """The log has three batches of five records in two segments.

    Before the truncation returns, a crash leaves whole batches only.
    """
    topic, chance = TopicConfig(segment_bytes=300, index_interval_bytes=0), random.Random(target)  # noqa: S311 - as above
    ends: set[int] = set()

    def look(change: str) -> None:
        del change
        for image in files.images(chance, 1):
            with LogBed(tmp_path / "after", bed.registry, topic) as after:
                after.write(image)
                recovered = after.open(clean=False)
                ends.add(recovered.offsets().log_end)
                offsets = [record.offset for record in recovered.records()]
                assert offsets == list(range(len(offsets)))

    bed.topic = topic
    bed.folder.mkdir(parents=True)
    files = PowerLossVfs(bed.folder, lambda change: look(change) if ends else None)
    bed.files_port = files
    log = bed.open()
    for _ in range(3):
        log.append([Record(value=b"v")] * 5, durability="durable")
    ends.add(15)
    assert log.truncate_to(target)
    assert ends <= {0, 5, 10, 15, target}
    ends.clear()
    look("after")
    assert ends == {target}
    ends.clear()


@pytest.mark.parametrize("broken", [LazyNames, LazySync])
def test_a_sync_that_is_left_out_is_found(tmp_path: Path, bed: LogBed, broken: type[PowerLossVfs]) -> None:
    def search() -> None:
        for seed in range(5):
            Search(tmp_path / str(seed), bed.registry, seed, broken).run()

    with pytest.raises((AssertionError, StorageError)):
        search()
