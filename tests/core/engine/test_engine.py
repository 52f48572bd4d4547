"""The engine through its public API: topics, directories, tier, retention, reopening."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stratalog
from small_disk import SmallDisk
from stratalog import Record, open_engine, open_reader
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.env.threads import OwnThread
from stratalog.errors import (
    ClosedError,
    ConfigError,
    CorruptCheckpointError,
    DiskFullError,
    FencedEpochError,
    InvalidTopicError,
    LogDirLockedError,
    OffsetOutOfRangeError,
    TopicExistsError,
    UnknownComponentError,
    UnknownSettingError,
    UnknownTopicError,
)
from stratalog.model.events import LogOpened, SegmentEvicted, SegmentOffloaded, SegmentRolled
from stratalog.spi import hookimpl

SMALL = {"segment.bytes": 2000, "index.interval.bytes": 100, "file.delete.delay.ms": 0}
TIERED = {**SMALL, "retention.ms": -1, "local.retention.bytes": 0}


def rows(start: int, count: int) -> list[Record]:
    return [
        Record(timestamp_ms=1_700_000_000_000 + number, key=b"k%d" % number, value=b"v" * 50 + b"%d" % number)
        for number in range(start, start + count)
    ]


def fill(log: stratalog.Log, count: int) -> None:
    end = log.offsets().log_end
    for start in range(end, end + count, 10):
        log.append(rows(start, min(10, end + count - start)))


@pytest.fixture
def tier(tmp_path: Path) -> str:
    folder = tmp_path / "bucket"
    folder.mkdir()
    return f"file://{folder}"


def values(log: stratalog.LogReader) -> list[tuple[int, bytes | None, bytes | None, int]]:
    return [(record.offset, record.key, record.value, record.timestamp_ms) for record in log.records()]


def test_appended_records_come_back_in_every_field(tmp_path: Path) -> None:
    headers = (("h", b"x"), ("h", None), ("", b""))
    records = [
        Record(timestamp_ms=5, key=b"k", value=b"v", headers=headers),
        Record(timestamp_ms=6, key=None, value=None),
        Record(timestamp_ms=7, key=b"", value=b""),
    ]
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders")
        log = engine.log("orders", 0)
        result = log.append(records)
        assert (result.base_offset, result.last_offset) == (0, 2)
        actual = list(log.records())
    assert [(r.timestamp_ms, r.key, r.value, r.headers) for r in actual] == [
        (r.timestamp_ms, r.key, r.value, r.headers) for r in records
    ]
    assert [(r.offset, r.partition, r.leader_epoch, str(r.timestamp_type)) for r in actual] == [
        (offset, 0, 0, "CreateTime") for offset in range(3)
    ]


def test_a_record_without_timestamp_gets_the_clocks(tmp_path: Path) -> None:
    env = Env(clock=ManualClock(123_456))
    with open_engine(tmp_path, env=env) as engine:
        engine.create_topic("orders")
        engine.log("orders", 0).append([Record(value=b"v")])
        (record,) = engine.log("orders", 0).records()
    assert record.timestamp_ms == 123_456


def test_everything_is_there_after_opening_again(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        info = engine.create_topic("orders", partitions=3, config=SMALL)
        for partition in range(3):
            fill(engine.log("orders", partition), 100 + partition)
        before = {name: values(engine.log(*name)) for name in engine.partitions()}
        offsets = {name: engine.log(*name).offsets() for name in engine.partitions()}
        assert len(engine.log("orders", 0).segments()) > 3
    with open_engine(tmp_path) as engine:
        assert engine.topics()["orders"].topic_id == info.topic_id
        assert engine.topics()["orders"].config == info.config
        assert {name: values(engine.log(*name)) for name in engine.partitions()} == before
        for name, expected in offsets.items():
            now = engine.log(*name).offsets()
            assert (now.log_start, now.high_watermark, now.log_end) == (
                expected.log_start,
                expected.high_watermark,
                expected.log_end,
            )
        fill(engine.log("orders", 0), 7)
        assert engine.log("orders", 0).offsets().log_end == 107


def test_partitions_spread_over_log_directories(tmp_path: Path) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    with open_engine(directories) as engine:
        engine.create_topic("orders", partitions=4)
        fill(engine.log("orders", 3), 5)
    counts = [len([path for path in directory.iterdir() if path.is_dir()]) for directory in directories]
    assert counts == [2, 2]
    with open_engine(list(reversed(directories))) as engine:
        assert len(values(engine.log("orders", 3))) == 5


def test_a_directory_is_locked_and_a_reader_needs_no_lock(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders")
        fill(engine.log("orders", 0), 10)
        with pytest.raises(LogDirLockedError):
            open_engine(tmp_path)
        engine.flush()
        with open_reader(tmp_path) as reader:
            assert len(values(reader.log("orders", 0))) == 10
        fill(engine.log("orders", 0), 5)
        with open_reader(tmp_path) as reader:
            assert len(values(reader.log("orders", 0))) == 10, "a running engine is read up to its checkpoint"


def test_a_second_engine_in_the_same_place_after_a_failed_one(tmp_path: Path) -> None:
    with pytest.raises(UnknownComponentError):
        open_engine(tmp_path, tier="nosuch://bucket")
    with open_engine(tmp_path) as engine:
        assert engine.partitions() == ()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda e: e.create_topic("a/b"), InvalidTopicError),
        (lambda e: e.create_topic("orders"), TopicExistsError),
        (lambda e: e.create_topic("new", partitions=0), ConfigError),
        (lambda e: e.create_topic("new", config={"segment.byte": 1}), UnknownSettingError),
        (lambda e: e.create_topic("new", config={"segment.bytes": 1}), ConfigError),
        (lambda e: e.create_topic("new", config={"cleanup.policy": "shred"}), UnknownComponentError),
        (lambda e: e.create_topic("new", config={"tier.layout": "pile"}), UnknownComponentError),
        (lambda e: e.create_topic("new", config={"index.formats": "offset"}), UnknownComponentError),
        (lambda e: e.log("orders", 1), UnknownTopicError),
        (lambda e: e.log("nosuch", 0), UnknownTopicError),
        (lambda e: e.offload(), ConfigError),
        (lambda e: e.log("orders", 0).append([Record()], durability="eternal"), ConfigError),
        (lambda e: list(e.log("orders", 0).records(isolation="dirty")), ConfigError),
        (lambda e: list(e.log("orders", 0).records(start=99)), OffsetOutOfRangeError),
        (lambda e: e.log("orders", 0).fetch(99), OffsetOutOfRangeError),
    ],
)
def test_wrong_calls_raise_typed_errors_and_change_nothing(
    tmp_path: Path, call: object, error: type[Exception]
) -> None:
    assert callable(call)
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders")
        with pytest.raises(error):
            call(engine)
        assert list(engine.topics()) == ["orders"]
        assert engine.log("orders", 0).offsets().log_end == 0


def test_after_close_everything_raises(tmp_path: Path) -> None:
    engine = open_engine(tmp_path)
    engine.create_topic("orders")
    log = engine.log("orders", 0)
    engine.close()
    engine.close()
    with pytest.raises(ClosedError):
        engine.log("orders", 0)
    with pytest.raises(ClosedError):
        log.append([Record()])


def test_settings_of_a_call_win_over_environment_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "stratalog.toml"
    settings.write_text(f'log.dirs = ["{tmp_path / "file"}"]\n[topic_defaults]\n"segment.bytes" = 5000\n')
    with open_engine(config=settings) as engine:
        assert engine.create_topic("t").config.segment_bytes == 5000
    assert (tmp_path / "file" / "t-0").is_dir()
    monkeypatch.setenv("STRATALOG_LOG_DIRS", str(tmp_path / "environment"))
    with open_engine(config=settings) as engine:
        engine.create_topic("t")
    assert (tmp_path / "environment" / "t-0").is_dir()
    with open_engine(tmp_path / "call", config=settings, topic_defaults={"segment.bytes": 6000}) as engine:
        assert engine.create_topic("t").config.segment_bytes == 6000
    assert (tmp_path / "call" / "t-0").is_dir()


def test_a_damaged_topics_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders")
    path = tmp_path / "stratalog-topics.json"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorruptCheckpointError, match=r"stratalog-topics\.json"):
        open_engine(tmp_path)
    path.write_text(json.dumps({"version": 99, "topics": {}}))
    with pytest.raises(CorruptCheckpointError, match="not supported"):
        open_engine(tmp_path)


# --- the tier ----------------------------------------------------------------------------------------------------


def test_offloaded_and_evicted_records_read_as_before(tmp_path: Path, tier: str) -> None:
    with open_engine(tmp_path / "data", tier=tier) as engine:
        engine.create_topic("orders", config=TIERED)
        log = engine.log("orders", 0)
        fill(log, 200)
        before, stamp = values(log), 1_700_000_000_077
        assert log.offset_for_timestamp(stamp) == 77
        (result,) = engine.offload()
        assert result.segments == len(log.segments()) - 1
        (retention,) = engine.apply_retention()
        assert retention.evicted_segments == result.segments
        assert retention.deleted_segments == 0
        assert retention.rolled, "local.retention.bytes wants the active segment gone too"
        assert [segment.is_local for segment in log.segments()] == [False] * result.segments + [True, True]
        assert len(list((tmp_path / "data" / "orders-0").glob("*.log"))) == 2
        assert log.offsets().log_start == 0
        assert log.offsets().local_log_start == result.tier_end
        assert values(log) == before
        assert [values_between(log, start, start + 3) for start in range(0, 197, 13)] == [
            before[start : start + 3] for start in range(0, 197, 13)
        ]
        assert log.offset_for_timestamp(stamp) == 77
        assert engine.offload()[0].segments == 1, "what the tier has is not sent again"
    with open_engine(tmp_path / "data", tier=tier) as engine:
        assert values(engine.log("orders", 0)) == before
        fill(engine.log("orders", 0), 100)
        engine.offload()
        engine.apply_retention()
        assert [row[0] for row in values(engine.log("orders", 0))] == list(range(300))


def values_between(log: stratalog.LogReader, start: int, end: int) -> list[tuple[int, bytes | None, bytes | None, int]]:
    records = log.records(start, end)
    return [(record.offset, record.key, record.value, record.timestamp_ms) for record in records]


def test_a_bucket_is_read_alone(tmp_path: Path, tier: str) -> None:
    with open_engine(tmp_path / "data", tier=tier) as engine:
        info = engine.create_topic("orders", partitions=2, config=TIERED)
        for partition in range(2):
            fill(engine.log("orders", partition), 150)
            engine.log("orders", partition).roll()
        engine.offload()
        before = {name: values(engine.log(*name)) for name in engine.partitions()}
    with open_reader(tier) as reader:
        assert reader.partitions() == tuple(before)
        assert reader.topics()["orders"].topic_id == info.topic_id
        assert {name: values(reader.log(*name)) for name in reader.partitions()} == before
        assert reader.log("orders", 1).offsets().high_watermark == 150
        with pytest.raises(UnknownTopicError):
            reader.log("orders", 2)


def test_a_topic_can_stay_out_of_the_tier(tmp_path: Path, tier: str) -> None:
    with open_engine(tmp_path / "data", tier=tier) as engine:
        engine.create_topic("local", config={**SMALL, "remote.storage.enable": False})
        fill(engine.log("local", 0), 100)
        assert engine.offload() == ()


def test_nothing_is_evicted_that_no_root_names(tmp_path: Path, tier: str) -> None:
    with open_engine(tmp_path / "data", tier=tier) as engine:
        engine.create_topic("orders", config=TIERED)
        log = engine.log("orders", 0)
        fill(log, 100)
        segments = len(log.segments())
        (result,) = engine.apply_retention()
        assert (result.evicted_segments, len(log.segments())) == (0, segments)
        assert all(segment.is_local for segment in log.segments())


def test_an_iterator_continues_in_the_tier_when_its_segment_is_evicted(tmp_path: Path, tier: str) -> None:
    with open_engine(tmp_path / "data", tier=tier, config={"limits": {"open.files": 8}}) as engine:
        engine.create_topic("orders", config=TIERED)
        log = engine.log("orders", 0)
        fill(log, 300)
        before = values(log)
        reading = log.records()
        records = [next(reading) for _ in range(5)]
        engine.offload()
        engine.apply_retention()
        records.extend(reading)
        assert [(r.offset, r.key, r.value, r.timestamp_ms) for r in records] == before


def test_an_older_copy_of_a_directory_is_refused(tmp_path: Path, tier: str) -> None:
    """The tier has later records, so an append would assign their offsets a second time."""
    data = tmp_path / "data"
    with open_engine(data, tier=tier) as engine:
        engine.create_topic("orders", config=TIERED)
    with open_engine(data, tier=tier) as engine:
        fill(engine.log("orders", 0), 200)
        engine.offload()
    for path in (data / "orders-0").glob("0*"):
        path.unlink()
    with open_engine(data, tier=tier) as engine, pytest.raises(FencedEpochError, match="tier has"):
        engine.log("orders", 0)


def test_retention_deletes_from_both_tiers(tmp_path: Path, tier: str) -> None:
    clock = ManualClock(1_700_000_000_000)
    with open_engine(tmp_path / "data", tier=tier, env=Env(clock=clock)) as engine:
        config = {**SMALL, "retention.ms": 1000, "local.retention.ms": 500}
        engine.create_topic("orders", config=config)
        log = engine.log("orders", 0)
        fill(log, 200)
        engine.offload()
        clock.advance_ms(700)
        (local,) = engine.apply_retention()
        assert local.deleted_segments == 0
        assert local.evicted_segments > 0
        assert log.offsets().log_start == 0
        clock.advance_ms(5000)
        dry = engine.apply_retention(dry_run=True)
        assert len(values(log)) == 200
        assert engine.apply_retention() == dry
        assert values(log) == []
        assert log.offsets().log_start == log.offsets().log_end == 200
    with open_engine(tmp_path / "data", tier=tier) as engine:
        assert engine.log("orders", 0).offsets().log_start == 200


def test_topics_found_without_settings_keep_everything(tmp_path: Path) -> None:
    """A directory whose topics were configured elsewhere must not lose data because of stratalog's defaults."""
    clock = ManualClock(1_700_000_000_000 + 30 * 86_400_000)
    with open_engine(tmp_path, env=Env(clock=clock)) as engine:
        engine.create_topic("orders", config=SMALL)
        fill(engine.log("orders", 0), 100)
    (tmp_path / "stratalog-topics.json").unlink()
    with open_engine(tmp_path, env=Env(clock=clock)) as engine:
        assert engine.topics()["orders"].config.retention_ms == -1
        engine.apply_retention()
        assert len(values(engine.log("orders", 0))) == 100
    with open_engine(tmp_path, env=Env(clock=clock), topic_defaults={"retention.ms": 1000}) as engine:
        engine.apply_retention()
        assert values(engine.log("orders", 0)) == []


