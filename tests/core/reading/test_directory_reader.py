"""Log directories that are read without an engine: sound, damaged, in use, and with a tier."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from stratalog import Record, TopicPartition, open_engine, open_reader
from stratalog.config.settings_sources import read_settings
from stratalog.config.topic import TopicConfig
from stratalog.env import Env
from stratalog.errors import (
    BucketNotFoundError,
    ClosedError,
    ConfigError,
    CorruptBatchError,
    CorruptCheckpointError,
    CorruptManifestError,
    LogDirNotFoundError,
    LogDirPermissionError,
    PluginError,
    SegmentGoneError,
    SystemLimitError,
    UnknownComponentError,
    UnknownSettingError,
    UnknownTopicError,
)
from stratalog.log.load.log_loader import load
from stratalog.reading import directory_reader
from stratalog.reading.open_reader import open_host
from stratalog.spi import Codec, OpenContext, Provider, hookimpl
from stratalog.testing.faults import FaultyVfs, failing

DESCRIPTORS = Path("/proc/self/fd")
SMALL = {"segment.bytes": 1000, "index.interval.bytes": 100, "file.delete.delay.ms": 0, "retention.ms": -1}


def fill(folder: Path, *, records: int = 100, tier: str | None = None) -> None:
    with open_engine(folder, tier=tier, topic_defaults={"local.retention.bytes": 0}) as engine:
        engine.create_topic("orders", config=SMALL)
        for number in range(records):
            engine.log("orders", 0).append([Record(timestamp_ms=1000 + number, value=b"%d" % number * 10)])
        if tier is not None:
            engine.offload()
            engine.apply_retention()


def contents(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(folder)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def last_log(folder: Path) -> Path:
    return max(folder.glob("orders-0/*.log"))


@pytest.mark.parametrize("missing", ["", ".kafka_cleanshutdown", "orders-0/00000000000000000000.index"])
def test_reading_leaves_no_trace(tmp_path: Path, missing: str) -> None:
    fill(tmp_path)
    if missing:
        (tmp_path / missing).unlink()
    before = contents(tmp_path)
    with open_reader(tmp_path) as reader:
        assert [record.offset for record in reader.log("orders", 0).records()] == list(range(100))
        assert reader.log("orders", 0).offset_for_timestamp(1050) == 50
        reader.log("orders", 0).fetch(10).release()
    assert contents(tmp_path) == before


def test_a_read_only_directory_can_be_read(tmp_path: Path) -> None:
    fill(tmp_path)
    for path in [tmp_path, *tmp_path.rglob("*")]:
        path.chmod(0o500 if path.is_dir() else 0o400)
    with open_reader(tmp_path) as reader:
        assert len(list(reader.log("orders", 0).records())) == 100


@pytest.mark.parametrize("cut_bytes", [1, 30, 70])
def test_a_clean_directory_whose_last_file_was_cut_gives_what_is_good_then_an_error(
    tmp_path: Path, cut_bytes: int
) -> None:
    fill(tmp_path)
    path = last_log(tmp_path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - cut_bytes)
    with open_reader(tmp_path) as reader:
        log = reader.log("orders", 0)
        offsets: list[int] = []
        with pytest.raises(CorruptBatchError) as raised:
            offsets.extend(record.offset for record in log.records())
        assert offsets == list(range(99))
        assert raised.value.file == str(path)
        assert 0 < raised.value.position < path.stat().st_size + cut_bytes


def test_a_clean_directory_cut_between_two_batches_is_noticed(tmp_path: Path) -> None:
    """The file has no damage. Only the high watermark checkpoint shows that records are missing."""
    fill(tmp_path)
    path = last_log(tmp_path)
    with open_reader(tmp_path) as reader:
        size = reader.log("orders", 0).fetch(99).size_bytes
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - size)
    with open_reader(tmp_path) as reader, pytest.raises(CorruptBatchError, match="high watermark was 100"):
        list(reader.log("orders", 0).records())


def test_a_crashed_directory_is_read_to_its_last_good_batch(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    with last_log(tmp_path).open("ab") as file:
        file.write(b"\0" * 500)
    with open_reader(tmp_path) as reader:
        assert [record.offset for record in reader.log("orders", 0).records()] == list(range(100))


def test_evicted_segments_need_the_tier(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    fill(tmp_path / "data", tier=f"file://{bucket}")
    with open_reader(tmp_path / "data") as reader:
        offsets = reader.log("orders", 0).offsets()
        assert offsets.log_start == offsets.local_log_start > 0
    with open_reader(tmp_path / "data", tier=f"file://{bucket}") as reader:
        assert [record.offset for record in reader.log("orders", 0).records()] == list(range(100))
    with open_reader(f"file://{bucket}") as reader:
        end = reader.log("orders", 0).offsets().log_end
        assert end == offsets.local_log_start
        assert [record.offset for record in reader.log("orders", 0).records()] == list(range(end))


def test_a_reader_without_the_tier_warns_once_of_evicted_offsets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    fill(tmp_path / "local")
    fill(tmp_path / "data", tier=f"file://{bucket}")
    with open_reader(tmp_path / "data") as reader:
        log = reader.log("orders", 0)
        start = log.offsets().local_log_start
        reader.refresh()
        assert next(iter(reader.log("orders", 0).records())).offset == start
    expected = (
        f"orders-0: local disk lacks offsets [0, {start}): "
        "if they are in a tier, name it (--tier URI, or tier=URI in Python)"
    )
    assert [record.getMessage() for record in caplog.records] == [expected]


@pytest.mark.skipif(not DESCRIPTORS.exists(), reason="the descriptors of a process are not listed")
def test_a_log_whose_tier_cannot_be_read_leaves_no_file_open(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    with open_engine(tmp_path / "data", tier=bucket.as_uri()) as engine:
        engine.create_topic("orders")
        engine.log("orders", 0).append([Record(value=b"v")])
    for root in bucket.glob("orders-*/0/manifest/*"):
        root.write_bytes(b"x")
    with open_reader(tmp_path / "data", tier=bucket.as_uri()) as reader:
        before = len(list(DESCRIPTORS.iterdir()))
        with pytest.raises(CorruptManifestError):
            reader.log("orders", 0)
        assert len(list(DESCRIPTORS.iterdir())) == before


@pytest.mark.skipif(not DESCRIPTORS.exists(), reason="the descriptors of a process are not listed")
def test_logs_that_are_opened_with_a_damaged_one_are_opened_once(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders", partitions=3)
        for partition in range(3):
            engine.log("orders", partition).append([Record(value=b"v")])
    (tmp_path / "orders-1" / "leader-epoch-checkpoint").write_bytes(b"x")
    names, counts = [TopicPartition("orders", partition) for partition in range(3)], set[int]()
    with open_reader(tmp_path) as reader:
        for _ in range(3):
            with pytest.raises(CorruptCheckpointError):
                reader.open_logs(names)
            counts.add(len(list(DESCRIPTORS.iterdir())))
    assert len(counts) == 1


def test_a_refresh_shows_the_segments_of_a_compaction_beside_the_reader(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
        log = engine.log("orders", 0)
        for number in range(20):
            log.append([Record(timestamp_ms=1000 + number, key=b"%d" % (number % 10), value=b"v")])
        log.roll()
    with open_engine(tmp_path) as engine, open_reader(tmp_path) as reader:
        log_read = reader.log("orders", 0)
        engine.run_cleaner()
        with pytest.raises(SegmentGoneError, match="another process replaced the file"):
            list(log_read.records())
        assert reader.refresh() == (TopicPartition("orders", 0),)
        assert [record.offset for record in log_read.records()] == list(range(10, 20))


def test_a_refresh_after_a_failed_one_shows_the_new_records(tmp_path: Path) -> None:
    fill(tmp_path)
    with open_reader(tmp_path) as reader:
        log = reader.log("orders", 0)
        with open_engine(tmp_path) as engine:
            engine.log("orders", 0).append([Record(value=b"new")])
        epochs = tmp_path / "orders-0" / "leader-epoch-checkpoint"
        valid_epochs = epochs.read_bytes()
        epochs.write_bytes(b"x" * len(valid_epochs))
        with pytest.raises(CorruptCheckpointError):
            reader.refresh()
        epochs.write_bytes(valid_epochs)
        assert reader.refresh() == (("orders", 0),)
        assert log.offsets().log_end == 101


@pytest.mark.parametrize("times", [2, 3])
def test_a_log_is_opened_again_if_a_file_goes_after_it_was_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    fill(tmp_path)
    failures_left = list(range(times))

    def load_after_deletions(*arguments: Any) -> Any:
        if failures_left:
            failures_left.pop()
            raise SegmentGoneError("the file does not exist", "0.log")
        return load(*arguments)

    monkeypatch.setattr(directory_reader, "load", load_after_deletions)
    with open_reader(tmp_path) as reader:
        if times < 3:
            assert reader.log("orders", 0).offsets().log_end == 100
        else:
            with pytest.raises(SegmentGoneError):
                reader.log("orders", 0)


def test_a_refresh_reads_the_tier_after_the_local_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running engine offloads and evicts segments during the refresh."""
    (tmp_path / "bucket").mkdir()
    tier = f"file://{tmp_path / 'bucket'}"
    with open_engine(tmp_path / "data", tier=tier) as engine:
        engine.create_topic("t", config={"local.retention.bytes": 0, "file.delete.delay.ms": 0})
        log = engine.log("t", 0)

        def append() -> None:
            log.append([Record(value=b"")])
            log.roll()
            engine.flush()

        def load_after_eviction(*arguments: Any) -> Any:
            engine.offload()
            engine.apply_retention()
            return load(*arguments)

        append()
        with open_reader(tmp_path / "data", tier=tier) as reader:
            assert [record.offset for record in reader.log("t", 0).records()] == [0]
            append()
            monkeypatch.setattr(directory_reader, "load", load_after_eviction)
            reader.refresh()
            assert log.offsets().local_log_start == 2
            assert [record.offset for record in reader.log("t", 0).records()] == [0, 1]


