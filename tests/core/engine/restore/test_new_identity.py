"""Restore of logs under another topic id: state that is valid in one cluster only is not restored."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from log_bed import LogBed, records
from stratalog import CommittedOffset, Engine, Record, open_engine, open_reader
from stratalog.engine.restore.restore import RestoreRequest, restore
from stratalog.env import Env
from stratalog.model.messages.offsets_topic import OFFSETS_TOPIC, OffsetCommit, parse_offsets_record
from stratalog.model.names import TopicPartition
from stratalog.testing.faults import FaultyVfs

T0 = TopicPartition("t", 0)
NOW_MS = Env().clock.now_ms()


@pytest.fixture
def uri(tmp_path: Path, producer_batch: Callable[[int], bytes]) -> str:
    """Return the URI of a tier with a log in the epochs 0, 7 and 37, one segment for each.

    Each segment has a batch of producer 9.
    """
    (tmp_path / "bucket").mkdir()
    uri = (tmp_path / "bucket").as_uri()
    with open_engine(tmp_path / "lost", tier=uri) as engine:
        engine.create_topic("t", config={"retention.ms": -1})
        log = engine.log("t", 0)
        for sequence, epoch in enumerate((0, 7, 37)):
            log.lead(epoch)
            log.append_as_leader(producer_batch(sequence))
            log.append([Record(value=b"%d" % epoch, timestamp_ms=NOW_MS)])
            log.roll()
        engine.offload()
    return uri


@pytest.fixture
def producer_batch(bed: LogBed) -> Callable[[int], bytes]:
    """Return a function that returns a batch of producer 9 with a given sequence."""

    def made(sequence: int) -> bytes:
        return bed.batch(0, records(1, timestamp_ms=NOW_MS), producer=(9, 0, sequence))

    return made


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Return a directory with an empty topic of the same name and another topic id, as a new cluster has it."""
    with open_engine(tmp_path / "other") as engine:
        engine.create_topic("t")
    return tmp_path / "other"


def epochs(directory: Path) -> list[tuple[int, int]]:
    """Open an engine over the directory twice, and return the log's leader epochs with their start offsets."""
    for _ in range(2):
        with open_engine(directory) as engine:
            log = engine.log("t", 0)
            epoch_starts = [(entry.epoch, entry.start_offset) for entry in log.view().epochs.entries]
            assert log.leader_epoch == epoch_starts[-1][0]
    return epoch_starts


def batch_epochs(directory: Path) -> set[object]:
    with open_reader(directory) as reader:
        return set(reader.log("t", 0).to_arrow()["leader_epoch"].to_pylist())


def test_records_are_in_the_first_epoch_and_the_next_one_begins_at_the_end(
    uri: str, other: Path, tmp_path: Path
) -> None:
    (restored,) = restore(uri, other)
    assert (restored.log_end, batch_epochs(other)) == (6, {0})
    assert (other / "t-0" / "leader-epoch-checkpoint").read_text().split() == ["0", "1", "0", "0"]
    with open_reader(uri) as tier, open_reader(other) as reader:
        sent = [(r.offset, r.value, r.timestamp_ms) for r in tier.log("t", 0).records()]
        assert [(r.offset, r.value, r.timestamp_ms) for r in reader.log("t", 0).records()] == sent
    assert epochs(other) == [(0, 0), (1, 6)]
    restore(uri, tmp_path / "same")
    assert epochs(tmp_path / "same") == [(0, 0), (7, 2), (37, 4), (38, 6)]
    assert batch_epochs(tmp_path / "same") == {0, 7, 37}


@pytest.mark.parametrize("end", [2, 6])
def test_a_producer_with_the_id_of_one_of_the_old_cluster_loses_nothing(
    uri: str, other: Path, producer_batch: Callable[[int], bytes], end: int
) -> None:
    """A new cluster assigns producer ids from 0.

    A batch of the new cluster must not count as a retry of the old producer with the same id.
    """
    restore(uri, other, RestoreRequest(to_offsets={T0: end}))
    for directory_is_clean in (True, False):
        with open_engine(other) as engine:
            log = engine.log("t", 0)
            assert log.producers() == []
            if directory_is_clean:
                log.append([Record(value=b"crash")])
                engine.flush()
                crashed = other.parent / "crashed"
                crashed.mkdir()
                for path in (other / "t-0").iterdir():
                    (crashed / path.name).write_bytes(path.read_bytes())
        # simulate a crash: the batches that the next recovery reads must not restore the old producers
        if directory_is_clean:
            (other / ".kafka_cleanshutdown").unlink()
            for path in crashed.iterdir():
                (other / "t-0" / path.name).write_bytes(path.read_bytes())
    with open_engine(other) as engine:
        log = engine.log("t", 0)
        assert log.append_as_leader(producer_batch(0)).base_offset == end + 1


