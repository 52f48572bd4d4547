"""Power losses before each change of the disk by the erasure of a key or the deletion of old segments.

Other records stay, and a record that the proof calls erased is never restored.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

import cleaning_logs
from cleaning_logs import Script
from log_bed import LogBed
from stratalog.cleaning.erase.erase_key import erase
from stratalog.cleaning.plan.retention import apply_retention
from stratalog.errors import StorageError
from stratalog.log.log import Log
from stratalog.model.records import Record
from stratalog.registry.registry import Registry
from stratalog.testing.power_loss import Image, LazyNames, PowerLossVfs

KEY = b"key-0"
Check = Callable[[Log], None]


class Search:
    """One seeded log. Before each change of the disk, a check of some states that a power loss could leave."""

    def __init__(
        self, tmp_path: Path, installed: Registry, seed: int, files_class: type[PowerLossVfs] = PowerLossVfs
    ) -> None:
        self.tmp_path, self.installed = tmp_path, installed
        self.chance = random.Random(seed)  # noqa: S311 - the same in every run
        self.config = cleaning_logs.uncompacted(cleaning_logs.topic(segment_bytes=1200))
        self.bed = LogBed(tmp_path / "data", installed, self.config)
        log = self.bed.open()
        script = Script(log, self.bed, self.chance, transactions=True, keys=4)
        script.append(12)
        script.end_all()
        log.roll()
        self.before, self.log_end = list(log.records()), log.offsets().log_end
        self.bed.close()
        self.files = files_class(self.bed.folder, self.look)
        self.bed.files_port = self.files
        self.check: Check = lambda _: None
        self.checked, self.seen = 0, set[int]()

    def look(self, moment: str) -> None:
        """Check a possible state after a power loss now, at random. The file system calls this before each change."""
        del moment
        for image in self.files.images(self.chance, 1) if self.chance.random() < 0.6 else ():
            state = hash(frozenset(image.items()))
            if state not in self.seen:
                self.seen.add(state)
                self.recover(image)

    def recover(self, image: Image) -> None:
        self.checked += 1
        with LogBed(self.tmp_path / "after", self.installed, self.config, clock=self.bed.clock) as bed:
            bed.recovery_point = self.chance.choice([0, self.log_end])
            bed.write(image)
            log = bed.open(clean=False)
            assert log.offsets().log_end == self.log_end
            assert not [name for name in bed.names() if name.endswith((".cleaned", ".swap", ".deleted"))]
            self.check(log)


def others(records: list[Record]) -> list[Record]:
    return [record for record in records if record.key != KEY]


def run_erasure(search: Search) -> None:
    log = search.bed.open()
    assert KEY in [record.key for record in search.before]

    def keeps_the_others_and_a_second_run_ends_it(recovered_log: Log) -> None:
        records = list(recovered_log.records())
        assert others(records) == others(search.before)
        assert {record for record in records if record.key == KEY} <= set(search.before)
        assert erase(recovered_log, KEY).is_complete
        assert list(recovered_log.records()) == others(search.before)

    def never_has_it_again(recovered_log: Log) -> None:
        assert list(recovered_log.records()) == others(search.before)

    search.check = keeps_the_others_and_a_second_run_ends_it
    result = erase(log, KEY)
    assert result.is_complete
    search.check = never_has_it_again
    for _ in range(4):
        search.look("after the proof was given")
    log.maintenance.delete_expired()
    search.bed.close()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.long
def test_erasing_loses_nothing_else_and_what_was_proven_gone_stays_so(
    tmp_path: Path, installed: Registry, seed: int
) -> None:
    search = Search(tmp_path, installed, seed)
    run_erasure(search)
    assert search.checked > 10


def test_a_sync_that_is_left_out_is_found(tmp_path: Path, installed: Registry) -> None:
    with pytest.raises((AssertionError, StorageError)):
        run_erasure(Search(tmp_path, installed, 0, LazyNames))


@pytest.mark.parametrize("seed", range(2))
def test_deleting_leaves_a_log_without_holes(tmp_path: Path, installed: Registry, seed: int) -> None:
    search = Search(tmp_path, installed, seed)
    log = search.bed.open()
    sizes = [segment.size_bytes for segment in log.view().segments]
    keeps = sum(sizes) - sum(sizes[: len(sizes) // 2])
    log.maintenance.configure(
        cleaning_logs.uncompacted(cleaning_logs.topic(segment_bytes=1200, retention_bytes=keeps)), log.components
    )
    new_start = log.view().segments[len(sizes) // 2].base_offset

    def is_a_suffix(recovered_log: Log) -> None:
        records, start = list(recovered_log.records()), recovered_log.offsets().log_start
        assert start <= new_start
        assert records == [record for record in search.before if record.offset >= start]

    search.check = is_a_suffix
    result = apply_retention(log, {"delete": search.bed.host.policy("delete")}, None, now_ms=search.bed.clock.now_ms())
    assert result.deleted_segments == len(sizes) // 2
    log.maintenance.delete_expired()
    search.look("after all of it")
    search.bed.close()
    assert search.checked > 2
