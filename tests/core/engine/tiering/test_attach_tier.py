"""Attaching a tier with an empty disk: next offset, next epoch, producers, settings, interruptions, refusals."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from log_bed import LogBed, records
from stratalog import Engine, Record, open_engine, open_reader
from stratalog.env import Env
from stratalog.errors import (
    AttachError,
    ConfigError,
    CorruptManifestError,
    DiskFullError,
    FencedEpochError,
    OutOfOrderSequenceError,
    StorageError,
)
from stratalog.model.names import ATTACH_NOTE_FILE, TOPICS_FILE, TopicPartition
from stratalog.testing.faults import FaultyVfs
from stratalog.testing.power_loss import PowerLossVfs

T0 = TopicPartition("t", 0)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Return the URI of a tier with the topic ``t`` of two partitions, with three segments of one record in each.

    A fourth record in each partition was never offloaded.
    """
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    with open_engine(tmp_path / "lost", tier=bucket.as_uri()) as engine:
        engine.create_topic("t", partitions=2)
        for partition in range(2):
            fill(engine, partition, 3)
            engine.log("t", partition).append([Record(value=b"on disk alone")])
        engine.offload()
    return bucket.as_uri()


@pytest.fixture
def producer_batch(bed: LogBed) -> Callable[[int], bytes]:
    """Return a function that returns a batch of producer 9 with a given sequence."""

    def made(sequence: int) -> bytes:
        return bed.batch(0, records(1, timestamp_ms=Env().clock.now_ms()), producer=(9, 0, sequence))

    return made


def fill(engine: Engine, partition: int, segments: int) -> None:
    log = engine.log("t", partition)
    for number in range(segments):
        log.append([Record(key=b"k", value=b"%d" % number)])
        log.roll()


def values(engine: Engine, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in engine.log("t", partition).records()]


def remote_bytes(engine: Engine) -> int:
    assert engine.tier is not None
    return sum(engine.tier.log(*name).known_bytes() for name in engine.tier.logs())


def test_every_log_continues_at_the_next_offset_in_the_next_epoch(tmp_path: Path, uri: str) -> None:
    progress_steps = list[tuple[int, int]]()
    with open_engine(
        tmp_path / "new", tier=uri, attach=True, progress=lambda *step: progress_steps.append(step)
    ) as engine:
        assert [(log.log.partition, log.log_end, log.leader_epoch, log.lost) for log in engine.attached] == [
            (0, 3, 1, 1),
            (1, 3, 1, 1),
        ]
        assert [total for _, total in progress_steps] == sorted(total for _, total in progress_steps)
        assert progress_steps[-1][0] == progress_steps[-1][1] == remote_bytes(engine)
        assert values(engine) == [b"0", b"1", b"2"]
        log = engine.log("t", 0)
        assert log.append([Record(value=b"new")]).base_offset == 3
        log.roll()
        assert [result.tier_end for result in engine.offload()] == [4, 3]
    with open_reader(uri) as reader:
        assert [(r.offset, r.value, r.leader_epoch) for r in reader.log("t", 0).records()][-1] == (3, b"new", 1)


def test_a_log_begins_where_it_was_cut(tmp_path: Path, uri: str) -> None:
    with open_engine(tmp_path / "lost", tier=uri) as engine:
        engine.log("t", 0).delete_records(1)
        engine.apply_retention()
    with open_engine(tmp_path / "new", tier=uri, attach=True) as engine:
        assert [(log.log_start, log.log_end) for log in engine.attached] == [(1, 3), (0, 3)]
        assert values(engine) == [b"1", b"2"]


def test_the_previous_engine_is_fenced(tmp_path: Path, uri: str) -> None:
    with open_engine(tmp_path / "lost", tier=uri) as old, open_engine(tmp_path / "new", tier=uri, attach=True) as new:
        fill(old, 0, 1)
        with pytest.raises(FencedEpochError):
            old.offload()
        with pytest.raises(FencedEpochError):
            old.log("t", 0).append([Record(value=b"too late")])
        fill(new, 0, 1)
        new.offload()
        assert values(new) == [b"0", b"1", b"2", b"0"]


@pytest.mark.parametrize("is_clean", [True, False])
def test_an_attached_directory_opens_again_even_if_nothing_was_appended(
    tmp_path: Path, uri: str, *, is_clean: bool
) -> None:
    with open_engine(tmp_path / "new", tier=uri, attach=True):
        pass
    if not is_clean:
        (tmp_path / "new" / ".kafka_cleanshutdown").unlink()
    with open_engine(tmp_path / "new", tier=uri) as engine:
        bounds = engine.log("t", 1).offsets()
        assert (bounds.log_start, bounds.local_log_start, bounds.log_end) == (0, 3, 3)
        fill(engine, 1, 1)
        assert [result.segments for result in engine.offload()] == [0, 1]  # the log is not fenced by its own epoch
        assert values(engine, 1) == [b"0", b"1", b"2", b"0"]
    assert not (tmp_path / "new" / ATTACH_NOTE_FILE).exists()