def test_a_transaction_that_is_open_at_the_end_is_reported_and_any_coordinator_can_end_it(
    tmp_path: Path, other: Path, bed: LogBed
) -> None:
    (tmp_path / "bucket").mkdir()
    uri = (tmp_path / "bucket").as_uri()
    with open_engine(tmp_path / "lost", tier=uri) as engine:
        engine.create_topic("t")
        log = engine.log("t", 0)
        for sequence in range(2):
            sent = [Record(value=b"%d" % sequence, timestamp_ms=NOW_MS)]
            log.append_as_leader(bed.batch(0, sent, producer=(9, 0, sequence), transactional=True))
            log.end_transaction(9, 0, commit=True, coordinator_epoch=37)
        log.roll()
        engine.offload()
    for directory, expected_epoch in ((other, -1), (tmp_path / "same", 37)):
        # offset 3 is the marker of the second transaction
        (restored,) = restore(uri, directory, RestoreRequest(to_offsets={T0: 3}))
        assert (restored.log_end, restored.open_transactions) == (3, 1)
        with open_engine(directory) as engine:
            log = engine.log("t", 0)
            (transaction,) = log.open_transactions()
            assert (transaction.coordinator_epoch, log.offsets().last_stable) == (expected_epoch, 2)
    with open_engine(other) as engine:
        log = engine.log("t", 0)
        log.end_transaction(9, 0, commit=False, coordinator_epoch=0)
        assert [r.value for r in log.records(isolation="read_committed")] == [b"0"]


# --- committed offsets of groups ---------------------------------------------------------------------------------


def committed(engine: Engine, group: str) -> dict[int, CommittedOffset]:
    with engine.consumer(group=group, topics=["t"]) as consumer:
        return {name.partition: offset for name, offset in consumer.committed().items()}


