"""Interrupted repairs of manifests: a late request of a repair must not replace a later root."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from log_bed import LogBed
from sim_objects import ObjectFault, SimObjectStore, SimRequest
from stratalog import Record, open_engine
from stratalog.cli.app import run
from stratalog.engine.restore.restore import restore
from stratalog.errors import StoreError, StoreTimeoutError
from stratalog.registry.registry import Registry
from stratalog.segment.components import Components
from stratalog.segment.finding import Repair
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID
from stratalog.tier.store.object_keys import log_prefix, manifest_key, manifest_prefix
from stratalog.tier.upkeep.tier_check import TierLogCheck
from stratalog.tier.upkeep.tier_repair import TierRepair
from stratalog_formats.layouts.single import SingleLayout
from tier_bed import TierBed, made_segments

PREFIX = log_prefix(LOG, TOPIC_ID)


class Broken:
    """A log of four segments whose newest root is damaged."""

    def __init__(self, components: Components) -> None:
        self.components = components
        self.bed = TierBed(layout=SingleLayout(4096))
        self.offload(0, 10, 20, 30, 40)
        self.bed.bucket.write(manifest_key(PREFIX, 4), b"not a root")

    def offload(self, *bounds: int) -> None:
        with self.bed.open() as tier:
            tier.log(LOG, TOPIC_ID).offload(
                made_segments(*bounds),
                layout="pair",
                leader_epoch=0,
                log_start=0,
                high_watermark=bounds[-1],
            )

    def repair(
        self,
        faults: Callable[[SimRequest], ObjectFault] | None = None,
        before: Callable[[SimRequest], None] | None = None,
    ) -> list[Repair]:
        store = SimObjectStore(self.bed.bucket)
        with self.bed.open(store) as tier:
            store.faults = faults or store.faults
            store.before = before
            return list(TierRepair(tier.log(LOG, TOPIC_ID)).manifest())

    def versions(self) -> list[int]:
        return [int(key.rpartition("/")[2]) for key in self.bed.bucket.keys(manifest_prefix(PREFIX))]

    def check(self, *ends: int) -> None:
        """Check that the log has these segment end offsets, and that all roots of its history can be read."""
        with self.bed.open(read_only=True) as tier:
            remote = tier.log(LOG, TOPIC_ID)
            assert [segment.end_offset for segment in remote.view().segments] == list(ends)
            assert [root.version for root in remote.history()] == self.versions()[::-1]
            assert list(TierLogCheck(remote, self.components, contents=False).roots()) == []


@pytest.fixture
def broken(tmp_path: Path, installed: Registry) -> Iterator[Broken]:
    bed = LogBed(tmp_path, installed)
    yield Broken(bed.components)
    bed.close()


def test_a_log_can_be_restored_after_a_repair_below_the_high_watermark(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    uri = (tmp_path / "bucket").as_uri()
    with open_engine(tmp_path / "data", tier=uri) as engine:
        engine.create_topic("t")
        log = engine.log("t", 0)
        for number in range(3):
            log.append([Record(value=b"%d" % number)])
            log.roll()
        log.append([Record(value=b"only on local disk")])
        engine.offload()
    max((tmp_path / "bucket").rglob("manifest/*")).write_bytes(b"not a root")
    assert run(["verify", uri, "--repair"]) == 0
    (restored_log,) = restore(uri, tmp_path / "restored")
    assert restored_log.log_end == 3


def of_roots(kind: str, fault: ObjectFault) -> Callable[[SimRequest], ObjectFault]:
    """Return a function that injects ``fault`` into requests of one kind for roots."""

    def faults(request: SimRequest) -> ObjectFault:
        return fault if request.kind == kind and request.key.startswith(manifest_prefix(PREFIX)) else ObjectFault.NONE

    return faults


def test_a_damaged_head_is_left_out_and_no_history_is_lost(broken: Broken) -> None:
    (repair,) = broken.repair()
    assert repair.finding.place == manifest_key(PREFIX, 4)
    assert repair.done.startswith("version 5 replaces it")
    assert repair.done.endswith("erase keys again that were erased after version 3")
    assert broken.versions() == [1, 2, 3, 5]
    broken.check(10, 20, 30, 40)
    assert broken.repair() == []
    broken.offload(40, 50)
    broken.check(10, 20, 30, 40, 50)


def test_uploads_of_a_killed_repair_replace_nothing(broken: Broken) -> None:
    with pytest.raises(StoreTimeoutError):
        broken.repair(of_roots("create", ObjectFault.LATE))
    assert broken.versions() == [1, 2, 3, 4]
    broken.repair()
    broken.offload(40, 50)
    before = dict(broken.bed.bucket.objects)
    assert broken.bed.bucket.deliver() > 0
    assert broken.bed.bucket.objects == before
    broken.check(10, 20, 30, 40, 50)


def test_a_late_commit_of_an_earlier_repair_counts_as_the_commit_of_this_one(broken: Broken) -> None:
    with pytest.raises(StoreTimeoutError):
        broken.repair(of_roots("create", ObjectFault.LATE))

    def deliver(request: SimRequest) -> None:
        if request.kind == "create" and request.key.startswith(manifest_prefix(PREFIX)):
            broken.bed.bucket.deliver()

    assert len(broken.repair(before=deliver)) == 1
    broken.check(10, 20, 30, 40)


@pytest.mark.parametrize("fault", [ObjectFault.NOT_APPLIED, ObjectFault.REPLY_LOST])
def test_a_reply_that_is_lost_leaves_one_root(broken: Broken, fault: ObjectFault) -> None:
    lost = [fault]

    def faults(request: SimRequest) -> ObjectFault:
        is_root = request.kind == "create" and request.key.startswith(manifest_prefix(PREFIX))
        return lost.pop() if is_root and lost else ObjectFault.NONE

    broken.repair(faults)
    assert broken.versions() == [1, 2, 3, 5]
    broken.check(10, 20, 30, 40)


def test_a_repair_that_is_killed_before_the_damaged_root_is_deleted_continues(broken: Broken) -> None:
    with pytest.raises(StoreError):
        broken.repair(of_roots("delete", ObjectFault.NOT_APPLIED))
    assert broken.versions() == [1, 2, 3, 4, 5]
    (repair,) = broken.repair()
    assert repair.finding.place == manifest_key(PREFIX, 4)
    assert repair.done == "an earlier repair created another root in its place"
    assert broken.versions() == [1, 2, 3, 5]
    broken.check(10, 20, 30, 40)


def test_a_log_without_a_good_root_begins_a_new_chain(broken: Broken) -> None:
    for version in (1, 2, 3):
        broken.bed.bucket.write(manifest_key(PREFIX, version), b"not a root")
    broken.repair()
    assert broken.versions() == [5]
    broken.check(10, 20, 30, 40)
    broken.offload(40, 50)
    broken.check(10, 20, 30, 40, 50)
