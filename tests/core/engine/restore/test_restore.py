"""Restore of a tier as a directory: all, to an offset or a time, interrupted, with other names, refused."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stratalog import Record, open_engine, open_reader
from stratalog.engine.restore.restore import RestoreRequest, restore
from stratalog.env import Env
from stratalog.errors import AttachError, ConfigError, CorruptObjectError, DiskFullError, StorageError
from stratalog.model.names import RESTORE_NOTE_FILE, RESTORING_FILE, TopicPartition
from stratalog.testing.faults import FaultyVfs
from stratalog.tier.takeover.download import UNFINISHED

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
START_MS = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Return the URI of a tier with two partitions of four segments, with three records in each, a minute apart."""
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    with open_engine(tmp_path / "source", tier=bucket.as_uri()) as engine:
        engine.create_topic("t", partitions=2, config={"retention.ms": -1})
        for partition in range(2):
            for first in range(0, 12, 3):
                engine.log("t", partition).append([record(number) for number in range(first, first + 3)])
                engine.log("t", partition).roll()
        engine.offload()
    return bucket.as_uri()


def record(number: int) -> Record:
    return Record(key=b"k", value=b"%d" % number, timestamp_ms=START_MS + number * 60_000)


def values(directory: Path, topic: str = "t", partition: int = 0) -> list[bytes | None]:
    with open_reader(directory) as reader:
        return [row.value for row in reader.log(topic, partition).records()]


def numbers(end: int) -> list[bytes]:
    return [b"%d" % number for number in range(end)]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_all_logs_are_restored_and_the_tier_is_not_changed(tmp_path: Path, uri: str) -> None:
    before = contents(tmp_path / "bucket")
    progress_steps = list[tuple[int, int]]()
    restored = restore(uri, tmp_path / "new", progress=lambda *step: progress_steps.append(step))
    assert [(log.log, log.log_end, log.segments, log.copied) for log in restored] == [(T0, 12, 4, 4), (T1, 12, 4, 4)]
    assert progress_steps[-1][0] == progress_steps[-1][1] == sum(log.size_bytes for log in restored)
    assert values(tmp_path / "new") == values(tmp_path / "new", partition=1) == numbers(12)
    assert contents(tmp_path / "bucket") == before
    assert not (tmp_path / "new" / RESTORE_NOTE_FILE).exists()
    for path in (tmp_path / "new" / "t-0").glob("*.log"):
        assert path.read_bytes() == (tmp_path / "source" / "t-0" / path.name).read_bytes()
    with open_engine(tmp_path / "new") as engine:
        assert engine.log("t", 0).append([record(12)]).base_offset == 12


