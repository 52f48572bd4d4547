"""Records that were deleted by offset stay deleted, no matter how the engine ends."""

from __future__ import annotations

import errno
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stratalog import Record, open_engine
from stratalog.cli.app import run
from stratalog.env import Env
from stratalog.errors import DiskFullError, LogDirOfflineError
from stratalog.testing.faults import FaultyVfs, failing
from stratalog.testing.power_loss import PowerLossVfs

STARTS = "log-start-offset-checkpoint"


def offsets_after_a_crash(folder: Path) -> tuple[int, list[int]]:
    """Return the log start and the offsets of all records after a kill now."""
    crash_dir = shutil.copytree(folder, folder.with_name("left"), ignore=shutil.ignore_patterns(".lock"))
    with open_engine(crash_dir) as engine:
        log = engine.log("t", 0)
        return log.offsets().log_start, [record.offset for record in log.records()]


@pytest.mark.parametrize("before", [3, 5, 12, 20])
def test_a_crash_brings_no_deleted_record_back(tmp_path: Path, before: int) -> None:
    with open_engine(tmp_path / "data", topic_defaults={"segment.bytes": 300}) as engine:
        engine.create_topic("t")
        engine.create_topic("other")
        for _ in range(4):
            engine.log("t", 0).append([Record(value=b"v")] * 5)
        assert engine.log("t", 0).delete_records(before) == before
        assert offsets_after_a_crash(tmp_path / "data") == (before, list(range(before, 20)))


def test_after_a_full_disk_the_next_checkpoint_contains_the_deletion(tmp_path: Path) -> None:
    files = FaultyVfs()
    with open_engine(tmp_path / "data", env=Env(files=files)) as engine:
        engine.create_topic("t")
        log = engine.log("t", 0)
        log.append([Record(value=b"v")] * 5)
        files.rule = failing("create", errno.ENOSPC, path=f"{STARTS}.tmp")
        assert log.delete_records(2) == 2
        files.rule = None
        assert log.append([Record(value=b"v")]).base_offset == 5
    with open_engine(tmp_path / "data") as engine:
        assert engine.log("t", 0).offsets().log_start == 2


def test_deleted_records_stay_deleted_if_the_removal_of_their_segment_fails(tmp_path: Path) -> None:
    files = FaultyVfs()
    with open_engine(tmp_path / "data", env=Env(files=files)) as engine:
        engine.create_topic("t")
        log = engine.log("t", 0)
        for _ in range(2):
            log.append([Record(value=b"v")] * 5)
            log.roll()
        log.delete_records(5)
        files.rule = failing("rename", errno.ENOSPC, path=".log.deleted")
        with pytest.raises(DiskFullError):
            engine.apply_retention()
    with open_engine(tmp_path / "data") as engine:
        assert engine.log("t", 0).offsets().log_start == 5


def test_deleted_records_stay_deleted_if_the_power_fails_while_their_segment_is_removed(tmp_path: Path) -> None:
    """A checkpoint of another log may then be durable, and the removal is not."""
    files, crash_dir = PowerLossVfs(tmp_path), tmp_path / "left"
    with open_engine(tmp_path / "data", env=Env(files=files)) as engine:
        engine.create_topic("t")
        engine.create_topic("other")
        engine.log("other", 0).append([Record(value=b"v")] * 5)
        log = engine.log("t", 0)
        log.append([Record(value=b"v")] * 5, "durable")
        log.roll()
        log.delete_records(5)

        def before(operation: str) -> None:
            if operation == "rename":
                files.before = None
                with ThreadPoolExecutor(1) as another:  # this thread holds the lock of the first log
                    another.submit(engine.log("other", 0).delete_records, 1).result()
                files.leave(crash_dir, None)

        files.before = before
        engine.apply_retention()
    with open_engine(crash_dir / "data") as engine:
        assert engine.log("t", 0).offsets().log_start == 5


def test_a_deletion_of_records_raises_the_error_of_a_failing_disk(tmp_path: Path) -> None:
    files = FaultyVfs()
    with open_engine(tmp_path / "data", env=Env(files=files)) as engine:
        engine.create_topic("t")
        engine.log("t", 0).append([Record(value=b"v")] * 5)
        files.rule = failing("create", errno.EIO, path=f"{STARTS}.tmp")
        with pytest.raises(LogDirOfflineError):
            engine.log("t", 0).delete_records(2)
        files.rule = None