def test_delete_records_survives_a_clean_stop(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders", config={**SMALL, "retention.ms": -1})
        log = engine.log("orders", 0)
        fill(log, 100)
        assert log.delete_records(before=37) == 37
        assert [row[0] for row in values(log)] == list(range(37, 100))
        with pytest.raises(OffsetOutOfRangeError):
            log.fetch(36)
        with pytest.raises(OffsetOutOfRangeError):
            log.delete_records(before=101)
        engine.apply_retention()
    with open_engine(tmp_path) as engine:
        assert [row[0] for row in values(engine.log("orders", 0))] == list(range(37, 100))


def test_listeners_receive_the_events_of_the_engine(tmp_path: Path, tier: str) -> None:
    class Listener:
        def __init__(self) -> None:
            self.heard: list[object] = []

        @hookimpl
        def stratalog_on_log_opened(self, event: LogOpened) -> None:
            self.heard.append(event)

        @hookimpl
        def stratalog_on_segment_rolled(self, event: SegmentRolled) -> None:
            self.heard.append(event)

        @hookimpl
        def stratalog_on_segment_offloaded(self, event: SegmentOffloaded) -> None:
            self.heard.append(event)

        @hookimpl
        def stratalog_on_segment_evicted(self, event: SegmentEvicted) -> None:
            self.heard.append(event)

    listener = Listener()
    with open_engine(tmp_path / "data", tier=tier, plugins=[listener]) as engine:
        engine.create_topic("orders", config=TIERED)
        fill(engine.log("orders", 0), 100)
        segments = len(engine.log("orders", 0).segments())
        engine.offload()
        engine.apply_retention()
    kinds = [type(event) for event in listener.heard]
    assert kinds == (
        [LogOpened]
        + [SegmentRolled] * (segments - 1)
        + [SegmentOffloaded] * (segments - 1)
        + [SegmentEvicted] * (segments - 1)
        + [SegmentRolled]
    )


def test_an_event_that_reaches_no_listener_for_lack_of_a_thread_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Listener:
        @hookimpl
        def stratalog_on_segment_rolled(self, event: SegmentRolled) -> None:
            heard.append(event.base_offset)

    def refuse(_: OwnThread) -> None:
        raise RuntimeError("can't start new thread")

    heard = list[int]()
    with open_engine(tmp_path, plugins=[Listener()]) as engine:
        engine.create_topic("orders", config={"segment.bytes": 2000})
        log = engine.log("orders", 0)
        with monkeypatch.context() as patch:
            patch.setattr(OwnThread, "start", refuse)
            fill(log, 50)
        assert log.healthy
        log.roll()
    assert heard == [log.offsets().log_end]


# --- a full disk -------------------------------------------------------------------------------------------------


def test_a_full_disk_refuses_keeps_reading_and_continues_when_freed(tmp_path: Path) -> None:
    env = Env(files=SmallDisk(tmp_path, 120_000))
    with open_engine(tmp_path, env=env) as engine:
        engine.create_topic("orders", config={**SMALL, "segment.bytes": 20_000, "retention.ms": -1})
        log = engine.log("orders", 0)
        with pytest.raises(DiskFullError, match="free space"):
            fill(log, 5000)
        end = log.offsets().log_end
        assert end > 500
        assert [row[0] for row in values(log)] == list(range(end)), "what was acknowledged is there, nothing else"
        log.delete_records(before=end // 2)
        engine.apply_retention()
        fill(log, 50)
        assert [row[0] for row in values(log)] == list(range(end // 2, end + 50))
    with open_engine(tmp_path) as engine:
        assert [row[0] for row in values(engine.log("orders", 0))] == list(range(end // 2, end + 50))