def test_producers_continue_and_their_retries_are_known(tmp_path: Path, producer_batch: Callable[[int], bytes]) -> None:
    (tmp_path / "bucket").mkdir()
    uri = (tmp_path / "bucket").as_uri()
    with open_engine(tmp_path / "lost", tier=uri) as engine:
        engine.create_topic("t")
        log = engine.log("t", 0)
        for sequence in range(3):
            log.append_as_leader(producer_batch(sequence))
        log.roll()
        engine.offload()
    with open_engine(tmp_path / "new", tier=uri, attach=True) as engine:
        log = engine.log("t", 0)
        assert [producer.producer_id for producer in log.producers()] == [9]
        assert log.append_as_leader(producer_batch(2)).base_offset == 2  # a retry
        assert log.append_as_leader(producer_batch(3)).base_offset == 3
        with pytest.raises(OutOfOrderSequenceError):
            log.append_as_leader(producer_batch(7))


def test_a_transaction_whose_end_was_not_offloaded_is_reported_and_can_be_ended(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    uri = (tmp_path / "bucket").as_uri()
    with open_engine(tmp_path / "lost", tier=uri) as engine:
        engine.create_topic("t")
        log = engine.log("t", 0)
        with engine.producer(transactional_id="x") as producer:
            producer.begin_transaction()
            producer.send("t", value=b"in a transaction", partition=0)
            producer.flush()
            log.roll()
            producer.commit_transaction()
        engine.offload([T0])
    with open_engine(tmp_path / "new", tier=uri, attach=["t"]) as engine:
        (attached,) = engine.attached
        assert (attached.open_transactions, engine.log("t", 0).offsets().last_stable) == (1, 0)
        (transaction,) = engine.log("t", 0).open_transactions()
        engine.log("t", 0).end_transaction(
            transaction.producer_id, transaction.producer_epoch, commit=True, coordinator_epoch=1
        )
        assert [r.value for r in engine.log("t", 0).records(isolation="read_committed")] == [b"in a transaction"]


def test_logs_are_spread_over_the_directories(tmp_path: Path, uri: str) -> None:
    dirs = [tmp_path / "a", tmp_path / "b"]
    with open_engine(dirs, tier=uri, attach=True) as engine:
        assert [values(engine, partition) for partition in range(2)] == [[b"0", b"1", b"2"]] * 2
    assert [len(list(path.glob("t-*"))) for path in dirs] == [1, 1]


def test_settings_and_partitions_without_segments_come_back(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    uri = (tmp_path / "bucket").as_uri()
    with open_engine(tmp_path / "lost", tier=uri) as engine:
        engine.create_topic("t", partitions=4, config={"segment.bytes": 5_000, "retention.ms": 123_456_789})
        fill(engine, 2, 1)
        engine.offload()
        engine.alter_topic("t", {"retention.ms": 987_654_321})
        fill(engine, 1, 1)
        engine.offload()
    with open_engine(tmp_path / "new", tier=uri, attach=True) as engine:
        topic = engine.topics()["t"]
        assert topic.partitions == (0, 1, 2, 3)
        assert (topic.config.segment_bytes, topic.config.retention_ms) == (5_000, 987_654_321)
        assert [engine.log("t", partition).offsets().log_end for partition in range(4)] == [0, 1, 1, 0]
        fill(engine, 3, 1)
        engine.offload()
    with open_engine(tmp_path / "new", tier=uri) as engine:
        assert values(engine, 3) == [b"0"]


def test_groups_and_their_topic_come_back(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    uri = (tmp_path / "bucket").as_uri()
    with open_engine(tmp_path / "lost", tier=uri) as engine:
        engine.create_topic("t")
        fill(engine, 0, 2)
        with engine.consumer(group="g", topics=["t"]) as consumer:
            consumer.commit({T0: 2})
        for name in engine.partitions():
            engine.log(*name).roll()
        engine.offload()
    with open_engine(tmp_path / "new", tier=uri, attach=True) as engine:
        assert engine.topics()["__consumer_offsets"].config.cleanup_policy == ("compact",)
        with engine.consumer(group="g", topics=["t"]) as consumer:
            assert {name: offset.offset for name, offset in consumer.committed().items()} == {T0: 2}


# --- state that is not taken over --------------------------------------------------------------------------------


def test_topics_that_were_deleted_or_left_the_tier_do_not_come_back(tmp_path: Path, uri: str) -> None:
    with open_engine(tmp_path / "lost", tier=uri) as engine:
        engine.create_topic("local")
        engine.log("local", 0).append([Record(value=b"x")])
        engine.log("local", 0).roll()
        engine.offload()
        engine.alter_topic("local", {"remote.storage.enable": False, "remote.log.delete.on.disable": True})
        engine.delete_topic("t")
    with open_engine(tmp_path / "new", tier=uri, attach=True) as engine:
        assert engine.topics() == {}


def test_topics_can_be_chosen(tmp_path: Path, uri: str) -> None:
    with open_engine(tmp_path / "lost", tier=uri) as engine:
        engine.create_topic("u")
        engine.log("u", 0).append([Record(value=b"x")])
        engine.log("u", 0).roll()
        engine.offload()
    with pytest.raises(AttachError, match="there is no topic v in"):
        open_engine(tmp_path / "new", tier=uri, attach=["u", "v"])
    with open_engine(tmp_path / "new", tier=uri, attach=["u"]) as engine:
        assert list(engine.topics()) == ["u"]


def test_a_topic_under_two_ids_must_be_chosen(tmp_path: Path, uri: str) -> None:
    with open_engine(tmp_path / "other", tier=uri) as engine:
        topic_id = engine.create_topic("t").topic_id
        fill(engine, 0, 1)
        engine.offload()
    with pytest.raises(AttachError, match=f"several ids.*t-{topic_id}"):
        open_engine(tmp_path / "new", tier=uri, attach=True)
    with open_engine(tmp_path / "new", tier=uri, attach=[f"t-{topic_id}"]) as engine:
        assert (engine.topics()["t"].topic_id, values(engine)) == (topic_id, [b"0"])


def test_a_directory_with_logs_is_refused_and_nothing_is_claimed(tmp_path: Path, uri: str) -> None:
    with open_engine(tmp_path / "other") as engine:
        engine.create_topic("mine")
    with pytest.raises(AttachError, match=r"the directories contain logs such as .*mine-0"):
        open_engine([tmp_path / "new", tmp_path / "other"], tier=uri, attach=True)
    with open_engine(tmp_path / "lost", tier=uri) as old:
        fill(old, 0, 1)
        assert old.offload()[0].tier_end == 5


def test_attaching_needs_a_tier_and_a_list(tmp_path: Path, uri: str) -> None:
    with pytest.raises(ConfigError, match="attach needs a tier"):
        open_engine(tmp_path / "new", attach=True)
    with pytest.raises(ConfigError, match="a list in which each item is text"):
        open_engine(tmp_path / "new", tier=uri, attach="t")


def test_a_damaged_manifest_is_reported_and_the_attach_can_be_repeated(tmp_path: Path, uri: str) -> None:
    roots = sorted((tmp_path / "bucket").glob("t-*/1/manifest/*"))
    root_bytes = roots[-1].read_bytes()
    roots[-1].write_bytes(root_bytes[:-1])
    with pytest.raises(CorruptManifestError):
        open_engine(tmp_path / "new", tier=uri, attach=True)
    roots[-1].write_bytes(root_bytes)
    with open_engine(tmp_path / "new", tier=uri, attach=True) as engine:
        assert values(engine, 1) == [b"0", b"1", b"2"]


# --- interruptions -----------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is killed here."""


def steps(tmp_path: Path, uri: str) -> Iterator[Callable[[FaultyVfs], None]]:
    """Yield functions that arrange a kill before the n-th change of the disk by an attach."""
    counting_files = FaultyVfs()
    with open_engine(tmp_path / "counted", tier=uri, attach=True, env=Env(files=counting_files)):
        total = sum(is_change(operation) for operation, _ in counting_files.done)
    for step in range(0, total, 5):

        def arm(files: FaultyVfs, step: int = step) -> None:
            remaining = step

            def rule(operation: str, path: str) -> None:
                nonlocal remaining
                remaining -= is_change(operation)
                if remaining < 0 and is_change(operation):
                    raise Killed(path)

            files.rule = rule

        yield arm


def is_change(operation: str) -> bool:
    return operation in {"create", "write", "rename", "remove", "make folder", "remove folder", "sync", "sync folder"}


def test_an_interrupted_attach_is_noticed_in_another_order_of_directories(tmp_path: Path, uri: str) -> None:
    """The engine would open only the partitions whose folders were created before the interruption."""
    files, first_dir, second_dir = FaultyVfs(), str(tmp_path / "one"), str(tmp_path / "two")

    def rule(operation: str, path: str) -> None:
        if (operation, Path(path).name) == ("make folder", "t-1"):
            raise Killed(path)

    files.rule = rule
    with pytest.raises(Killed):
        open_engine(config={"log.dirs": [first_dir, second_dir]}, tier=uri, attach=True, env=Env(files=files))
    with pytest.raises(AttachError, match=f"to {first_dir} was interrupted"):
        open_engine(config={"log.dirs": [second_dir, first_dir]}, tier=uri)
    with open_engine(config={"log.dirs": [first_dir, second_dir]}, tier=uri, attach=True) as engine:
        assert len(engine.partitions()) == 2


@pytest.mark.long
def test_an_attach_that_was_killed_anywhere_is_repeated(tmp_path: Path, uri: str) -> None:
    refusals = 0
    for number, arm in enumerate(steps(tmp_path, uri)):
        files, folder = FaultyVfs(), tmp_path / f"killed-{number}"
        arm(files)
        try:
            open_engine(folder, tier=uri, attach=True, env=Env(files=files))
        except Killed:
            pass
        else:
            break
        if (folder / ATTACH_NOTE_FILE).exists():
            with pytest.raises(AttachError, match="was interrupted: run `stratalog attach` again"):
                open_engine(folder, tier=uri)
            refusals += 1
        with open_engine(
            folder, tier=uri, attach=not (folder / TOPICS_FILE).exists() or (folder / ATTACH_NOTE_FILE).exists()
        ) as engine:
            assert [values(engine, partition) for partition in range(2)] == [[b"0", b"1", b"2"]] * 2
            assert engine.log("t", 0).append([Record(value=b"next")]).base_offset == 3
    assert refusals > 3


@pytest.mark.long
def test_a_loss_of_power_in_the_midst_leaves_what_can_be_repeated(tmp_path: Path, uri: str) -> None:
    chance = random.Random(7)  # noqa: S311 - a failure is replayed from its seed
    folder = tmp_path / "new"
    states = list[Path]()

    def leave(operation: str) -> None:
        if is_change(operation) and folder.exists() and chance.random() < 0.2:
            states.append(tmp_path / f"state-{len(states)}")
            files.leave(states[-1], chance)

    files = PowerLossVfs(folder, leave)
    with open_engine(folder, tier=uri, attach=True, env=Env(files=files)):
        files.before = None
    assert len(states) > 5
    for state in states:
        repeat = (state / ATTACH_NOTE_FILE).exists() or not (state / TOPICS_FILE).exists()
        with open_engine(state, tier=uri, attach=repeat) as engine:
            assert [values(engine, partition) for partition in range(2)] == [[b"0", b"1", b"2"]] * 2


def test_a_full_disk_is_reported_and_the_attach_can_be_repeated(tmp_path: Path, uri: str) -> None:
    files = FaultyVfs()
    files.room_bytes = 700
    with pytest.raises(DiskFullError):
        open_engine(tmp_path / "new", tier=uri, attach=True, env=Env(files=files))
    with open_engine(tmp_path / "new", tier=uri, attach=True) as engine:
        assert values(engine) == [b"0", b"1", b"2"]


def test_a_folder_with_records_is_never_removed(tmp_path: Path, uri: str) -> None:
    with open_engine(tmp_path / "other") as engine:
        engine.create_topic("mine")
        engine.log("mine", 0).append([Record(value=b"x")])
    (tmp_path / "other" / ATTACH_NOTE_FILE).write_text(f'{{"version": 1, "tier": "{uri}"}}')
    with pytest.raises(AttachError, match="mine-0"):
        open_engine(tmp_path / "other", tier=uri, attach=True)
    assert any(file.stat().st_size for file in (tmp_path / "other" / "mine-0").glob("*.log"))


@pytest.mark.parametrize("note", ["", "[]", '{"version": 1}', '{"version": 1, "tier": "s3://other"}', '{"version": 2}'])
def test_a_note_of_another_attach_is_refused(tmp_path: Path, uri: str, note: str) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / ATTACH_NOTE_FILE).write_text(note)
    with pytest.raises(AttachError, match=ATTACH_NOTE_FILE):
        open_engine(tmp_path / "new", tier=uri, attach=True)


def test_errors_of_libraries_become_typed_errors(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    with open_engine(tmp_path / "new", tier=(tmp_path / "bucket").as_uri(), attach=True) as engine:
        assert engine.attached == ()
        with pytest.raises(StorageError):
            engine.log("t", 0)