# --- with a tier -----------------------------------------------------------------------------------------------------


def test_records_deleted_up_to_the_first_local_segment_stay_deleted_in_the_tier_too(tmp_path: Path) -> None:
    """The tier has the segments below, so the first local segment does not tell the log start."""
    tier = f"file://{tmp_path}/tier"
    (tmp_path / "tier").mkdir()
    with open_engine(tmp_path / "data", tier=tier) as engine:
        engine.create_topic("t", config={"local.retention.bytes": 1})
        log = engine.log("t", 0)
        for _ in range(2):
            log.append([Record(value=b"v")] * 5)
            log.roll()
        engine.offload()
        engine.apply_retention()
        assert log.offsets()[:2] == (0, 5)
        log.delete_records(5)
    with open_engine(tmp_path / "data", tier=tier) as engine:
        assert [record.offset for record in engine.log("t", 0).records()] == list(range(5, 10))


def test_a_log_whose_deleted_records_are_lost_is_offloaded_in_its_leader_epoch(tmp_path: Path) -> None:
    """The log then ends below its start, and begins again there: its epoch must not be below that of the tier."""
    crash_dir, files = tmp_path / "left", PowerLossVfs(tmp_path)
    (tmp_path / "tier").mkdir()
    with open_engine(tmp_path / "data", tier=f"file://{tmp_path}/tier", env=Env(files=files)) as engine:
        engine.create_topic("t")
        log = engine.log("t", 0)
        log.lead(3)
        log.append([Record(value=b"durable")], "durable")
        log.roll()
        engine.offload()
        log.append([Record(value=b"lost")])
        log.delete_records(2)
        files.leave(crash_dir, None)
    with open_engine(crash_dir / "data", tier=f"file://{crash_dir}/tier") as engine:
        log = engine.log("t", 0)
        assert (log.leader_epoch, log.offsets().log_start, log.offsets().log_end) == (3, 2, 2)
        log.append([Record(value=b"next")])
        log.roll()
        assert [result.tier_end for result in engine.offload()] == [3]


@pytest.mark.parametrize("watermark", ["written", "external"])
def test_a_log_whose_last_records_are_lost_stays_in_the_leader_epoch_of_the_tier(
    tmp_path: Path, watermark: str
) -> None:
    """The epoch began above the new log end. The engine once counted its own epoch in the tier as another writer's.

    With ``external``, another replica may have led in that epoch, and its leader says in which epoch the log continues.
    """
    crash_dir, files, config = tmp_path / "left", PowerLossVfs(tmp_path), {"watermark": watermark}
    (tmp_path / "tier").mkdir()
    with open_engine(tmp_path / "data", tier=f"file://{tmp_path}/tier", env=Env(files=files), config=config) as engine:
        engine.create_topic("t")
        log = engine.log("t", 0)
        for _ in range(2):
            log.append([Record(value=b"durable")], "durable")
            log.roll()
        if watermark == "external":
            log.set_high_watermark(2)
        engine.offload()
        log.append([Record(value=b"lost")])
        log.lead(3)
        log.delete_records(1)
        engine.apply_retention()  # commits in the new epoch
        files.leave(crash_dir, None)
    with open_engine(crash_dir / "data", tier=f"file://{crash_dir}/tier", config=config) as engine:
        log = engine.log("t", 0)
        assert (log.leader_epoch, log.offsets().log_end) == (3 if watermark == "written" else 0, 2)
        if watermark == "external":
            log.lead(4)
        log.append([Record(value=b"next")])
        log.roll()
        if watermark == "external":
            log.set_high_watermark(3)
        assert [result.tier_end for result in engine.offload()] == [3]
    with open_engine(crash_dir / "data", tier=f"file://{crash_dir}/tier", config=config) as engine:
        assert engine.log("t", 0).leader_epoch == (3 if watermark == "written" else 4)