def test_a_refresh_shows_a_change_in_the_tier_alone(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    tier = f"file://{tmp_path / 'bucket'}"
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
    with open_engine(tmp_path / "data", tier=tier) as engine:
        engine.create_topic("t", config={**compacted, "local.retention.bytes": 0, "file.delete.delay.ms": 0})
        for _ in range(3):
            engine.log("t", 0).append([Record(key=b"k", value=b"v")])
            engine.log("t", 0).roll()
        engine.offload()
        engine.apply_retention()
        engine.flush()
        with open_reader(tmp_path / "data", tier=tier) as reader:
            log = reader.log("t", 0)
            assert [record.offset for record in log.records()] == [0, 1, 2]
            assert reader.refresh() == ()
            engine.run_cleaner()
            assert reader.refresh() == (("t", 0),)
            assert [record.offset for record in log.records()] == [2]


@pytest.mark.parametrize("bucket", [None, "bucket"])
def test_a_reader_of_all_offsets_does_not_warn(
    tmp_path: Path, bucket: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    tier = None
    if bucket is not None:
        (tmp_path / bucket).mkdir()
        tier = f"file://{tmp_path / bucket}"
    fill(tmp_path / "data", tier=tier)
    with open_reader(tmp_path / "data", tier=tier) as reader:
        assert len(list(reader.log("orders", 0).records())) == 100
    assert not caplog.records


def test_a_folder_that_lost_its_segments_is_read_from_the_tier(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    fill(tmp_path / "data", tier=f"file://{bucket}")
    with open_reader(f"file://{bucket}") as reader:
        expected = [record.offset for record in reader.log("orders", 0).records(isolation="read_committed")]
    assert expected
    for path in (tmp_path / "data" / "orders-0").glob("0*"):
        path.unlink()
    with open_reader(tmp_path / "data", tier=f"file://{bucket}") as reader:
        offsets = [record.offset for record in reader.log("orders", 0).records(isolation="read_committed")]
    assert offsets == expected


def test_foreign_files_and_folders_are_left_alone(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "remote-log-index-cache").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "orders-0" / "notes.txt").write_text("mine")
    shutil.copytree(tmp_path / "orders-0", tmp_path / f"orders-0.{'0' * 32}-delete")
    with open_reader(tmp_path) as reader:
        assert [str(name) for name in reader.partitions()] == ["orders-0"]
        assert len(list(reader.log("orders", 0).records())) == 100


def test_a_directory_that_cannot_be_opened_is_explained(tmp_path: Path) -> None:
    fill(tmp_path)
    with pytest.raises(LogDirNotFoundError, match="nosuch"):
        open_reader(tmp_path / "nosuch")
    with pytest.raises(UnknownComponentError, match="nosuch"):
        open_reader("nosuch://bucket")
    with pytest.raises(BucketNotFoundError, match="nobucket"):
        open_reader(f"file://{tmp_path}/nobucket")
    with pytest.raises(UnknownSettingError, match="limits"):
        open_reader(tmp_path, config={"limits": {"opn.files": 3}})
    with pytest.raises(ConfigError, match="URI"):
        open_reader(tmp_path, tier=str(tmp_path))
    with open_reader(tmp_path) as reader, pytest.raises(UnknownTopicError, match="orders-7"):
        reader.log("orders", 7)
    with pytest.raises(ClosedError):
        reader.log("orders", 0)


@pytest.mark.parametrize("name", ["partition.metadata", "leader-epoch-checkpoint"])
def test_a_malformed_small_file_is_named(tmp_path: Path, name: str) -> None:
    fill(tmp_path)
    (tmp_path / "orders-0" / name).write_bytes(b"nonsense\n")
    with open_reader(tmp_path) as reader, pytest.raises(CorruptCheckpointError, match=name):
        reader.log("orders", 0)


def test_topics_are_listed_though_a_log_cannot_be_opened(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        created = engine.create_topic("orders", partitions=2)
        engine.create_topic("others")
    for damaged in ("orders-0", "others-0"):
        (tmp_path / damaged / "partition.metadata").write_bytes(b"nonsense\n")
    with open_reader(tmp_path) as reader:
        topics = reader.topics()
    assert (topics["orders"].topic_id, topics["orders"].partitions) == (created.topic_id, (0, 1))
    assert topics["others"].topic_id is None


def test_topics_are_listed_though_a_folder_cannot_be_read(tmp_path: Path) -> None:
    files = FaultyVfs()
    with open_engine(tmp_path) as engine:
        created = engine.create_topic("orders", partitions=2)
        engine.create_topic("others")
    with open_reader(tmp_path, env=Env(files=files)) as reader:
        files.rule = failing("open", errno.EACCES, path="-0/partition.metadata", times=9)
        topics = reader.topics()
        assert (topics["orders"].topic_id, topics["orders"].partitions) == (created.topic_id, (0, 1))
        assert topics["others"].topic_id is None
        with pytest.raises(LogDirPermissionError, match=r"partition\.metadata"):
            reader.log("others", 0)
        files.rule = failing("open", errno.EMFILE, path="-0/partition.metadata", times=9)
        with pytest.raises(SystemLimitError):
            reader.topics()


def test_topics_are_listed_though_the_writer_deletes_one(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        created = engine.create_topic("orders")
        engine.create_topic("others")
        with open_reader(tmp_path) as reader:
            engine.delete_topic("others")
            assert reader.topics()["orders"].topic_id == created.topic_id
            reader.refresh()
            assert list(reader.topics()) == ["orders"]


def test_a_codec_that_cannot_be_imported_is_named_if_it_is_used(tmp_path: Path) -> None:
    """A missing library once caused a ModuleNotFoundError without the codec's name, and later reads failed."""

    class Broken:
        @hookimpl
        def stratalog_codecs(self) -> tuple[Provider[Codec], ...]:
            def opened(_: OpenContext) -> Codec:
                raise ModuleNotFoundError("no module named zip9")

            return (Provider(name="zip9", open=opened),)

    fill(tmp_path)
    with open_reader(tmp_path, plugins=[Broken()]) as reader:
        assert [record.offset for record in reader.log("orders", 0).records()]
    message = r"codec 'zip9' version 1 .*Broken.*'zip9' cannot be opened: no module"
    with contextlib.closing(open_host(read_settings({}, {}), [Broken()], None)) as host:
        codecs = host.components(TopicConfig()).codecs
        with pytest.raises(PluginError, match=message):
            codecs.by_name("zip9")


@pytest.mark.parametrize("name", ["replication-offset-checkpoint", "recovery-point-offset-checkpoint"])
def test_a_malformed_checkpoint_of_the_directory_counts_as_empty(tmp_path: Path, name: str) -> None:
    """Kafka does the same: recovery then starts earlier, and no record is lost."""
    fill(tmp_path)
    (tmp_path / name).write_bytes(b"nonsense\n")
    with open_reader(tmp_path) as reader:
        assert len(list(reader.log("orders", 0).records())) == 100
