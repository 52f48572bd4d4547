"""Collection of an archiver's superseded roots and objects of failed uploads, which no engine collects."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_folder import KafkaFolder
from log_bed import LOG, TOPIC_ID, LogBed
from sim_objects import ObjectFault, SimObjectStore
from stratalog.config.topic import TopicConfig
from stratalog.errors import StoreTimeoutError
from stratalog.registry.registry import Registry
from stratalog.tier.collect_all import TierCollection
from stratalog.tier.store.object_keys import log_prefix, manifest_prefix, segment_key
from stratalog.tier.takeover.archive import ArchivePlan, Archiver
from stratalog.tier.upkeep.collect import GRACE_MS, CollectReport
from tier_bed import TierBed

PREFIX = log_prefix(LOG, TOPIC_ID)


class Archive:
    """A broker's folder, and runs of archivers into one bucket. Each run is a new process with its own collection."""

    def __init__(self, folder: Path, registry: Registry) -> None:
        self.bed = LogBed(folder / "logs", registry)
        self.broker, self.tiers = KafkaFolder(self.bed), TierBed()
        self.store = SimObjectStore(self.tiers.bucket)

    def run(self, *, segments: int = 0) -> CollectReport:
        """Run an archiver after this number of new segments, and return the report of its collection."""
        if segments:
            self.broker.fill(segments=segments)
        self.store = SimObjectStore(self.tiers.bucket)
        reading = self.bed.host.segment_store(str(self.bed.directory), read_only=True)
        with self.tiers.open(self.store) as tier:
            plan = ArchivePlan(config=TopicConfig(tier_layout="pair"))
            archiver = Archiver([reading], tier, self.bed.components, plan)
            assert [result.error for result in archiver.run()] == [None]
            return archiver.collect(TierCollection(GRACE_MS))

    def check(self) -> None:
        """Check that the segments in the archive equal the files of the broker."""
        with self.tiers.open(read_only=True) as tier:
            segments = tier.log(LOG, TOPIC_ID).view().segments
            broker_files = [self.broker.path(segment.base_offset).read_bytes() for segment in segments]
            assert [bytes(segment.read(0, segment.size_bytes)) for segment in segments] == broker_files

    def roots(self) -> int:
        return len(self.tiers.bucket.keys(manifest_prefix(PREFIX)))

    def later(self) -> None:
        self.tiers.clock.advance_ms(GRACE_MS)

    def leave_object(self, leader_epoch: int) -> str:
        """Leave an object as a run does that is killed between an upload and its commit. Return its key."""
        key = segment_key(PREFIX, 0, leader_epoch, uuid.UUID(int=1), "seg")
        self.tiers.bucket.write(key, b"left")
        return key


@pytest.fixture
def archive(tmp_path: Path, installed: Registry) -> Iterator[Archive]:
    new_archive = Archive(tmp_path, installed)
    yield new_archive
    new_archive.bed.close()


def test_states_that_were_superseded_an_hour_ago_are_deleted_by_the_next_run_that_writes(archive: Archive) -> None:
    archive.run(segments=4)
    assert archive.roots() == 4
    archive.later()
    assert archive.run(segments=2).roots == 3  # one root was superseded just now
    assert archive.roots() == 3
    archive.check()


def test_a_run_that_writes_nothing_collects_nothing_and_sends_no_request(archive: Archive) -> None:
    archive.run(segments=3)
    archive.later()
    counts_before = archive.store.counts.copy()
    assert archive.run() == CollectReport()
    assert archive.store.counts["delete"] == 1  # requests of the probe
    assert archive.store.counts["list"] <= counts_before["list"]


def test_uploads_of_a_killed_run_are_deleted_once_they_are_old(archive: Archive) -> None:
    archive.run(segments=1)
    key = archive.leave_object(leader_epoch=0)
    archive.run(segments=1)
    assert key in archive.tiers.bucket.objects  # it may be another writer's upload in progress
    archive.later()
    assert archive.run(segments=1).orphans == 1
    assert key not in archive.tiers.bucket.objects
    archive.check()


def test_leftovers_of_an_engine_that_took_the_archive_over_are_not_an_archivers_to_collect(archive: Archive) -> None:
    archive.run(segments=1)
    with archive.tiers.open() as tier:
        remote = tier.log(LOG, TOPIC_ID)
        remote.claim("taken over")
    key = archive.leave_object(leader_epoch=1)
    archive.later()
    archive.run()
    assert key in archive.tiers.bucket.objects


def test_a_store_that_fails_leaves_the_rest_to_the_next_time(archive: Archive) -> None:
    archive.run(segments=4)
    archive.later()
    archive.broker.fill(segments=1)
    reading = archive.bed.host.segment_store(str(archive.bed.directory), read_only=True)
    store = SimObjectStore(archive.tiers.bucket)
    with archive.tiers.open(store) as tier:
        archiver = Archiver(
            [reading], tier, archive.bed.components, ArchivePlan(config=TopicConfig(tier_layout="pair"))
        )
        assert [result.error for result in archiver.run()] == [None]
        collection = TierCollection(GRACE_MS)
        store.faults = lambda request: ObjectFault.NOT_APPLIED if request.kind == "delete" else ObjectFault.NONE
        with pytest.raises(StoreTimeoutError):
            archiver.collect(collection)
        store.faults = lambda _: ObjectFault.NONE
        assert archiver.collect(collection).roots == 3