def test_a_repair_moves_no_leader_epoch_of_a_replica(tmp_path: Path) -> None:
    """The repair once stored that the epoch of lost records begins at the new log end. Other replicas differ."""
    crash_dir, files, config = tmp_path / "left", PowerLossVfs(tmp_path), {"watermark": "external"}
    (tmp_path / "tier").mkdir()
    with open_engine(tmp_path / "data", tier=f"file://{tmp_path}/tier", env=Env(files=files), config=config) as engine:
        engine.create_topic("t", config={"remote.storage.enable": True})
        log = engine.log("t", 0)
        log.append([Record(value=b"durable")], "durable")
        log.roll()
        log.append([Record(value=b"lost")])
        log.lead(3)
        files.leave(crash_dir, None)
    with (crash_dir / "data" / "t-0" / f"{1:020}.log").open("ab") as file:
        file.write(bytes(30))
    assert run(["verify", "--repair", str(crash_dir / "data")]) == 0
    assert "3" not in (crash_dir / "data" / "t-0" / "leader-epoch-checkpoint").read_text().split()
    with open_engine(crash_dir / "data", tier=f"file://{crash_dir}/tier", config=config) as engine:
        assert engine.log("t", 0).leader_epoch == 0


def tiered_by_a_broker(folder: Path, log_start: int = 3) -> Path:
    """Return a directory as a broker with remote storage leaves it: [log_start, 10) is remote, [10, 16) is local."""
    with open_engine(folder) as engine:
        engine.create_topic("t")
        for _ in range(3):
            engine.log("t", 0).append([Record(value=b"v")] * 5)
            engine.log("t", 0).roll()
        engine.log("t", 0).append([Record(value=b"v")])
    for base in (0, 5):
        for path in (folder / "t-0").glob(f"{base:020d}.*"):
            path.unlink()
    (folder / STARTS).write_text(f"0\n1\nt 0 {log_start}\n")
    return folder


@pytest.mark.parametrize("log_start", [0, 3, 10])
def test_the_log_start_in_remote_storage_of_a_broker_stays_in_the_checkpoint(tmp_path: Path, log_start: int) -> None:
    folder = tiered_by_a_broker(tmp_path / "data", log_start)
    for end in (17, 18):
        with open_engine(folder) as engine:
            log = engine.log("t", 0)
            assert log.offsets().log_start == 10
            assert log.append([Record(value=b"v")]).base_offset == end - 1
        assert (folder / STARTS).read_text() == f"0\n1\nt 0 {log_start}\n"


def test_a_later_log_start_replaces_the_log_start_in_remote_storage_of_a_broker(tmp_path: Path) -> None:
    folder = tiered_by_a_broker(tmp_path / "data")
    with open_engine(folder) as engine:
        engine.log("t", 0).delete_records(15)
        engine.apply_retention()
        assert engine.log("t", 0).offsets().local_log_start == 15
    assert (folder / STARTS).read_bytes() == b"0\n1\nt 0 15\n"


def test_records_deleted_up_to_the_log_start_that_a_log_had_before_a_truncation_stay_deleted(tmp_path: Path) -> None:
    folder = tiered_by_a_broker(tmp_path / "data")
    with open_engine(folder) as engine:
        log = engine.log("t", 0)
        log.truncate_to(5)
        log.append([Record(value=b"v")] * 10)
        log.delete_records(10)
    with open_engine(folder) as engine:
        assert engine.log("t", 0).offsets().log_start == 10


def test_a_move_keeps_the_log_start_in_remote_storage_of_a_broker(tmp_path: Path) -> None:
    folder, other_folder = tiered_by_a_broker(tmp_path / "data"), tmp_path / "other"
    with open_engine([folder, other_folder]) as engine:
        assert engine.move_partition("t", 0, other_folder).offsets().log_start == 10
        assert (other_folder / STARTS).read_bytes() == b"0\n1\nt 0 3\n"
    assert (other_folder / STARTS).read_bytes() == b"0\n1\nt 0 3\n"


def test_records_deleted_in_a_tier_stay_deleted_after_an_opening_without_the_tier(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    tier = bucket.as_uri()
    with open_engine(tmp_path / "data", tier=tier) as engine:
        engine.create_topic("t", config={"local.retention.bytes": 1})
        log = engine.log("t", 0)
        log.append([Record(value=b"v")] * 5)
        log.roll()
        log.append([Record(value=b"v")])
        engine.offload()
        engine.apply_retention()
        assert log.offsets().local_log_start == 5
        log.delete_records(3)
    with open_engine(tmp_path / "data", topic_defaults={"remote.storage.enable": False}) as engine:
        assert engine.log("t", 0).offsets().log_start == 5
    with open_engine(tmp_path / "data", tier=tier) as engine:
        assert engine.log("t", 0).offsets().log_start == 3