@pytest.mark.parametrize("end", [0, 2, 3, 4, 11, 12])
@pytest.mark.long
def test_a_restored_log_ends_at_the_last_batch_below_the_requested_end(tmp_path: Path, uri: str, end: int) -> None:
    restored = restore(uri, tmp_path / "new", RestoreRequest(to_offsets={T0: end}))
    batch_end = end // 3 * 3  # a batch that is only partly below the end is left out
    assert [(log.log_end, log.segments) for log in restored] == [(batch_end, -(-end // 3)), (12, 4)]
    assert values(tmp_path / "new") == numbers(batch_end)
    with open_engine(tmp_path / "new") as engine:
        assert engine.log("t", 0).append([record(0)]).base_offset == batch_end


def test_a_moment_is_an_end_of_every_log(tmp_path: Path, uri: str) -> None:
    moment = datetime(2026, 1, 1, 0, 6)  # noqa: DTZ001 - without a zone it is UTC
    restored = restore(uri, tmp_path / "new", RestoreRequest(to_time=moment))
    assert [log.log_end for log in restored] == [6, 6]
    assert values(tmp_path / "new", partition=1) == numbers(6)


def test_a_directory_that_contains_the_tier_is_refused(tmp_path: Path, uri: str) -> None:
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(ConfigError, match=f"the tier {uri} is inside the log directory {tmp_path}"):
        restore(uri, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_plan_touches_nothing(tmp_path: Path, uri: str) -> None:
    planned = restore(uri, tmp_path / "new", RestoreRequest(to_offsets={T0: 4}), dry_run=True)
    assert [(log.segments, log.copied) for log in planned] == [(2, 0), (4, 0)]
    assert all(log.requests >= log.segments for log in planned)
    assert not (tmp_path / "new").exists()


def test_a_topic_gets_another_name_and_id_beside_the_old_one(tmp_path: Path, uri: str) -> None:
    restored = restore(uri, tmp_path / "source", RestoreRequest(rename={"t": "again"}))
    assert [str(log.log) for log in restored] == ["again-0", "again-1"]
    with open_engine(tmp_path / "source") as engine:
        assert engine.topics()["again"].topic_id != engine.topics()["t"].topic_id
        assert [record.value for record in engine.log("again", 1).records()] == numbers(12)


def test_a_log_that_begins_later_begins_there(tmp_path: Path, uri: str) -> None:
    with open_engine(tmp_path / "source", tier=uri) as engine:
        engine.log("t", 0).delete_records(4)
        engine.log("t", 0).append([record(12)])
        engine.log("t", 0).roll()
        engine.offload()
    restore(uri, tmp_path / "new")
    with open_reader(tmp_path / "new") as reader:
        assert reader.log("t", 0).offsets().log_start == 4
        assert [row.offset for row in reader.log("t", 0).records()] == list(range(4, 13))


# --- interruptions -----------------------------------------------------------------------------------------------


def test_restored_segments_are_not_fetched_again(tmp_path: Path, uri: str) -> None:
    with open_engine(tmp_path / "source", tier=uri) as engine:
        files = FaultyVfs()

        def rule(operation: str, path: str) -> None:
            if operation == "rename" and path.endswith("00000000000000000006.log"):
                raise KeyboardInterrupt

        files.rule = rule
        with pytest.raises(KeyboardInterrupt):
            restore(uri, tmp_path / "new", RestoreRequest(to_offsets={T0: 8}), env=Env(files=files))
        with pytest.raises(AttachError, match=r"restore to .* was interrupted"):
            open_engine(tmp_path / "new")
        engine.log("t", 1).append([record(12)])
        engine.log("t", 1).roll()
        engine.offload()  # the restore continues with the version that it began with
        with pytest.raises(AttachError, match="another restore"):
            restore(uri, tmp_path / "new", RestoreRequest(to_offsets={T0: 9}))
        restored = restore(uri, tmp_path / "new", RestoreRequest(to_offsets={T0: 8}))
    assert (restored[0].segments, restored[1].log_end) == (3, 12)
    assert restored[0].copied == 1
    assert values(tmp_path / "new") == numbers(6)
    assert not list((tmp_path / "new").rglob("*.restoring"))


def test_replaced_and_new_records_are_never_mixed(tmp_path: Path, uri: str) -> None:
    """A restore over an existing topic is interrupted before the second folder is cleared, and repeated.

    The old files in this folder have the expected names and sizes, but other records.
    """
    with open_engine(tmp_path / "new") as engine:
        engine.create_topic("t", partitions=2)
        for partition in range(2):
            for first in range(0, 12, 3):
                records = [record(number)._replace(key=b"x") for number in range(first, first + 3)]
                engine.log("t", partition).append(records)
                engine.log("t", partition).roll()
    files = FaultyVfs()

    def rule(operation: str, path: str) -> None:
        if operation == "remove" and "t-1" in path:
            raise KeyboardInterrupt

    files.rule = rule
    with pytest.raises(KeyboardInterrupt):
        restore(uri, tmp_path / "new", RestoreRequest(overwrite=["t"]), env=Env(files=files))
    restore(uri, tmp_path / "new", RestoreRequest(overwrite=["t"]))
    with open_reader(tmp_path / "new") as reader:
        assert {row.key for partition in range(2) for row in reader.log("t", partition).records()} == {b"k"}
    assert not list((tmp_path / "new").rglob(RESTORING_FILE))


def test_a_full_disk_is_reported_and_the_restore_continues(tmp_path: Path, uri: str) -> None:
    files = FaultyVfs()
    files.room_bytes = 900
    with pytest.raises(DiskFullError):
        restore(uri, tmp_path / "new", env=Env(files=files))
    restore(uri, tmp_path / "new")
    assert values(tmp_path / "new") == numbers(12)


def test_a_segment_is_durable_before_it_gets_its_name(tmp_path: Path, uri: str) -> None:
    """Otherwise a power loss could leave an incomplete file with its final name, which a later restore would keep."""
    files = FaultyVfs()
    restore(uri, tmp_path / "new", env=Env(files=files))
    renames = [
        (position, path)
        for position, (operation, path) in enumerate(files.done)
        if operation == "rename" and path.endswith("0.log")
    ]
    assert len(renames) == 2
    for position, path in renames:
        earlier = [(operation, where) for operation, where in files.done[:position] if where == path + UNFINISHED]
        assert earlier[-1][0] != "write"
        assert ("sync", path + UNFINISHED) in earlier


@pytest.mark.parametrize("piece_bytes", [64, 4 << 20])
def test_other_bytes_than_were_stored_are_refused(
    tmp_path: Path, uri: str, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a layout reads a segment in one piece, the layout compares the hash. Otherwise, the restore compares it."""
    monkeypatch.setattr("stratalog.tier.takeover.download.PIECE_BYTES", piece_bytes)
    damaged = sorted((tmp_path / "bucket").glob("t-*/0/segments/*"))[1]
    data = bytearray(damaged.read_bytes())
    data[3] ^= 1  # this byte is in the base offset, which no CRC covers
    damaged.write_bytes(data)
    with pytest.raises(CorruptObjectError, match=damaged.name):
        restore(uri, tmp_path / "new")
    data[3] ^= 1
    damaged.write_bytes(data)
    restore(uri, tmp_path / "new")
    assert values(tmp_path / "new") == numbers(12)


# --- refusals ----------------------------------------------------------------------------------------------------


def test_records_are_not_replaced_unasked(tmp_path: Path, uri: str) -> None:
    with open_engine(tmp_path / "new") as engine:
        engine.create_topic("t", partitions=2)
        topic_id = engine.topics()["t"].topic_id
        engine.log("t", 1).append([record(99)])
    with pytest.raises(AttachError, match=r"t-1 contains records: .* \(--overwrite t, or overwrite=\['t'\]"):
        restore(uri, tmp_path / "new")
    restore(uri, tmp_path / "new", RestoreRequest(overwrite=["t"]))
    assert values(tmp_path / "new", partition=1) == numbers(12)
    with open_reader(tmp_path / "new") as reader:
        assert reader.topics()["t"].topic_id == topic_id


def test_a_brokers_directory_must_have_the_topic(tmp_path: Path, uri: str) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "meta.properties").write_text("version=1\nnode.id=1\n")
    with pytest.raises(AttachError, match="create topic t in its cluster with"):
        restore(uri, tmp_path / "new")


def test_records_that_the_tier_lacks_are_reported(tmp_path: Path, uri: str) -> None:
    with pytest.raises(StorageError, match="from offset 0 to 12, not to 13"):
        restore(uri, tmp_path / "new", RestoreRequest(to_offsets={T0: 13}))
    with pytest.raises(ConfigError, match="there is no t-9"):
        restore(uri, tmp_path / "new", RestoreRequest(to_offsets={TopicPartition("t", 9): 1}))
    with pytest.raises(AttachError, match="there is no topic u"):
        restore(uri, tmp_path / "new", RestoreRequest(topics=["u"]))


@pytest.mark.parametrize(
    ("rename", "text"),
    [
        ({"t": "u"}, "t-0 and u-0 would both become u-0"),
        ({"t": "x", "u": "x"}, "t-0 and u-0 would both become x-0"),
        ({"t": "../x"}, "topic name '../x' is not allowed"),
        ({"t": "x" * 250}, "is not allowed"),
        ({"v": "x"}, "topic v gets another name, but is not restored"),
    ],
)
@pytest.mark.long
def test_names_that_cannot_be_are_refused_before_anything_is_there(
    tmp_path: Path, uri: str, rename: dict[str, str], text: str
) -> None:
    with open_engine(tmp_path / "other", tier=uri) as engine:
        engine.create_topic("u", config={"retention.ms": -1})
        engine.log("u", 0).append([record(0)])
        engine.log("u", 0).roll()
        engine.offload()
    with pytest.raises(StorageError, match=re.escape(text)):
        restore(uri, tmp_path / "new", RestoreRequest(rename=rename))
    restore(uri, tmp_path / "new", RestoreRequest(rename={"t": "u", "u": "t"}))
    assert values(tmp_path / "new", "u") == numbers(12)


@pytest.mark.parametrize(
    "note", ["", "[]", '{"version": 2, "tier": "", "logs": {}}', '{"version": 1, "logs": {"t-0": 1}}']
)
def test_a_malformed_note_is_refused(tmp_path: Path, uri: str, note: str) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / RESTORE_NOTE_FILE).write_text(note)
    with pytest.raises(AttachError, match="malformed"):
        restore(uri, tmp_path / "new")
