"""Several samples of a directory and its tier over time: rates, tier lag, next actions and lag of groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog import Record, TopicPartition, open_engine, open_reader
from stratalog.cli.views.top_command import WINDOW_MS, Activity, GroupActivity, TopicActivity
from stratalog.env.clock import ManualClock

ORDERS = TopicPartition("orders", 0)


def append(folder: Path, count: int) -> None:
    with open_engine(folder) as engine:
        engine.log(*ORDERS).append([Record(value=b"v")] * count)


def orders(activity: Activity) -> TopicActivity:
    return next(topic for topic in activity.sample().topics if topic.topic == "orders")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders", partitions=2, config={"retention.ms": -1})
    return tmp_path


def test_a_rate_is_the_growth_over_the_window(folder: Path) -> None:
    clock = ManualClock()
    with open_reader(folder) as reader:
        activity = Activity(reader, clock)
        assert orders(activity).rate is None
        append(folder, 30)
        clock.advance_ms(10_000)
        topic = orders(activity)
        assert (topic.rate, topic.high_watermark, topic.log_end, topic.partitions) == (3.0, 30, 30, 2)
        clock.advance_ms(5_000)
        assert orders(activity).rate == 2.0
        clock.advance_ms(WINDOW_MS)
        assert orders(activity).rate == 0.0


def test_a_topic_that_is_created_again_has_no_negative_rate(folder: Path) -> None:
    clock = ManualClock()
    append(folder, 30)
    with open_reader(folder) as reader:
        activity = Activity(reader, clock)
        orders(activity)
        with open_engine(folder) as engine:
            engine.delete_topic("orders")
            engine.create_topic("orders")
        clock.advance_ms(1000)
        topic = orders(activity)
        assert (topic.rate, topic.high_watermark, topic.partitions) == (0.0, 0, 1)


def test_deleted_topics_disappear_and_new_ones_appear(folder: Path) -> None:
    with open_reader(folder) as reader:
        activity = Activity(reader, ManualClock())
        activity.sample()
        with open_engine(folder) as engine:
            engine.delete_topic("orders")
            engine.create_topic("users")
        assert [topic.topic for topic in activity.sample().topics] == ["users"]


def test_the_tier_lag_ends_with_the_offload(tmp_path: Path) -> None:
    data, tier = tmp_path / "data", tmp_path / "tier"
    data.mkdir()
    tier.mkdir()
    with open_engine(data, tier=tier.as_uri()) as engine:
        engine.create_topic("orders", config={"retention.ms": -1})
        engine.log(*ORDERS).append([Record(value=b"v" * 1000)])
        engine.log(*ORDERS).roll()
    with open_reader(data, tier=tier.as_uri()) as reader:
        activity = Activity(reader, ManualClock())
        before = orders(activity)
        assert before.tier_lag_bytes > 1000
        assert before.tier_bytes == 0
        with open_engine(data, tier=tier.as_uri()) as engine:
            engine.offload()
        after = orders(activity)
        assert after.tier_lag_bytes == 0
        assert after.tier_bytes == before.tier_lag_bytes


def test_the_next_actions_are_named(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders", config={"retention.ms": 60_000})
        engine.log(*ORDERS).append([Record(value=b"v", timestamp_ms=1_700_000_000_000)])
        engine.log(*ORDERS).roll()
        engine.create_topic("later", config={"retention.ms": 60_000})
        engine.log("later", 0).append([Record(value=b"v", timestamp_ms=1_700_000_200_000)])
    with open_reader(tmp_path) as reader:
        actions = {
            topic.topic: topic.next for topic in Activity(reader, ManualClock(1_700_000_100_000)).sample().topics
        }
    assert actions["orders"].startswith("delete 1 (")
    assert actions["later"] == "delete at 2023-11-14T22:17Z"


def test_the_lag_of_a_group_is_the_sum_over_partitions(folder: Path) -> None:
    with open_engine(folder) as engine:
        for number in range(2):
            engine.log("orders", number).append([Record(value=b"v")] * 10)
        engine.alter_group_offsets("billing", {ORDERS: 4, TopicPartition("orders", 1): 9})
    with open_reader(folder) as reader:
        activity = Activity(reader, ManualClock())
        assert activity.sample().groups == (GroupActivity("billing", "orders", 7),)
        with open_engine(folder) as engine:
            engine.alter_group_offsets("billing", {ORDERS: 10})
        assert activity.sample().groups == (GroupActivity("billing", "orders", 1),)


def test_a_damaged_log_has_its_error(folder: Path) -> None:
    append(folder, 3)
    (folder / "orders-1" / "partition.metadata").write_bytes(b"nonsense")
    with open_reader(folder) as reader:
        topic = orders(Activity(reader, ManualClock()))
    assert "orders-1" in topic.error
    assert topic.high_watermark == 3
