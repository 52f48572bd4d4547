"""Segments that a round does not read, because their digests show that the round would not change them."""

from __future__ import annotations

import errno
import os
import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from crc32c import crc32c

import cleaning_logs
from cleaning_logs import Script, local_plan
from log_bed import LogBed
from stratalog.cleaning.compact.compaction_round import CompactionResult
from stratalog.cleaning.erase.erase_key import erase
from stratalog.cleaning.explain.preview import preview
from stratalog.env import PosixVfs
from stratalog.log.log import Log
from stratalog.model.names import DIGEST_SUFFIX, LOG_SUFFIX
from stratalog.model.records import Record
from stratalog.registry.registry import Registry
from stratalog.segment.segment import Segment
from stratalog.spi import CleanupPolicy, LogSummary, RecordFilter, Rewrite, RewriteJob
from stratalog.testing.faults import FaultyVfs
from stratalog.testing.power_loss import Image, PowerLossVfs

OLD = 6  # number of segments with one key each; no two of them fit into one segment
VALUE = b"." * 1500


def clean_log(bed: LogBed, **settings: object) -> Log:
    """Return a log with ``OLD`` compacted segments and an empty active segment."""
    bed.topic = cleaning_logs.topic(segment_bytes=2000, **settings)
    log = bed.open()
    for key in range(OLD):
        add(log, b"old-%d" % key, VALUE)
    assert cleaned(bed, log).stats.segments_spared == 0
    return log


def add(log: Log, key: bytes, value: bytes | None) -> None:
    log.append([Record(key=key, value=value)])
    log.roll()


def cleaned(bed: LogBed, log: Log) -> CompactionResult:
    result = cleaning_logs.clean(bed, log)
    assert result is not None
    assert result.error is None
    assert not result.stopped
    return result


def digests(bed: LogBed) -> list[Path]:
    return sorted(bed.folder.glob(f"*{DIGEST_SUFFIX}"))


# --- segments that are not read (spared) -----------------------------------------------------------------------------


def test_segments_without_a_dirty_key_are_not_read(bed: LogBed) -> None:
    log = clean_log(bed)
    add(log, b"new", VALUE)
    result = cleaned(bed, log)
    assert result.stats.segments_spared == OLD
    assert result.stats.records_read == 1
    assert result.stats.bytes_read == log.view().segments[OLD].size_bytes


def test_a_segment_with_a_dirty_key_is_read_and_no_other(bed: LogBed) -> None:
    log = clean_log(bed)
    add(log, b"old-3", VALUE)
    result = cleaned(bed, log)
    assert result.stats.segments_spared == OLD - 1
    assert [record.key for record in log.records()] == [b"old-0", b"old-1", b"old-2", b"old-4", b"old-5", b"old-3"]


def test_spared_segments_are_known_after_the_log_is_reopened(bed: LogBed) -> None:
    log = clean_log(bed)
    bed.close()
    log = bed.open()
    log.maintenance.resume_cleaning(OLD)
    add(log, b"new", VALUE)
    assert cleaned(bed, log).stats.segments_spared == OLD


def test_a_tombstone_is_checked_when_it_has_its_time_and_not_before(bed: LogBed) -> None:
    log = clean_log(bed)
    log.append([Record(key=b"gone", value=None), Record(key=b"stays", value=VALUE)])
    log.roll()
    cleaned(bed, log)
    bed.clock.advance_ms(log.config.delete_retention_ms - 1)
    add(log, b"new", VALUE)
    assert cleaned(bed, log).stats.segments_spared == OLD + 1
    bed.clock.advance_ms(1)
    add(log, b"newer", VALUE)
    # all except the segment of the tombstone and the new segment
    assert cleaned(bed, log).stats.segments_spared == OLD + 1
    assert b"gone" not in [record.key for record in log.records()]


