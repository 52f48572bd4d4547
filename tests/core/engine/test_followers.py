"""Followers of a log with a tier, and truncation of such a log."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import stratalog
from stratalog.env import Env
from stratalog.errors import DiskFullError, FencedEpochError, OffsetInTierError
from stratalog.log.change.local_publisher import LocalPublisher
from stratalog.log.maintenance import LogMaintenance
from stratalog.model.offsets import EpochEntry
from stratalog.testing.faults import FaultyVfs, failing
from stratalog.tier.tier import Tier

TIERED = {
    "segment.bytes": 1000,
    "remote.storage.enable": True,
    "local.retention.bytes": 1,
    "retention.bytes": 2000,
}


def written(log: stratalog.Log, count: int) -> None:
    for _ in range(count):
        log.append([stratalog.Record(value=b"%d" % log.offsets().log_end + b"." * 90)])


def held(log: stratalog.Log) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in log.records(isolation="log_end")]


def test_without_a_checkpoint_the_high_watermark_begins_at_the_log_start(tmp_path: Path) -> None:
    external = {"watermark": "external"}
    with stratalog.open_engine(tmp_path / "data", config=external) as engine:
        engine.create_topic("orders")
        written(engine.log("orders", 0), 5)
        shutil.copytree(tmp_path / "data", tmp_path / "crashed")
    with stratalog.open_engine(tmp_path / "crashed", config=external) as engine:
        log = engine.log("orders", 0)
        assert (log.offsets().high_watermark, log.offsets().log_end) == (0, 5)
        assert log.set_high_watermark(3) == 3


def test_a_follower_leaves_the_tier_to_its_leader(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    external = {"watermark": "external"}
    with stratalog.open_engine(tmp_path / "data", tier=f"file://{tmp_path}/bucket", config=external) as engine:
        engine.create_topic("orders", config=TIERED)
        log = engine.log("orders", 0)
        log.lead(1)
        written(log, 60)
        log.set_high_watermark(60)
        log.follow(2)
        assert engine.offload() == ()
        assert [result.deleted_segments for result in engine.apply_retention()] == [0]
        log.lead(3)
        (offloaded,) = engine.offload()
        assert offloaded.segments > 3
        with pytest.raises(OffsetInTierError, match="committed"):
            log.truncate_to(offloaded.tier_end - 1)
        with pytest.raises(OffsetInTierError):
            log.truncate_fully_and_start_at(1)
        assert log.truncate_to(offloaded.tier_end) == (offloaded.tier_end < 60)
        assert engine.apply_retention()[0].evicted_segments > 0
        before = held(log)
        assert log.end_offset_for_epoch(1) == (1, offloaded.tier_end)
        assert log.end_offset_for_epoch(3) == (-1, -1), "it began at what was cut"
        log.follow(4)
        log.truncate_fully_and_start_at(offloaded.tier_end, log_start=log.offsets().log_start)
        assert held(log) == [row for row in before if row[0] < offloaded.tier_end]
        assert log.end_offset_for_epoch(1) == (1, offloaded.tier_end)


def test_a_restart_after_records_of_the_tier_fails_if_their_epochs_cannot_be_stored(tmp_path: Path) -> None:
    """The next opening would assign other epochs to the records that follow."""
    (tmp_path / "bucket").mkdir()
    files = FaultyVfs()

    def opened() -> stratalog.Engine:
        tier, config = f"file://{tmp_path}/bucket", {"watermark": "external"}
        return stratalog.open_engine(tmp_path / "data", tier=tier, config=config, env=Env(files=files))

    with opened() as engine:
        engine.create_topic("orders", config=TIERED)
        log = engine.log("orders", 0)
        for epoch in (1, 2):
            log.lead(epoch)
            written(log, 30)
        log.set_high_watermark(60)
        (offloaded,) = engine.offload()
        log.follow(3)
        log.truncate_fully_and_start_at(0)
        files.rule = failing("create", errno.ENOSPC, path="leader-epoch-checkpoint.tmp")
        with pytest.raises(DiskFullError):
            log.truncate_fully_and_start_at(offloaded.tier_end, log_start=0)
    with opened() as engine:
        log = engine.log("orders", 0)
        log.follow(3)
        log.truncate_fully_and_start_at(offloaded.tier_end, log_start=0)
    with opened() as engine:
        assert engine.log("orders", 0).view().epochs.entries == (EpochEntry(1, 0), EpochEntry(2, 30))


@pytest.mark.parametrize("is_first", [False, True], ids=["after its leader", "before its leader"])
@pytest.mark.parametrize("deletes", [False, True], ids=["leaves the tier", "is deleted"])
def test_the_topic_of_a_follower_leaves_the_tier_to_its_leader(
    tmp_path: Path, *, deletes: bool, is_first: bool
) -> None:
    (tmp_path / "bucket").mkdir()
    uri, external = (tmp_path / "bucket").as_uri(), {"watermark": "external"}
    with stratalog.open_engine(tmp_path / "a", tier=uri, config=external) as engine:
        engine.create_topic("orders", config=TIERED)
    shutil.copytree(tmp_path / "a", tmp_path / "b")

    def change(engine: stratalog.Engine) -> None:
        if deletes:
            engine.delete_topic("orders")
        else:
            leaving = {"remote.storage.enable": False, "remote.log.delete.on.disable": True}
            engine.alter_topic("orders", {**TIERED, **leaving})

    with (
        stratalog.open_engine(tmp_path / "a", tier=uri, config=external) as leading,
        stratalog.open_engine(tmp_path / "b", tier=uri, config=external) as following,
    ):
        led, followed = leading.log("orders"), following.log("orders")
        led.lead(1)
        followed.follow(1)
        written(led, 60)
        led.set_high_watermark(60)
        assert leading.offload()
        for engine in (following, leading) if is_first else (leading, following):
            change(engine)
        if not deletes:
            assert followed.healthy
            assert led.append([stratalog.Record(value=b"on")]).base_offset == 60
    with stratalog.open_reader(uri) as reader:
        assert reader.topics() == {} or reader.log("orders").segments() == ()


def test_an_offload_commits_in_no_epoch_that_the_log_only_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bucket").mkdir()
    external = {"watermark": "external"}
    with stratalog.open_engine(tmp_path / "data", tier=f"file://{tmp_path}/bucket", config=external) as engine:
        engine.create_topic("orders", config=TIERED)
        log = engine.log("orders", 0)
        log.lead(1)
        written(log, 60)
        log.set_high_watermark(60)
        flush = stratalog.Log.flush

        def lose_the_role(self: stratalog.Log) -> None:
            flush(self)
            self.follow(2)

        monkeypatch.setattr(stratalog.Log, "flush", lose_the_role)
        engine.offload()
        assert isinstance(engine.tier, Tier)
        (name,) = engine.tier.logs()
        root = engine.tier.log(*name).root
        assert root is not None
        assert root.leader_epoch == 1


def test_a_log_that_follows_a_new_leader_is_not_stopped_by_an_offload_that_had_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bucket").mkdir()
    uri, external = f"file://{tmp_path}/bucket", {"watermark": "external"}
    with stratalog.open_engine(tmp_path / "a", tier=uri, config=external) as engine:
        engine.create_topic("orders", config=TIERED)
        engine.log("orders", 0).lead(1)
        written(engine.log("orders", 0), 60)
        engine.log("orders", 0).set_high_watermark(60)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with (
        stratalog.open_engine(tmp_path / "a", tier=uri, config=external) as old,
        stratalog.open_engine(tmp_path / "b", tier=uri, config=external) as new,
    ):
        log, flush = old.log("orders", 0), stratalog.Log.flush

        def fail_over(self: stratalog.Log) -> None:
            flush(self)
            if self is log:
                new.log("orders", 0).lead(2)
                with ThreadPoolExecutor() as threads:  # this thread holds a lock of the old leader
                    threads.submit(new.offload).result()
                log.follow(2)

        monkeypatch.setattr(stratalog.Log, "flush", fail_over)
        with pytest.raises(FencedEpochError):
            old.offload()
        assert log.healthy
        log.lead(3)
        assert log.append([stratalog.Record(value=b"v")]).base_offset == 60


CHANGES: dict[str, Callable[[stratalog.Engine], object]] = {
    "compaction": lambda engine: engine.run_cleaner(),
    "erasure": lambda engine: engine.erase("orders", b"k1"),
    "return to the tier": lambda engine: engine.alter_topic("orders", {"remote.storage.enable": True}),
    "departure from the tier": lambda engine: engine.alter_topic(
        "orders", {"remote.storage.enable": False, "remote.log.delete.on.disable": True}
    ),
    "deletion": lambda engine: engine.delete_topic("orders"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_no_change_of_the_tier_begins_the_epoch_of_another_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    (tmp_path / "bucket").mkdir()
    external = {"watermark": "external"}
    compacted = {**TIERED, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0}
    with stratalog.open_engine(tmp_path / "data", tier=f"file://{tmp_path}/bucket", config=external) as engine:
        engine.create_topic("orders", config=compacted)
        log = engine.log("orders", 0)
        log.lead(1)
        for number in range(60):
            log.append([stratalog.Record(key=b"k%d" % (number % 3), value=b"." * 90)])
        log.set_high_watermark(60)
        engine.offload()
        if change == "return to the tier":
            CHANGES["departure from the tier"](engine)

        def lose_the_role(self: stratalog.Log) -> bool:  # between the check of the role and the read of the epoch
            was_leader = self.view().is_leader
            if was_leader:
                self.follow(2)
            return was_leader

        publisher = LogMaintenance.publisher

        def begin_a_round(self: LogMaintenance) -> LocalPublisher:
            log.follow(2)
            return publisher(self)

        if change == "compaction":  # the plan asks for the role several times
            monkeypatch.setattr(LogMaintenance, "publisher", begin_a_round)
        else:
            monkeypatch.setattr(stratalog.Log, "is_leader", property(lose_the_role))
        CHANGES[change](engine)
        assert log.healthy or change == "deletion"
        assert isinstance(engine.tier, Tier)
        (name,) = engine.tier.logs()
        root = engine.tier.log(*name).root
        assert root is not None
        assert root.leader_epoch == 1