@pytest.mark.long
def test_committed_offsets_are_of_the_first_epoch(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    uri = (tmp_path / "bucket").as_uri()
    offsets = {
        0: CommittedOffset(5, 37, "told"),
        1: CommittedOffset(6, -1),
        2: CommittedOffset(7, 0),
    }
    for place in ("lost", "other"):
        with open_engine(tmp_path / place, tier=uri if place == "lost" else None) as engine:
            engine.create_topic("t", partitions=4)
            with engine.consumer(group="g", topics=["t"]) as consumer:
                consumer.commit({TopicPartition("t", partition): value for partition, value in offsets.items()})
                consumer.commit({TopicPartition("t", 3): CommittedOffset(8, 37)})
                consumer.commit({TopicPartition("t", 3): CommittedOffset(9, 0)})
            for name in engine.partitions() if place == "lost" else ():
                engine.log(*name).roll()
            if place == "lost":
                engine.offload()
    request = RestoreRequest(topics=[OFFSETS_TOPIC], overwrite=[OFFSETS_TOPIC])
    restore(uri, tmp_path / "other", request)
    with open_engine(tmp_path / "other") as engine:
        assert committed(engine, "g") == {
            0: CommittedOffset(5, 0, "told"),
            1: offsets[1],
            2: offsets[2],
            3: CommittedOffset(9, 0),
        }
        counts = {name: engine.log(*name).offsets().log_end for name in engine.partitions()}
    with open_engine(tmp_path / "lost") as engine:
        before = {name: engine.log(*name).offsets().log_end for name in engine.partitions()}
        assert committed(engine, "g")[0] == offsets[0]
    # a committed offset that needs no change is not written again
    assert sum(counts.values()) == sum(before.values()) + 1
    restore(uri, tmp_path / "same", request)
    with open_engine(tmp_path / "same") as engine:
        engine.create_topic("t", partitions=4)
        assert committed(engine, "g")[0] == offsets[0]


@pytest.mark.parametrize("epoch", [37, 0, -1])
@pytest.mark.parametrize("version", [3, 4])
def test_a_committed_offset_has_no_topic_id_of_the_old_cluster(tmp_path: Path, version: int, epoch: int) -> None:
    """Kafka 4.1 stores the topic id in a tagged field, and ignores committed offsets of another topic id."""
    (tmp_path / "bucket").mkdir()
    uri = (tmp_path / "bucket").as_uri()
    key = b"\0\1\0\1g\0\1t\0\0\0\0"
    numbers = version.to_bytes(2, "big") + (5).to_bytes(8, "big") + epoch.to_bytes(4, "big", signed=True)
    value = numbers + {3: b"\0\4told" + bytes(8), 4: b"\5told" + bytes(8) + b"\1\0\x10" + uuid.uuid4().bytes}[version]
    with open_engine(tmp_path / "lost", tier=uri) as engine:
        engine.create_topic(OFFSETS_TOPIC, config={"cleanup.policy": "compact"})
        engine.log(OFFSETS_TOPIC, 0).append([Record(key=key, value=value)])
        engine.log(OFFSETS_TOPIC, 0).roll()
        engine.offload()
    with open_engine(tmp_path / "other") as engine:
        engine.create_topic(OFFSETS_TOPIC, config={"cleanup.policy": "compact"})
    restore(uri, tmp_path / "other")
    with open_reader(tmp_path / "other") as reader:
        values = [record.value for record in reader.log(OFFSETS_TOPIC, 0).records()]
    assert values[0] == value
    assert len(values) == 1 + (version == 4 or epoch > 0)
    parsed = parse_offsets_record(key, values[-1])
    assert parsed is not None
    assert parsed.value == OffsetCommit(offset=5, leader_epoch=min(epoch, 0), metadata="told", commit_timestamp_ms=0)
    assert values[-1] is not None
    assert version == 3 or values[-1].endswith(bytes(9))  # the commit timestamp and an empty list of tagged fields


def test_a_group_that_had_read_beyond_the_cut_continues_there(tmp_path: Path) -> None:
    """The group continues at the end offset of the restore, even if the log has grown past the committed offset."""
    (tmp_path / "bucket").mkdir()
    uri = (tmp_path / "bucket").as_uri()
    with open_engine(tmp_path / "lost", tier=uri) as engine:
        engine.create_topic("t", config={"retention.ms": -1})
        for number in range(10):
            engine.log("t", 0).append([Record(value=b"%d" % number)])
        with engine.consumer(group="g", topics=["t"], auto_offset_reset="earliest") as consumer:
            assert sum(len(records) for records in consumer.poll().values()) == 10
            consumer.commit()
        for name in engine.partitions():
            engine.log(*name).roll()
        engine.offload()
    restore(uri, tmp_path / "new", RestoreRequest(to_offsets={T0: 4}))
    with open_engine(tmp_path / "new") as engine:
        for number in range(20, 40):
            engine.log("t", 0).append([Record(value=b"%d" % number)])
        with engine.consumer(group="g", topics=["t"], auto_offset_reset="latest") as consumer:
            assert [record.offset for read in consumer.poll().values() for record in read] == list(range(4, 24))


# --- interruptions -----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_restore_that_ends_anywhere_is_repeated(uri: str, other: Path, tmp_path: Path) -> None:
    """The restore is interrupted before every change of a file; a repeated restore completes it."""
    request, repeat_request = RestoreRequest(to_offsets={T0: 5}), RestoreRequest(to_offsets={T0: 5}, overwrite=["t"])
    clean = tmp_path / "clean"
    with open_engine(clean) as engine:
        engine.create_topic("t")
    restore(uri, clean, request)
    expected = {path.name: path.read_bytes() for path in (clean / "t-0").iterdir() if "metadata" not in path.name}
    assert len(list((clean / "t-0").glob("*.log"))) > 2
    for step in range(1000):
        files, operations = FaultyVfs(), list[str]()

        def rule(operation: str, path: str, step: int = step, operations: list[str] = operations) -> None:
            if "t-0" in path and operation in {"rename", "remove", "truncate"}:
                operations.append(operation)
                if len(operations) > step:
                    raise KeyboardInterrupt

        files.rule = rule
        try:
            restore(uri, other, repeat_request, env=Env(files=files))
        except KeyboardInterrupt:
            restore(uri, other, repeat_request)
        else:
            assert step > 20
            return
        actual = {path.name: path.read_bytes() for path in (other / "t-0").iterdir() if "metadata" not in path.name}
        assert actual == expected, (step, operations[-1])
    pytest.fail("it never came to its end")