def test_small_neighbours_still_become_one_without_being_judged(bed: LogBed) -> None:
    log = clean_log(bed)
    bed.close()
    bed.topic = cleaning_logs.topic(segment_bytes=8000)
    log = bed.open()
    log.maintenance.resume_cleaning(OLD)
    before = list(log.records())
    add(log, b"new", VALUE)
    result = cleaned(bed, log)
    assert result.stats.segments_spared == OLD
    assert result.stats.records_read == 1
    assert list(log.records())[:-1] == before
    assert len(log.view().segments) < OLD
    add(log, b"newer", VALUE)
    assert cleaned(bed, log).stats.segments_spared >= 1  # the merged segments have digests


def test_a_spared_segment_is_copied_whole_whatever_is_read_at_a_time(bed: LogBed) -> None:
    """The result must not depend on the read size.

    An earlier version wrote bytes after the last whole batch of a read twice.
    """
    bed.topic = cleaning_logs.topic(segment_bytes=3000)
    log = bed.open()
    for key in range(40):
        log.append([Record(key=b"old-%d" % key, value=b"." * 200)])
    log.roll()
    cleaned(bed, log)
    bed.close()
    bed.topic = cleaning_logs.topic(segment_bytes=8000)
    log = bed.open()
    log.maintenance.resume_cleaning(40)
    add(log, b"new", VALUE)
    before = list(log.records())
    for read_bytes in (1000, 700):
        result = cleaning_logs.clean(bed, log, replace(cleaning_logs.LIMITS, read_bytes=read_bytes))
        assert result is not None
        assert result.error is None
        assert result.stats.segments_spared > 1
        assert list(log.records()) == before
        add(log, b"newer", VALUE)
        before = list(log.records())


def test_a_dry_run_also_skips_segments_and_changes_no_file(bed: LogBed) -> None:
    log = clean_log(bed)
    add(log, b"old-2", VALUE)
    policies, now_ms = {"compact": bed.host.policy("compact")}, bed.clock.now_ms()
    plan = local_plan(log, policies, now_ms)
    assert plan.rewrite is not None
    before = bed.contents()
    outcome = preview(plan, policies, cleaning_logs.LIMITS, now_ms)
    assert outcome is not None
    assert [segment.start for segment in outcome.segments] == [2]
    assert bed.contents() == before


# --- segments that are read ------------------------------------------------------------------------------------------


def transaction(bed: LogBed, log: Log) -> None:
    records = [Record(key=b"old-0", value=VALUE, timestamp_ms=bed.clock.now_ms())]
    log.append_as_leader(bed.batch(0, records, producer=(9, 0, 0), transactional=True))
    log.end_transaction(9, 0, commit=True, coordinator_epoch=0)


def last_of_a_producer(bed: LogBed, log: Log) -> None:
    records = [Record(key=b"k", value=VALUE, timestamp_ms=bed.clock.now_ms())]
    log.append_as_leader(bed.batch(0, records, producer=(7, 0, 0)))
    log.roll()
    add(log, b"k", VALUE)


@pytest.mark.parametrize("write", [transaction, last_of_a_producer])
def test_transactions_and_batches_that_stay_empty_are_spared_once_nothing_of_them_changes(
    bed: LogBed, write: Callable[[LogBed, Log], None]
) -> None:
    bed.topic = cleaning_logs.topic(segment_bytes=2000)
    log = bed.open()
    write(bed, log)
    log.roll()
    add(log, b"x", VALUE)
    cleaned(bed, log)
    for key in (b"y", b"z"):
        add(log, key, VALUE)
        result = cleaned(bed, log)
    assert result.stats.records_read == 1
    assert result.stats.segments_spared == result.stats.segments_before - 1


