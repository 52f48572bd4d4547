"""Power losses before each change of the disk by a compaction or a deletion.

No newest record is lost, no deleted record is restored, and the next round completes the work.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

import cleaning_logs
from cleaning_logs import Script
from log_bed import LogBed
from stratalog.errors import StorageError
from stratalog.log.folder import folder
from stratalog.log.folder.swap_files import SwapPlan, plan_swap
from stratalog.log.log import Log
from stratalog.model.records import Record
from stratalog.registry.registry import Registry
from stratalog.testing.power_loss import Image, LazyNames, LazySync, PowerLossVfs

SAMPLES = 2
ABORTED = "read_committed"

Row = tuple[int, bytes | None, bytes | None]


def rows(log: Log, isolation: str = "read_uncommitted") -> list[Row]:
    return [(record.offset, record.key, record.value) for record in log.records(isolation=isolation)]


@dataclass
class Search:
    """One seeded log that is compacted twice. Before each disk change, a check of what a power loss could leave."""

    tmp_path: Path
    registry: Registry
    seed: int
    files_class: type[PowerLossVfs] = PowerLossVfs
    checked: int = 0
    seen: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)  # noqa: S311 - the same in every run
        self.config = cleaning_logs.topic(segment_bytes=2500)
        self.bed = LogBed(self.tmp_path / "data", self.registry, cleaning_logs.uncompacted(self.config))
        log = self.bed.open()
        script = Script(log, self.bed, self.chance, transactions=True, keys=12)
        script.append(30)
        script.end_all()
        log.roll()
        self.before, self.committed = rows(log), rows(log, ABORTED)
        self.log_end = log.offsets().log_end
        self.bed.close()
        self.bed.topic = self.config
        self.files = self.files_class(self.bed.folder, self.look)
        self.bed.files_port = self.files

    def run(self) -> None:
        log = self.bed.open()
        assert cleaning_logs.clean(self.bed, log) is not None
        self.bed.clock.advance_ms(20_000)
        log.maintenance.resume_cleaning(0)
        assert cleaning_logs.clean(self.bed, log) is not None
        log.maintenance.delete_expired()
        self.bed.close()

    def look(self, moment: str) -> None:
        """Check some of the possible states after a power loss now. The file system calls this before each change."""
        del moment
        for image in self.files.images(self.chance, SAMPLES):
            state = hash(frozenset(image.items()))
            if state not in self.seen:
                self.seen.add(state)
                self.recover(image)

    def recover(self, image: Image) -> None:
        self.checked += 1
        bed = LogBed(self.tmp_path / "after", self.registry, self.config, clock=self.bed.clock)
        bed.recovery_point = self.chance.choice([0, self.log_end])
        bed.write(image)
        with bed:
            log = bed.open(clean=False)
            self.compare(log)
            assert not [name for name in bed.names() if name.endswith((".cleaned", ".swap"))]
            log.maintenance.resume_cleaning(0)
            result = cleaning_logs.clean(bed, log)
            assert result is not None
            assert result.error is None
            self.compare(log)
            reopened_log = bed.open()
            self.compare(reopened_log)

    def compare(self, log: Log) -> None:
        """Check the records after a power loss.

        Each record existed before, the newest record of each key is there, and aborted data stays aborted.
        """
        actual, committed = rows(log), rows(log, ABORTED)
        assert log.offsets().log_end == self.log_end
        assert set(actual) <= set(self.before)
        assert set(committed) <= set(self.committed)
        assert [row[0] for row in actual] == sorted({row[0] for row in actual})
        newest = {row[1]: row for row in self.committed if row[1] is not None}
        newest_committed = {row[1]: row for row in committed if row[1] is not None}
        for key, row in newest.items():
            assert newest_committed.get(key, row if row[2] is None else None) == row


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.long
def test_a_power_loss_at_any_time_loses_no_newest_record(tmp_path: Path, bed: LogBed, seed: int) -> None:
    search = Search(tmp_path, bed.registry, seed)
    search.run()
    assert search.checked > 50


@pytest.mark.parametrize("broken", [LazyNames, LazySync])
@pytest.mark.long
def test_a_sync_that_is_left_out_is_found(tmp_path: Path, bed: LogBed, broken: type[PowerLossVfs]) -> None:
    with pytest.raises((AssertionError, StorageError)):
        Search(tmp_path, bed.registry, 0, broken).run()


def test_records_that_a_transaction_replaces_are_dropped_once_its_marker_is_durable(
    tmp_path: Path, bed: LogBed
) -> None:
    """The earlier value of a key must stay until the marker of the transaction with the new value is durable.

    Otherwise a power loss could lose the marker. The transaction would be aborted, and both values would be lost.
    """
    bed.topic, chance = cleaning_logs.topic(segment_bytes=2500), random.Random(0)  # noqa: S311 - the same in every run
    bed.folder.mkdir(parents=True)
    files = bed.files_port = PowerLossVfs(bed.folder)
    log = bed.open()
    log.append([Record(key=b"k", value=b"old")], durability="durable")
    log.roll()
    log.append_as_leader(bed.batch(0, [Record(key=b"k", value=b"new")], producer=(7, 0, 0), transactional=True))
    log.roll()
    log.end_transaction(7, 0, commit=True, coordinator_epoch=0)
    assert cleaning_logs.clean(bed, log) is not None
    for image in files.images(chance, 20):
        crashed_bed = LogBed(tmp_path / "left", bed.registry, bed.topic, clock=bed.clock)
        crashed_bed.write(image)
        with crashed_bed:
            values = {record.value for record in crashed_bed.open(clean=False).records(isolation="read_committed")}
        assert values & {b"old", b"new"}


def give_up_what_was_committed(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: recovery discards a replacement whose old segments are deleted (KAFKA-6264, KAFKA-12520)."""

    def plan(names: Sequence[str], *ends: Callable[[str], int]) -> SwapPlan:
        swap_plan = plan_swap(names, *ends)
        swaps = [old for old, _ in swap_plan.renames]
        live = {final: name for final, name in swap_plan.live.items() if name not in swaps}
        return replace(swap_plan, removals=(*swap_plan.removals, *swaps), renames=(), live=live)

    patch.setattr(folder, "plan_swap", plan)


def keep_what_was_replaced(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: recovery keeps old segments after their replacement (KAFKA-12955)."""
    patch.setattr(folder, "plan_swap", lambda *args: replace(plan_swap(*args), removals=()))


@pytest.mark.parametrize("plant", [give_up_what_was_committed, keep_what_was_replaced])
@pytest.mark.long
def test_the_search_detects_planted_bugs(
    plant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, bed: LogBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = Search(tmp_path, bed.registry, 0)
    plant(monkeypatch)
    with pytest.raises((AssertionError, StorageError)):
        search.run()
