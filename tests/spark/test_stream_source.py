"""The stream source without Spark's processes: the next offsets of a stream, and their rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inside import write_checkpoints
from stratalog import CommittedOffset, Engine, Record, TopicPartition, open_engine
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.errors import ConfigError, OffsetOutOfRangeError, StorageError, UnknownSettingError, UnknownTopicError
from stratalog.model.records import RecordColumns
from stratalog.writing import WriteTarget
from stratalog_spark.options.read_options import Options
from stratalog_spark.read.read_split import read_split
from stratalog_spark.read.stream import PlainStreamReader
from stratalog_spark.read.stream_offsets import Offsets, from_json, to_json
from stratalog_spark.read.stream_planner import Planner

P0, P1, P2 = (TopicPartition("orders", partition) for partition in range(3))
Plan = Callable[..., Planner]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """Yield an open engine with a tier, and a topic of 2 partitions with 30 and 10 records."""
    (tmp_path / "tier").mkdir()
    with open_engine(tmp_path / "data", tier=(tmp_path / "tier").as_uri()) as new_engine:
        new_engine.create_topic("orders", partitions=2, config={"segment.bytes": 500, "retention.ms": -1})
        append(new_engine, 0, 30)
        append(new_engine, 1, 10)
        yield new_engine


def append(engine: Engine, partition: int, count: int) -> None:
    log = engine.log("orders", partition)
    for _ in range(count):
        log.append([Record(timestamp_ms=1_000, value=b"%d" % log.offsets().log_end)])
    write_checkpoints(engine)


def offload(engine: Engine) -> None:
    for name in engine.partitions():
        engine.log(*name).roll()
    engine.offload()


@pytest.fixture(params=["directory", "tier"])
def plan(request: pytest.FixtureRequest, engine: Engine, tmp_path: Path) -> Iterator[Plan]:
    planners: list[Planner] = []
    path = tmp_path / "data" if request.param == "directory" else (tmp_path / "tier").as_uri()
    offload(engine)

    def planner(clock: ManualClock | None = None, **options: object) -> Planner:
        options_with_topic = {"subscribe": "orders", **options}
        source_options = {
            "path": str(path),
            **{name: str(value) for name, value in options_with_topic.items() if value is not None},
        }
        planners.append(Planner(Options(source_options, streaming=True), Env(clock=clock or ManualClock())))
        return planners[-1]

    yield planner
    for open_planner in planners:
        open_planner.close()


def rows(planner: Planner, start: Offsets, end: Offsets) -> list[tuple[int, int]]:
    options = planner.options
    batches = [
        batch for split in planner.splits(start, end) for batch in read_split(options, ("partition", "offset"), split)
    ]
    return sorted((row["partition"], row["offset"]) for batch in batches for row in batch.to_pylist())


def expected(*spans: tuple[int, int, int]) -> list[tuple[int, int]]:
    return [(partition, offset) for partition, start, end in spans for offset in range(start, end)]


def test_a_query_begins_at_the_end_by_default(plan: Plan) -> None:
    assert plan().first() == {P0: 30, P1: 10}
    assert plan(startingOffsets="earliest").first() == {P0: 0, P1: 0}
    assert plan(startingOffsets='{"orders": {"0": 7, "1": -1}}').first() == {P0: 7, P1: 10}
    with pytest.raises(ConfigError, match="lacks orders-1"):
        plan(startingOffsets='{"orders": {"0": 7}}').first()


def test_where_a_query_began_does_not_move(plan: Plan, engine: Engine) -> None:
    planner = plan()
    before = planner.first()
    append(engine, 0, 5)
    offload(engine)
    assert planner.first() == before


def test_each_micro_batch_has_the_new_records(plan: Plan, engine: Engine) -> None:
    planner = plan(startingOffsets="earliest")
    start = planner.first()
    end = planner.next(start, None)
    assert rows(planner, start, end) == expected((0, 0, 30), (1, 0, 10))
    assert planner.next(end, None) == end
    append(engine, 1, 4)
    offload(engine)
    later = planner.next(end, None)
    assert rows(planner, end, later) == expected((1, 10, 14))


def test_a_limit_is_shared_out_by_what_waits(plan: Plan) -> None:
    planner = plan(startingOffsets="earliest", maxOffsetsPerTrigger=8)
    start, all_rows = planner.first(), list[tuple[int, int]]()
    assert planner.next(start, 8) == {P0: 6, P1: 2}
    while (end := planner.next(start, 8)) != start:
        batch_rows = rows(planner, start, end)
        assert 1 <= len(batch_rows) <= 8
        all_rows += batch_rows
        start = end
    assert sorted(all_rows) == expected((0, 0, 30), (1, 0, 10))


def test_a_request_for_everything_ignores_the_options(plan: Plan) -> None:
    planner = plan(startingOffsets="earliest", maxOffsetsPerTrigger=8, minOffsetsPerTrigger=8)
    assert planner.next(planner.first(), None) == {P0: 30, P1: 10}


def test_few_records_wait_for_others_or_for_the_longest_delay(plan: Plan, engine: Engine) -> None:
    clock = ManualClock()
    planner = plan(clock, minOffsetsPerTrigger=5, maxTriggerDelay="1m", maxOffsetsPerTrigger=100)
    start = planner.first()
    append(engine, 0, 4)
    offload(engine)
    assert planner.next(start, 100) == start
    clock.advance_ms(59_000)
    assert planner.next(start, 100) == start
    clock.advance_ms(1_000)
    end = planner.next(start, 100)
    assert end == {P0: 34, P1: 10}
    append(engine, 1, 5)
    offload(engine)
    assert planner.next(end, 100) == {P0: 34, P1: 15}


def test_available_now_ends_with_what_is_there(plan: Plan, engine: Engine) -> None:
    planner = plan(startingOffsets="earliest", minOffsetsPerTrigger=25, maxOffsetsPerTrigger=25)
    planner.stop_at_current_ends()
    start = planner.first()
    append(engine, 0, 50)
    offload(engine)
    for _ in range(2):
        end = planner.next(start, 25)
        assert end != start
        start = end
    assert start == {P0: 30, P1: 10}
    assert planner.next(start, 25) == start


def test_new_topics_of_a_pattern_are_read_from_their_beginning(plan: Plan, engine: Engine) -> None:
    planner = plan(subscribe=None, subscribePattern="orders.*")
    start = planner.first()
    engine.create_topic("orders-2", partitions=3)
    engine.create_topic("other", partitions=1)
    for topic, partition, count in (("orders-2", 2, 6), ("other", 0, 5), ("orders", 0, 1)):
        engine.log(topic, partition).append([Record(timestamp_ms=1, value=b"v")] * count)
    write_checkpoints(engine)
    offload(engine)
    end = planner.next(start, None)
    assert end == {P0: 31, P1: 10, **{TopicPartition("orders-2", number): 6 * (number == 2) for number in range(3)}}
    assert rows(planner, start, end) == sorted([*expected((2, 0, 6)), (0, 30)])


def test_new_partitions_are_read_from_their_beginning(plan: Plan) -> None:
    planner, start = plan(), from_json({"orders": {"0": 30}})  # offsets from before partition 1 was added
    end = planner.next(start, None)
    assert end == {P0: 30, P1: 10}
    assert rows(planner, start, end) == expected((1, 0, 10))


def test_retention_that_overtakes_a_query_is_reported_or_skipped(plan: Plan, engine: Engine) -> None:
    strict, lax = plan(startingOffsets="earliest"), plan(startingOffsets="earliest", failOnDataLoss="false")
    start = strict.first()
    end = strict.next(start, None)
    engine.log("orders", 0).delete_records(12)
    engine.apply_retention()
    write_checkpoints(engine)
    with pytest.raises(OffsetOutOfRangeError, match="orders-0"):
        strict.splits(start, end)
    first = lax.reader().log(*P0).offsets().log_start  # a tier deletes only whole segments
    assert 0 < first <= 12
    assert rows(lax, start, end) == expected((0, first, 30), (1, 0, 10))


def test_a_deleted_topic_is_reported(plan: Plan, engine: Engine) -> None:
    planner = plan(startingOffsets="earliest")
    end = planner.next(planner.first(), None)
    engine.delete_topic("orders")
    with pytest.raises(UnknownTopicError, match=r"orders.*"):
        planner.next(end, None)


def test_a_deleted_topic_of_a_pattern_is_reported_or_left_out(plan: Plan, engine: Engine) -> None:
    engine.create_topic("order", partitions=1)
    offload(engine)
    options = {"subscribe": None, "subscribePattern": "order.*", "startingOffsets": "earliest"}
    strict, lax = plan(**options), plan(**options, failOnDataLoss="false")
    end = strict.next(strict.first(), None)
    engine.delete_topic("orders")
    with pytest.raises(UnknownTopicError, match="orders-0, orders-1 no longer exists: create it again"):
        strict.next(end, None)
    assert lax.next(end, None) == {TopicPartition("order", 0): 0}


def test_a_topic_that_was_created_again_is_reported_or_read_from_its_beginning(plan: Plan, engine: Engine) -> None:
    """The new topic has more records than the query has read, so that only its id shows that it is another topic."""
    strict, lax = plan(startingOffsets="earliest"), plan(startingOffsets="earliest", failOnDataLoss="false")
    start = strict.first()
    end = restarted(strict.next(start, None))
    engine.delete_topic("orders")
    engine.create_topic("orders", partitions=2, config={"segment.bytes": 500, "retention.ms": -1})
    append(engine, 0, 45)
    append(engine, 1, 10)
    offload(engine)
    for planner in (strict, plan()):  # the running query, and one that continues from the checkpoint
        with pytest.raises(UnknownTopicError, match=r"orders in .* is not the topic .*new checkpointLocation"):
            planner.next(end, None)
        with pytest.raises(UnknownTopicError, match="not the topic"):
            planner.splits(start, end)
    later = restarted(lax.next(end, None))
    assert later == {P0: 45, P1: 10}
    assert rows(lax, end, later) == expected((0, 0, 45), (1, 0, 10))
    assert rows(lax, start, end) == []
    assert plan().next(later, None) == later


def restarted(offsets: Offsets) -> Offsets:
    """Return the offsets as read from a checkpoint."""
    return from_json(json.loads(json.dumps(to_json(offsets))))


@pytest.mark.parametrize("options", [{"subscribe": "pay"}, {"subscribe": None, "subscribePattern": "p.*"}], ids=str)
def test_the_checkpoint_of_another_topic_is_refused(plan: Plan, engine: Engine, options: dict[str, str]) -> None:
    checkpoint = plan().first()
    engine.create_topic("pay", partitions=1)
    offload(engine)
    planner = plan(**options, failOnDataLoss="false")
    for refused_call in (lambda: planner.next(checkpoint, None), lambda: planner.splits(checkpoint, checkpoint)):
        with pytest.raises(ConfigError, match=r"has offsets of orders, .*new checkpointLocation"):
            refused_call()


def test_a_checkpoint_of_a_kafka_source_is_read(plan: Plan) -> None:
    start = from_json({"orders": {"0": 28, "1": 10}})
    planner = plan()
    assert rows(planner, start, planner.next(start, None)) == expected((0, 28, 30))


def test_the_progress_shows_the_read_and_the_remaining_records(plan: Plan, engine: Engine) -> None:
    planner = plan(startingOffsets="earliest")
    assert planner.report() == {}
    start = planner.first()
    end = planner.next(start, 8)
    progress = planner.report()
    [(description, metrics)] = [(name, value) for name, value in progress.items() if name.startswith("Stratalog")]
    assert description == f"Stratalog[Subscribe[orders] of {planner.options.source.location}]"
    assert progress["orders"] == {"0": 30, "1": 10}
    splits = planner.splits(start, end)
    assert metrics == {
        "minOffsetsBehindLatest": 8,
        "maxOffsetsBehindLatest": 24,
        "avgOffsetsBehindLatest": 16,
        "bytesRead": sum(split.size_bytes for split in splits),
        "segmentsRead": 2,
    }
    assert metrics["bytesRead"] > 0
    end = planner.next(end, None)
    assert planner.next(end, None) == end
    assert planner.report()[description] == dict.fromkeys(metrics, 0)
    assert engine.partitions()


@pytest.mark.parametrize("plan", ["directory"], indirect=True)
def test_a_truncated_log_is_reported_or_continues_at_its_end(plan: Plan, engine: Engine) -> None:
    append(engine, 0, 9)
    strict, lax = plan(), plan(failOnDataLoss="false")
    end = strict.next(strict.first(), None)
    assert end[P0] == 39
    engine.log("orders", 0).truncate_to(33)
    write_checkpoints(engine)
    with pytest.raises(OffsetOutOfRangeError, match="orders-0"):
        strict.next(end, None)
    assert lax.next(end, None)[P0] == 33


@pytest.mark.parametrize("plan", ["directory"], indirect=True)
def test_records_that_a_writer_hides_for_now_are_not_lost(plan: Plan, tmp_path: Path) -> None:
    """After an unclean stop, a reader reads a directory to its end. A writer that starts again shows less at first."""
    planner = plan(startingOffsets="earliest")
    start = planner.first()
    end = planner.next(start, None)
    checkpoint = tmp_path / "data" / "replication-offset-checkpoint"
    original_text = checkpoint.read_text()
    checkpoint.write_text(original_text.replace("orders 0 30", "orders 0 20"))
    assert planner.next(end, None) == end
    with pytest.raises(StorageError, match="orders-0"):
        planner.splits(start, end)
    checkpoint.write_text(original_text)
    assert rows(planner, start, end) == expected((0, 0, 30), (1, 0, 10))


@pytest.mark.parametrize("plan", ["tier"], indirect=True)
def test_objects_that_are_deleted_under_a_batch_fail_it(plan: Plan, tmp_path: Path) -> None:
    planner = plan(startingOffsets="earliest")
    start = planner.first()
    splits = planner.splits(start, planner.next(start, None))
    for path in (tmp_path / "tier").rglob("*.seg"):
        path.unlink()
    options = planner.options
    for split in splits:
        with pytest.raises(StorageError, match="seg"):
            list(read_split(options, ("offset",), split))


def test_a_trigger_requests_only_partitions_that_have_changed(tmp_path: Path) -> None:
    count = 500
    (tmp_path / "tier").mkdir()
    target = WriteTarget((tmp_path / "tier").as_uri())
    with target.open() as writer:
        writer.create_topic("orders", count)
        writer.create_topic("other", 3)
    planner = Planner(Options({"path": target.location, "subscribe": "orders"}, streaming=True))
    start = planner.first()
    tier = planner.reader().tier
    assert tier is not None
    for changed in ((), (3,), (0, 7, 499), ()):
        with target.open() as writer:
            for log in [TopicPartition("orders", partition) for partition in changed]:
                with writer.stage(log) as stage:
                    stage.add(RecordColumns.from_records([Record(timestamp_ms=1, value=b"v")]))
                    writer.append(log, stage.finish())
        before = tier.metrics().store.requests
        end = planner.next(start, None)
        planner.report()
        splits = planner.splits(start, end) if end != start else []  # Spark plans no empty batch
        assert sum(len(split.pieces) for split in splits) == len(changed)
        assert tier.metrics().store.requests - before <= 1 + 3 * len(changed)
        start = end
    planner.close()


def plain_reader(location: str | Path, **options: str) -> Any:
    """Return the stream reader for Spark before 4.2."""
    source_options = {"path": str(location), "subscribe": "orders", "startingOffsets": "earliest", **options}
    return PlainStreamReader(Options(source_options, streaming=True), ["offset"])


def group_stream(location: str, **options: str) -> Any:
    """Return the source of a stream that commits the offsets of the group ``billing``."""
    return plain_reader(location, **{"kafka.group.id": "billing", **options})


@pytest.mark.parametrize("place", ["directory", "tier"])
def test_a_stream_commits_the_offsets_of_its_group_after_each_micro_batch(
    tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tier").mkdir()
    location = str(tmp_path / "data") if place == "directory" else (tmp_path / "tier").as_uri()
    with WriteTarget(location).open() as writer:
        writer.create_topic("orders", 2)
    stream = group_stream(location, commitGroupOffsets="true")
    for ends in ({"0": 3, "1": 1}, {"0": 7, "1": 1}):
        stream.commit({"orders": ends})
    group_stream(location).commit({"orders": {"0": 99, "1": 99}})  # without the option commitGroupOffsets
    is_tier = place == "tier"
    with open_engine(tmp_path / "data", tier=location if is_tier else None, attach=is_tier) as engine:
        assert engine.group_offsets("billing") == {P0: CommittedOffset(7), P1: CommittedOffset(1)}
        assert not caplog.records
        if place == "directory":
            stream.commit({"orders": {"0": 8, "1": 1}})
            [warning] = caplog.records
            assert warning.getMessage().startswith("offsets of group billing are not committed: ")
    stream.stop()


def test_a_stream_without_a_group_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"option commitGroupOffsets needs the name of a group: set option kafka\.group\.id"
    ):
        group_stream("data", **{"kafka.group.id": "", "commitGroupOffsets": "true"})


def test_offsets_are_written_as_the_kafka_source_writes_them() -> None:
    offsets = {TopicPartition("b", 10): 5, TopicPartition("b", 2): 1, TopicPartition("a", 0): 7}
    assert to_json(offsets) == {"a": {"0": 7}, "b": {"2": 1, "10": 5}}
    assert from_json(to_json(offsets)) == offsets


@pytest.mark.parametrize(
    ("text", "delay_ms"),
    [
        ("1500us", 1),
        ("7", 7),
        ("7ms", 7),
        ("2S", 2000),
        ("2m", 120_000),
        ("2min", 120_000),
        (" 1h ", 3_600_000),
        ("1d", 86_400_000),
    ],
)
def test_a_delay_has_the_units_of_spark(text: str, delay_ms: int) -> None:
    options = Options({"path": "data", "subscribe": "orders", "maxTriggerDelay": text}, streaming=True)
    assert options.max_delay_ms == delay_ms


@pytest.mark.parametrize(
    ("options", "streaming", "message"),
    [
        ({"endingOffsets": "latest"}, True, "endingOffsets is only for batch queries"),
        ({"as_of": "3"}, True, "as_of is only for batch queries"),
        ({"maxOffsetsPerTrigger": "0"}, True, "1 or more"),
        ({"maxOffsetsPerTrigger": "3", "minOffsetsPerTrigger": "4"}, True, "above maxOffsetsPerTrigger"),
        ({"maxTriggerDelay": "soon"}, True, "maxTriggerDelay='soon'"),
        ({"maxOffsetPerTrigger": "3"}, True, "did you mean"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str], streaming: bool, message: str) -> None:  # noqa: FBT001 - a parameter of the test

    with pytest.raises((ConfigError, UnknownSettingError), match=message):
        Options({"path": "/nowhere", "subscribe": "orders", **options}, streaming=streaming)


def test_an_older_spark_knows_no_limits(engine: Engine, tmp_path: Path) -> None:
    assert engine.partitions()
    reader = plain_reader(tmp_path / "data")
    start, end = reader.initialOffset(), reader.latestOffset()
    assert [offsets["orders"] for offsets in (start, end)] == [{"0": 0, "1": 0}, {"0": 30, "1": 10}]
    read = [batch.num_rows for task in reader.partitions(start, end) for batch in reader.read(task)]
    assert sum(read) == 40
    reader.commit(end)
    reader.stop()
    with pytest.raises(ConfigError, match="need Spark"):
        plain_reader(tmp_path / "data", maxOffsetsPerTrigger="5")


def test_an_older_spark_repeats_no_records_that_a_writer_hides_for_now(engine: Engine, tmp_path: Path) -> None:
    assert engine.partitions()
    reader = plain_reader(tmp_path / "data")
    end = reader.latestOffset()
    checkpoint = tmp_path / "data" / "replication-offset-checkpoint"
    original_text = checkpoint.read_text()
    checkpoint.write_text(original_text.replace("orders 0 30", "orders 0 20"))
    assert reader.latestOffset() == end
    checkpoint.write_text(original_text)
    append(engine, 0, 1)
    assert reader.latestOffset()["orders"] == {"0": 31, "1": 10}
    reader.stop()


def test_an_older_spark_reports_a_truncated_log_or_continues_at_its_end(engine: Engine, tmp_path: Path) -> None:
    readers = plain_reader(tmp_path / "data"), plain_reader(tmp_path / "data", failOnDataLoss="false")
    ends = [reader.latestOffset() for reader in readers]
    engine.log("orders", 0).truncate_to(20)
    write_checkpoints(engine)
    later = [reader.latestOffset() for reader in readers]
    assert [offsets["orders"] for offsets in later] == 2 * [{"0": 20, "1": 10}]
    with pytest.raises(OffsetOutOfRangeError, match="orders-0"):
        readers[0].partitions(ends[0], later[0])
    assert [batch for task in readers[1].partitions(ends[1], later[1]) for batch in readers[1].read(task)] == []
    for reader in readers:
        reader.stop()