@pytest.mark.parametrize("magic", [0, 1])
def test_older_formats_are_spared_until_their_tombstones_have_their_time(bed: LogBed, magic: int) -> None:
    log = clean_log(bed, record_version=magic)
    add(log, b"gone", None)
    add(log, b"x", VALUE)
    cleaned(bed, log)
    add(log, b"y", VALUE)
    assert cleaned(bed, log).stats.records_read == 1
    times = [path.stat().st_mtime for path in sorted(bed.folder.glob(f"*{LOG_SUFFIX}"))]
    bed.close()
    # the last clean segment; tombstones of segments that are old enough compared with it are deleted
    newest = bed.path(OLD + 2)
    os.utime(newest, (times[0] + 1000, times[0] + 1000))
    log = bed.open()
    log.maintenance.resume_cleaning(OLD + 3)
    add(log, b"z", VALUE)
    result = cleaned(bed, log)
    assert b"gone" not in [record.key for record in log.records()]
    assert result.stats.segments_spared >= OLD - 1


class PolicyWithoutDigest(CleanupPolicy):
    """Policy whose filter makes no digest."""

    def plan(self, log: LogSummary, config: object, now_ms: int) -> list[Rewrite]:
        del log, config, now_ms
        return []

    def record_filter(self, job: RewriteJob) -> RecordFilter:
        del job
        return KeepsAll()


class KeepsAll(RecordFilter):
    def observe(self, records: object) -> int:
        return records.count  # type: ignore[attr-defined, no-any-return]  # of RecordColumns

    def judge(self, records: object, verdicts: bytearray) -> None:
        del records, verdicts


def test_a_filter_without_digests_has_every_segment_read(bed: LogBed) -> None:
    log = clean_log(bed)
    add(log, b"new", VALUE)
    result = cleaning_logs.clean(bed, log, shy=PolicyWithoutDigest())
    assert result is not None
    assert result.stats.segments_spared == 0
    assert result.stats.records_read == OLD + 1


def test_damage_anywhere_in_a_digest_costs_only_a_read_of_the_segment(bed: LogBed) -> None:
    log = clean_log(bed)
    add(log, b"old-1", None)
    target = bed.path(0, DIGEST_SUFFIX)
    digest = target.read_bytes()
    policies, now_ms = {"compact": bed.host.policy("compact")}, bed.clock.now_ms()
    plan = local_plan(log, policies, now_ms)
    assert plan.rewrite is not None
    expected = preview(plan, policies, cleaning_logs.LIMITS, now_ms)
    damaged = [
        digest[:position] + bytes([digest[position] ^ 0x41]) + digest[position + 1 :] for position in range(len(digest))
    ]
    damaged += [digest[:end] for end in range(0, len(digest), 7)] + [digest + b"x", bytes(len(digest))]
    for data in damaged:
        target.write_bytes(data)
        assert preview(plan, policies, cleaning_logs.LIMITS, now_ms) == expected


@pytest.mark.parametrize("directory", [b"", b"\x01\0\0\0\0\0\0\0\x01\xff"], ids=["too short", "no ASCII"])
def test_a_digest_of_another_form_with_a_right_crc_counts_as_missing(bed: LogBed, directory: bytes) -> None:
    """A digest must match docs/formats/digest.md in every field; a correct CRC is not enough."""
    log = clean_log(bed)
    add(log, b"new", VALUE)
    target = bed.path(0, DIGEST_SUFFIX)
    trailer = bytearray(target.read_bytes()[-80:])
    struct.pack_into("<IIq", trailer, 0, len(directory), 1, 0)
    struct.pack_into("<I", trailer, 68, 0)
    struct.pack_into("<I", trailer, 68, crc32c(trailer, crc32c(directory)))
    target.write_bytes(directory + trailer)
    assert cleaned(bed, log).stats.segments_spared == OLD - 1


def test_a_segment_that_is_not_the_one_of_its_digest_is_read(bed: LogBed) -> None:
    """Kafka does not know digests: it leaves the digest file unchanged when it truncates or cleans the segment."""
    log = clean_log(bed)
    bed.close()
    path = bed.path(1)
    old_key, new_key = b"old-1", b"old-9"
    batch = bed.batch(1, [Record(key=new_key, value=VALUE, timestamp_ms=bed.clock.now_ms())])
    assert len(batch) == path.stat().st_size
    path.write_bytes(batch)
    log = bed.open()
    log.maintenance.resume_cleaning(OLD)
    add(log, new_key, VALUE)
    result = cleaned(bed, log)
    assert result.stats.segments_spared == OLD - 1
    keys = [record.key for record in log.records()]
    assert keys.count(new_key) == 1
    assert old_key not in keys


