"""Changes, deletions and moves of topics, also with a crash before each operation on the disk."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from log_bed import LogBed, records
from stratalog import Engine, Log, Record, open_engine, open_reader
from stratalog.engine.topics.topic_changes import TopicChanges
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.errors import (
    ClosedError,
    ConfigError,
    CorruptCheckpointError,
    DiskFullError,
    LogDirError,
    LogDirOfflineError,
    NotAFileError,
    NotLeaderOrFollowerError,
    StorageError,
    SystemLimitError,
    UnknownSettingError,
    UnknownTopicError,
)
from stratalog.reading.topic_table import TopicEntry, TopicTable
from stratalog.testing.faults import FaultyVfs, failing
from stratalog.tier.tier_log import TierLog

COUNT = 12
CHANGES = frozenset({"create", "write", "truncate", "rename", "remove", "make folder", "remove folder", "sync"})
HEX = "0123456789abcdef" * 2


def fill(log: Log, count: int = COUNT) -> None:
    for number in range(count):
        log.append([Record(timestamp_ms=1_700_000_000_000 + number, value=b"%d" % number)])


def read(log: Log) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in log.records()]


def folders(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.is_dir())


@pytest.fixture
def dirs(tmp_path: Path) -> list[Path]:
    return [tmp_path / "a", tmp_path / "b"]


def with_topic(dirs: list[Path], env: Env | None = None) -> Engine:
    engine = open_engine(dirs, env=env)
    engine.create_topic("orders", config={"segment.bytes": 300, "file.delete.delay.ms": 5000})
    fill(engine.log("orders", 0))
    engine.log("orders", 0).delete_records(3)
    return engine


def create_compactable(engine: Engine) -> None:
    """Create the compacted topic ``orders`` with a closed segment in which only the last record stays."""
    engine.create_topic("orders", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    log = engine.log("orders", 0)
    log.append([Record(key=b"k", value=b"v")] * 3)
    log.roll()


def stored_dirty_start(directory: Path) -> int | None:
    """Return the first dirty offset of ``orders`` with which an engine opens ``directory``."""
    with open_engine(directory) as engine:
        return engine.log("orders", 0).maintenance.cleaning.dirty_start


# --- settings ----------------------------------------------------------------------------------------------------


def test_settings_have_defaults_and_sources(dirs: list[Path]) -> None:
    with open_engine(dirs, topic_defaults={"segment.ms": 5000}) as engine:
        engine.create_topic("orders", config={"cleanup.policy": "compact,delete"})
        settings = engine.topic_settings("orders")
        assert settings["cleanup.policy"][:3] == ("compact,delete", "delete", "topic")
        assert settings["segment.ms"][:3] == (5000, 604_800_000, "engine")
        assert settings["flush.ms"][:3] == (2**63 - 1, 2**63 - 1, "default")
        assert settings["flush.ms"].doc
        with pytest.raises(UnknownTopicError, match="did you mean 'orders'"):
            engine.topic_settings("order")


def test_a_setting_without_a_value_of_its_own_has_its_default(dirs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    for tier in (None, (tmp_path / "bucket").as_uri()):
        with open_engine(dirs, tier=tier) as engine:
            engine.create_topic(f"with-{tier is not None}")
            for setting in engine.topic_settings(f"with-{tier is not None}").values():
                assert setting[:3] == (setting.default, setting.default, "default")


def test_each_change_of_a_topic_is_counted(dirs: list[Path]) -> None:
    with open_engine(dirs) as engine:
        changes: list[Callable[[], object]] = [
            lambda: engine.create_topic("orders"),
            lambda: engine.create_partitions("orders", 2),
            lambda: engine.alter_topic("orders", {"retention.ms": 5}),
            lambda: engine.move_partition("orders", 0, dirs[1]),
            lambda: engine.delete_topic("orders"),
        ]
        for change in changes:
            before = engine.topic_changes
            change()
            assert engine.topic_changes > before
        before = engine.topic_changes
        engine.topics()
        assert engine.topic_changes == before


def test_producer_ids_are_new(dirs: list[Path]) -> None:
    with open_engine(dirs) as engine:
        ids = {engine.new_producer_id() for _ in range(100)}
        assert len(ids) == 100
        assert all(1 << 62 <= producer_id < 1 << 63 for producer_id in ids)


def test_a_check_of_new_settings_changes_nothing(dirs: list[Path]) -> None:
    with with_topic(dirs) as engine:
        before = engine.topic_changes, engine.topic_settings("orders")
        assert engine.alter_topic("orders", {"retention.ms": 5000}, only_check=True) == engine.topics()["orders"]
        for invalid_config in ({"retention.ms": -7}, {"max.compaction.lag.ms": 5, "min.compaction.lag.ms": 6}):
            with pytest.raises(ConfigError):
                engine.alter_topic("orders", invalid_config, only_check=True)
        assert (engine.topic_changes, engine.topic_settings("orders")) == before


def test_new_settings_hold_at_once_and_after_the_next_start(dirs: list[Path]) -> None:
    with with_topic(dirs) as engine:
        log = engine.log("orders", 0)
        info = engine.alter_topic("orders", {"segment.bytes": 100_000, "retention.ms": "5000"})
        assert (info.config.segment_bytes, info.config.retention_ms) == (100_000, 5000)
        assert engine.log("orders", 0) is log
        before = len(log.segments())
        fill(log)
        assert (log.config, len(log.segments())) == (info.config, before)
    with open_engine(dirs) as engine:
        assert engine.topics()["orders"].config == info.config
        assert engine.alter_topic("orders", {"retention.ms": None}).config.retention_ms == 604_800_000


def test_a_topic_that_was_found_keeps_everything_still(dirs: list[Path]) -> None:
    with_topic(dirs).close()
    for directory in dirs:
        (directory / "stratalog-topics.json").unlink(missing_ok=True)
        (directory / "stratalog-inventory.json").unlink()
    with open_engine(dirs) as engine:
        topic_id = engine.topics()["orders"].topic_id
        config = engine.alter_topic("orders", {"segment.ms": 5000}).config
        assert (config.segment_ms, config.retention_ms) == (5000, -1)
    with open_engine(dirs) as engine:
        assert (engine.topics()["orders"].config, engine.topics()["orders"].topic_id) == (config, topic_id)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"segment.byte": 1}, UnknownSettingError),
        ({"segment.byte": None}, UnknownSettingError),
        ({"segment.bytes": 1}, ConfigError),
        ({"min.compaction.lag.ms": 10, "max.compaction.lag.ms": 5}, ConfigError),
    ],
)
def test_a_change_that_is_wrong_changes_nothing(
    dirs: list[Path], changes: dict[str, object], kind: type[ConfigError]
) -> None:
    with with_topic(dirs) as engine:
        before = engine.topics()["orders"].config
        with pytest.raises(kind):
            engine.alter_topic("orders", changes)
        assert (engine.topics()["orders"].config, engine.log("orders", 0).config) == (before, before)
        with pytest.raises(UnknownTopicError):
            engine.alter_topic("other", {})


def test_the_tier_of_a_topic_can_be_joined_and_not_left(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    with open_engine(tmp_path / "a", tier=f"file://{tmp_path / 'bucket'}") as engine:
        engine.create_topic("orders", config={"remote.storage.enable": False})
        log = engine.log("orders", 0)
        fill(log)
        log.roll()
        assert engine.offload() == ()
        engine.alter_topic("orders", {"remote.storage.enable": True})
        assert [result.segments for result in engine.offload()] == [1]
        assert next(part.is_remote for part in log.segments())
        with pytest.raises(ConfigError, match="It is invalid to disable remote storage without deleting remote data"):
            engine.alter_topic("orders", {"remote.storage.enable": False})


# --- deleting ----------------------------------------------------------------------------------------------------


def test_a_cleanup_policy_changes_although_the_checkpoints_do_not_fit_on_the_disk(dirs: list[Path]) -> None:
    files = FaultyVfs()
    with with_topic(dirs, Env(files=files)) as engine:
        files.rule = failing("write", errno.ENOSPC, path="offset-checkpoint.tmp")
        assert engine.alter_topic("orders", {"cleanup.policy": "compact"}).config.cleanup_policy == ("compact",)
        files.rule = failing("write", errno.ENOSPC, path="offset-checkpoint.tmp")
        with pytest.raises(DiskFullError):  # without the checkpoints, recovery reads batches of the earlier format
            engine.alter_topic("orders", {"record.version": 1})


def test_a_new_cleanup_policy_compacts_all_segments_after_a_crash_on_a_full_disk(tmp_path: Path) -> None:
    files, data, crashed = FaultyVfs(), tmp_path / "data", tmp_path / "crashed"
    with open_engine(data, env=Env(files=files)) as engine:
        create_compactable(engine)
        engine.run_cleaner()
        engine.alter_topic("orders", {"cleanup.policy": "delete"})
        files.rule = failing("write", errno.ENOSPC, path="offset-checkpoint.tmp")
        engine.alter_topic("orders", {"cleanup.policy": "compact"})
        shutil.copytree(data, crashed)
        files.rule = None
    assert not stored_dirty_start(crashed)


def test_a_checkpoint_that_is_written_during_a_change_of_policy_contains_no_compacted_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, crashed = tmp_path / "data", tmp_path / "crashed"
    with open_engine(data) as engine:
        create_compactable(engine)
        engine.run_cleaner()
        engine.alter_topic("orders", {"cleanup.policy": "delete"})
        put = TopicTable.put

        def write_and_put(topics: TopicTable, name: str, entry: TopicEntry) -> None:
            engine.flush()
            put(topics, name, entry)
            shutil.copytree(data, crashed)

        monkeypatch.setattr(TopicTable, "put", write_and_put)
        engine.alter_topic("orders", {"cleanup.policy": "compact"})
    assert not stored_dirty_start(crashed)


def test_a_round_of_the_old_policy_that_ends_during_the_change_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, crashed = tmp_path / "data", tmp_path / "crashed"
    with open_engine(data) as engine:
        create_compactable(engine)
        put = TopicTable.put

        def clean_and_put(topics: TopicTable, name: str, entry: TopicEntry) -> None:
            engine.run_cleaner()
            put(topics, name, entry)

        monkeypatch.setattr(TopicTable, "put", clean_and_put)
        monkeypatch.setattr(TopicChanges, "_has_new_filter", lambda *_: True)
        engine.alter_topic("orders", {"retention.ms": 1})
        shutil.copytree(data, crashed)
    assert not stored_dirty_start(crashed)


def test_a_topic_in_a_directory_out_of_service_gets_no_new_cleanup_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal comes before the manifests in the tier are changed."""
    files, changed_logs = FaultyVfs(), list[Log]()
    monkeypatch.setattr(TopicChanges, "_recompact_tier", lambda _, logs: changed_logs.extend(logs))
    with with_topic([tmp_path], Env(files=files)) as engine:
        files.rule = failing("write", errno.EIO, path=".log")
        with pytest.raises(LogDirOfflineError):
            engine.log("orders", 0).append([Record(value=b"v")])
        files.rule = None
        with pytest.raises(LogDirOfflineError, match="out of service"):
            engine.alter_topic("orders", {"cleanup.policy": "compact"})
        assert engine.topics()["orders"].config.cleanup_policy == ("delete",)
        assert not changed_logs


