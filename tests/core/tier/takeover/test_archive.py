"""Archiving of a broker's directory to a tier while the broker runs: no record is lost, duplicated or changed."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kafka_folder import KafkaFolder
from log_bed import LOG, TOPIC_ID, LogBed, offsets_in, records
from sim_objects import ObjectFault, SimObjectStore, scripted_faults
from stratalog.config.topic import TopicConfig
from stratalog.errors import (
    CorruptBatchError,
    CorruptCheckpointError,
    FencedEpochError,
    SegmentGoneError,
    StorageError,
    StoreTimeoutError,
)
from stratalog.model.names import (
    CLUSTER_METADATA_TOPIC,
    HIGH_WATERMARKS_FILE,
    LEADER_EPOCHS_FILE,
    LOG_STARTS_FILE,
    PARTITION_METADATA_FILE,
    TopicId,
)
from stratalog.model.segment_info import FileKind
from stratalog.reading.reader import StaticLog
from stratalog.reading.tier_reader import tier_view
from stratalog.registry.registry import Registry
from stratalog.testing.faults import FaultyVfs
from stratalog.tier.read.remote_segment import RemoteSegment
from stratalog.tier.store.object_keys import log_prefix
from stratalog.tier.takeover.archive import ArchivedLog, ArchivePlan, Archiver, derived_topic_id
from stratalog.tier.tier import Tier
from tier_bed import TierBed

READS = {"open", "read", "send", "map"}


class Scene:
    """Folder of a broker, a tier in memory, and an archiver whose file accesses are recorded."""

    def __init__(self, folder: Path, registry: Registry) -> None:
        self.bed = LogBed(folder / "logs", registry)
        self.broker = KafkaFolder(self.bed)
        self.tiers = TierBed()
        self.watched = FaultyVfs()
        self.reading = LogBed(folder / "logs", registry, files_port=self.watched)
        self.tier = self.tiers.open()

    def archiver(self, tier: Tier | None = None, *, skip_gaps: bool = False) -> Archiver:
        store = self.reading.host.segment_store(str(self.bed.directory), read_only=True)
        plan = ArchivePlan(config=TopicConfig(tier_layout="pair"), skip_gaps=skip_gaps)
        return Archiver([store], tier or self.tier, self.reading.components, plan)

    def archive(self, *, skip_gaps: bool = False) -> ArchivedLog:
        (result,) = self.archiver(skip_gaps=skip_gaps).run()
        return result

    def archived(self) -> StaticLog:
        """Open the tier with a new reader, and return its log."""
        remote = self.tiers.open(read_only=True).log(LOG, TOPIC_ID).view()
        return StaticLog(tier_view(LOG, remote, self.reading.components), TOPIC_ID)

    def archived_bytes(self) -> bytes:
        view = self.tiers.open(read_only=True).log(LOG, TOPIC_ID).view()
        return b"".join(bytes(segment.read(0, segment.size_bytes)) for segment in view.segments)

    def ends(self) -> list[int]:
        view = self.tiers.open(read_only=True).log(LOG, TOPIC_ID).view()
        return [segment.end_offset for segment in view.segments]

    def close(self) -> None:
        self.tier.close()
        self.reading.close()
        self.bed.close()


@pytest.fixture
def scene(tmp_path: Path, installed: Registry) -> Iterator[Scene]:
    new_scene = Scene(tmp_path, installed)
    yield new_scene
    new_scene.close()


def test_every_closed_segment_below_the_high_watermark_is_archived(scene: Scene) -> None:
    scene.broker.fill(segments=3)
    result = scene.archive()
    assert (result.error, result.segments, result.tier_end) == (None, 3, 36)
    assert result.size_bytes == sum(scene.broker.path(base).stat().st_size for base in (0, 12, 24))
    assert offsets_in(scene.archived()) == list(range(36))
    assert scene.archived_bytes() == b"".join(batch.data for batch in scene.broker.history[:-1])


def test_nothing_is_ever_written_to_the_directory(scene: Scene) -> None:
    scene.broker.fill(segments=3)
    scene.broker.clean(0, 1, stop_at="swap")
    files_before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in scene.bed.folder.iterdir()}
    scene.archive()
    scene.archive()
    assert {operation for operation, _ in scene.watched.done} <= READS
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in scene.bed.folder.iterdir()} == files_before
    assert scene.watched.names("open")


def test_a_directory_that_may_not_be_written_is_archived(scene: Scene) -> None:
    scene.broker.fill(segments=2)
    places = [scene.bed.directory, *scene.bed.directory.rglob("*")]
    for path in places:
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        assert scene.archive().segments == 2
    finally:
        for path in places:
            path.chmod(0o700 if path.is_dir() else 0o600)


@pytest.mark.parametrize(("high_watermark", "ends"), [(0, []), (11, []), (12, [12]), (13, [12]), (36, [12, 24, 36])])
def test_nothing_above_the_high_watermark_is_deleted(scene: Scene, high_watermark: int, ends: list[int]) -> None:
    scene.broker.fill(segments=3)
    scene.broker.confirm(high_watermark)
    assert scene.archive().error is None
    assert scene.ends() == ends


def test_a_log_that_the_checkpoint_does_not_know_waits(scene: Scene) -> None:
    scene.broker.fill(segments=2)
    (scene.bed.directory / HIGH_WATERMARKS_FILE).write_bytes(b"0\n0\n")
    assert scene.archive().tier_end == 0


@pytest.mark.parametrize("name", [HIGH_WATERMARKS_FILE, LOG_STARTS_FILE])
def test_a_damaged_checkpoint_is_reported(scene: Scene, name: str) -> None:
    """A damaged checkpoint must not count as empty: the run would archive nothing, and report success."""
    scene.broker.fill(segments=2)
    (scene.bed.directory / name).write_bytes(b"0\n2\nt 0 24\n")
    with pytest.raises(CorruptCheckpointError, match=name):
        list(scene.archiver().run())
    assert scene.ends() == []


def test_a_stopped_directory_without_checkpoint_is_archived_as_far_as_it_is_closed(scene: Scene) -> None:
    scene.broker.fill(segments=2)
    (scene.bed.directory / HIGH_WATERMARKS_FILE).unlink()
    assert scene.archive().tier_end == 24


def test_a_second_run_continues_and_uploads_nothing_twice(scene: Scene) -> None:
    scene.broker.fill(segments=2)
    scene.archive()
    uploaded = set(scene.tiers.bucket.keys(""))
    scene.broker.fill(segments=1)
    assert scene.archive().segments == 1
    assert uploaded <= set(scene.tiers.bucket.keys(""))
    assert scene.ends() == [12, 24, 39]
    before = scene.tiers.bucket.keys("")
    assert scene.archive().segments == 0
    assert scene.tiers.bucket.keys("") == before


def test_a_log_with_an_unchanged_high_watermark_is_not_checked_again(scene: Scene) -> None:
    scene.broker.fill(segments=1)
    archiver = scene.archiver()
    assert [result.segments for result in archiver.run()] == [1]
    assert list(archiver.run()) == []
    scene.broker.fill(segments=1)
    assert [result.segments for result in archiver.run()] == [1]


def test_a_recreated_topic_is_archived_though_its_high_watermark_is_that_of_the_old(scene: Scene) -> None:
    scene.broker.fill(segments=1)
    archiver = scene.archiver()
    assert [result.segments for result in archiver.run()] == [1]
    scene.bed.folder.rename(scene.bed.directory / "t-0.0123456789abcdef0123456789abcdef-delete")
    anew = TopicId("BBBBBBBBBBBBBBBBBBBBBQ")
    KafkaFolder(scene.bed, anew).fill(segments=1)
    assert [result.segments for result in archiver.run()] == [1]
    assert scene.tier.logs() == ((LOG, TOPIC_ID), (LOG, anew))
    assert list(archiver.run()) == []


def test_segments_that_the_broker_deletes_stay_in_the_archive(scene: Scene) -> None:
    scene.broker.fill(segments=2)
    scene.archive()
    scene.broker.expire()
    scene.broker.fill(segments=1)
    result = scene.archive()
    assert result.error is None
    assert offsets_in(scene.archived()) == list(range(39))


def test_a_first_archive_begins_at_the_log_start(scene: Scene) -> None:
    scene.broker.fill(segments=3)
    scene.broker.expire()
    assert scene.archive().error is None
    assert scene.archived().offsets().log_start == 12
    assert offsets_in(scene.archived()) == list(range(12, 36))


def test_an_archive_that_lost_its_manifest_is_not_begun_again(scene: Scene) -> None:
    scene.broker.fill(segments=2)
    scene.archive()
    scene.broker.expire()
    scene.broker.fill(segments=1)
    for key in scene.tiers.bucket.keys(f"{log_prefix(LOG, TOPIC_ID)}manifest/"):
        scene.tiers.bucket.objects.pop(key)
    before = set(scene.tiers.bucket.objects)
    (result,) = scene.archiver(scene.tiers.open()).run()
    assert "segments from offset 0 on" in str(result.error)
    assert set(scene.tiers.bucket.objects) == before


def test_a_gap_is_reported_and_left_only_when_asked_for(scene: Scene) -> None:
    scene.broker.fill(segments=1)
    scene.archive()
    scene.broker.fill(segments=3)
    scene.broker.expire()
    scene.broker.expire()
    failed_result = scene.archive()
    assert failed_result.error is not None
    assert "[12, 27)" in str(failed_result.error)
    assert scene.ends() == [12]
    result = scene.archive(skip_gaps=True)
    assert (result.error, result.segments, result.skipped_offsets) == (None, 2, 15)
    assert offsets_in(scene.archived()) == [*range(12), *range(27, 51)]
    assert scene.archive().error is None


# --- concurrent changes by the broker --------------------------------------------------------------------------------


def test_a_segment_that_vanishes_before_it_is_read_is_found_again_in_the_next_pass(scene: Scene) -> None:
    scene.broker.fill(segments=2)

    def clean(operation: str, path: str) -> None:
        if operation == "open" and path.endswith("00.log"):
            scene.watched.rule = None
            scene.broker.clean(0, 1)

    scene.watched.rule = clean
    first = scene.archive()
    assert first.error is None or isinstance(first.error, SegmentGoneError)
    assert scene.archive().error is None
    assert scene.archived_bytes() == b"".join(batch.data for batch in scene.broker.history[:-1])


@pytest.mark.parametrize("is_sound", [False, True])
@pytest.mark.parametrize("read", range(1, 7))
def test_a_file_that_changes_under_the_reader_is_never_committed(scene: Scene, read: int, *, is_sound: bool) -> None:
    """The changed file fails its CRC, or only its modification time shows the change, because its records are valid."""
    scene.broker.fill(segments=2)
    path, reads = scene.broker.path(0), [0]
    written_ns = path.stat().st_mtime_ns
    original, last = path.read_bytes(), scene.broker.history[3]
    other_batch = scene.bed.batch(last.base, records(last.end - last.base, start=last.base, timestamp_ms=1))
    changed_contents = original[: -len(other_batch)] + bytes(other_batch) if is_sound else original[:-7] + b"changed"
    assert len(changed_contents) == len(original)
    assert changed_contents != original

    def scribble(operation: str, where: str) -> None:
        if operation == "read" and where.endswith(path.name):
            reads[0] += 1
            if reads[0] == read:
                path.write_bytes(changed_contents)
                # two writes within a short time can have the same file system timestamp
                os.utime(path, ns=(0, written_ns + 10**9))

    scene.watched.rule = scribble
    result = scene.archive()
    if reads[0] < read:
        assert result.error is None
        return
    assert isinstance(result.error, SegmentGoneError | CorruptBatchError)
    assert scene.ends() == []
    scene.watched.rule = None
    path.write_bytes(original)
    assert scene.archive().error is None
    assert scene.archived_bytes() == b"".join(batch.data for batch in scene.broker.history[:-1])


def test_earlier_damage_is_reported_with_its_position_and_the_batches_before_it_are_kept(scene: Scene) -> None:
    scene.broker.fill(segments=3)
    data = bytearray(scene.broker.path(12).read_bytes())
    data[-1] ^= 1
    scene.broker.path(12).write_bytes(data)
    result = scene.archive()
    assert isinstance(result.error, CorruptBatchError)
    assert result.error.file == str(scene.broker.path(12))
    assert result.error.position == len(data) - len(scene.broker.history[7].data)
    assert scene.ends() == [12]


@pytest.mark.parametrize("stop_at", ["cleaned", "swap", "deleted", ""])
def test_a_cleaning_that_was_interrupted_anywhere_is_read_as_the_broker_would(scene: Scene, stop_at: str) -> None:
    scene.broker.fill(segments=3)
    scene.broker.clean(0, 1, stop_at=stop_at)
    assert scene.archive().error is None
    assert scene.archived_bytes() == b"".join(batch.data for batch in scene.broker.history[:-1])


def test_only_the_rest_of_a_segment_that_the_cleaner_joined_is_deleted(scene: Scene) -> None:
    scene.broker.fill(segments=2)
    scene.archive()
    scene.broker.fill(segments=2)
    scene.broker.clean(0, 3)
    result = scene.archive()
    assert (result.error, result.segments) == (None, 1)
    assert offsets_in(scene.archived()) == list(range(51))
    log = scene.archived()
    assert [log.offset_for_timestamp(1_700_000_000_000 + n) for n in range(51)] == list(range(51))


def test_a_tier_that_ends_inside_a_batch_is_reported(scene: Scene) -> None:
    scene.broker.fill(segments=1)
    scene.archive()
    scene.broker.path(0).unlink()
    scene.broker.path(12).unlink()
    scene.broker.history.clear()
    scene.broker.segments = {0: []}
    scene.broker.append(20)
    scene.broker.roll()
    scene.broker.confirm()
    assert "is inside a batch" in str(scene.archive().error)


def test_records_of_another_leader_do_not_count_as_archived(scene: Scene) -> None:
    scene.broker.fill(segments=1)
    scene.archive()
    scene.broker.epochs = [type(scene.broker.epochs[0])(3, 5)]
    scene.broker.lead(0)
    scene.broker.fill(segments=1)
    result = scene.archive()
    assert "different records at offset 11" in str(result.error)
    assert scene.ends() == [12]


def test_a_batch_whose_epoch_the_checkpoint_does_not_know_is_reported(scene: Scene) -> None:
    scene.broker.fill(segments=1)
    (scene.bed.folder / LEADER_EPOCHS_FILE).write_bytes(b"0\n1\n7 0\n")
    result = scene.archive()
    assert isinstance(result.error, CorruptBatchError)
    assert "leader epoch 0, the checkpoint has 7" in str(result.error)


def test_epochs_and_producers_are_copied_too(scene: Scene) -> None:
    for epoch in (2, 5):
        scene.broker.lead(epoch)
        scene.broker.fill(segments=1)
    scene.archive()
    view = scene.tiers.open(read_only=True).log(LOG, TOPIC_ID).view()
    assert view.leader_epochs == tuple(scene.broker.epochs[1:])
    segment = view.segments[-1]
    assert isinstance(segment, RemoteSegment)
    assert segment.read_file(FileKind.SNAPSHOT)
    assert segment.read_file(FileKind.OFFSET_INDEX) or segment.size_bytes < 4096
    assert segment.read_file(FileKind.LEADER_EPOCHS).decode().endswith("5 15\n")


def test_two_archivers_do_not_write_one_log(scene: Scene) -> None:
    scene.broker.fill(segments=1)
    other_tier = scene.tiers.open()
    other_tier.log(LOG, TOPIC_ID).view()
    scene.archive()
    scene.broker.fill(segments=1)
    (result,) = scene.archiver(other_tier).run()
    assert isinstance(result.error, FencedEpochError)
    assert scene.archive().error is None


def test_a_topic_without_id_gets_one_that_stays(scene: Scene) -> None:
    (scene.bed.folder / PARTITION_METADATA_FILE).unlink()
    scene.broker.fill(segments=1)
    assert scene.archive().error is None
    (name,) = scene.tier.logs()
    assert name == (LOG, derived_topic_id(LOG.topic))
    assert derived_topic_id("a") != derived_topic_id("b")


def test_a_log_in_two_directories_is_reported(scene: Scene) -> None:
    scene.broker.fill(segments=1)
    stores = [scene.reading.host.segment_store(str(scene.bed.directory), read_only=True) for _ in range(2)]
    plan = ArchivePlan(config=TopicConfig(tier_layout="pair"))
    first, second = Archiver(stores, scene.tier, scene.reading.components, plan).run()
    assert (first.segments, first.error) == (1, None)
    assert isinstance(second.error, StorageError)


def test_topics_are_chosen_and_the_metadata_log_is_left_out(scene: Scene) -> None:
    scene.broker.fill(segments=1)
    (scene.bed.directory / f"{CLUSTER_METADATA_TOPIC}-0").mkdir()
    store = scene.reading.host.segment_store(str(scene.bed.directory), read_only=True)
    plan = ArchivePlan(config=TopicConfig(tier_layout="pair"), wants=lambda topic: topic != LOG.topic)
    assert list(Archiver([store], scene.tier, scene.reading.components, plan).run()) == []
    assert [result.log for result in scene.archiver().run()] == [LOG]


@pytest.mark.parametrize(
    "fault", [ObjectFault.NOT_APPLIED, ObjectFault.REPLY_LOST, ObjectFault.LATE], ids=lambda fault: fault.name
)
def test_any_request_may_fail_and_the_next_pass_continues(
    tmp_path: Path, installed: Registry, fault: ObjectFault
) -> None:
    for number in range(11):
        scene = Scene(tmp_path / str(number), installed)
        scene.tiers.config = replace(scene.tiers.config, store_retries=0)
        scene.broker.fill(segments=2)
        store = SimObjectStore(scene.tiers.bucket)
        with scene.tiers.open(store) as tier:
            store.faults = scripted_faults({store.next_number + number: fault})
            (result,) = scene.archiver(tier).run()
            assert result.error is None or isinstance(result.error, StoreTimeoutError)
            assert result.segments == len(tier.log(LOG, TOPIC_ID).view().segments)
            list(scene.archiver(tier).run())
        assert scene.ends() == [12, 24]
        assert scene.archived_bytes() == b"".join(batch.data for batch in scene.broker.history[:-1])
        scene.close()


class RandomBroker:
    """A broker that runs random operations. It never deletes records that are not archived yet."""

    def __init__(self, scene: Scene, seed: int) -> None:
        self.scene, self.chance = scene, random.Random(seed)  # noqa: S311 - a test must be repeatable
        self._steps = [self._append] * 4 + [self._roll] * 2 + [self._clean, self._expire, self._confirm, self._lead]

    def act(self) -> None:
        """Run one random operation."""
        self.chance.choice(self._steps)()

    def interrupt(self, _operation: str, path: str) -> None:
        """Sometimes run an operation when a file of the log is opened or read."""
        watched_files = self.scene.watched
        if self.chance.random() < 0.15 and path.startswith(str(self.scene.bed.folder)):
            rule, watched_files.rule = watched_files.rule, None
            self.act()
            watched_files.rule = rule

    def _append(self) -> None:
        self.scene.broker.append(self.chance.randrange(1, 9))

    def _roll(self) -> None:
        self.scene.broker.roll()

    def _clean(self) -> None:
        first = self.chance.randrange(3)
        self.scene.broker.clean(first, first + self.chance.randrange(3))

    def _expire(self) -> None:
        tier_end = self.scene.tier.log(LOG, TOPIC_ID).view().end_offset
        if sorted(self.scene.broker.segments)[:2][-1] <= tier_end:
            self.scene.broker.expire()

    def _confirm(self) -> None:
        end = self.scene.broker.end
        self.scene.broker.confirm(self.chance.randrange(max(end - 20, 0), end + 1))

    def _lead(self) -> None:
        self.scene.broker.lead(self.scene.broker.epochs[-1].epoch + 1)


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.long
def test_a_broker_at_work_between_and_during_passes_loses_nothing(scene: Scene, seed: int) -> None:
    chaos, archiver = RandomBroker(scene, seed), scene.archiver()
    for _ in range(25):
        for _ in range(chaos.chance.randrange(8)):
            chaos.act()
        scene.watched.rule = chaos.interrupt
        for result in archiver.run():
            assert result.error is None or isinstance(result.error, SegmentGoneError), seed
        scene.watched.rule = None
    scene.broker.confirm()
    assert [result.error for result in scene.archiver().run()] == [None], seed
    closed_end = max(scene.broker.segments)
    expected = b"".join(batch.data for batch in scene.broker.history if batch.end <= closed_end)
    assert scene.archived_bytes() == expected, seed
    assert offsets_in(scene.archived()) == list(range(closed_end)), seed