def test_a_full_disk_loses_only_the_digest(bed: LogBed) -> None:
    faulty = FaultyVfs()
    bed.files_port = faulty

    def full(operation: str, path: str) -> None:
        if operation in {"write", "create"} and DIGEST_SUFFIX in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    faulty.rule = full
    log = clean_log(bed)
    assert digests(bed) == []
    faulty.rule = None
    add(log, b"new", VALUE)
    assert cleaned(bed, log).stats.segments_spared == 0
    assert len(digests(bed)) == OLD + 1


@pytest.mark.parametrize("what", ["the listing", "the round"])
def test_a_digest_that_is_deleted_during_its_check_does_not_stop_the_cleaning(bed: LogBed, what: str) -> None:
    """Retention may delete a segment with its digest at any time."""
    faulty = FaultyVfs()
    bed.files_port = faulty
    log = clean_log(bed)
    add(log, b"new", VALUE)
    opened_paths = list[str]()

    def gone(operation: str, path: str) -> None:
        if operation == "open" and DIGEST_SUFFIX in path:
            opened_paths.append(path)
            if what == "the listing" or opened_paths.count(path) > 1:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    faulty.rule = gone
    result = cleaning_logs.clean(bed, log)
    assert result is not None
    assert result.error is None
    assert opened_paths
    faulty.rule = None
    assert not log.maintenance.cleaning.local.uncleanable
    if result.stopped:
        cleaned(bed, log)
    assert len(list(log.records())) == OLD + 1


# --- digests are deleted with their segments -------------------------------------------------------------------------


def test_deleting_and_rewriting_take_the_digest_along(bed: LogBed) -> None:
    log = clean_log(bed)
    assert len(digests(bed)) == OLD
    log.maintenance.raise_log_start(2)
    log.maintenance.evict(2)
    assert len(digests(bed)) == OLD - 2
    erase(log, b"old-3")
    assert bed.path(3, DIGEST_SUFFIX) not in digests(bed)  # the digest would show that the key existed
    log.truncate_to(4)
    bed.path(999, DIGEST_SUFFIX).write_bytes(b"of no segment")
    bed.path(2, DIGEST_SUFFIX + ".new").write_bytes(b"half")
    add(log, b"new", VALUE)
    cleaned(bed, log)
    digest_stems = {path.name.partition(".")[0] for path in bed.folder.glob(f"*{DIGEST_SUFFIX}*")}
    assert digest_stems <= {path.stem for path in bed.folder.glob(f"*{LOG_SUFFIX}")}


class VfsWithoutSyncs(PosixVfs):
    """File system whose syncs do nothing: these tests simulate no power loss."""

    def sync(self, descriptor: int) -> None:
        del descriptor

    def sync_folder(self, path: str) -> None:
        del path