def test_a_deleted_topic_disappears_at_once_and_its_files_later(dirs: list[Path]) -> None:
    clock = ManualClock()
    with with_topic(dirs, Env(clock=clock)) as engine:
        log = engine.log("orders", 0)
        engine.delete_topic("orders")
        assert (engine.topics(), engine.partitions()) == ({}, ())
        for call in (lambda: engine.log("orders", 0), lambda: engine.delete_topic("orders")):
            with pytest.raises(UnknownTopicError):
                call()
        with pytest.raises(ClosedError):
            log.append([Record(value=b"v")])
        (deleted_folder,) = folders(dirs[0])
        assert deleted_folder.startswith("orders-0.")
        assert deleted_folder.endswith("-delete")
        assert "orders" not in (dirs[0] / "recovery-point-offset-checkpoint").read_text()
        engine.create_topic("orders")
        assert read(engine.log("orders", 0)) == []
        clock.advance_ms(4000)
        engine.run_duties()
        assert deleted_folder in folders(dirs[0])
        clock.advance_ms(1000)
        engine.run_duties()
        assert folders(dirs[0]) == ["orders-0"]


def test_a_topic_is_deleted_from_its_tier_too(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    with open_engine(tmp_path / "a", tier=f"file://{tmp_path / 'bucket'}") as engine:
        engine.create_topic("orders")
        log = engine.log("orders", 0)
        fill(log)
        log.roll()
        engine.offload()
        assert engine.tier is not None
        assert log.topic_id is not None
        remote = engine.tier.log(log.name, log.topic_id)
        assert remote.view().segments
        engine.delete_topic("orders")
        assert len(remote.refresh().segments) == 0


def test_several_partitions_are_deleted_from_a_tier_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each deletion waits for the store. A topic with many partitions would exceed the timeout of a client."""
    (tmp_path / "bucket").mkdir()
    barrier, delete = threading.Barrier(2), TierLog.delete

    def delete_together(log: TierLog, *, leader_epoch: int, reason: str) -> object:
        barrier.wait(timeout=10)
        return delete(log, leader_epoch=leader_epoch, reason=reason)

    monkeypatch.setattr(TierLog, "delete", delete_together)
    with open_engine(tmp_path / "a", tier=(tmp_path / "bucket").as_uri()) as engine:
        engine.create_topic("orders", partitions=4)
        engine.delete_topic("orders")
        assert engine.topics() == {}


# --- defaults that change ---------------------------------------------------------------------------------------------


def test_a_topic_that_fits_the_defaults_alone_is_opened_with_them(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The stored settings contradict Kafka's default retention. The engine once refused to open such a topic."""
    defaults, topic_config = {"retention.ms": -1}, {"local.retention.ms": 864_000_000}
    with open_engine(tmp_path, topic_defaults=defaults) as engine:
        engine.create_topic("long", config=topic_config)
        engine.create_topic("other")
    with open_engine(tmp_path, topic_defaults=defaults) as engine:
        assert engine.topics()["long"].config.local_limit_ms == 864_000_000
    with open_reader(tmp_path) as reader:
        assert set(reader.topics()) == {"long", "other"}
    with open_engine(tmp_path) as engine:  # the settings contradict each other now: the stricter one applies
        log = engine.log("long", 0)
        log.append([Record(timestamp_ms=1, value=b"old")])
        assert engine.apply_retention()
        assert log.offsets().log_start == 1
        engine.alter_topic("long", {"segment.ms": 5})  # without a tier, local.retention.ms has no effect
    with open_engine(tmp_path, tier=tmp_path_factory.mktemp("tier").as_uri()) as engine:
        with pytest.raises(ConfigError, match=r"local\.retention\.ms"):
            engine.alter_topic("long", {"segment.ms": 6})
        engine.alter_topic("long", {"segment.ms": 6, "local.retention.ms": None})


@pytest.mark.parametrize("crashes", [False, True])
def test_a_new_topic_keeps_its_records_if_the_deletion_of_an_earlier_one_was_interrupted(
    tmp_path: Path, *, crashes: bool
) -> None:
    """The checkpoints had the log start of the deleted topic. After a crash, all records below it were dropped."""
    files, directories = FaultyVfs(), [tmp_path / "a"]
    with with_topic(directories, Env(files=files)) as engine:
        engine.flush()
        files.rule = failing("write", errno.ENOSPC, path="checkpoint.tmp", times=3)
        engine.delete_topic("orders")
        files.rule = None
        if crashes:
            directories = [shutil.copytree(directories[0], tmp_path / "b")]
        with open_engine(directories) if crashes else contextlib.nullcontext(engine) as later:
            later.create_topic("orders")
            later.log("orders", 0).append([Record(value=b"v")], "durable")
            shutil.copytree(directories[0], tmp_path / "c")
    with open_engine(tmp_path / "c") as engine:
        assert read(engine.log("orders", 0)) == [(0, b"v")]


def test_a_partition_that_could_not_be_deleted_does_not_stop_the_duties_of_others(tmp_path: Path) -> None:
    """The closed log stayed among the open logs: appends, and each run of the retention, raised ClosedError."""
    files = FaultyVfs()
    with with_topic([tmp_path / "a"], Env(files=files)) as engine:
        files.rule = failing("rename", errno.EIO, path="-delete")
        with pytest.raises(LogDirOfflineError):
            engine.delete_topic("orders")
        with pytest.raises(LogDirError, match="delete the topic again") as caught:
            engine.log("orders", 0)
        assert caught.value.kafka_code == 56
        assert engine.apply_retention() == ()
        engine.delete_topic("orders")
        assert engine.topics() == {}


def test_a_deletion_that_failed_after_the_rename_of_a_folder_can_be_repeated(tmp_path: Path) -> None:
    """The repeated calls raised LogDirNotFoundError until the engine was opened again."""
    files = FaultyVfs()
    with with_topic([tmp_path / "a"], Env(files=files)) as engine:
        files.rule = failing("sync folder", errno.EMFILE, times=100)
        with pytest.raises(SystemLimitError):
            engine.delete_topic("orders")
        files.rule = None
        engine.delete_topic("orders")
        assert engine.topics() == {}
        engine.create_topic("orders")
        assert engine.log("orders", 0).offsets().log_end == 0
    assert [path.name for path in (tmp_path / "a").iterdir() if path.is_dir()] == ["orders-0"]


def test_a_topic_that_is_created_again_writes_the_checkpoints_at_most_once(dirs: list[Path]) -> None:
    """The files once were written for each of its partitions if another log had new records."""
    with open_engine(dirs[0]) as engine:
        engine.create_topic("orders", partitions=4)
        engine.create_topic("other")
    files = FaultyVfs()
    with open_engine(dirs[0], config={"durability": "durable"}, env=Env(files=files)) as engine:

        def append(operation: str, path: str) -> None:
            if operation == "make folder" and "orders-" in path:
                engine.log("other", 0).append([Record(value=b"v")])

        engine.delete_topic("orders")
        files.done.clear()
        files.rule = append
        engine.create_topic("orders", partitions=4)
        files.rule = None
        assert engine.log("other", 0).offsets().log_end == 4
        assert files.names("create").count(("create", "recovery-point-offset-checkpoint.tmp")) <= 1


def test_a_new_topic_does_not_have_the_high_watermark_of_a_deleted_topic(dirs: list[Path]) -> None:
    external = {"watermark": "external"}
    with open_engine(dirs[0], config=external) as engine:
        engine.create_topic("orders")
        fill(engine.log("orders", 0))
        engine.log("orders", 0).set_high_watermark(COUNT)
    with open_engine(dirs[0], config=external) as engine:
        engine.delete_topic("orders")
        engine.create_topic("orders")
        fill(engine.log("orders", 0))
        assert engine.log("orders", 0).offsets().high_watermark == 0


# --- moving ------------------------------------------------------------------------------------------------------


def test_a_partition_moves_with_all_that_it_holds(dirs: list[Path]) -> None:
    with with_topic(dirs) as engine:
        old_log = engine.log("orders", 0)
        before = (read(old_log), old_log.offsets(), [part.base_offset for part in old_log.segments()])
        new_log = engine.move_partition("orders", 0, dirs[1])
        assert engine.log("orders", 0) is new_log
        assert (read(new_log), new_log.offsets(), [part.base_offset for part in new_log.segments()])[::2] == before[::2]
        assert (new_log.offsets().log_start, new_log.offsets().log_end) == (3, COUNT)
        assert [name.rpartition("-")[2] for name in folders(dirs[0])] == ["delete"]
        with pytest.raises(ClosedError):
            old_log.append([Record(value=b"v")])
        fill(new_log, 1)
        assert engine.move_partition("orders", 0, dirs[1]) is new_log
        with pytest.raises(ConfigError, match="not one of the log directories"):
            engine.move_partition("orders", 0, "elsewhere")
    assert (folders(dirs[0]), folders(dirs[1])) == ([], ["orders-0"])
    with open_engine(dirs) as engine:
        assert engine.log("orders", 0).offsets().log_end == COUNT + 1
        assert engine.move_partition("orders", 0, dirs[0]).offsets().log_start == 3


@pytest.mark.parametrize(("operation", "path"), [("make folder", "-future"), ("write", ".log"), ("rename", "orders-0")])
def test_a_move_that_fails_leaves_the_partition_where_it_was(dirs: list[Path], operation: str, path: str) -> None:
    files = FaultyVfs()
    with with_topic(dirs, Env(files=files)) as engine:
        before = read(engine.log("orders", 0))
        files.rule = failing(operation, errno.ENOSPC, path=path)
        with pytest.raises(StorageError):
            engine.move_partition("orders", 0, dirs[1])
        assert read(engine.log("orders", 0)) == before
        assert folders(dirs[1]) == []
        fill(engine.log("orders", 0), 1)
        assert read(engine.move_partition("orders", 0, dirs[1]))[:-1] == before


@pytest.mark.parametrize(("operation", "path"), [("sync folder", "orders-0"), ("sync", ".snapshot.tmp")])
def test_a_move_that_cannot_close_the_log_keeps_its_producers_and_unsynced_records(
    dirs: list[Path], bed: LogBed, operation: str, path: str
) -> None:
    """The log was opened again as if it had been closed cleanly: without its closing snapshot, and as durable."""
    files = FaultyVfs()
    with open_engine(dirs, config={"durability": "written"}, env=Env(files=files)) as engine:
        engine.create_topic("orders")
        log = engine.log("orders", 0)
        log.append_as_leader(bed.batch(0, records(1), producer=(7, 0, 0), transactional=True))
        before = log.producers(), log.offsets()
        files.rule = failing(operation, errno.EIO, path=path)
        with pytest.raises(LogDirOfflineError):
            engine.move_partition("orders", 0, dirs[1])
        log = engine.log("orders", 0)
        assert (log.producers(), log.offsets().last_stable) == (before[0], 0)
        assert log.offsets().recovery_point == before[1].recovery_point


@pytest.mark.parametrize("fails", [False, True])
def test_a_move_keeps_the_high_watermark_that_replication_set(dirs: list[Path], *, fails: bool) -> None:
    files = FaultyVfs()
    with open_engine(dirs, config={"watermark": "external"}, env=Env(files=files)) as engine:
        engine.create_topic("orders")
        fill(engine.log("orders", 0))
        engine.log("orders", 0).set_high_watermark(5)
        if fails:
            files.rule = failing("rename", errno.ENOSPC, path="orders-0")
            with pytest.raises(StorageError):
                engine.move_partition("orders", 0, dirs[1])
        else:
            engine.move_partition("orders", 0, dirs[1])
        offsets = engine.log("orders", 0).offsets()
        assert (offsets.high_watermark, offsets.log_end) == (5, COUNT)


@pytest.mark.parametrize("fails", [False, True])
def test_a_log_keeps_its_role_and_its_leader_epoch_when_it_moves(dirs: list[Path], *, fails: bool) -> None:
    files = FaultyVfs()
    with open_engine(dirs, config={"watermark": "external"}, env=Env(files=files)) as engine:
        engine.create_topic("led")
        engine.create_topic("orders")
        fill(engine.log("orders", 0))
        engine.log("orders", 0).set_high_watermark(5)
        for partition, change in (("led", Log.lead), ("orders", Log.follow)):
            change(engine.log(partition, 0), 7)
            (place,) = (path for path, names in engine.log_directories().items() if (partition, 0) in names)
            (target,) = (path for path in engine.log_directories() if path != place)
            if fails:
                files.rule = failing("rename", errno.ENOSPC, path=f"{partition}-0")
                with pytest.raises(StorageError):
                    engine.move_partition(partition, 0, target)
            else:
                engine.move_partition(partition, 0, target)
        led, followed = engine.log("led", 0), engine.log("orders", 0)
        assert (led.is_leader, led.leader_epoch) == (True, 7)
        assert (followed.is_leader, followed.leader_epoch) == (False, 7)
        assert followed.offsets().high_watermark == 5
        with pytest.raises(NotLeaderOrFollowerError):
            followed.append([Record(value=b"v")])


def test_appended_records_are_not_lost_to_a_copy_whose_name_may_be_durable(dirs: list[Path]) -> None:
    """Otherwise the older copy would still receive appends, and the next start would set it aside."""
    files = FaultyVfs()
    with with_topic(dirs, Env(files=files)) as engine:
        before = read(engine.log("orders", 0))
        arrived = list[str]()

        def rule(operation: str, path: str) -> None:
            if operation == "rename" and path.endswith("/orders-0"):
                arrived.append(path)
            elif operation == "sync folder" and arrived and path == os.fspath(dirs[1]):
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        files.rule = rule
        for _ in range(2):
            with pytest.raises(LogDirOfflineError):
                engine.move_partition("orders", 0, dirs[1])
        with pytest.raises(LogDirOfflineError):
            engine.log("orders", 0).append([Record(value=b"lost")])
        files.rule = None
        with pytest.raises(LogDirOfflineError):
            engine.close()
    with open_engine(dirs) as engine:
        log = engine.log("orders", 0)
        assert (read(log), log.offsets().log_start) == (before, 3)


def test_the_old_folder_is_not_used_if_the_new_name_was_not_synced_for_lack_of_descriptors(dirs: list[Path]) -> None:
    files = FaultyVfs()
    with with_topic(dirs, Env(files=files)) as engine:
        before = read(engine.log("orders", 0))
        arrived = list[str]()

        def rule(operation: str, path: str) -> None:
            if operation == "rename" and path.endswith("/orders-0"):
                arrived.append(path)
            elif operation == "sync folder" and arrived and path == os.fspath(dirs[1]):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        files.rule = rule
        with pytest.raises(SystemLimitError):
            engine.move_partition("orders", 0, dirs[1])
        files.rule = None
        with pytest.raises(ClosedError, match="open the engine again"):
            engine.log("orders", 0)
    with open_engine(dirs) as engine:
        assert read(engine.log("orders", 0)) == before


def move_without_removal(engine: Engine, files: FaultyVfs, target: Path) -> None:
    """Move a log to ``target`` on a disk that is too full to set the old folder aside: both folders stay."""
    files.rule = failing("rename", errno.ENOSPC, path="-delete")
    with pytest.raises(DiskFullError):
        engine.move_partition("orders", 0, target)
    files.rule = None


def test_a_log_does_not_move_to_a_directory_that_has_an_older_folder_of_it(dirs: list[Path]) -> None:
    files = FaultyVfs()
    with with_topic(dirs, Env(files=files)) as engine:
        move_without_removal(engine, files, dirs[1])
        fill(engine.log("orders", 0), 1)
        before = read(engine.log("orders", 0))
        with pytest.raises(NotAFileError, match="has a folder of orders-0 already"):
            engine.move_partition("orders", 0, dirs[0])
        assert read(engine.log("orders", 0)) == before
        fill(engine.log("orders", 0), 1)
    with open_engine(dirs) as engine:
        assert read(engine.log("orders", 0))[:-1] == before
        engine.move_partition("orders", 0, dirs[0])


def test_the_newer_of_two_folders_is_used_although_retention_made_it_smaller(dirs: list[Path]) -> None:
    files = FaultyVfs()
    with with_topic(dirs, Env(files=files)) as engine:
        move_without_removal(engine, files, dirs[1])
        log = engine.log("orders", 0)
        log.roll()
        log.delete_records(COUNT)
        engine.apply_retention()
        fill(log, 1)
    with open_engine(dirs) as engine:
        assert [offset for offset, _ in read(engine.log("orders", 0))] == [COUNT]
    assert (folders(dirs[0]), folders(dirs[1])) == ([], ["orders-0"])


def test_records_written_to_the_old_folder_are_kept_although_retention_made_it_smaller(dirs: list[Path]) -> None:
    """The engine used the old folder while the directory with the new one was unavailable."""
    files = FaultyVfs()
    with with_topic(dirs, Env(files=files)) as engine:
        (dirs[0] / "orders-0" / "notes.log").touch()  # not the file of a segment
        move_without_removal(engine, files, dirs[1])
    away_dir = dirs[1].rename(dirs[1].with_name("away"))
    with open_engine(dirs[0]) as engine:
        log = engine.log("orders", 0)
        log.roll()
        log.delete_records(COUNT)
        engine.apply_retention()
        fill(log, 1)
    away_dir.rename(dirs[1])
    with open_engine(dirs) as engine, pytest.raises(ConfigError, match="and in another log directory"):
        engine.log("orders", 0)
    assert "orders-0" in folders(dirs[0])


def test_an_interrupted_move_can_be_repeated(dirs: list[Path]) -> None:
    files = FaultyVfs()

    def interrupt(operation: str, path: str) -> None:
        if operation == "write" and "-future" in path:
            files.rule = None
            raise KeyboardInterrupt

    with with_topic(dirs, Env(files=files)) as engine:
        before = read(engine.log("orders", 0))
        files.rule = interrupt
        with pytest.raises(KeyboardInterrupt):
            engine.move_partition("orders", 0, dirs[1])
        assert read(engine.log("orders", 0)) == before
        fill(engine.log("orders", 0), 1)
        assert read(engine.move_partition("orders", 0, dirs[1]))[:-1] == before
    assert (folders(dirs[0]), folders(dirs[1])) == ([], ["orders-0"])


# --- a crash before every operation ------------------------------------------------------------------------------


def crash_states(dirs: list[Path], change: Callable[[Engine], object]) -> list[list[Path]]:
    """Return copies of the directories before each disk operation of ``change``, and at its end."""
    files, states = FaultyVfs(), list[list[Path]]()
    engine = with_topic(dirs, Env(files=files))

    def snapshot() -> None:
        state = [directory.parent / "states" / str(len(states)) / directory.name for directory in dirs]
        for old, new in zip(dirs, state, strict=True):
            shutil.copytree(old, new)
        states.append(state)

    def rule(operation: str, _: str) -> None:
        if operation in CHANGES:
            snapshot()

    for directory in dirs:
        directory.mkdir(exist_ok=True)
    engine.flush()
    files.rule = rule
    change(engine)
    files.rule = None
    snapshot()
    engine.close()
    return states


@pytest.mark.long
def test_a_crash_while_a_partition_moves_loses_nothing(dirs: list[Path]) -> None:
    states = crash_states(dirs, lambda engine: engine.move_partition("orders", 0, dirs[1]))
    assert len(states) > 20
    places = set()
    for state in states:
        with open_engine(state) as engine:
            log = engine.log("orders", 0)
            assert read(log) == [(offset, b"%d" % offset) for offset in range(3, COUNT)]
            places.add(tuple("orders-0" in folders(directory) for directory in state))
        assert sum(len(folders(directory)) for directory in state) == 1, "what is left over goes"
        with open_engine(state) as engine:
            fill(engine.log("orders", 0), 1)
    assert places == {(True, False), (False, True)}


def test_a_crash_during_a_deletion_leaves_the_whole_topic_or_nothing(dirs: list[Path]) -> None:
    counts = set()
    for state in crash_states(dirs, lambda engine: engine.delete_topic("orders")):
        with open_engine(state) as engine:
            counts.add(len(engine.partitions()))
            if engine.partitions():
                assert len(read(engine.log("orders", 0))) == COUNT - 3
                engine.delete_topic("orders")
        assert folders(state[0]) == []
    assert counts == {0, 1}


# --- more partitions ---------------------------------------------------------------------------------------------


def test_added_partitions_have_the_id_and_the_settings_of_the_topic(dirs: list[Path]) -> None:
    with with_topic(dirs) as engine, engine.producer() as producer:
        producer.send("orders", value=b"12", partition=0).result()
        info = engine.create_partitions("orders", 3)
        assert info.partitions == (0, 1, 2)
        assert {engine.log("orders", number).topic_id for number in range(3)} == {info.topic_id}
        assert engine.log("orders", 2).config.segment_bytes == 300
        assert producer.send("orders", value=b"v", partition=2).result().offset == 0
    assert [len(folders(directory)) for directory in dirs] == [2, 1]
    with open_engine(dirs) as engine:
        assert engine.topics()["orders"].partitions == (0, 1, 2)
        assert read(engine.log("orders", 0)) == [(offset, b"%d" % offset) for offset in range(3, COUNT + 1)]
        assert read(engine.log("orders", 2)) == [(0, b"v")]


@pytest.mark.parametrize("partitions", [1, 2])
def test_the_number_of_partitions_only_grows(dirs: list[Path], partitions: int) -> None:
    with with_topic(dirs) as engine:
        engine.create_partitions("orders", 2)
        with pytest.raises(ConfigError, match=f"has 2 partitions: {partitions} would not be an increase"):
            engine.create_partitions("orders", partitions)
        assert engine.topics()["orders"].partitions == (0, 1)


def test_partitions_of_an_unknown_topic_are_refused(dirs: list[Path]) -> None:
    with with_topic(dirs) as engine, pytest.raises(UnknownTopicError, match="did you mean 'orders'"):
        engine.create_partitions("order", 2)


def test_partitions_are_added_all_or_none(dirs: list[Path]) -> None:
    """The disk is full at each operation in turn, until the call succeeds."""
    files = FaultyVfs()
    remaining = 0

    def rule(operation: str, _: str) -> None:
        nonlocal remaining
        if operation in {"create", "write", "rename", "make folder"}:
            remaining -= 1
            if remaining == 0:
                raise OSError(errno.ENOSPC, "full")

    with with_topic(dirs, Env(files=files)) as engine:
        files.rule = rule
        failures = 0
        while True:
            remaining = failures + 1
            try:
                engine.create_partitions("orders", 3)
            except DiskFullError:
                failures += 1
                assert engine.topics()["orders"].partitions == (0,)
                assert sorted(name for path in dirs for name in folders(path)) == ["orders-0"]
            else:
                break
        files.rule = None
        assert failures > 3
        assert engine.topics()["orders"].partitions == (0, 1, 2)
        assert read(engine.log("orders", 0))[-1] == (COUNT - 1, b"%d" % (COUNT - 1))


def test_a_crash_while_partitions_are_added_leaves_the_topic_usable(dirs: list[Path]) -> None:
    counts = set()
    for state in crash_states(dirs, lambda engine: engine.create_partitions("orders", 3)):
        with open_engine(state) as engine:
            partitions = engine.topics()["orders"].partitions
            counts.add(len(partitions))
            assert len(read(engine.log("orders", 0))) == COUNT - 3
            if len(partitions) < 3:
                engine.create_partitions("orders", 3)
            assert {engine.log("orders", number).topic_id for number in range(3)} == {engine.log("orders", 0).topic_id}
    assert counts >= {1, 3}


# --- files of other programs -------------------------------------------------------------------------------------


def test_the_unfinished_copy_of_a_log_stays_while_the_log_cannot_be_opened(tmp_path: Path) -> None:
    dirs = [tmp_path / "a", tmp_path / "b"]
    with open_engine(dirs[0]) as engine:
        engine.create_topic("orders")
        engine.log("orders", 0).append([Record(value=b"v")])
    copy, epochs = dirs[1] / f"orders-0.{HEX}-future", dirs[0] / "orders-0" / "leader-epoch-checkpoint"
    checkpoint = epochs.read_bytes()
    shutil.copytree(dirs[0] / "orders-0", copy)
    epochs.write_bytes(b"nonsense\n")
    with open_engine(dirs) as engine:
        assert engine.left_folders() == (str(copy),)
        with pytest.raises(CorruptCheckpointError):
            engine.log("orders", 0)
    assert (copy / "leader-epoch-checkpoint").read_bytes() == checkpoint
    epochs.write_bytes(checkpoint)
    with open_engine(dirs) as engine:
        assert engine.left_folders() == ()
    assert not copy.exists()


def test_folders_that_a_broker_set_aside(dirs: list[Path]) -> None:
    with_topic(dirs).close()
    names = [f"orders-0.{HEX}-stray", f"orders-0.{HEX}-delete", f"orders-0.{HEX}-future", f"gone-0.{HEX}-future"]
    for name in names:
        shutil.copytree(dirs[0] / "orders-0", dirs[1] / name)
    with open_engine(dirs) as engine:
        assert len(engine.partitions()) == 1
        assert engine.left_folders() == (str(dirs[1] / names[3]), str(dirs[1] / names[0]))
    assert folders(dirs[1]) == [names[3], names[0]]


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        ("version=1\ncluster.id=x\nnode.id=1\n", "version=1\ncluster.id=y\nnode.id=1\n", "cluster.id is x"),
        ("version=1\nnode.id=1\n", "#c\nversion=0\nbroker.id=2\n", "node.id is 1"),
        ("version=1\ndirectory.id=d\n", "version=1\ndirectory.id=d\n", "one is a copy"),
    ],
)
def test_directories_that_do_not_belong_together(dirs: list[Path], first: str, second: str, problem: str) -> None:
    for directory, text in zip(dirs, (first, second), strict=True):
        directory.mkdir()
        (directory / "meta.properties").write_text(text)
    with pytest.raises(ConfigError, match=problem):
        open_engine(dirs)
    with open_engine(dirs[0]):
        assert (dirs[0] / "meta.properties").read_text() == first


def test_an_identity_of_a_later_version_is_refused(dirs: list[Path]) -> None:
    dirs[0].mkdir()
    (dirs[0] / "meta.properties").write_text("version=7\n")
    with pytest.raises(CorruptCheckpointError, match=r"version '7'.*: open the directory with the release"):
        open_engine(dirs)
    (dirs[0] / "meta.properties").write_text("node.id=1\n")
    with pytest.raises(CorruptCheckpointError, match=r"version None.*: .* delete the file if no Kafka broker uses"):
        open_engine(dirs)


def test_a_directory_out_of_service_takes_no_partition(dirs: list[Path]) -> None:
    files = FaultyVfs()
    with with_topic(dirs, Env(files=files)) as engine:
        engine.create_topic("more")
        files.rule = failing("sync", errno.EIO, path="more-0/" + f"{0:020}.log")
        with pytest.raises(LogDirOfflineError):
            engine.log("more", 0).append([Record(value=b"v")], "durable")
        with pytest.raises(LogDirOfflineError):
            engine.move_partition("orders", 0, dirs[1])
        fill(engine.log("orders", 0), 1)