# --- equal results with and without digests --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seed", "magic", "transactions"),
    [(0, 2, False), (1, 2, False), (2, 1, False), (3, 0, False), *((seed, 2, True) for seed in (5, 6, 11, 12))],
)
@pytest.mark.long
def test_rounds_leave_the_same_files_with_and_without_digests(
    tmp_path: Path, installed: Registry, seed: int, magic: int, *, transactions: bool
) -> None:
    """After each round, the files of two logs are equal byte by byte.

    One of the logs loses all its digests before each round.
    """
    chance = random.Random(seed)  # noqa: S311 - the same in every run
    config = cleaning_logs.topic(segment_bytes=chance.choice([900, 2500]), record_version=magic)
    bed = LogBed(tmp_path / "with", installed, cleaning_logs.uncompacted(config), files_port=VfsWithoutSyncs())
    without = LogBed(tmp_path / "without", installed, config, clock=bed.clock, files_port=VfsWithoutSyncs())
    dirty_start, spared, sequences = 0, 0, dict[int, int]()
    for _ in range(6):
        bed.topic = cleaning_logs.uncompacted(config)
        log = bed.open()
        script = Script(log, bed, chance, magic=magic, transactions=transactions, keys=chance.choice([5, 400]))
        script.sequences = sequences
        script.append(40)
        script.end_all()
        log.roll()
        bed.close()
        shutil.rmtree(without.folder, ignore_errors=True)
        shutil.copytree(bed.folder, without.folder)
        for path in digests(without):
            path.unlink()
        bed.topic = config
        ends = []
        for log_bed in (bed, without):
            log = log_bed.open()
            log.maintenance.resume_cleaning(dirty_start)
            result = cleaned(log_bed, log)
            spared += result.stats.segments_spared if log_bed is bed else 0
            ends.append(result.end)
            log.maintenance.delete_expired()
            log_bed.close()
        assert ends[0] == ends[1]
        dirty_start = ends[0]
        contents = [
            {name: data for name, data in log_bed.contents().items() if DIGEST_SUFFIX not in name}
            for log_bed in (bed, without)
        ]
        assert contents[0] == contents[1]
        bed.clock.advance_ms(chance.choice([0, 6_000, 20_000]))
    assert spared


class Search:
    """A second round, with digests. Before each change of the disk, a check of what a power loss could leave."""

    def __init__(self, tmp_path: Path, installed: Registry, seed: int) -> None:
        self.tmp_path, self.installed = tmp_path, installed
        self.chance = random.Random(seed)  # noqa: S311 - the same in every run
        self.config = cleaning_logs.topic(segment_bytes=900)
        self.bed = LogBed(tmp_path / "data", installed, cleaning_logs.uncompacted(self.config))
        log = self.bed.open()
        Script(log, self.bed, self.chance, keys=60).append(14)
        log.roll()
        self.bed.close()
        self.bed.topic = self.config
        log = self.bed.open()
        self.dirty_start = cleaned(self.bed, log).end
        self.bed.close()
        self.bed.topic = cleaning_logs.uncompacted(self.config)
        log = self.bed.open()
        Script(log, self.bed, self.chance, keys=60).append(2)
        log.roll()
        self.newest = {record.key: record.value for record in log.records()}
        self.bed.close()
        self.bed.topic = self.config
        self.files = PowerLossVfs(self.bed.folder, self.look)
        self.checked, self.spared, self.seen = 0, 0, set[int]()

    def run(self) -> None:
        self.bed.files_port = self.files
        log = self.bed.open()
        log.maintenance.resume_cleaning(self.dirty_start)
        cleaned(self.bed, log)
        self.bed.close()

    def look(self, moment: str) -> None:
        del moment
        for image in self.files.images(self.chance, 1) if self.chance.random() < 0.25 else ():
            state = hash(frozenset(image.items()))
            if state not in self.seen:
                self.seen.add(state)
                self.recover(image)

    def recover(self, image: Image) -> None:
        self.checked += 1
        bed = LogBed(
            self.tmp_path / "after", self.installed, self.config, clock=self.bed.clock, files_port=VfsWithoutSyncs()
        )
        bed.write(image)
        with bed:
            log = bed.open(clean=False)
            log.maintenance.resume_cleaning(self.dirty_start)
            self.spared += cleaned(bed, log).stats.segments_spared
            values: dict[bytes | None, list[bytes | None]] = {}
            for record in log.records():
                values.setdefault(record.key, []).append(record.value)
            assert values == {key: [value] for key, value in self.newest.items() if key is not None}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.long
def test_a_loss_of_power_leaves_no_wrong_digest(
    tmp_path: Path, installed: Registry, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A digest that does not match its segment is ignored.

    This holds even if restored files have the modification time of the deleted files.
    """
    identity_of = Segment.identity
    monkeypatch.setattr(Segment, "identity", lambda segment: replace(identity_of(segment), modified_ms=0))
    search = Search(tmp_path, installed, seed)
    search.run()
    assert search.checked > 10
    assert search.spared
